"""Episodes over HTTP: opened, pinned to a version, rewarded, listed; and everything that a program may do wrong."""

from __future__ import annotations

import asyncio
import sqlite3
from typing import Any

import orjson
import pytest

from scripts.harness.in_process import Proxy
from store.learning.episodes import NewEpisode
from tests.harness.episodes import ask, open_one, reward
from tests.proxy.conversation.test_redaction import TOKEN, on_disk


async def test_a_session_is_rewarded_and_becomes_an_episode(proxy: Proxy) -> None:
    await ask(proxy, "a1", "one")
    status, found = await reward(proxy, "a1", reward=0.5, group="g", comment="fine")
    assert status == 201 and found["state"] == "rewarded" and found["reward"] == 0.5 and found["group"] == "g"
    whole = await proxy.get("/rl/episodes/a1")
    assert whole["turn_count"] == len(whole["turns"]) == 1 and whole["segments"] == 1
    listed = await proxy.get("/rl/episodes")
    assert [one["id"] for one in listed["data"]] == ["a1"]
    assert listed["counts"] == {"open": 0, "rewarded": 1, "error": 0, "unrewarded": 0}
    assert listed["versions"][0]["success"] == 1.0


async def test_no_secret_of_a_program_is_stored(proxy: Proxy) -> None:
    meta = {"env": {"GH_TOKEN": TOKEN}, "seed": 1}
    assert (await open_one(proxy, id="a1", task=f"log in with {TOKEN}", meta=meta))[0] == 201
    assert (await open_one(proxy, id="a1", task=f"log in with {TOKEN}", meta=meta))[0] == 200
    assert (await proxy.get("/rl/episodes/a1"))["meta"] == {"env": {"GH_TOKEN": "[redacted:api_key]"}, "seed": 1}
    assert on_disk(proxy.home, TOKEN) == []


async def test_the_same_reward_twice_is_one_and_another_one_before_its_use_replaces_it(proxy: Proxy) -> None:
    await ask(proxy, "a1", "one")
    assert (await reward(proxy, "a1", reward=1))[0] == 201
    status, found = await reward(proxy, "a1", reward=1)
    assert status == 200 and found["result"] == "same"
    status, found = await reward(proxy, "a1", reward=0)
    assert status == 200 and found["result"] == "changed" and found["reward"] == 0
    assert (await proxy.get("/rl/episodes"))["counts"]["rewarded"] == 1


async def test_after_its_end_an_episode_takes_no_request_and_no_reward_of_a_turn(proxy: Proxy) -> None:
    _, answer, _ = await ask(proxy, "a1", "one")
    await reward(proxy, "a1", reward=1)
    status, said, _ = await ask(proxy, "a1", "one", "two", "three")
    assert status == 410 and "has ended" in said["error"]["message"]
    assert (await reward(proxy, "a1", reward=1, completion_id=answer["id"]))[0] == 410


async def test_turns_are_rewarded_one_by_one(proxy: Proxy) -> None:
    _, first, _ = await ask(proxy, "a1", "one")
    _, second, _ = await ask(proxy, "a1", "one", "two", "three")
    assert (await reward(proxy, "a1", reward=1, completion_id=first["id"]))[0] == 201
    assert (await reward(proxy, "a1", reward=1, completion_id=first["id"]))[0] == 200
    assert (await proxy.get("/rl/episodes/a1"))["state"] == "open"
    assert (await reward(proxy, "a1", reward=-1, completion_id=second["id"], final=True))[0] == 201
    whole = await proxy.get("/rl/episodes/a1")
    assert whole["state"] == "rewarded" and [turn["reward"] for turn in whole["turns"]] == [1, -1]
    assert whole["reward"] is None


async def test_a_missing_reward_is_not_zero(proxy: Proxy) -> None:
    await ask(proxy, "a1", "one")
    status, said = await reward(proxy, "a1")
    assert status == 400 and "no reward" in said["error"]["message"]
    status, said = await reward(proxy, "a1", final=False)
    assert status == 400 and "missing" in said["error"]["message"]
    assert (await proxy.get("/rl/episodes"))["data"] == []


async def test_an_error_leaves_the_episode_out(proxy: Proxy) -> None:
    await open_one(proxy, id="a1")
    await ask(proxy, "a1", "one")
    status, found = await reward(proxy, "a1", error="the sandbox died")
    assert status == 201 and found["state"] == "error" and found["reward"] is None
    assert (await reward(proxy, "a1", error="the sandbox died"))[0] == 200


@pytest.mark.parametrize(
    "body",
    [
        {"reward": "1"}, {"reward": True}, {"reward": 1.5}, {"reward": -2}, {"reward": [1]}, {"reward": 1e400},
        {"reward": 1, "error": "x"}, {"reward": 1, "final": "yes"}, {"reward": 1, "completion_id": 7},
        {"reward": 1, "group": ""}, {"reward": 1, "group": "a\nb"}, {"reward": 1, "group_size": 0},
        {"reward": 1, "group_size": 1.5}, {"reward": 1, "group_size": 1e400}, {"reward": 1, "group_size": True},
        {"reward": 1, "comment": 7}, {"reward": 1, "weight": 2}, {"error": "x", "completion_id": "rl-1"},
    ],
)  # fmt: skip
async def test_what_is_wrong_with_a_reward_is_said_and_nothing_is_stored(proxy: Proxy, body: dict[str, Any]) -> None:
    await ask(proxy, "a1", "one")
    status, said = await reward(proxy, "a1", **body)
    assert status == 400 and said["error"]["message"]
    assert (await proxy.get("/rl/episodes"))["counts"]["rewarded"] == 0


async def test_members_that_are_null_are_not_given_and_an_integer_may_be_written_as_8_point_0(proxy: Proxy) -> None:
    await ask(proxy, "a1", "one")
    given = {"completion_id": None, "group": "g", "group_size": 8.0, "final": None, "error": None, "comment": None}
    status, found = await reward(proxy, "a1", reward=1, **given)
    assert status == 201 and found["state"] == "rewarded" and found["group"] == "g"


async def test_bodies_that_are_not_objects(proxy: Proxy) -> None:
    for raw in (b"", b"[]", b"1", b"{", b'{"reward": NaN}', b'{"reward": 1e999}', b"\xff"):
        async with proxy.http.post("/rl/episodes/a1/reward", data=raw) as response:
            assert response.status == 400, raw


async def test_an_unknown_id_is_not_found(proxy: Proxy) -> None:
    for id in ("nobody", "%00", "%F0%9F%98%80", "x" * 300):
        assert (await reward(proxy, id, reward=1))[0] == 404, id
    assert (await proxy.http.get("/rl/episodes/nobody")).status == 404


@pytest.mark.parametrize("id", ["", "a/b", "a b", "../x", ".", "é", "a" * 129, 7, "a\n", "?"])
async def test_ids_that_cannot_stand_in_an_address_are_not_opened(proxy: Proxy, id: Any) -> None:
    status, said = await open_one(proxy, id=id)
    assert status == 400 and said["error"]["param"] == "id"


async def test_odd_characters_in_a_header_make_an_episode_that_can_be_rewarded(proxy: Proxy) -> None:
    body = {"model": "fake", "messages": [{"role": "user", "content": "hi"}]}
    async with proxy.http.post("/v1/chat/completions", json=body, headers={"x-rl-session": "a/b?c=d#e%20"}) as response:
        assert response.status == 200
    async with proxy.http.post("/rl/episodes/a%2Fb%3Fc=d%23e%2520/reward", json={"reward": 1}) as response:
        assert response.status == 201 and (await response.json())["id"] == "a/b?c=d#e%20"


async def test_opening_gives_an_address_and_twice_is_once(proxy: Proxy) -> None:
    status, found = await open_one(proxy, id="a1", task="add", group="g", meta={"seed": 1})
    assert status == 201 and found["base_url"] == f"{proxy.url}/s/a1/v1" and found["version"] == 0
    assert (await open_one(proxy, id="a1", task="add", group="g", meta={"seed": 1}))[0] == 200
    status, said = await open_one(proxy, id="a1", task="subtract")
    assert status == 409 and "nothing was changed" in said["error"]["message"]
    await ask(proxy, "a1", "one")
    await reward(proxy, "a1", reward=1)
    assert (await open_one(proxy, id="a1", task="add", group="g", meta={"seed": 1}))[0] == 409


async def test_without_an_id_each_opening_is_another(proxy: Proxy) -> None:
    ids = {(await open_one(proxy))[1]["id"] for _ in range(3)}
    assert len(ids) == 3


async def test_an_episode_keeps_its_version_through_swaps(proxy: Proxy) -> None:
    await open_one(proxy, id="old")
    await train(proxy)
    assert (await ask(proxy, "old", "one"))[2] == "base"
    assert (await ask(proxy, "another", "one"))[2] == "v1"
    await train(proxy)
    assert (await ask(proxy, "old", "one", "two", "three"))[2] == "base"
    assert {turn["version"] for turn in (await proxy.get("/rl/episodes/old"))["turns"]} == {0}


async def train(proxy: Proxy) -> None:
    """A version more, by ratings."""
    live = (await proxy.get("/rl/adapters"))["live"]
    for n in range(4):
        _, answer, _ = await ask(proxy, f"rated-{live}-{n}", f"{n}")
        await proxy.rate(completion_id=answer["id"], rating="good" if n % 2 else "bad")
    async with asyncio.timeout(10):
        while (await proxy.get("/rl/adapters"))["live"] == live:
            await asyncio.sleep(0.02)


async def test_while_a_program_gives_rewards_its_new_sessions_are_episodes_from_the_start(proxy: Proxy) -> None:
    await ask(proxy, "first", "one")
    await reward(proxy, "first", reward=1)
    assert (await ask(proxy, "second", "one"))[2] == "base"
    await train(proxy)
    assert (await ask(proxy, "second", "one", "two", "three"))[2] == "base"
    assert (await proxy.get("/rl/episodes/second"))["state"] == "open"


async def test_a_persons_session_is_not_pinned(proxy: Proxy) -> None:
    assert (await ask(proxy, "chat", "one"))[2] == "base"
    await train(proxy)
    assert (await ask(proxy, "chat", "one", "two", "three"))[2] == "v1"


async def test_a_persons_agent_is_no_program_though_it_shares_the_key_of_one(proxy: Proxy) -> None:
    """As Open WebUI, Claude Code, Codex and `rlproxy chat` name their conversations."""
    await ask(proxy, "first", "one")
    await reward(proxy, "first", reward=1)
    headers = [{name: "talk"} for name in ("x-openwebui-chat-id", "x-claude-code-session-id", "session-id")]
    for session in headers:
        await (await proxy.chat("one", headers=session)).read()
    assert (await proxy.get("/rl/episodes"))["counts"]["open"] == 0
    await train(proxy)
    for session in headers:
        async with await proxy.chat("one", "two", "three", headers=session) as response:
            assert response.headers["x-rl-adapter"] == "v1"
    # A harness that names its own in that way opens them beforehand.
    await open_one(proxy, id="by-codex")
    await train(proxy)
    async with await proxy.chat("one", headers={"session-id": "by-codex"}) as response:
        assert response.headers["x-rl-adapter"] == "v1"


async def test_a_pinned_version_survives_a_restart(proxy: Proxy) -> None:
    await open_one(proxy, id="old")
    await train(proxy)
    await proxy.stop()
    await proxy.start()
    assert (await ask(proxy, "old", "one"))[2] == "base"


async def test_of_another_key_nobody_sees_or_rewards_an_episode(proxy: Proxy) -> None:
    keys = {}
    for name in ("ann", "bob"):
        async with proxy.http.post("/rl/keys", json={"name": name, "role": "rate"}, headers=local(proxy)) as response:
            keys[name] = {"authorization": f"Bearer {(await response.json())['key']}"}
    await ask(proxy, "mine", "one", **keys["ann"])
    async with proxy.http.post("/rl/episodes/mine/reward", json={"reward": 1}, headers=keys["bob"]) as response:
        assert response.status == 404
    async with proxy.http.post("/rl/episodes/mine/reward", json={"reward": 1}, headers=keys["ann"]) as response:
        assert response.status == 201
    # One id, two harnesses: each has its own.
    status, _, _ = await ask(proxy, "mine", "one", **keys["bob"])
    assert status == 200
    async with proxy.http.post("/rl/episodes/mine/reward", json={"reward": -1}, headers=keys["bob"]) as response:
        assert response.status == 201
    async with proxy.http.get("/rl/episodes", headers=keys["bob"]) as response:
        assert [one["reward"] for one in (await response.json())["data"]] == [-1]
    async with proxy.http.get("/rl/episodes", headers=local(proxy)) as response:
        assert len((await response.json())["data"]) == 2


def local(proxy: Proxy) -> dict[str, str]:
    return {"authorization": f"Bearer {proxy.local}"}


async def test_two_harnesses_with_one_id_and_one_key(proxy: Proxy) -> None:
    await ask(proxy, "a1", "one")
    await ask(proxy, "a1", "another task")
    whole = await proxy.get("/rl/episodes/a1") if (await reward(proxy, "a1", reward=1))[0] == 201 else {}
    assert whole["segments"] == 2  # seen as a branch; the second reward is refused or the same
    assert (await reward(proxy, "a1", reward=1))[0] == 200


async def test_a_reward_that_comes_hours_late_after_a_restart_is_taken(proxy: Proxy) -> None:
    await open_one(proxy, id="slow", group="g")
    await ask(proxy, "slow", "one")
    await proxy.stop()
    with sqlite3.connect(proxy.home / "rlproxy.db") as db:
        db.execute("UPDATE episodes SET opened_at = opened_at - 7200")
        db.execute("UPDATE completions SET created_at = created_at - 7200")
    db.close()
    await proxy.start()
    assert (await proxy.get("/rl/status"))["episodes"]["unrewarded"] == 1, "it is reported, not taken for 0"
    status, found = await reward(proxy, "slow", reward=1)
    assert status == 201 and found["state"] == "rewarded"
    told = (await proxy.get("/rl/status"))["episodes"]
    assert (told["unrewarded"], told["forming"]) == (0, 1), "its group waits for the others, or its time"


async def test_with_ten_thousand_open_episodes_each_is_found_pinned_and_rewarded(proxy: Proxy) -> None:
    await open_one(proxy, id="first")
    first = await proxy.store.episodes.find("first", None)
    assert first is not None
    for at in range(10_000):
        proxy.store.episodes.queue(NewEpisode(f"e{at}", first.key, 0))
    assert (await open_one(proxy, id="last"))[0] == 201
    listed = await proxy.get("/rl/episodes?limit=3")
    assert [one["id"] for one in listed["data"]] == ["last", "e9999", "e9998"] and listed["counts"]["open"] == 10_002
    await train(proxy)
    assert (await ask(proxy, "e5000", "one"))[2] == "base"
    before = (await proxy.get("/rl/status"))["episodes"]
    assert (await reward(proxy, "e5000", reward=1))[0] == 201
    told = (await proxy.get("/rl/status"))["episodes"]
    assert told["open"] == before["open"] - 1 >= 10_001 and told["rewarded"] == before["rewarded"] + 1 == 1


async def test_side_turns_are_no_part_of_it(proxy: Proxy) -> None:
    await ask(proxy, "a1", "one")
    await ask(proxy, "a1", "title", **{"x-rl-turn": "side"})
    await reward(proxy, "a1", reward=1)
    whole = await proxy.get("/rl/episodes/a1")
    assert whole["turn_count"] == 1 and whole["side_turns"] == 1


async def test_nothing_is_kept_of_an_episode_without_capture(proxy: Proxy) -> None:
    await ask(proxy, "a1", "one", **{"x-rl-capture": "off"})
    assert (await reward(proxy, "a1", reward=1))[0] == 404


async def test_groups_that_have_closed_become_a_run_and_a_version(proxy: Proxy) -> None:
    await proxy.stop()
    await proxy.start(train__start_at_episodes=4, train__group_size=2)
    for at in range(6):
        episode = f"e{at}"
        await ask(proxy, episode, "one")
        await ask(proxy, episode, "one", "two", "three")
        # Of the last group both are worth the same: it teaches nothing.
        await reward(proxy, episode, reward=float(at % 2) if at < 4 else 1.0, group=f"g{at // 2}")
    async with asyncio.timeout(10):
        while not (await proxy.get("/rl/adapters"))["live"]:
            await asyncio.sleep(0.02)
    lines = [orjson.loads(line) for line in (proxy.launcher.started[0] / "samples.jsonl").read_bytes().splitlines()]
    assert {line["source"] for line in lines} == {"program"} and not any(line["human"] for line in lines)
    assert [(line["episode"]["turn"], line["episode"]["turns"]) for line in lines[:2]] == [(0, 2), (1, 2)]
    found = {one["id"]: one for one in (await proxy.get("/rl/episodes"))["data"]}
    taken = {id for id, one in found.items() if one["run"] == 1}
    assert taken >= {"e0", "e1"} and len(lines) == 2 * len(taken)
    assert (await reward(proxy, "e0", reward=0.5))[0] == 409
    assert (await reward(proxy, "e0", reward=0.0))[0] == 200
    told = (await proxy.get("/rl/status"))["episodes"]
    assert told["rewarded"] == 6 and told["needed"] == 4
    # Ratings are a run of their own, as before.
    await train(proxy)
    assert "episode" not in orjson.loads((proxy.launcher.started[1] / "samples.jsonl").read_bytes().splitlines()[0])


async def test_a_group_that_was_under_way_while_a_run_trained_trains_a_version_late(proxy: Proxy) -> None:
    await proxy.stop()
    await proxy.start(train__start_at_episodes=2, train__group_size=2)
    for at in range(4):
        await open_one(proxy, id=f"e{at}", group=f"g{at // 2}")
    for live in (1, 2):
        for at in (2 * live - 2, 2 * live - 1):
            assert (await ask(proxy, f"e{at}", "one"))[2] == "base", "the version that was live when it was opened"
            assert (await reward(proxy, f"e{at}", reward=float(at % 2)))[0] == 201
        async with asyncio.timeout(10):
            while (await proxy.get("/rl/adapters"))["live"] < live:
                await asyncio.sleep(0.02)
    folder = proxy.launcher.started[1]
    assert orjson.loads((folder / "run.json").read_bytes())["parent"] == 1
    lines = [orjson.loads(line) for line in (folder / "samples.jsonl").read_bytes().splitlines()]
    assert [(line["episode"]["group"][-2:], line["version"]) for line in lines] == [("g1", 0), ("g1", 0)]
    assert (await proxy.get("/rl/status"))["episodes"]["left_out"] == {}


async def test_a_rejected_run_of_episodes_gives_them_back(proxy: Proxy) -> None:
    await proxy.stop()
    proxy.launcher.outcome = "rejected"
    await proxy.start(train__start_at_episodes=2, train__group_size=2)
    for at in range(2):
        await ask(proxy, f"e{at}", "one")
        await reward(proxy, f"e{at}", reward=float(at), group="g")
    async with asyncio.timeout(10):
        while not (runs := (await proxy.get("/rl/runs"))["data"]) or runs[0]["status"] != "rejected":
            await asyncio.sleep(0.02)
    told = (await proxy.get("/rl/status"))["episodes"]
    assert told["ready"] == 2 and told["needed"] == 3  # half as many more, or the same ones would end the same way
    assert (await reward(proxy, "e0", reward=1.0))[0] == 200  # nothing has used it


async def test_a_run_says_which_completion_each_turn_of_its_episodes_is(proxy: Proxy) -> None:
    await proxy.stop()
    used = {"used": True, "cause": None, "tokens": 3, "accepted": 3, "exact": True}
    proxy.launcher.result = {"samples": {"ep-1-1": used, "ep-2-0": used, "ep-99-0": used}}
    await proxy.start(train__start_at_episodes=2, train__group_size=2)
    said = {}
    for at in range(2):
        for turn in range(2):
            _, answer, _ = await ask(proxy, f"e{at}", *["one", "two", "three"][: 1 + 2 * turn])
            said[at, turn] = answer["id"]
        await reward(proxy, f"e{at}", reward=float(at), group="g")
    async with asyncio.timeout(10):
        while not (await proxy.get("/rl/adapters"))["live"]:
            await asyncio.sleep(0.02)
    account = {one["rating"]: one["completion"] for one in (await proxy.get("/rl/runs/1"))["account"]}
    assert account == {"ep-1-1": said[0, 1], "ep-2-0": said[1, 0], "ep-99-0": None}


async def reward_each(proxy: Proxy, *lines: Any, query: str = "", **headers: str) -> tuple[int, dict[str, Any]]:
    body = b"\n".join(line if isinstance(line, bytes) else orjson.dumps(line) for line in lines)
    async with proxy.http.post("/rl/episodes/rewards" + query, data=body, headers=headers) as response:
        return response.status, await response.json()


async def test_many_rewards_at_once_and_a_wrong_line_costs_that_line(proxy: Proxy) -> None:
    for id in ("a1", "a2", "a3"):
        await ask(proxy, id, "one")
    lines = (
        {"episode": "a1", "reward": 1, "group": "g", "group_size": 2}, b"{", b"", {"episode": "a2", "reward": 2},
        {"episode": "nobody", "reward": 1}, {"reward": 1}, [1], {"episode": "a3", "error": "died"},
        {"episode": "a1", "reward": 1, "group": "g"}, {"episode": "a\nb", "reward": 1},
    )  # fmt: skip
    status, found = await reward_each(proxy, *lines, query="?dry_run")
    assert status == 200 and (found["stored"], found["changed"]) == (3, 0)  # nothing was stored, so nothing is the same
    assert (await proxy.get("/rl/episodes"))["data"] == []
    status, found = await reward_each(proxy, *lines)
    assert status == 200 and (found["stored"], found["changed"], found["same"]) == (2, 0, 1)
    assert [(one["line"], one["status"]) for one in found["refused"]] == [
        (2, 400), (4, 400), (5, 404), (6, 400), (7, 400), (10, 404),
    ]  # fmt: skip
    assert (await proxy.get("/rl/episodes"))["counts"] == {"open": 0, "rewarded": 1, "error": 1, "unrewarded": 0}
    assert (await reward_each(proxy))[0] == 400 and (await reward_each(proxy, b" \n "))[0] == 400


async def test_many_rewards_reach_no_other_keys_episodes(proxy: Proxy) -> None:
    keys = {}
    for name in ("ann", "bob"):
        async with proxy.http.post("/rl/keys", json={"name": name, "role": "rate"}, headers=local(proxy)) as response:
            keys[name] = {"authorization": f"Bearer {(await response.json())['key']}"}
    await ask(proxy, "mine", "one", **keys["ann"])
    _, found = await reward_each(proxy, {"episode": "mine", "reward": 1}, **keys["bob"])
    assert found["stored"] == 0 and [one["status"] for one in found["refused"]] == [404]
    _, found = await reward_each(proxy, {"episode": "mine", "reward": 1}, **keys["ann"])
    assert found["stored"] == 1


async def test_a_reward_may_say_that_its_episode_only_measures(proxy: Proxy) -> None:
    await ask(proxy, "a1", "one")
    assert (await reward(proxy, "a1", reward=1, split="eval"))[1]["split"] == "eval"
    assert (await reward(proxy, "a1", reward=1, split="train"))[0] == 409
    await open_one(proxy, id="a2")
    await ask(proxy, "a2", "one")
    status, said = await reward(proxy, "a2", reward=1, split="eval")
    assert status == 409 and "opened with the split train" in said["error"]["message"]
    assert (await reward(proxy, "a2", reward=1, split="test"))[0] == 400
