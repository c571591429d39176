"""The user's own reward of an episode: when it is asked, what it sees, and what it cannot do to rlproxy."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import orjson
import pytest

from config.sections import Train
from proxy.core.address_file import ADDRESS_FILE
from proxy.core.events import Events
from proxy.feedback.reward_function import RewardFunction
from scripts.harness.command import rlproxy
from scripts.harness.in_process import Proxy
from tests.harness.episodes import ask, open_one, reward
from tests.harness.runs import until

CODE = """
import os, sys, time

def reward(episode):
    said = episode["turns"][0]["messages"][-1]["content"]
    if said == "hang":
        time.sleep(600)
    if said == "die":
        os._exit(3)
    if said == "raise":
        raise KeyError("no such thing")
    if said == "print":
        print("x" * 100_000)
        print("y" * 3_000_000)
    if said in ("text", "nan", "2", "true", "list", "huge"):
        return {"text": "good", "nan": float("nan"), "2": 2, "true": True, "list": [1], "huge": 10**400}[said]
    if said == "deep":
        sys.setrecursionlimit(20_000)
        nested = []
        for _ in range(5000):
            nested = [nested]
        return nested
    if said == "none":
        return None
    if said == "see":
        turn = episode["turns"][-1]
        kept = [len(episode["turns"]), turn["segment"], turn["text"], episode["task"], episode["meta"]]
        return {"reward": 0.5, "comment": repr(kept) + repr(sorted(os.environ))}
    return 1 if len(episode["turns"]) > 1 else -1
"""


@pytest.fixture
async def own(proxy: Proxy, tmp_path: Path) -> AsyncIterator[RewardFunction]:
    """One that asks at once, when a test says so; the proxy's own waits for an hour of quiet."""
    file = tmp_path / "my.py"
    file.write_text(CODE)
    await proxy.stop()
    await proxy.start(
        train__reward=f"{file}:reward", train__reward_quiet_s=3600, train__start_at_episodes=4, train__group_size=4
    )
    (proxy.home / ADDRESS_FILE).write_text(json.dumps({"url": proxy.url, "pid": os.getpid()}))
    made = RewardFunction(Train(reward=f"{file}:reward", reward_quiet_s=0), proxy.store, Events())
    yield made
    await made.stop()


async def opened(proxy: Proxy, id: str, *said: str, **more: Any) -> None:
    assert (await open_one(proxy, id=id, **more))[0] == 201
    await ask(proxy, id, *said)


async def rewarded(proxy: Proxy) -> dict[str, float | None]:
    return {one["id"]: one["reward"] for one in (await proxy.get("/rl/episodes"))["data"]}


async def test_a_quiet_episode_is_rewarded_as_by_a_program(proxy: Proxy, own: RewardFunction) -> None:
    await ask(proxy, "chat", "one")  # a person's: nobody opened it
    await opened(proxy, "long", "one")
    await ask(proxy, "long", "one", "two", "three")
    await opened(proxy, "short", "one")
    await own.step()
    assert await rewarded(proxy) == {"long": 1, "short": -1}
    assert (await proxy.get("/rl/episodes/long"))["state"] == "rewarded"


async def test_what_it_sees(proxy: Proxy, own: RewardFunction, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RLPROXY_BACKEND__API_KEY", "sk-secret")
    await opened(proxy, "a1", "see", task="add", meta={"seed": 7})
    await own.step()
    comment = (await proxy.get("/rl/episodes/a1"))["comment"]
    assert comment == repr([1, 0, "You said: see ", "add", {"seed": 7}]) + repr(["LANG", "PATH"])


async def test_a_harness_may_end_its_episode_and_leave_the_reward_to_it(proxy: Proxy, own: RewardFunction) -> None:
    await opened(proxy, "a1", "one")
    assert await rewarded(proxy) == {"a1": None}  # it was not quiet for an hour
    status, found = await reward(proxy, "a1", group="g", group_size=2)
    assert status == 201 and found["reward"] == -1 and found["group"] == "g"
    assert (await ask(proxy, "a1", "one"))[0] == 410  # it has ended
    await ask(proxy, "session", "one")
    assert (await reward(proxy, "session"))[1]["reward"] == -1  # a session that nobody had opened
    assert (await reward(proxy, "nobody"))[0] == 404


@pytest.mark.parametrize("said", ["text", "nan", "2", "true", "list", "huge", "deep", "raise", "die", "none"])
async def test_what_it_may_not_costs_that_reward_alone(proxy: Proxy, own: RewardFunction, said: str) -> None:
    await opened(proxy, "bad", said)
    await opened(proxy, "good", "one")
    await own.step()
    assert await rewarded(proxy) == {"bad": None, "good": -1}
    assert not await own.step()
    assert (await proxy.get("/rl/episodes/bad"))["state"] == "open"  # a program may still reward it
    status, found = await reward(proxy, "bad")
    assert status == 400 and "has no reward" in found["error"]["message"]
    assert (await reward(proxy, "bad", reward=0.5))[0] == 201


async def test_an_error_names_the_line_and_stands_in_the_status(
    proxy: Proxy, own: RewardFunction, tmp_path: Path
) -> None:
    await opened(proxy, "bad", "raise")
    assert (await reward(proxy, "bad"))[0] == 400
    problem = (await proxy.get("/rl/status"))["episodes"]["own_reward_problem"]
    line = CODE.splitlines().index('        raise KeyError("no such thing")') + 1
    assert (
        problem == f"bad has no reward of your own code: {tmp_path / 'my.py'}, line {line}: KeyError: 'no such thing'"
    )


async def test_one_that_hangs_is_killed_and_one_that_prints_a_lot_is_heard_in_part(
    proxy: Proxy, own: RewardFunction, tmp_path: Path
) -> None:
    await opened(proxy, "a1", "print")
    await own.step()
    assert await rewarded(proxy) == {"a1": -1}
    hasty = RewardFunction(
        Train(reward=f"{tmp_path / 'my.py'}:reward", reward_quiet_s=0, reward_timeout_s=0.5), proxy.store, Events()
    )
    await opened(proxy, "a2", "hang")
    await hasty.step()
    assert (await rewarded(proxy))["a2"] is None and "train.reward_timeout_s" in str(hasty.problem)
    await hasty.stop()


async def test_a_file_that_is_gone_or_a_device_or_a_link(proxy: Proxy, own: RewardFunction, tmp_path: Path) -> None:
    file = tmp_path / "my.py"
    await opened(proxy, "a1", "one")
    file.unlink()
    await own.step()
    assert "No such file" in str(own.problem)
    file.symlink_to("/dev/zero")
    await own.step()
    assert "not a plain file" in str(own.problem)
    file.unlink()
    (tmp_path / "real.py").write_text(CODE)
    file.symlink_to(tmp_path / "real.py")
    await own.step()
    assert await rewarded(proxy) == {"a1": -1}


async def test_other_code_is_asked_again_and_its_hash_goes_into_the_run(
    proxy: Proxy, own: RewardFunction, tmp_path: Path
) -> None:
    file = tmp_path / "my.py"
    for at in range(4):
        await opened(proxy, f"e{at}", "none" if at == 3 else "one", group="g")
    await own.step()
    assert await rewarded(proxy) == {"e0": -1, "e1": -1, "e2": -1, "e3": None}
    file.write_text("def reward(episode):\n    return int(episode['id'][1:]) / 4\n")
    hash = hashlib.sha256(file.read_bytes()).hexdigest()
    code, out, _ = await rlproxy(proxy.home, "rescore", "--episodes")
    assert code == 0 and out.startswith("4 episodes scored in the background")
    await own.step()
    await proxy.post("/rl/resume")  # wakes the learner, as the proxy's own function does and the test's cannot
    await until(proxy, live=1)
    assert await rewarded(proxy) == {"e0": 0, "e1": 0.25, "e2": 0.5, "e3": 0.75}
    spec = orjson.loads((proxy.launcher.started[0] / "run.json").read_bytes())
    assert {"name": "train.reward", "value": hash} in [
        {"name": one["name"], "value": one["value"]} for one in spec["choices"]
    ]
    code, out, _ = await rlproxy(proxy.home, "rescore", "--episodes", "--json")
    assert code == 0 and json.loads(out) == {"left": 0}  # a run has used them all


async def test_a_programs_own_reward_goes_first(proxy: Proxy, own: RewardFunction) -> None:
    await opened(proxy, "a1", "one")
    assert (await reward(proxy, "a1", reward=0.25))[0] == 201
    await opened(proxy, "a2", "one")
    assert (await reward(proxy, "a2", error="died"))[0] == 201
    await own.step()
    async with proxy.http.post("/rl/rescore", json={"episodes": True}) as response:
        assert (await response.json())["left"] == 0
    assert await rewarded(proxy) == {"a1": 0.25, "a2": None}


async def test_without_the_setting_nothing_is_asked(proxy: Proxy) -> None:
    async with proxy.http.post("/rl/rescore", json={"episodes": True}) as response:
        assert response.status == 409 and "train.reward" in (await response.json())["error"]["message"]
    async with proxy.http.post("/rl/rescore", json={"episodes": 1}) as response:
        assert response.status == 400
