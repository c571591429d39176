"""When rlproxy samples by itself, and what stops it: over a whole proxy with a fake backend."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from proxy.relay.rollouts import sampler
from scripts.harness.in_process import Proxy
from scripts.harness.versions import publish
from tests.harness.polling import Polls
from tests.harness.runs import until as until_run
from tests.proxy.relay.rollouts.conftest import refuse, until, until_idle


async def episodes(proxy: Proxy) -> list[dict[str, Any]]:
    return list((await proxy.get("/rl/episodes"))["data"])


async def test_a_captured_prompt_gets_its_answers_and_their_rewards(sampling: Proxy) -> None:
    await sampling.say("sum", temperature=0.7)
    rollouts = await until_idle(sampling, 4)
    assert (rollouts["prompts"], rollouts["state"]) == (1, "waiting")
    assert rollouts["tokens_today"] == 4 * 6 and rollouts["minutes_today"] >= 0
    found = await episodes(sampling)
    assert sorted(one["reward"] for one in found) == [-1, -1, 1, 1] and len({one["group"] for one in found}) == 1
    (prompt,) = {one["prompt"] for one in found}
    listed = await sampling.get("/rl/completions")
    assert [row["id"] for row in listed["data"]] == [prompt]
    assert {one["comment"] for one in found} == {None, "an even last digit is wrong"}
    assert (await sampling.get("/rl/status"))["counts"]["done"] == 1


async def test_an_export_marks_them_and_no_import_takes_them_for_somebodys(sampling: Proxy) -> None:
    await sampling.say("sum")
    await until_idle(sampling, 4)
    async with sampling.http.get("/rl/export", params={"rollouts": "1"}) as response:
        lines = (await response.text()).splitlines()
    assert [json.loads(line)["rollout"] for line in lines] == [False, True, True, True, True]
    other_home = b"\n".join(line.replace('"id":"', '"id":"other-', 1).encode() for line in lines)
    async with sampling.http.post("/rl/import", data=other_home) as response:
        result = await response.json()
    assert (result["stored"], len(result["refused"])) == (1, 4) and "rollout" in result["refused"][0]["why"]


async def test_what_is_asked_is_what_was_captured_with_a_temperature(sampling: Proxy) -> None:
    tools = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}]
    await sampling.say("a", "b", "sum ", temperature=0, tools=tools, tool_choice="auto", user="ann", seed=7, stop=["x"])
    await until_idle(sampling, 4)
    body = sampling.backend.requests[-1]
    assert [message["content"] for message in body["messages"]] == ["a", "b", "sum "]
    assert (body["temperature"], body["max_tokens"], body["stop"], body["stream"]) == (1.0, 1024, ["x"], False)
    assert body["tools"] == tools and body["tool_choice"] == "auto" and body["return_token_ids"] is True
    assert "user" not in body and "seed" not in body
    found = await episodes(sampling)
    (turn,) = (await sampling.get(f"/rl/episodes/{found[0]['id']}"))["turns"]
    assert turn["exact"] is True


async def test_it_is_off_without_the_setting(proxy: Proxy) -> None:
    assert (await proxy.get("/rl/status"))["rollouts"] is None


async def test_a_request_breaks_it_off_at_once_and_the_prompt_gets_what_it_lacks_later(sampling: Proxy) -> None:
    await sampling.post("/rl/pause")
    await sampling.say("sum")
    sampling.backend.hold.clear()
    await sampling.post("/rl/resume")
    await until(sampling, lambda rollouts: rollouts["state"] == "sampling")
    while len(sampling.backend.requests) < 2:
        await asyncio.sleep(0.01)
    asked = asyncio.create_task(sampling.say("another"))
    rollouts = await until(sampling, lambda rollouts: "a request is answered" in rollouts["line"])
    assert rollouts["state"] == "waiting" and sampling.backend.cancelled == 1 and not asked.done()
    sampling.backend.hold.set()
    await asked
    assert (await until_idle(sampling, 8))["prompts"] == 2


async def test_a_prompt_that_the_code_has_no_reward_for_costs_one_answer(sampling: Proxy) -> None:
    await sampling.say("none of this")
    await until_idle(sampling, 1)
    assert [one["state"] for one in await episodes(sampling)] == ["open"]


async def test_code_that_fails_is_told_and_asked_no_more_for_a_while(sampling: Proxy) -> None:
    await sampling.say("raise it")
    rollouts = await until(sampling, lambda rollouts: "train.reward failed" in rollouts["line"])
    assert "KeyError" in rollouts["problem"] and rollouts["answers"] == 1


async def test_a_server_that_refuses_a_prompt_is_asked_no_more_for_it(sampling: Proxy) -> None:
    await sampling.post("/rl/pause")
    await sampling.say("sum")
    sampling.backend.says = refuse
    await sampling.post("/rl/resume")
    while len(sampling.backend.requests) < 3:  # with our wishes, and without
        await asyncio.sleep(0.01)
    await until_idle(sampling, 0)
    assert len(sampling.backend.requests) == 3


async def test_a_server_that_refuses_what_makes_a_capture_exact_is_asked_without(sampling: Proxy) -> None:
    sampling.backend.mood = "refuse-logprobs"
    await sampling.say("sum")
    await until_idle(sampling, 4)


async def test_a_server_that_fails_is_left_alone_for_a_while(sampling: Proxy) -> None:
    await sampling.post("/rl/pause")
    await sampling.say("sum")
    sampling.backend.mood = "error"
    await sampling.post("/rl/resume")
    await until(sampling, lambda rollouts: "answered a rollout with 500" in rollouts["line"])
    assert len(sampling.backend.requests) == 3  # with our wishes, and without


@pytest.mark.parametrize(("setting", "value"), [("rollout_tokens", 1), ("rollout_minutes", 1e-9)])
async def test_its_day_is_bounded_in_tokens_and_in_time(
    sampling: Proxy, code: Path, setting: str, value: float
) -> None:
    await sampling.stop()
    await sampling.start(train__reward=f"{code}:reward", train__rollouts=4, **{f"train__{setting}": value})
    await sampling.say("one")
    await sampling.say("two")
    rollouts = await until(sampling, lambda rollouts: f"train.{setting}" in rollouts["line"])
    assert rollouts["answers"] <= 4


async def test_it_waits_while_training_is_paused(sampling: Proxy) -> None:
    await sampling.post("/rl/pause")
    await sampling.say("sum")
    await until(sampling, lambda rollouts: "paused" in rollouts["line"])
    assert (await sampling.get("/rl/status"))["rollouts"]["answers"] == 0
    await sampling.post("/rl/resume")
    await until_idle(sampling, 4)


async def test_its_groups_start_a_run_and_the_next_version_is_asked_anew(sampling: Proxy, code: Path) -> None:
    await sampling.stop()
    await sampling.start(train__reward=f"{code}:reward", train__rollouts=4, train__start_at_episodes=4)
    await sampling.say("sum")
    status = await until_run(sampling, live=1)
    assert status["last_run"]["samples"] == 4
    rollouts = await until(sampling, lambda rollouts: rollouts["answers"] >= 8)
    assert rollouts["prompts"] == 1
    assert {one["version"] for one in await episodes(sampling)} >= {0, 1}


async def test_after_a_restart_nothing_is_sampled_twice_and_what_was_not_rewarded_is(
    sampling: Proxy, code: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await sampling.say("sum")
    await until_idle(sampling, 4)
    asked = len(sampling.backend.requests)
    await sampling.store._writer.submit(
        lambda db: db.execute(
            "UPDATE episodes SET reward = NULL, rewarded_at = NULL, ended_at = NULL, scored_by = NULL WHERE seq = "
            "(SELECT min(seq) FROM episodes)"
        )
    )
    await sampling.stop()
    await sampling.start(train__reward=f"{code}:reward", train__rollouts=5)
    await until_idle(sampling, 5)
    assert len(sampling.backend.requests) == asked + 1
    assert {one["state"] for one in await episodes(sampling)} == {"rewarded"}


async def test_a_prompt_that_is_asked_again_meanwhile_stays_one_group(
    sampling: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sampler, "PAUSE_S", 0.05)
    await sampling.post("/rl/pause")
    await sampling.say("sum")
    sampled = 0

    def says() -> str:
        nonlocal sampled
        sampled += 1
        if sampled > 1:
            raise web.HTTPInternalServerError(text="out of memory")
        return "It is 0"

    sampling.backend.says = says
    await sampling.post("/rl/resume")
    await until(sampling, lambda rollouts: rollouts["answers"] == 1 and rollouts["problem"] is not None)
    await sampling.post("/rl/pause")
    sampling.backend.says = "It is 1"
    await sampling.say("sum")  # from now on the newest completion of this prompt is another one
    await sampling.post("/rl/resume")
    await until_idle(sampling, 4)
    assert len({one["group"] for one in await episodes(sampling)}) == 1


async def test_nobody_is_sampled_for_within_the_silence(
    sampling: Proxy, code: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sampler, "SILENCE_S", 3600.0)
    await sampling.stop()
    await sampling.start(train__reward=f"{code}:reward", train__rollouts=4)
    await sampling.say("sum")
    await until(sampling, lambda rollouts: "more without a request" in rollouts["line"])
    assert len(sampling.backend.requests) == 1


async def test_a_start_is_not_a_silence(sampling: Proxy, code: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    await sampling.post("/rl/pause")
    await sampling.say("sum")
    await sampling.stop()
    monkeypatch.setattr(sampler, "SILENCE_S", 3600.0)
    await sampling.start(train__reward=f"{code}:reward", train__rollouts=4)
    await sampling.post("/rl/resume")
    await until(sampling, lambda rollouts: "more without a request" in rollouts["line"])
    assert len(sampling.backend.requests) == 1


async def test_the_end_of_the_hours_of_training_stops_it(sampling: Proxy, monkeypatch: pytest.MonkeyPatch) -> None:
    await sampling.post("/rl/pause")
    await sampling.say("sum")
    sampling.backend.hold.clear()
    await sampling.post("/rl/resume")
    while len(sampling.backend.requests) < 2:
        await asyncio.sleep(0.01)
    monkeypatch.setattr(sampler, "is_inside", lambda hours, now: False)
    monkeypatch.setattr(sampler, "opens", lambda hours, now: now)
    await until(sampling, lambda rollouts: "outside the hours" in rollouts["line"])
    assert sampling.backend.cancelled == 1
    sampling.backend.hold.set()


async def test_a_swap_waits_for_no_rollout_and_the_new_version_gets_a_group_of_its_own(sampling: Proxy) -> None:
    await sampling.post("/rl/pause")
    await sampling.say("sum")
    await sampling.rate(completion_id="last", rating="good")
    await publish(sampling, 1)
    sampling.backend.hold.clear()
    await sampling.post("/rl/resume")
    while len(sampling.backend.requests) < 2:
        await asyncio.sleep(0.01)
    promoting = asyncio.create_task(sampling.post("/rl/promote/1"))
    async for _ in Polls():
        if sampling.backend.cancelled:
            break
    assert sampling.backend.cancelled == 1
    sampling.backend.hold.set()
    assert (await promoting)[0] == 200
    await until_idle(sampling, 4)
    assert {one["version"] for one in await episodes(sampling)} == {1}


async def test_a_request_that_passes_through_begins_a_silence_too(sampling: Proxy, code: Path) -> None:
    await sampling.stop()
    await sampling.start(train__reward=f"{code}:reward", train__rollouts=4, train__quiet_s=0.5)
    await sampling.say("sum")
    sampling.backend.hold.clear()
    await until(sampling, lambda rollouts: rollouts["state"] == "sampling")
    async with sampling.http.post("/v1/echo", json={"input": "embed this"}) as response:
        assert response.status == 200
    await until(sampling, lambda rollouts: "more without a request" in rollouts["line"])
    assert sampling.backend.cancelled == 1
    sampling.backend.hold.set()
