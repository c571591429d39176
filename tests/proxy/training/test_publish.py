"""A version that was trained goes live, unless what it was trained from answers no more."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from structlog.testing import capture_logs

from scripts.harness.in_process import Proxy
from tests.harness.forgetting import forget
from tests.harness.lines import create, rate, until_live
from tests.harness.runs import rated, until


async def second_run(proxy: Proxy) -> None:
    """v1 is live, and run 2 trains from it."""
    await rated(proxy, 4)
    await until(proxy, live=1)
    proxy.launcher.hold = True
    proxy.launcher.result = {"baseline_after": 0.5}
    await rated(proxy, 4)
    async with asyncio.timeout(10):
        while len(proxy.launcher.started) < 2:
            await asyncio.sleep(0.01)


async def passes(proxy: Proxy) -> None:
    """The run that is under way."""
    await proxy.post("/rl/pause")
    proxy.launcher.hold = False
    await proxy.post("/rl/resume")


async def tried_in_vain(proxy: Proxy) -> None:
    """The version of the run, to go live."""
    async with asyncio.timeout(10):
        while "did not go live" not in ((await proxy.get("/rl/status"))["problem"] or ""):
            await asyncio.sleep(0.01)


def said_to_wait(logs: Any) -> list[str]:
    return [one["why"] for one in logs if one["event"] == "version waits"]


async def test_what_was_trained_from_a_version_that_was_rolled_back_meanwhile_waits(proxy: Proxy) -> None:
    await second_run(proxy)
    assert (await proxy.post("/rl/rollback"))[1]["live"] == 0
    with capture_logs() as logs:
        await passes(proxy)
        status = await until(proxy, ended="done", runs=2)
    assert (status["live"], status["baseline"]) == (0, 0.25)
    assert said_to_wait(logs) == ["v2 was trained from v1, which is not live any more: it waits for `promote`."]
    await proxy.stop()
    await proxy.start()
    assert (await proxy.get("/rl/status"))["live"] == 0
    assert (await proxy.post("/rl/promote/v2"))[1]["live"] == 2


async def test_a_reset_is_not_undone_by_the_run_that_was_under_way(proxy: Proxy) -> None:
    await second_run(proxy)
    await proxy.post("/rl/reset")
    await passes(proxy)
    status = await until(proxy, ended="done", runs=2)
    assert (status["live"], status["baseline"], status["last_run"]["version"]) == (0, 0.0, 2)


async def test_what_was_trained_from_the_base_waits_where_another_version_was_promoted(proxy: Proxy) -> None:
    await rated(proxy, 4)
    await until(proxy, live=1)
    await proxy.post("/rl/rollback")
    proxy.launcher.hold = True
    await rated(proxy, 4)
    async with asyncio.timeout(10):
        while len(proxy.launcher.started) < 2:
            await asyncio.sleep(0.01)
    await proxy.post("/rl/promote/v1")
    with capture_logs() as logs:
        await passes(proxy)
        status = await until(proxy, ended="done", runs=2)
    assert status["live"] == 1
    assert said_to_wait(logs) == [
        "v2 was trained from the base model, which is not live any more: it waits for `promote`."
    ]


async def test_a_parent_that_is_live_again_when_the_run_ends_has_its_child_follow(proxy: Proxy) -> None:
    await second_run(proxy)
    await proxy.post("/rl/rollback")
    await proxy.post("/rl/promote/v1")
    await passes(proxy)
    assert (await until(proxy, live=2))["baseline"] == 0.5


async def test_a_withdrawn_version_that_a_person_promoted_has_its_children_follow(proxy: Proxy) -> None:
    await rated(proxy, 4)
    await until(proxy, live=1)
    await proxy.store.versions.withdraw(1, "people liked it less", "rlproxy")
    await proxy.post("/rl/rollback")
    assert (await proxy.post("/rl/promote/v1"))[1]["live"] == 1
    await rated(proxy, 4)
    await until(proxy, live=2)
    assert [adapter["withdrawn"] for adapter in (await proxy.get("/rl/adapters"))["data"]] == [None, None]
    assert (await proxy.post("/rl/rollback"))[1]["live"] == 1


async def test_a_line_that_a_person_began_with_a_withdrawn_version_learns_on(proxy: Proxy) -> None:
    await rated(proxy, 4)
    await until(proxy, live=1)
    await proxy.store.versions.withdraw(1, "people liked it less", "rlproxy")
    await proxy.post("/rl/rollback")
    await create(proxy, "ann", **{"from": "v1"})
    await rate(proxy, "ann", 4)
    await until_live(proxy, "ann", 2)


async def test_what_was_trained_from_a_withdrawn_version_waits_after_a_restart_too(proxy: Proxy) -> None:
    await proxy.stop()
    await proxy.start(train__watch=False)
    await second_run(proxy)
    await proxy.store.versions.withdraw(1, "people liked it less", "rlproxy")
    with capture_logs() as logs:
        await passes(proxy)
        assert (await until(proxy, ended="done", runs=2))["live"] == 1
    assert said_to_wait(logs) == ["v2 was trained from v1, which was rolled back: it waits for `promote`."]
    await proxy.stop()
    await proxy.start(train__watch=False)
    await asyncio.sleep(0.2)
    assert (await proxy.get("/rl/status"))["live"] == 1


async def test_a_rollback_between_two_tries_to_go_live_is_the_last_word(
    proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("proxy.training.publish.RETRY_SWAP_S", (0.02,) * 1000)
    await second_run(proxy)
    proxy.backend.refuse_load = True
    with capture_logs() as logs:
        await passes(proxy)
        await tried_in_vain(proxy)
        assert (await proxy.post("/rl/rollback"))[1]["live"] == 0
        proxy.backend.refuse_load = False
        status = await until(proxy, ended="done", runs=2)
    assert status["live"] == 0 and len(said_to_wait(logs)) == 1


async def test_a_rollback_that_has_begun_when_the_run_ends_is_the_last_word(
    proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The swap to the new version waits behind it, and finds another one live than it set out from."""
    await second_run(proxy)
    point, begun, goes_on = proxy.store.versions.point, asyncio.Event(), asyncio.Event()

    async def slowly(*args: Any) -> Any:
        begun.set()
        await goes_on.wait()
        return await point(*args)

    monkeypatch.setattr(proxy.store.versions, "point", slowly)
    rollback = asyncio.create_task(proxy.post("/rl/rollback"))
    await begun.wait()
    with capture_logs() as logs:
        await passes(proxy)
        async with asyncio.timeout(10):
            while (await proxy.get("/rl/status"))["last_run"]["status"] != "done":
                await asyncio.sleep(0.01)
        await asyncio.sleep(0.1)
        goes_on.set()
        assert (await rollback)[1]["live"] == 0
        status = await until(proxy, ended="done", runs=2)
    assert status["live"] == 0 and len(said_to_wait(logs)) == 1


async def test_a_version_that_a_person_promoted_between_two_tries_is_said_to_wait_for_nothing(
    proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("proxy.training.publish.RETRY_SWAP_S", (0.5,) * 10)
    await second_run(proxy)
    proxy.backend.refuse_load = True
    with capture_logs() as logs:
        await passes(proxy)
        await tried_in_vain(proxy)
        proxy.backend.refuse_load = False
        await proxy.post("/rl/promote/v2")
        status = await until(proxy, live=2)
    assert status["problem"] is None and said_to_wait(logs) == []


async def test_a_version_that_its_server_refuses_gives_its_ratings_back(
    proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("proxy.training.publish.RETRY_SWAP_S", (0.01,))
    await second_run(proxy)
    baseline = (await proxy.get("/rl/status"))["baseline"]
    proxy.backend.refuse_load = True
    await passes(proxy)
    status = await until(proxy, ended="failed", runs=2)
    assert (status["live"], status["baseline"], status["ratings"]["fresh"]) == (1, baseline, 4)
    assert status["last_run"]["reason"].startswith(
        "the server cannot load v2, so its ratings are fresh again: The backend refused the adapter fake@v2"
    )
    assert status["last_run"]["reason"].endswith("`rlproxy promote v2` tries it once more.")
    assert [a["withdrawn"] is not None for a in (await proxy.get("/rl/adapters"))["data"]] == [False, True]
    await asyncio.sleep(0.1)
    assert len(set(proxy.launcher.started)) == 2, "the same ratings do not start the same run again by themselves"
    proxy.backend.refuse_load = False
    await proxy.stop()
    await proxy.start()
    assert (await proxy.get("/rl/status"))["live"] == 1
    (sample, *_) = await proxy.store.samples.of_run(2)
    assert (await forget(proxy, completion=sample.completion.new.id, dry_run=True))["trained"] == [2]
    assert (await proxy.post("/rl/promote/v2"))[1]["live"] == 2
    status = await proxy.get("/rl/status")
    assert (status["ratings"]["fresh"], status["last_run"]["status"]) == (0, "done")
    async with proxy.http.delete(f"/v1/feedback/{sample.rating.id}") as response:
        assert (await response.json())["trained"] == [2]


async def test_a_version_whose_server_is_away_keeps_its_place(proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("proxy.training.publish.RETRY_SWAP_S", (0.01,))
    await second_run(proxy)
    await proxy.backend.stop()
    with capture_logs() as logs:
        await passes(proxy)
        async with asyncio.timeout(10):
            while not any(line["event"] == "version waits" for line in logs):
                await asyncio.sleep(0.01)
    run = (await proxy.store.runs.recent(1))[0]
    assert (run.id, run.status) == (2, "done")
