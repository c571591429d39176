"""Experiments through the proxy: arms that stick, ratings that count, and how each one ends."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from proxy.backends.vllm import VLLM
from scripts.harness.command import rlproxy
from scripts.harness.in_process import Proxy
from store.file.schema import NAME
from store.records import NewRating
from store.store import Store
from tests.harness.polling import Polls
from tests.harness.runs import rated, until


async def start(proxy: Proxy, version: int = 2, **body: Any) -> tuple[int, dict[str, Any]]:
    async with proxy.http.post("/rl/experiments", json={"version": version, **body}) as response:
        return response.status, await response.json()


async def talk(proxy: Proxy, name: str, *said: str) -> tuple[str, str]:
    """The version that answered, and the id."""
    response = await proxy.chat(*(said or ("hello",)), headers={"x-rl-session": name})
    await response.read()
    assert response.status == 200
    return response.headers["x-rl-adapter"], response.headers["x-rl-completion-id"]


async def rated_talks(proxy: Proxy, count: int, good: dict[str, bool], begin: int = 0) -> int:
    """Conversations rated by the version that answered them, until the experiment ends; how many there were."""
    for number in range(begin, begin + count):
        version, id = await talk(proxy, f"talk-{number}")
        await proxy.rate(completion_id=id, rating="good" if good[version] else "bad")
        await asyncio.sleep(0)
        if (await proxy.get("/rl/experiments"))["running"] is None:
            return number + 1 - begin
    return count


async def ended(proxy: Proxy) -> dict[str, Any]:
    async for _ in Polls():
        body = await proxy.get("/rl/experiments")
        if body["running"] is None:
            return dict(body["ended"][0])
    pytest.fail(f"it still runs: {body['running']}")


async def test_a_version_that_is_liked_more_goes_live(proxy: Proxy, versions: list[Path]) -> None:
    await proxy.post("/rl/promote/1")
    status, body = await start(proxy)
    assert status == 201 and body["running"]["version"] == 2 and body["running"]["against"] == 1
    await rated_talks(proxy, 40, {"v2": True, "v1": False})
    end = await ended(proxy)
    assert end["outcome"] == "promoted" and end["up"] >= 20 and end["candidate"]["mean"] == 1.0
    status_body = await proxy.get("/rl/status")
    assert status_body["live"] == 2 and "liked more" in status_body["live_because"]
    assert {entry["act"] for entry in await proxy.store.meta.audit_log(10)} >= {"experiment", "experiment ended"}


async def test_a_version_that_is_liked_less_is_withdrawn_and_the_live_one_stays(
    proxy: Proxy, versions: list[Path]
) -> None:
    await proxy.post("/rl/promote/1")
    await start(proxy)
    await rated_talks(proxy, 40, {"v2": False, "v1": True})
    assert (await ended(proxy))["outcome"] == "withdrawn"
    adapters = {each["version"]: each for each in (await proxy.get("/rl/adapters"))["data"]}
    assert "liked less" in adapters[2]["withdrawn"] and adapters[1]["live"]
    assert (await start(proxy))[0] == 409  # it was withdrawn


@pytest.mark.parametrize("outcome", ["promoted", "withdrawn"])
async def test_a_kill_right_after_the_decision_leaves_its_word(
    proxy: Proxy, versions: list[Path], outcome: str
) -> None:
    """The version is live, or withdrawn, and the experiment has not ended: another relay may see that, too."""
    await proxy.post("/rl/promote/1")
    await start(proxy)
    await rated_talks(proxy, 40, {"v2": outcome == "promoted", "v1": outcome == "withdrawn"})
    decided = await ended(proxy)
    await proxy.stop()
    with closing(sqlite3.connect(proxy.home / NAME)) as db, db:
        db.execute("UPDATE experiments SET ended_at = NULL, outcome = NULL, reason = NULL, figures = NULL")
    await proxy.start()
    again = await ended(proxy)
    assert (again["outcome"], again["reason"]) == (outcome, decided["reason"])


async def test_a_conversation_keeps_its_version_over_a_restart_and_others_are_not_drawn(
    proxy: Proxy, versions: list[Path]
) -> None:
    await proxy.post("/rl/promote/1")
    await talk(proxy, "under-way")
    await start(proxy, share=0.7)
    arms = {f"talk-{n}": (await talk(proxy, f"talk-{n}"))[0] for n in range(20)}
    assert set(arms.values()) == {"v1", "v2"}
    assert (await talk(proxy, "under-way", "hello", "You said: hello", "go on"))[0] == "v1"
    await proxy.stop()
    await proxy.start()
    again = {name: (await talk(proxy, name, "hello", "You said: hello", "go on"))[0] for name in arms}
    assert again == arms
    running = (await proxy.get("/rl/experiments"))["running"]
    assert running["candidate"]["conversations"] + running["parent"]["conversations"] == 20
    pinned = await proxy.chat("hello", headers={"x-rl-session": "talk-0"}, model="fake@base")
    assert pinned.headers["x-rl-adapter"] == "base"


async def test_without_a_session_the_first_message_names_the_conversation(proxy: Proxy, versions: list[Path]) -> None:
    await proxy.post("/rl/promote/1")
    await start(proxy)
    arms = {}
    for n in range(16):
        arms[n] = (await proxy.chat(f"question {n}")).headers["x-rl-adapter"]
        later = await proxy.chat(f"question {n}", "an answer", "and then?")
        assert later.headers["x-rl-adapter"] == arms[n]
    assert set(arms.values()) == {"v1", "v2"}


async def test_only_the_first_rating_by_a_person_counts_and_forgetting_takes_it_along(
    cli: Proxy, versions: list[Path]
) -> None:
    await cli.post("/rl/promote/1")
    await start(cli)
    version, id = await talk(cli, "one")
    await cli.store.ratings.rate(NewRating(id, "judge:x", -1.0, human=False))
    await cli.rate(completion_id=id, rating="good")
    _, later = await talk(cli, "one", "hello", "You said: hello", "go on")
    await cli.rate(completion_id=later, rating="bad")
    running = (await cli.get("/rl/experiments"))["running"]
    arm = running["candidate" if version == "v2" else "parent"]
    assert (arm["liked"], arm["rated"]) == (1, 1)
    assert running["judged"]["candidate" if version == "v2" else "parent"] == {"liked": 0, "rated": 1}
    code, _, err = await rlproxy(cli.home, "forget", "session", "one", "--yes")
    assert code == 0, err
    running = (await cli.get("/rl/experiments"))["running"]
    assert running["candidate"]["rated"] == running["parent"]["rated"] == 0


async def test_it_ends_where_another_version_goes_live(proxy: Proxy, versions: list[Path]) -> None:
    await proxy.post("/rl/promote/1")
    await start(proxy)
    await proxy.post("/rl/promote/3")
    end = await ended(proxy)
    assert end["outcome"] == "stopped" and "v3 went live meanwhile" in end["reason"]


async def test_what_cannot_begin_says_why(proxy: Proxy, versions: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    await proxy.post("/rl/promote/1")
    for version, body, reason in (
        (1, {}, "is live"), (9, {}, "no version v9"), (2, {"against": 3}, "v3 is not live"),
    ):  # fmt: skip
        status, answer = await start(proxy, version, **body)
        assert status in (404, 409) and reason in answer["error"]["message"]
    assert (await start(proxy, 2, share=0.99))[0] == (await start(proxy, -1))[0] == 400
    assert (await start(proxy))[0] == 201
    status, answer = await start(proxy, 3)
    assert status == 409 and "v2 is running" in answer["error"]["message"]
    assert (await proxy.post("/rl/experiments/stop"))[0] == 200
    assert (await proxy.post("/rl/experiments/stop"))[0] == 409
    one_at_a_time = dataclasses.replace(VLLM.capabilities, single_version=True)
    monkeypatch.setattr(VLLM, "capabilities", one_at_a_time)
    status, answer = await start(proxy)
    assert status == 501 and "one adapter at a time" in answer["error"]["message"]


async def test_a_run_publishes_by_experiment(proxy: Proxy) -> None:
    await proxy.stop()
    await proxy.start(train__publish="by experiment")
    for n in range(4):
        await (await proxy.chat(f"q{n}")).read()
        await proxy.rate(completion_id="last", rating="good")
    async for _ in Polls():
        running = (await proxy.get("/rl/experiments"))["running"]
        if running is not None:
            break
    assert running is not None and (running["version"], running["against"]) == (1, 0)
    assert (await proxy.get("/rl/status"))["live"] == 0
    await proxy.post("/rl/pause")
    await rated_talks(proxy, 40, {"v1": True, "base": False})
    assert (await ended(proxy))["outcome"] == "promoted"
    await until(proxy, live=1)


async def run_under_way(proxy: Proxy) -> None:
    """v1 is live and v4 is trained from it; then v2 is compared with v1."""
    await proxy.post("/rl/promote/1")
    proxy.launcher.hold = True
    await proxy.post("/rl/resume")
    await rated(proxy, 4)
    async for _ in Polls():
        if proxy.launcher.started:
            break
    assert (await start(proxy))[0] == 201


async def run_ends(proxy: Proxy, status: str) -> dict[str, Any]:
    await proxy.post("/rl/pause")
    proxy.launcher.hold = False
    await proxy.post("/rl/resume")
    return await until(proxy, ended=status, runs=4)


async def test_a_version_that_is_finished_meanwhile_waits_and_goes_live_after_it(
    proxy: Proxy, versions: list[Path]
) -> None:
    await run_under_way(proxy)
    assert (await run_ends(proxy, "done"))["live"] == 1
    assert (await proxy.get("/rl/experiments"))["running"] is not None
    await proxy.post("/rl/experiments/stop")
    await until(proxy, live=4)


@pytest.mark.parametrize("first", ["the run", "the experiment"])
async def test_a_version_that_is_finished_meanwhile_gives_its_ratings_back_where_another_wins(
    proxy: Proxy, versions: list[Path], first: str
) -> None:
    await run_under_way(proxy)
    await proxy.stop()
    await proxy.start(train__enabled=False)  # but for the run that is under way
    if first == "the run":
        await run_ends(proxy, "done")
    talks = await rated_talks(proxy, 40, {"v2": True, "v1": False})
    assert (await ended(proxy))["outcome"] == "promoted"
    if first == "the experiment":
        await run_ends(proxy, "rejected")
    status = await until(proxy, ended="rejected", runs=4)
    assert status["last_run"]["reason"] == (
        "v4 was trained from v1, and v2 went live by itself meanwhile: its ratings are fresh again; "
        "`rlproxy promote v4` takes it all the same."
    )
    assert (status["live"], status["ratings"]["fresh"]) == (2, 4 + talks)
    assert (await proxy.post("/rl/promote/4"))[1]["live"] == 4
    assert (await proxy.get("/rl/status"))["ratings"]["fresh"] == talks


async def test_a_kill_before_those_ratings_are_given_back_is_made_good(proxy: Proxy, versions: list[Path]) -> None:
    await run_under_way(proxy)
    await run_ends(proxy, "done")
    await proxy.post("/rl/pause")
    await proxy.stop()
    store = await Store.open(proxy.home)
    experiment = await store.experiments.running()
    assert experiment is not None
    await store.versions.point(2, "it is liked more", "rlproxy")
    await store.experiments.end(experiment.id, "promoted", "it is liked more", {}, "rlproxy")
    await store.close()
    await proxy.start()
    status = await until(proxy, ended="rejected", runs=4)
    assert (status["live"], status["ratings"]["fresh"]) == (2, 4)


async def test_the_command(cli: Proxy, versions: list[Path]) -> None:
    await cli.post("/rl/promote/1")
    code, out, _ = await rlproxy(cli.home, "experiment", "status")
    assert code == 0 and "No experiment has run yet" in out
    code, out, _ = await rlproxy(cli.home, "experiment", "start", "v2", "--against", "v1", "--share", "0.4")
    assert code == 0 and "v2 against v1: runs" in out and "200 more rated conversations or 14 days" in out
    code, out, _ = await rlproxy(cli.home, "experiment", "status", "--json")
    assert code == 0 and json.loads(out)["running"]["share"] == 0.4
    code, out, _ = await rlproxy(cli.home, "experiment", "stop")
    assert code == 0 and "v2 against v1: stopped" in out
    code, _, err = await rlproxy(cli.home, "experiment", "start", "latest")
    assert code == 2 and "is not a version" in err
