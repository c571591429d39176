"""What the trainer reads: one line a completion, whatever its raters and whenever they spoke."""

from __future__ import annotations

import json
from typing import Any

import pytest

from proxy.dialects import chat_turns, template_kwargs
from proxy.training import run_folder
from scripts.harness.in_process import Proxy
from tests.harness.runs import rated, until


def lines_of(proxy: Proxy, run: int) -> list[dict[str, Any]]:
    folder = proxy.launcher.started[run - 1]
    return [json.loads(line) for line in (folder / "samples.jsonl").read_text().splitlines()]


async def test_a_late_rating_counts_for_the_version_that_wrote_the_reply(proxy: Proxy) -> None:
    late = await proxy.chat("late")
    await late.read()
    await rated(proxy, 4)
    await until(proxy, live=1)
    await rated(proxy, 3)
    await proxy.rate(completion_id=late.headers["x-rl-completion-id"], rating="bad")
    await until(proxy, live=2)
    versions = {line["completion"]: line["version"] for line in lines_of(proxy, 2)}
    assert versions.pop(late.headers["x-rl-completion-id"]) == 0
    assert set(versions.values()) == {1}


async def test_several_raters_are_one_sample(proxy: Proxy) -> None:
    await proxy.stop()
    await proxy.start(train__raters={"boss": 0.5})
    id = (await proxy.chat("a")).headers["x-rl-completion-id"]
    for rater, rating, comment in [("ann", "good", "fine"), ("bob", "bad", "too long"), ("boss", "bad", "no list")]:
        await proxy.rate(completion_id=id, rater=rater, rating=rating, comment=comment)
    await proxy.chat("b")
    await proxy.rate(completion_id="last", rater="boss", rating="good")
    status = await until(proxy, live=1)
    lines = {line["completion"]: line for line in lines_of(proxy, 1)}
    assert len(lines) == 2 and status["last_run"]["samples"] == 2
    both = lines.pop(id)
    assert (both["reward"], both["weight"]) == (-1.0, 1.0) and both["comment"] == "no list\ntoo long"
    assert len(both["ratings"]) == 3 and both["rating"] == both["ratings"][0]
    (alone,) = lines.values()
    assert (alone["reward"], alone["weight"], alone["comment"]) == (1.0, 0.5, None)


async def test_a_rating_of_a_completion_that_trained_trains_once_and_hears_the_others(proxy: Proxy) -> None:
    id = (await proxy.chat("a")).headers["x-rl-completion-id"]
    await proxy.rate(completion_id=id, rater="ann", rating="good", comment="fine")
    await proxy.rate(completion_id=id, rater="cyd", rating="good")
    await rated(proxy, 2)
    await until(proxy, live=1)
    await rated(proxy, 3)
    _, late = await proxy.rate(completion_id=id, rater="bob", rating="bad", comment="too long")
    await until(proxy, live=2)
    (line,) = [line for line in lines_of(proxy, 2) if line["completion"] == id]
    assert line["ratings"] == [late["id"]] and line["comment"] == "too long" and line["reward"] == 1.0


async def test_the_scheme_decides_the_reward(proxy: Proxy) -> None:
    await proxy.stop()
    await proxy.start(train__rewards="hybrid")
    id = (await proxy.chat("a")).headers["x-rl-completion-id"]
    await proxy.rate(completion_id=id, rater="ann", rating="good")
    await proxy.rate(completion_id=id, rater="bob", rating="2/5")
    await rated(proxy, 2)
    await until(proxy, live=1)
    (line,) = [line for line in lines_of(proxy, 1) if line["completion"] == id]
    assert line["reward"] == 0.25


async def test_normalised_looks_at_all_ratings_so_far(proxy: Proxy) -> None:
    await proxy.stop()
    await proxy.start(train__rewards="normalised", train__start_at=30)
    await rated(proxy, 29, "5/5")
    await proxy.chat("a")
    await proxy.rate(completion_id="last", rating="4/5")
    await until(proxy, live=1)
    rewards = {line["reward"] for line in lines_of(proxy, 1)}
    assert len(rewards) == 2 and min(rewards) < 0 < max(rewards) < 1


async def test_a_completion_on_both_sides_of_the_gate_trains(proxy: Proxy) -> None:
    """Held back once, rated again by somebody else: the gate of that run is not asked about it."""
    await proxy.stop()
    await proxy.start(train__start_at=16, train__held_share=0.5, train__max_rater_share=1)
    await rated(proxy, 16)
    await until(proxy, live=1)
    held = [line["completion"] for line in lines_of(proxy, 1) if line["split"] == "held"]
    assert held
    await proxy.rate(completion_id=held[0], rater="bob", rating="bad")
    await proxy.post("/rl/train")
    await until(proxy, live=2)
    lines = [line for line in lines_of(proxy, 2) if line["completion"] == held[0]]
    assert [line["split"] for line in lines] == ["train"]
    assert {line["completion"] for line in lines_of(proxy, 2) if line["split"] == "held"} == set(held[1:])


async def test_how_many_are_held_back_is_said_with_the_reason(proxy: Proxy) -> None:
    await proxy.stop()
    await proxy.start(train__start_at=16)
    await rated(proxy, 16)
    await until(proxy, live=1)
    run = json.loads((proxy.launcher.started[0] / "run.json").read_text())
    (made,) = [choice for choice in run["choices"] if choice["name"] != "languages"]
    held = [line for line in lines_of(proxy, 1) if line["split"] == "held"]
    assert (made["name"], made["value"]) == ("held", len(held))
    assert "of 16 samples" in made["why"] and "train.held_share = 0.125" in made["why"]


async def test_tools_are_in_chat_form_whatever_format_they_came_in(proxy: Proxy) -> None:
    """They are rendered by the model's template, which knows no other form."""
    schema = {"type": "object", "properties": {"city": {"type": "string"}}}
    anthropic = [{"name": "weather", "description": "of a city", "input_schema": schema}]
    function = {"name": "weather", "description": "of a city", "parameters": schema}
    said = [{"role": "user", "content": "hi"}]
    one = {"model": "fake", "max_tokens": 9, "messages": said, "tools": anthropic}
    other = {"model": "fake", "input": said, "tools": [{"type": "function", **function}]}
    for path, body in (("/v1/messages", one), ("/v1/responses", other)):
        answer = await proxy.http.post(path, json=body)
        assert answer.status == 200, await answer.text()
        await proxy.rate(completion_id=answer.headers["x-rl-completion-id"], rating="bad")
    await rated(proxy, 2)
    await until(proxy, live=1)
    found = [line["tools"] for line in lines_of(proxy, 1)]
    expected = {"type": "function", "function": function}
    assert sorted(map(bool, found)) == [False, False, True, True]
    assert all(tools is None or tools[0].items() >= expected.items() for tools in found), found


async def test_messages_are_as_a_translated_request_had_them(proxy: Proxy) -> None:
    """A template that renders what the client sent would make another prompt than the server read."""
    reminded = [
        {"role": "user", "content": "hi"},
        {"role": "system", "content": "be short"},
        {"role": "user", "content": "and kind"},
    ]
    one = {"model": "fake", "max_tokens": 9, "system": "you", "messages": reminded, "thinking": {"type": "disabled"}}
    other = {
        "model": "fake",
        "instructions": "you",
        "input": [{"role": "developer", "content": "be short"}, {"role": "user", "content": "hi"}],
        "chat_template_kwargs": {"style": "plain"},
    }
    own = {"model": "fake", "messages": reminded, "chat_template_kwargs": {"enable_thinking": True}}
    old = {"model": "fake", "messages": reminded[:1], "think": False, "stream": False}
    asked = [("/v1/messages", one), ("/v1/responses", other), ("/v1/chat/completions", own), ("/api/chat", old)]
    seen: dict[str, Any] = {}
    for path, body in asked:
        answer = await proxy.http.post(path, json=body)
        assert answer.status == 200, await answer.text()
        await answer.read()
        id = answer.headers["x-rl-completion-id"]
        seen[id] = proxy.backend.requests[-1]
        await proxy.rate(completion_id=id, rating="bad")
    await until(proxy, live=1)
    found = {line["completion"]: line for line in lines_of(proxy, 1)}
    for id, sent in seen.items():
        assert found[id]["messages"] == sent["messages"]
        assert found[id]["template_kwargs"] == sent["chat_template_kwargs"]


@pytest.mark.parametrize(
    "request_", [b"", b"[]", b'{"chat_template_kwargs": ["none"]}', b'{"thinking": 3, "think": {}}']
)
@pytest.mark.parametrize("dialect", ["chat", "messages", "responses", "ollama", "of another time"])
def test_a_request_that_makes_no_sense_keeps_nothing_from_training(dialect: str, request_: bytes) -> None:
    assert template_kwargs(dialect, request_, translated=True) is None
    odd = [{"role": "system", "content": None}, {"role": "system"}, {"content": 3}]
    assert chat_turns(dialect, odd) == odd


def test_an_odd_line_of_progress_is_no_step() -> None:
    odd = [
        {"event": "step"},
        {"event": "step", "step": None},
        {"event": "step", "step": [1]},
        {"event": "step", "step": "2"},
    ]
    assert run_folder.steps([*odd, {"event": "step", "step": 1, "loss": 0.5}]) == [{"step": 1, "loss": 0.5}]
