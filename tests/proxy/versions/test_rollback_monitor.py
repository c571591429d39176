"""A version that is rated worse than the one before is rolled back by itself, and not brought back by itself."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from structlog.testing import capture_logs

from scripts.harness.in_process import Proxy
from scripts.harness.versions import publish
from store.errors import StoreFull
from store.store import Store
from tests.harness.polling import Polls
from tests.harness.runs import rated, until


async def answers_rated(proxy: Proxy, good: int, bad: int) -> None:
    """Of the live version, good and bad ones mixed; no run is made of them."""
    for n in range(good + bad):
        response = await proxy.chat(f"question {n}")
        await response.read()
        rating = "good" if (n + 1) * good // (good + bad) > n * good // (good + bad) else "bad"
        await proxy.rate(completion_id=response.headers["x-rl-completion-id"], rating=rating)


async def first_version(proxy: Proxy, good: int = 20, bad: int = 4, **flags: Any) -> None:
    """v1 is live, trained from ratings of the base model."""
    await proxy.stop()
    await proxy.start(train__start_at=good + bad, **flags)
    await answers_rated(proxy, good, bad)
    await until(proxy, live=1)
    await proxy.stop()
    await proxy.start(train__start_at=1000, **flags)


async def rolled_back(proxy: Proxy, live: int) -> dict[str, Any]:
    async for _ in Polls():
        status = dict(await proxy.get("/rl/status"))
        if status["live"] == live:
            return status
    pytest.fail(f"still live: v{status['live']}, {status['watch']}")


async def test_a_worse_version_is_rolled_back_and_says_so(proxy: Proxy) -> None:
    await first_version(proxy)
    status = await proxy.get("/rl/status")
    assert status["watch"]["state"] == "watching" and status["watch"]["old"] == {"good": 20, "rated": 24}
    await answers_rated(proxy, 1, 7)
    status = await rolled_back(proxy, 0)
    assert status["watch"]["state"] == "rolled back"
    line = status["watch"]["line"]
    assert line.startswith("rolled back by itself: v1 was rated worse than the base model, beyond chance: ")
    assert "20 of 24 good before" in line and line == status["live_because"]
    (adapter,) = (await proxy.get("/rl/adapters"))["data"]
    assert adapter["withdrawn"] and not adapter["live"]
    acts = {entry["act"]: entry for entry in await proxy.store.meta.audit_log(10)}
    assert acts["withdraw"]["actor"] == acts["point"]["actor"] == "rlproxy"
    response = await proxy.chat("x")
    assert response.headers["x-rl-adapter"] == "base"


async def test_it_is_an_event_too(proxy: Proxy) -> None:
    await first_version(proxy)
    async with proxy.http.get("/rl/events") as events:
        await answers_rated(proxy, 0, 8)
        async with asyncio.timeout(10):
            async for line in events.content:
                if line == b"event: watch\n":
                    return


async def test_a_version_that_is_as_good_stays(proxy: Proxy) -> None:
    await first_version(proxy)
    await answers_rated(proxy, 10, 4)
    await asyncio.sleep(0.1)
    status = await proxy.get("/rl/status")
    assert status["live"] == 1 and status["watch"]["new"] == {"good": 10, "rated": 14}


async def test_it_can_be_turned_off(proxy: Proxy) -> None:
    await first_version(proxy, train__watch=False)
    await answers_rated(proxy, 0, 12)
    await asyncio.sleep(0.1)
    status = await proxy.get("/rl/status")
    assert status["live"] == 1 and status["watch"] is None


async def test_what_was_rolled_back_does_not_come_back_by_itself(proxy: Proxy) -> None:
    await first_version(proxy)
    await answers_rated(proxy, 0, 8)
    await rolled_back(proxy, 0)
    await proxy.stop()
    await proxy.start(train__start_at=1000)
    await asyncio.sleep(0.1)
    assert (await proxy.get("/rl/status"))["live"] == 0


async def test_a_person_may_make_it_live_again_and_is_not_contradicted(proxy: Proxy) -> None:
    await first_version(proxy)
    await answers_rated(proxy, 0, 8)
    await rolled_back(proxy, 0)
    await proxy.post("/rl/promote/v1")
    await answers_rated(proxy, 0, 4)
    await asyncio.sleep(0.1)
    status = await proxy.get("/rl/status")
    assert status["live"] == 1 and status["watch"] is None


async def test_a_rollback_by_hand_does_not_bring_it_back(proxy: Proxy) -> None:
    """By then the version before is the withdrawn one, and who asks may have seen bad answers only."""
    await first_version(proxy)
    await answers_rated(proxy, 0, 8)
    await rolled_back(proxy, 0)
    status, body = await proxy.post("/rl/rollback")
    assert status == 409 and body["error"]["message"].startswith(
        "The base model stays live, since v1 before it is withdrawn: v1 was rated worse than the base model, beyond"
    )
    assert "`rlproxy promote v1`" in body["error"]["message"]
    assert "rlproxy promote v1" in await proxy.say("/rl rollback")
    assert (await proxy.get("/rl/status"))["live"] == 0


async def test_a_rollback_that_a_crash_cut_short_is_finished_at_the_start(proxy: Proxy) -> None:
    await first_version(proxy)
    await proxy.store.versions.withdraw(1, "people liked it less", "rlproxy")
    await proxy.stop()
    await proxy.start(train__start_at=1000)
    status = await rolled_back(proxy, 0)
    assert status["live_because"] == "rolled back by itself: people liked it less"


async def test_a_rollback_that_fails_is_tried_again(proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("proxy.versions.rollback_monitor.RETRY_S", 0.05)
    await first_version(proxy)
    real, failures = proxy.store.versions.withdraw, []

    async def full(*args: Any) -> None:
        if len(failures) < 3:
            failures.append(args)
            raise StoreFull("no space left")
        await real(*args)

    monkeypatch.setattr(proxy.store.versions, "withdraw", full)
    await answers_rated(proxy, 0, 8)
    await rolled_back(proxy, 0)
    assert len(failures) == 3


async def test_what_was_trained_from_a_withdrawn_version_waits_for_a_person(proxy: Proxy) -> None:
    await first_version(proxy)
    await proxy.stop()
    await proxy.start(train__start_at=8, train__watch=False)
    proxy.launcher.hold = True
    await rated(proxy, 8, "bad")
    async for _ in Polls():
        if (await proxy.get("/rl/status"))["training"]["progress"]:
            break
    await proxy.store.versions.withdraw(1, "people liked it less", "rlproxy")
    await proxy.post("/rl/pause")
    proxy.launcher.hold = False
    await proxy.post("/rl/resume")
    status = await until(proxy, ended="done", runs=2)
    assert status["last_run"]["version"] == 2 and status["live"] == 1


async def test_what_goes_live_while_the_ratings_are_compared_is_not_judged_by_them(
    proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    await first_version(proxy)
    await answers_rated(proxy, 1, 0)
    await publish(proxy, 2)
    votes, promoted = proxy.store.opinions.votes, asyncio.Event()

    async def slowly(version: int, *bound: Any, **alone: bool) -> Any:
        found = await votes(version, *bound, **alone)
        if version == 1 and len(found) < 9:
            return []  # the look that finds it worse finds all of them
        if version == 1 and not promoted.is_set():
            promoted.set()
            assert (await proxy.post("/rl/promote/2"))[1]["live"] == 2
        return found

    monkeypatch.setattr(proxy.store.opinions, "votes", slowly)
    await answers_rated(proxy, 0, 8)
    await promoted.wait()
    await asyncio.sleep(0.1)
    assert (await proxy.get("/rl/status"))["live"] == 2
    assert [a["withdrawn"] for a in (await proxy.get("/rl/adapters"))["data"]] == [None, None]


async def test_what_goes_live_while_a_worse_version_is_withdrawn_stays(
    proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    await first_version(proxy)
    await answers_rated(proxy, 1, 0)
    await publish(proxy, 2)
    real, promoted = proxy.store.versions.withdraw, asyncio.Event()

    async def slowly(*args: Any) -> None:
        await real(*args)
        assert (await proxy.post("/rl/promote/2"))[1]["live"] == 2
        promoted.set()

    monkeypatch.setattr(proxy.store.versions, "withdraw", slowly)
    with capture_logs() as logs:
        await answers_rated(proxy, 0, 8)
        await promoted.wait()
        await asyncio.sleep(0.1)
    assert (await proxy.get("/rl/status"))["live"] == 2
    assert [bool(a["withdrawn"]) for a in (await proxy.get("/rl/adapters"))["data"]] == [True, False]
    # The learner may complain: it may have found the run that this test published in its place.
    assert not [one for one in logs if one["log_level"] == "error" and one["event"] != "learner"]


async def test_a_version_that_took_the_place_of_a_withdrawn_one_gives_way_to_the_base(proxy: Proxy) -> None:
    """It went live in the moment in which that one was withdrawn."""
    await first_version(proxy)
    await answers_rated(proxy, 20, 4)
    await publish(proxy, 2)
    await proxy.stop()
    store = await Store.open(proxy.home)
    await store.versions.point(2, "run 2 passed the gate", "rlproxy")
    await store.versions.withdraw(1, "people liked it less", "rlproxy")
    await store.close()
    await proxy.start(train__start_at=1000)
    await answers_rated(proxy, 0, 8)
    status = await rolled_back(proxy, 0)
    assert "v2 was rated worse than v1" in status["live_because"]


async def evaluated(proxy: Proxy, name: str, good: int, bad: int, split: str = "eval") -> None:
    """Episodes of the live version, with a turn each."""
    for n in range(good + bad):
        opened = {"id": f"{name}-{n}", "split": split}
        async with proxy.http.post("/rl/episodes", json=opened) as response:
            assert response.status == 201
        async with proxy.http.post(
            f"/s/{name}-{n}/v1/chat/completions",
            json={"model": "fake", "messages": [{"role": "user", "content": "go"}]},
        ) as response:
            assert response.status == 200
        async with proxy.http.post(f"/rl/episodes/{name}-{n}/reward", json={"reward": float(n < good)}) as response:
            assert response.status == 201


async def evaluated_twice(proxy: Proxy, split: str, good: int, bad: int) -> None:
    """The base succeeds in 12 of 12; then v1, which people like as well, as often as is said."""
    await proxy.stop()
    await proxy.start(train__start_at=24)
    await evaluated(proxy, "base", 12, 0)
    await answers_rated(proxy, 20, 4)
    await until(proxy, live=1)
    await evaluated(proxy, "v1", good, bad, split)


async def test_a_version_that_succeeds_in_fewer_evaluation_episodes_is_rolled_back(proxy: Proxy) -> None:
    await evaluated_twice(proxy, "eval", 5, 7)
    line = (await rolled_back(proxy, 0))["watch"]["line"]
    assert "v1 succeeded in fewer evaluation episodes than the base model, beyond chance: 5 of 1" in line
    assert "12 of 12 before" in line  # as soon as that many failures say it


async def test_one_that_succeeds_as_often_stays_and_status_says_how_it_stands(proxy: Proxy) -> None:
    await evaluated_twice(proxy, "eval", 11, 1)
    await asyncio.sleep(0.1)
    status = await proxy.get("/rl/status")
    assert status["live"] == 1 and status["watch"]["episodes"]["new"] == {"good": 11, "rated": 12}
    assert "evaluation episodes: v1: 11 of 12; the base model: 12 of 12" in status["watch"]["line"]


async def test_episodes_that_train_are_no_evaluation(proxy: Proxy) -> None:
    await evaluated_twice(proxy, "train", 0, 12)
    await asyncio.sleep(0.1)
    status = await proxy.get("/rl/status")
    assert status["live"] == 1 and status["watch"]["episodes"] is None


async def test_what_the_version_before_does_later_is_not_compared(proxy: Proxy) -> None:
    """An episode that was opened before keeps the old version, and ends when the new one is judged already."""
    await proxy.stop()
    await proxy.start(train__start_at=24)
    await evaluated(proxy, "base", 6, 0)
    for n in range(12):
        await (await proxy.http.post("/rl/episodes", json={"id": f"late-{n}", "split": "eval"})).read()
    await answers_rated(proxy, 20, 4)
    await until(proxy, live=1)
    for n in range(12):
        await (await proxy.http.post(f"/rl/episodes/late-{n}/reward", json={"reward": 0})).read()
    await evaluated(proxy, "v1", 6, 0)
    assert (await proxy.get("/rl/status"))["watch"]["episodes"]["old"] == {"good": 6, "rated": 6}
