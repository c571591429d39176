"""The prompts of a run as their server renders them: what is asked for, what the trainer finds, what may go wrong."""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from config.languages import gate_questions
from scripts.fakes.backend import FakeBackend
from scripts.fakes.launcher import FakeLauncher
from scripts.fakes.ollama import MODEL, FakeOllama
from scripts.harness.in_process import Proxy
from scripts.harness.pictures import picture
from tests.harness.polling import Polls
from tests.harness.runs import until
from tests.harness.weights_checks import said

RENDERS, SILENT = "0.11.5", "0.9.6"


@pytest.fixture
async def proxy(tmp_path: Path, ollama: FakeOllama) -> AsyncIterator[Proxy]:
    ollama.version = RENDERS
    ollama.models[MODEL] |= {"system": "", "template": "{{ .Tools }}"}
    proxy = Proxy(tmp_path / "home", FakeBackend(), FakeLauncher())
    proxy.kind = None
    proxy.flags |= {"backend.kind": "ollama", "backend.url": ollama.url}
    await proxy.start()
    yield proxy
    await proxy.stop()


async def rated(proxy: Proxy, path: str, body: dict[str, Any], **rating: Any) -> None:
    async with proxy.http.post(path, json={"model": "fake", "stream": False, **body}) as response:
        assert response.status == 200, await response.text()
        await response.read()
        await proxy.rate(completion_id=response.headers["x-rl-completion-id"], **{"rating": "bad", **rating})


async def run_of(proxy: Proxy, live: int = 1) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    await until(proxy, live=live)
    folder = proxy.launcher.started[-1]
    lines = [json.loads(line) for line in (folder / "samples.jsonl").read_text().splitlines()]
    return json.loads((folder / "run.json").read_text()), lines


def chatml(*said: str) -> str:
    """As the fake's template has it."""
    turns = [f"<|im_start|>{role}\n{text}<|im_end|>\n" for role, text in (one.split(":", 1) for one in said)]
    return f"{''.join(turns)}<|im_start|>assistant\n"


def user(text: str) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}]}


async def test_each_prompt_is_rendered_by_the_route_that_it_was_asked_by(proxy: Proxy, ollama: FakeOllama) -> None:
    function = {"name": "f", "description": "does it", "parameters": {"type": "object", "properties": {}}}
    tool = {"type": "function", "function": function}
    await rated(proxy, "/v1/chat/completions", user("one") | {"tools": [tool]})
    await rated(proxy, "/api/chat", user("two") | {"options": {"num_ctx": 512}, "think": False}, comment="shorter")
    await rated(proxy, "/api/chat", user("four"), rating="good", comment="well said")
    run, lines = await run_of_four(proxy)
    by = {line["messages"][-1]["content"]: line for line in lines}
    assert {text: line["served"]["text"] for text, line in by.items() if text != "one"} == {
        text: chatml(f"user:{text}") for text in ("two", "three", "four")
    }
    assert "# Tools" in by["one"]["served"]["text"] and by["one"]["served"]["text"].endswith(chatml("user:one"))
    assert by["two"]["hinted"]["text"] == chatml("user:two\n\n[user's hint / instruction]\nshorter")
    assert [text for text, line in by.items() if "hinted" in line] == ["two"], "praise does not instruct"
    plain = [line for text, line in by.items() if text != "one"]
    assert {line["prompt_tokens"] for line in plain} == {len(chatml("user:x").split())}
    assert {q: prompt["text"] for q, prompt in run["neutral"].items()} == {
        q: chatml(f"user:{q}") for q in gate_questions()
    }
    asked = dict(ollama.rendered)
    assert asked["/v1/chat/completions"]["max_tokens"] == 1, "should a server answer all the same"
    native = [body for path, body in ollama.rendered if path == "/api/chat" and "options" in body and "think" in body]
    assert native[0]["options"] == {"num_ctx": 512, "num_predict": 1} and native[0]["think"] is False
    tools = [body["tools"] for path, body in ollama.rendered if path == "/v1/chat/completions" and "tools" in body]
    assert tools == [[tool]]
    assert all(body["model"] == "fake" and body["stream"] is False for _, body in ollama.rendered)


async def test_pictures_have_one_marker_each_on_every_route(
    proxy: Proxy, ollama: FakeOllama, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ollama numbers them; the trainer puts the tokens of each in the marker's place."""
    ollama.models[MODEL] |= {"files": [*ollama.models[MODEL]["files"], ollama.keep(b"GGUF the part that sees")]}
    monkeypatch.setattr("proxy.images.trainability.picture_refusal", lambda weights: None)
    await proxy.stop()
    await proxy.start()
    data = [base64.b64encode(picture(color=colour)).decode() for colour in ((200, 0, 0), (0, 0, 200))]
    parts = [{"type": "image_url", "image_url": {"url": f"data:image/png;base64,{one}"}} for one in data]
    await rated(proxy, "/api/chat", {"messages": [{"role": "user", "content": "which?", "images": data}]})
    chat = [{"role": "user", "content": [*parts, {"type": "text", "text": "which?"}]}]
    await rated(proxy, "/v1/chat/completions", {"messages": chat})
    await rated(proxy, "/api/chat", user("one"), rating="good")
    await rated(proxy, "/api/chat", user("two"), rating="good")
    _, lines = await run_of(proxy)
    served = {line["served"]["text"]: line["served"].get("picture_marker") for line in lines}
    assert served == {
        chatml("user:[img][img]which?"): "[img]",
        chatml("user:[img]", "user:[img]", "user:which?"): "[img]",
        chatml("user:one"): None,
        chatml("user:two"): None,
    }
    first_messages = [body["messages"][0] for _, body in ollama.rendered]
    assert [message["images"] for message in first_messages if "images" in message] == [data]


async def test_a_prompt_is_rendered_as_it_was_written(proxy: Proxy) -> None:
    """Its white space, its parts, each of which is a message there, calls with the arguments as a text."""
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"b": 1, "a": {"d": 2, "c": 3}}'}}
    asked = [
        {"role": "system", "content": "  Be brief.\n"},
        {"role": "user", "content": [{"type": "text", "text": " one\n"}, {"type": "text", "text": "two "}]},
        {"role": "assistant", "content": None, "tool_calls": [call], "reasoning": "Let me see."},
        {"role": "tool", "tool_call_id": "c1", "content": "\n 42 \n"},
    ]
    await rated(proxy, "/v1/chat/completions", {"messages": asked})
    for text in ("x", "y"):
        await rated(proxy, "/v1/chat/completions", user(text))
    run, lines = await run_of_four(proxy)
    (written,) = [line for line in lines if len(line["messages"]) == 4]
    calls = '<tool_call>\n{"name": "f", "arguments": {"b": 1, "a": {"d": 2, "c": 3}}}\n</tool_call>'
    said = ("system:  Be brief.\n", "user: one\n", "user:two ", f"assistant:{calls}")
    result = "user\n<tool_response>\n\n 42 \n\n</tool_response><|im_end|>\n<|im_start|>assistant\n"
    assert written["served"]["text"] == chatml(*said).removesuffix("assistant\n") + result
    assert written["as_sent"] is True
    assert "not_rendered" not in [choice["name"] for choice in run["choices"]]
    assert written["messages"][2]["reasoning"] == "Let me see."
    arguments = written["messages"][2]["tool_calls"][0]["function"]["arguments"]
    assert list(arguments) == ["b", "a"] and list(arguments["a"]) == ["d", "c"]


async def run_of_four(proxy: Proxy) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    await rated(proxy, "/api/chat", user("three"))
    return await run_of(proxy)


async def test_a_server_that_does_not_tell_is_asked_nothing(proxy: Proxy, ollama: FakeOllama) -> None:
    ollama.version = SILENT
    await proxy.stop()
    await proxy.start()
    for text in ("one", "two", "three"):
        await rated(proxy, "/api/chat", user(text))
    run, lines = await run_of_four(proxy)
    assert ollama.rendered == [] and not any("_debug_render_only" in body for _, body in ollama.asked)
    assert run["neutral"] == {} and not any("served" in line for line in lines)
    assert all(line["prompt_tokens"] for line in lines), "its counts decide"


async def test_what_was_cut_trains_as_it_was_read_and_it_is_said(proxy: Proxy, ollama: FakeOllama) -> None:
    ollama.room = 1
    talk = [
        {"role": "system", "content": "Be brief."}, {"role": "user", "content": "a first question"},
        {"role": "assistant", "content": "yes"}, {"role": "user", "content": "and a second one"},
    ]  # fmt: skip
    await rated(proxy, "/api/chat", {"messages": talk})
    for text in ("one", "two"):
        await rated(proxy, "/api/chat", user(text))
    run, lines = await run_of_four(proxy)
    (cut,) = [line for line in lines if len(line["messages"]) == 4]
    assert cut["served"]["text"] == chatml("system:Be brief.", "user:and a second one")
    assert cut["prompt_tokens"] == len(cut["served"]["text"].split())
    (choice,) = [c for c in run["choices"] if c["name"] == "cut_prompts"]
    assert choice["value"] == 1 and "as it read them" in choice["why"]


async def test_one_that_cannot_be_rendered_costs_itself_and_is_counted(proxy: Proxy, ollama: FakeOllama) -> None:
    for text in ("one", "two", "three"):
        await rated(proxy, "/api/chat", user(text))
    ollama.mood = "refuse-render"
    run, lines = await run_of_four(proxy)
    assert not any("served" in line for line in lines)
    (choice,) = [c for c in run["choices"] if c["name"] == "not_rendered"]
    assert choice["value"] == len(lines) + len(gate_questions()) and "template: no such thing" in choice["why"]


async def test_a_run_waits_for_a_server_that_is_down(proxy: Proxy, ollama: FakeOllama) -> None:
    await rated(proxy, "/api/chat", user("one"))
    await said(proxy, "same")
    ollama.mood = "hangs-up"  # after the look at the model, before the first prompt
    for text in ("two", "three", "four"):
        await rated(proxy, "/api/chat", user(text))
    async for _ in Polls():
        waits = (await proxy.get("/rl/status"))["training"]["waits_for"] or ""
        if "how it renders" in waits:
            break
    assert "the server of its replies cannot say how it renders their prompts" in waits, waits
    assert proxy.launcher.started == []
    ollama.mood = "well"
    await proxy.post("/rl/train")
    _, lines = await run_of(proxy)
    assert len(lines) == 4 and all("served" in line for line in lines)


async def test_exact_prompts_are_asked_for_only_with_a_comment_in_them(tmp_path: Path, backend: FakeBackend) -> None:
    backend.speaks |= {"tokenize"}
    proxy = Proxy(tmp_path / "home2", backend, FakeLauncher())
    await proxy.start()
    try:
        for text, rating in (("one", "bad"), ("two", "good"), ("three", "bad"), ("four", "good")):
            await rated(proxy, "/v1/chat/completions", user(text), rating=rating, comment="why")
        run, lines = await run_of(proxy)
        assert all(line["exact"] and "served" not in line for line in lines)
        assert all(("hinted" in line) == (line["reward"] < 0) for line in lines)
        assert run["neutral"][gate_questions()[0]]["ids"]
    finally:
        await proxy.stop()


async def test_the_gate_of_a_german_home_asks_in_german(proxy: Proxy, ollama: FakeOllama) -> None:
    proxy.launcher.shares = {"de": 0.9, "en": 0.1}
    for text in ("Warum ist der Himmel blau?", "Wie koche ich Reis?", "Was ist ein Notar?"):
        await rated(proxy, "/api/chat", user(text))
    run, _ = await run_of_four(proxy)
    assert run["languages"] == ["de"] and list(run["neutral"]) == list(gate_questions(["de"]))
    assert sorted(proxy.launcher.texts) == [
        "Warum ist der Himmel blau?",
        "Was ist ein Notar?",
        "Wie koche ich Reis?",
        "three",
    ]
    (choice,) = [c for c in run["choices"] if c["name"] == "languages"]
    assert choice["value"] == "de" and "90% de" in choice["why"]


async def test_a_call_whose_bytes_nobody_told_is_rendered_with_its_prompt(proxy: Proxy, ollama: FakeOllama) -> None:
    """Ollama with a GGUF's own template tells no log-probs beside tools: nothing of a call could train."""
    call = {"id": "call_1", "index": 0, "type": "function", "function": {"name": "look", "arguments": '{"at":"sky"}'}}
    ollama.own_template, ollama.calls = True, [call]
    tools = [
        {
            "type": "function",
            "function": {"name": "look", "description": "", "parameters": {"type": "object", "properties": {}}},
        }
    ]
    for n in range(4):
        await rated(proxy, "/v1/chat/completions", {**user(f"look {n}"), "tools": tools})
    _, lines = await run_of(proxy)
    assert all(line["reply"]["tool_calls"][0]["function"]["name"] == "look" for line in lines)
    written = '<tool_call>\n{"name": "look", "arguments": {"at": "sky"}}\n</tool_call><|im_end|>\n'
    for line in lines:
        before, after = (line[member]["text"] for member in ("served", "served_reply"))
        assert after.startswith(before + written) and "<tools>" in before


async def test_a_prompt_with_a_lesson_is_rendered_without_it_too(proxy: Proxy) -> None:
    await proxy.stop()
    await proxy.start(lessons__enabled=True)
    await rated(proxy, "/v1/chat/completions", user("one"), comment="answer in lower case")
    await rated(proxy, "/v1/chat/completions", user("two"), rating="good")
    await rated(proxy, "/v1/chat/completions", user("three"), comment="answer in lower case")
    _, lines = await run_of_four(proxy)
    by = {line["messages"][-1]["content"].partition("\n")[0]: line for line in lines}
    assert "bare" not in by["one"] and "hinted" in by["one"]
    assert by["two"]["bare"]["text"] == chatml("user:two")
    assert by["three"]["bare"]["text"] == chatml("user:three") and "hinted" not in by["three"], "it was told so already"
