"""The history of ratings on another base: what it takes, round by round, through kills, and what stays."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from scripts.harness.in_process import Proxy
from scripts.harness.records import put
from store.records import Message
from tests.harness.lines import create, rate
from tests.harness.polling import Polls
from tests.harness.runs import rated, until


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("proxy.training.run_supervisor.RECHECK_S", 0.02)


@pytest.fixture
def base(tmp_path: Path) -> str:
    """Another base: as far as anybody but the trainer looks."""
    folder = tmp_path / "other-base"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(b"")
    return str(folder)


async def begin(proxy: Proxy, **body: Any) -> tuple[int, dict[str, Any]]:
    async with proxy.http.post("/rl/retrain", json=body) as response:
        return response.status, await response.json()


async def over(proxy: Proxy) -> dict[str, Any]:
    async for _ in Polls():
        report = dict(await proxy.get("/rl/retrain"))
        if report["state"] == "over":
            return report
    pytest.fail(f"not over: {report}")


def samples(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "samples.jsonl").read_text().splitlines()]


def order(folder: Path) -> dict[str, Any]:
    return dict(json.loads((folder / "run.json").read_text()))


async def history(proxy: Proxy) -> None:
    """Two versions of eight ratings, and two that wait."""
    await rated(proxy, 2)
    await rated(proxy, 2, "bad")
    await until(proxy, live=1)
    await rated(proxy, 2)
    await rated(proxy, 2, "bad")
    await until(proxy, live=2)
    await rated(proxy, 2, "bad")


async def test_all_ratings_train_on_another_base_in_rounds(proxy: Proxy, base: str) -> None:
    await proxy.stop()
    await proxy.start(train__max_samples=4)
    await history(proxy)
    status, plan = await begin(proxy, weights=base, dry_run=True)
    assert status == 200 and (plan["ratings"], plan["completions"], plan["rounds"]) == (10, 10, 3)
    assert (plan["liked"], plan["disliked"], plan["comments"], plan["exclusions"]) == (4, 6, 6, {})
    before = len(proxy.launcher.started)
    assert (await begin(proxy, weights=base))[0] == 201
    report = await over(proxy)
    folders = proxy.launcher.started[before:]
    assert [each["version"] for each in report["rounds"]] == report["versions"] == [11, 12, 13]
    assert [order(folder)["parent"] for folder in folders] == [0, 11, 12]
    assert {order(folder)["weights"] for folder in folders} == {base}
    assert {order(folder)["overrides"]["objective"] for folder in folders} == {"kto-combine"}
    assert [Path(order(folder)["out"]).parent.name for folder in folders] == ["other-base"] * 3
    lines = [line for folder in folders for line in samples(folder)]
    assert len(lines) == len({line["completion"] for line in lines}) == 10  # each once
    assert {line["exact"] for line in lines} == {False} and {line["version"] for line in lines} == {0}
    assert {json.dumps(line[name]) for line in lines for name in ("token_ids", "logprobs", "prompt_tokens")} == {"null"}
    assert all(line["text"] and line["messages"] for line in lines)


async def test_the_base_before_goes_on_as_if_nothing_had_been(proxy: Proxy, base: str) -> None:
    await history(proxy)
    baseline = (await proxy.get("/rl/status"))["baseline"]
    await begin(proxy, weights=base)
    report = await over(proxy)
    status = await proxy.get("/rl/status")
    assert (status["live"], status["baseline"]) == (2, baseline)
    assert status["ratings"]["fresh"] == 2  # what no run of this base had taken is fresh as before
    await proxy.stop()
    await proxy.start()
    assert (await proxy.get("/rl/status"))["live"] == 2  # nor does a start make a version of the retrain live
    before = len(proxy.launcher.started)
    await rated(proxy, 2)
    await until(proxy, ended="done", runs=report["rounds"][-1]["run"] + 1)
    (folder,) = proxy.launcher.started[before:]
    assert order(folder)["parent"] == 2 and {line["exact"] for line in samples(folder)} == {True}
    assert order(folder)["version"] == 12 and order(folder)["weights"] == "/nowhere"


async def test_a_kill_in_the_middle_of_a_round_goes_on_at_the_next_start(proxy: Proxy, base: str) -> None:
    await proxy.stop()
    await proxy.start(train__max_samples=4)
    await history(proxy)
    proxy.launcher.hold = True
    before = len(proxy.launcher.started)
    await begin(proxy, weights=base)
    while len(proxy.launcher.started) == before:
        await asyncio.sleep(0.01)
    await proxy.stop()
    proxy.launcher.hold = False
    await proxy.start(train__max_samples=4)
    report = await over(proxy)
    assert report["versions"] == [11, 12, 13]
    rounds = proxy.launcher.started[before:]
    assert rounds[0] == rounds[1] and len(set(rounds)) == 3  # the first of them went on in its folder


async def test_a_round_that_the_gate_refuses_is_not_tried_again(proxy: Proxy, base: str) -> None:
    await proxy.stop()
    await proxy.start(train__max_samples=5)
    await history(proxy)
    proxy.launcher.outcome = "rejected"
    await begin(proxy, weights=base)
    report = await over(proxy)
    assert [each["status"] for each in report["rounds"]] == ["rejected", "rejected"] and report["versions"] == []
    assert report["causes"] == {"rejected": 10} and "made no version" in report["line"]


async def test_what_cannot_train_is_counted_with_its_reason(proxy: Proxy, base: str) -> None:
    await rated(proxy, 1)
    await rated(proxy, 1, "bad")
    once = (Message("user", b'{"content":"once"}'),)
    await put(proxy.store, "rl-raw", dialect="completions", prompt=once)
    await put(proxy.store, "rl-seen", untrainable="has_image", prompt=once)
    await proxy.rate(completion_id="rl-raw", rating="good")
    await proxy.rate(completion_id="rl-seen", rating="good")
    neutral = await proxy.chat("x")
    await neutral.read()
    await proxy.rate(completion_id=neutral.headers["x-rl-completion-id"], rating=0.0)
    left_out = await proxy.chat("y")
    await left_out.read()
    id = left_out.headers["x-rl-completion-id"]
    await proxy.rate(completion_id=id, rating="bad")
    _, plan = await begin(proxy, weights=base, without=[id], dry_run=True)
    assert plan["ratings"] == 2 and plan["exclusions"] == {"raw_text": 1, "has_image": 1, "neutral": 1, "left_out": 1}
    await begin(proxy, weights=base, without=[id])
    report = await over(proxy)
    assert report["exclusions"] == plan["exclusions"] and id not in json.dumps(samples(proxy.launcher.started[-1]))


async def test_it_is_stopped_and_its_versions_stay(proxy: Proxy, base: str) -> None:
    await proxy.stop()
    await proxy.start(train__max_samples=4)
    await history(proxy)
    await begin(proxy, weights=base)
    while not (await proxy.get("/rl/retrain"))["versions"]:
        await asyncio.sleep(0.01)
    proxy.launcher.hold = True
    async with proxy.http.delete("/rl/retrain") as response:
        if response.status == 409:
            pytest.skip("it was over before it could be stopped")
        report = await response.json()
    assert report["state"] == "over" and report["versions"] and "stopped by" in report["line"]
    assert [a["version"] for a in (await proxy.get("/rl/adapters"))["data"]][:3] == [1, 2, 11]
    async with proxy.http.delete("/rl/retrain") as response:
        assert response.status == 409


async def test_what_is_forgotten_meanwhile_or_later_is_found_in_its_versions(proxy: Proxy, base: str) -> None:
    await history(proxy)
    await begin(proxy, weights=base)
    await over(proxy)
    completion = samples(proxy.launcher.started[-1])[0]["completion"]
    async with proxy.http.post("/rl/forget", json={"completion": completion}) as response:
        forgotten = await response.json()
    assert 11 in forgotten["trained"]
    assert completion not in (proxy.launcher.started[-1] / "samples.jsonl").read_text()


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"weights": "/no/such/folder"}, "No retrain was begun"),
        ({"weights": ""}, "a folder or a hub id"),
        ({"without": "x"}, "a list of ids"),
        ({"dry_run": 1}, "must be true or false"),
    ],
)
async def test_a_wish_that_cannot_be_is_refused_with_the_reason(
    proxy: Proxy, body: dict[str, Any], message: str
) -> None:
    status, answer = await begin(proxy, **body)
    assert status in (400, 409) and message in answer["error"]["message"]


async def test_there_is_one_at_a_time_and_none_without_ratings(proxy: Proxy, base: str) -> None:
    assert (await begin(proxy, weights=base))[0] == 409
    async with proxy.http.get("/rl/retrain") as response:
        assert response.status == 404
    await history(proxy)
    proxy.launcher.hold = True
    assert (await begin(proxy, weights=base))[0] == 201
    status, answer = await begin(proxy, weights=base)
    assert status == 409 and "--stop" in answer["error"]["message"]


async def test_a_line_trains_again_from_its_own_ratings(proxy: Proxy, base: str) -> None:
    await create(proxy, "ann")
    await rate(proxy, "common", 3)
    ids = await rate(proxy, "ann", 2)
    status, plan = await begin(proxy, weights=base, line="ann", dry_run=True)
    assert status == 200 and (plan["of_line"], plan["ratings"]) == ("ann", 2)
    assert (await begin(proxy, weights=base, line="ann"))[0] == 201
    report = await over(proxy)
    assert (report["of_line"], report["ratings"]) == ("ann", 2)
    (run,) = [run for run in await proxy.store.runs.recent() if run.retrains]
    assert run.line == "ann"
    assert {sample.completion.new.id for sample in await proxy.store.samples.of_run(run.id)} == set(ids)
    (version,) = report["versions"]
    made = await proxy.store.versions.get(version)
    assert made is not None and made.line == "ann"
    assert (await proxy.get("/rl/status?line=ann"))["live"] == 0, "it goes live by a person's word"
    status, body = await begin(proxy, weights=base, line="bob")
    assert status == 404 and "line bob does not exist" in body["error"]["message"]
