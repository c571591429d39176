"""Versions that learned from what was forgotten go, and others take their place."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from scripts.harness.in_process import Proxy
from tests.harness.forgetting import forget, lines
from tests.harness.polling import Polls
from tests.harness.runs import rated, until


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("proxy.training.run_supervisor.RECHECK_S", 0.02)


async def secretly(proxy: Proxy) -> None:
    """One rated answer in the session `s`."""
    response = await proxy.chat("zanzibar", headers={"x-rl-session": "s"})
    await response.read()
    await proxy.rate(
        completion_id=response.headers["x-rl-completion-id"], rating="bad", comment="zanzibar", rater="ann"
    )


async def lineage(proxy: Proxy) -> None:
    """v1 without it, v2 with it, v3 from v2."""
    proxy.launcher.result = {"baseline_after": 0.25, "episode_baseline_after": 0.5}
    await rated(proxy, 4)
    await until(proxy, live=1)
    proxy.launcher.result = {"baseline_after": 0.75, "episode_baseline_after": 0.7}
    await rated(proxy, 3)
    await secretly(proxy)
    await until(proxy, live=2)
    await rated(proxy, 4)
    await until(proxy, live=3)


async def over(proxy: Proxy) -> dict[str, Any]:
    async for _ in Polls():
        status = dict(await proxy.get("/rl/status"))
        if status["rebuild"] and status["rebuild"]["state"] == "over" and status["training"]["run"] is None:
            return status
    pytest.fail(f"not over: {status}")


def folder_of(proxy: Proxy, version: int) -> Path:
    return proxy.home / "adapters_out" / "fake" / f"v{version:04d}"


def run_of(proxy: Proxy, run: int) -> Path:
    return proxy.home / "runs" / f"r{run:05d}"


async def ratings_of(proxy: Proxy, run: int) -> set[str]:
    return {sample.rating.id for sample in await proxy.store.samples.of_run(run)}


async def test_a_version_steps_back_and_another_is_trained_without_it(proxy: Proxy) -> None:
    await lineage(proxy)
    converted = proxy.home / "gguf"
    converted.mkdir()
    digest = json.loads((folder_of(proxy, 2) / "manifest.json").read_text())["files"]["adapter_model.safetensors"][:12]
    (converted / f"v0002-{digest}.gguf").write_bytes(b"learned")
    again = (await ratings_of(proxy, 2)) | (await ratings_of(proxy, 3))
    clean = await ratings_of(proxy, 1)
    proxy.launcher.hold = True
    told = await forget(proxy, session="s", retrain=True)
    assert (told["trained"], told["heirs"], told["forgotten"]) == ([2], [3], True)
    assert told["rebuild"]["state"] == "under way" and told["rebuild"]["versions"] == [2, 3]
    status = await proxy.get("/rl/status")
    assert (status["live"], status["previous"]) == (1, 1)  # at once, and no rollback leads back
    assert "learned from what was forgotten" in status["live_because"] and "trains again" in status["rebuild"]["line"]
    assert (await proxy.post("/rl/rollback"))[0] == 409
    for version in (2, 3):
        code, body = await proxy.post(f"/rl/promote/{version}")
        assert code == 404 and "gone for good" in body["error"]["message"]
    listed = {model["id"] for model in (await proxy.get("/v1/models"))["data"]}
    assert "fake@v1" in listed and not {"fake@v2", "fake@v3"} & listed
    while len(proxy.launcher.started) < 4:
        await asyncio.sleep(0.02)
    order = json.loads((run_of(proxy, 4) / "run.json").read_text())
    assert (order["parent"], order["baseline"], order["episode_baseline"]) == (1, 0.25, 0.5)
    assert set(order["adapters"]) == {"1", "2"}
    assert folder_of(proxy, 2).exists()  # it still tells how likely it found its replies
    assert "zanzibar" not in (run_of(proxy, 4) / "samples.jsonl").read_text()
    await proxy.stop()  # in the middle of it
    proxy.launcher.hold = False
    await proxy.start()
    status = await over(proxy)
    assert status["live"] == 4 and status["previous"] == 1 and status["ratings"]["fresh"] == 0
    assert status["rebuild"]["line"] == (
        "v2, v3 learned from what was forgotten and are deleted; v4 was trained without it"
    )
    trained = {rating for line in lines(run_of(proxy, 4)) for rating in line["ratings"]}
    assert len(trained) == 7 and trained < again and not trained & clean  # never twice in one line
    for version, run in ((2, 2), (3, 3)):
        assert not folder_of(proxy, version).exists() and not run_of(proxy, run).exists()
    assert folder_of(proxy, 1).exists() and list(converted.iterdir()) == []
    assert (await proxy.get("/rl/runs/2"))["status"] == "failed"
    await rated(proxy, 4)
    await until(proxy, live=5)  # numbers are never used again, and all goes on as before


async def test_as_many_runs_as_it_takes(proxy: Proxy) -> None:
    await proxy.stop()
    await proxy.start(train__max_samples=3, train__start_at=3)
    for version in range(1, 3):
        await rated(proxy, 3)
        await until(proxy, live=version)
    first = lines(run_of(proxy, 1))[0]["completion"]
    await forget(proxy, completion=first, retrain=True)
    status = await over(proxy)
    assert status["live"] == 4 and status["rebuild"]["runs"] == [3, 4] and status["ratings"]["fresh"] == 0
    assert json.loads((run_of(proxy, 3) / "run.json").read_text())["parent"] == 0
    assert {line["version"] for line in lines(run_of(proxy, 3))} == {0, 1}  # the oldest first, as they came
    taken = [line["rating"] for run in (3, 4) for line in lines(run_of(proxy, run))]
    assert len(taken) == len(set(taken)) == 5


async def test_where_nothing_is_left_the_clean_one_stays(proxy: Proxy) -> None:
    proxy.launcher.result = {"episode_baseline_after": 0.7}
    for _ in range(4):
        await secretly(proxy)
    await until(proxy, live=1)
    await forget(proxy, session="s", retrain=True)
    status = await over(proxy)
    assert status["live"] == 0 and status["rebuild"]["runs"] == [] and status["baseline"] == 0.0
    assert await proxy.store.meta.get("episode_baseline") == 0.0
    assert status["rebuild"]["line"].endswith("no rating can train again now, the base model stays")
    assert not folder_of(proxy, 1).exists()


async def test_a_run_that_is_rejected_ends_it_and_leaves_its_ratings_fresh(proxy: Proxy) -> None:
    await lineage(proxy)
    proxy.launcher.outcome = "rejected"
    await forget(proxy, session="s", retrain=True)
    status = await over(proxy)
    assert status["live"] == 1 and status["ratings"]["fresh"] == 7 and len(proxy.launcher.started) == 4
    assert "run 4 ended rejected (it rejected): v1 stays, and 7 ratings are fresh again" in status["rebuild"]["line"]
    assert not folder_of(proxy, 2).exists() and not folder_of(proxy, 3).exists()


async def test_a_crash_before_the_step_back_is_made_good(proxy: Proxy) -> None:
    await lineage(proxy)
    await proxy.post("/rl/pause")
    await proxy.store.erasure.forget("session", "s", "test", retrain=True)  # and then the power goes
    await proxy.stop()
    await proxy.start()
    status = await proxy.get("/rl/status")
    assert (status["live"], status["previous"], status["loaded"]) == (1, 1, [0, 1])
    assert status["rebuild"]["state"] == "under way" and status["training"]["waits_for"].startswith("paused")
    assert await proxy.post("/rl/resume") == (200, {"paused": False})
    assert (await over(proxy))["live"] == 4


async def test_a_backend_that_does_not_take_the_clean_one_is_asked_again(proxy: Proxy) -> None:
    await lineage(proxy)  # v1 is not loaded any more
    proxy.backend.refuse_load = True
    told = await forget(proxy, session="s", retrain=True)
    assert "v3 still answers, though it learned from what was forgotten" in told["rebuild"]["line"]
    status = await proxy.get("/rl/status")
    assert status["live"] == 3 and "v3 still answers" in status["problem"] and len(proxy.launcher.started) == 3
    proxy.backend.refuse_load = False
    status = await over(proxy)
    assert status["live"] == 4 and status["problem"] is None


async def test_who_steps_back_second_has_no_problem_with_it(proxy: Proxy) -> None:
    """A request that forgets steps back at once, the supervisor at its next look: here in the middle of that."""
    await lineage(proxy)  # v1 is not loaded any more
    proxy.launcher.hold = True
    proxy.backend.hold_load.clear()
    forgetting = asyncio.create_task(forget(proxy, session="s", retrain=True))
    while not (await proxy.store.unlearning.state()):
        await asyncio.sleep(0.01)
    await asyncio.sleep(0.2)  # ten looks
    proxy.backend.hold_load.set()
    told = await forgetting
    assert "still answers" not in told["rebuild"]["line"]
    status = await proxy.get("/rl/status")
    assert status["live"] == 1 and "still answers" not in status["rebuild"]["line"] and status["problem"] is None


async def test_not_under_a_run_that_builds_on_it(proxy: Proxy) -> None:
    await lineage(proxy)
    proxy.launcher.hold = True
    await rated(proxy, 4)
    while len(proxy.launcher.started) < 4:
        await asyncio.sleep(0.02)
    told = await forget(proxy, 409, session="s", retrain=True)
    assert "from a version that did: cancel that run" in told["error"]["message"]
    await proxy.post("/rl/cancel")
    await until(proxy, ended="cancelled", runs=4)
    proxy.launcher.hold = False
    await forget(proxy, session="s", retrain=True)
    assert (await over(proxy))["live"] == 4


async def test_a_live_version_that_did_not_learn_from_it_stays(proxy: Proxy) -> None:
    await lineage(proxy)
    await proxy.post("/rl/reset")
    await rated(proxy, 4)
    await until(proxy, live=4)
    assert (await proxy.post("/rl/promote/3"))[0] == 200
    assert (await proxy.post("/rl/promote/4"))[0] == 200
    assert (await proxy.get("/rl/status"))["previous"] == 3
    proxy.launcher.hold = True
    await forget(proxy, session="s", retrain=True)
    status = await proxy.get("/rl/status")
    assert (status["live"], status["previous"]) == (4, 4)
    proxy.launcher.hold = False
    await proxy.post("/rl/pause")
    await proxy.post("/rl/resume")
    status = await over(proxy)
    assert status["live"] == 5 and json.loads((run_of(proxy, 5) / "run.json").read_text())["parent"] == 4


async def test_a_second_time_while_the_first_is_under_way(proxy: Proxy) -> None:
    await lineage(proxy)
    await proxy.post("/rl/pause")
    await forget(proxy, session="s", retrain=True)
    first = lines(run_of(proxy, 1))[0]["completion"]
    told = await forget(proxy, completion=first, retrain=True)
    assert told["trained"] == [1] and told["heirs"] == [] and told["rebuild"]["versions"] == [1, 2, 3]
    assert (await proxy.get("/rl/status"))["live"] == 0
    await proxy.post("/rl/resume")
    status = await over(proxy)
    assert status["live"] == 4 and not any(folder_of(proxy, v).exists() for v in (1, 2, 3))
    assert len(lines(run_of(proxy, 4))) == 10


async def test_without_the_word_nothing_is_withdrawn(proxy: Proxy) -> None:
    await lineage(proxy)
    told = await forget(proxy, session="s")
    assert told["rebuild"] is None and (await proxy.get("/rl/status"))["live"] == 3
    assert (await proxy.get("/rl/status"))["rebuild"] is None and folder_of(proxy, 2).exists()
