"""A judge that answers garbage, is slow or down, a full disk and kill -9, with a real proxy: people are answered as
ever, and the queue of what is to be judged is whole."""

from __future__ import annotations

import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from scripts.harness.rule_judge import FakeJudge
from scripts.harness.serving import Serving
from store.store import Store
from tests.harness.polling import Polls
from tests.proxy.signals.conftest import pushback


async def until(serving: Serving, holds: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    """The judge's report once this holds of it."""
    async for _ in Polls():
        async with serving.http.get("/rl/judge") as response:
            report: dict[str, Any] = await response.json()
        if holds(report):
            return report
    raise AssertionError({name: report[name] for name in ("waiting", "waits_for", "signals")})


async def converse(serving: Serving, *names: str) -> None:
    """Conversations of two turns, each its own; the second message says what was wrong with the first answer."""
    for name in names:
        first, _ = await serving.chat(f"{name}: what is a bee?")
        text = first["choices"][0]["message"]["content"]
        await serving.chat(f"{name}: what is a bee?", text, f"no, shorter {name}")


def labels(report: dict[str, Any], judge: str = "rule") -> dict[str, int]:
    return {row["label"]: row["count"] for row in report["signals"] if row["judge"] == judge}


async def waiting(home: Path) -> list[str]:
    store = await Store.open(home)
    try:
        return [signal.said for signal in await store.signals.waiting(100)]
    finally:
        await store.close()


@pytest.mark.model
@pytest.mark.timeout(600)
async def test_nobody_waits_for_a_broken_judge_and_its_queue_stays_whole(tiny_weights: Path, tmp_path: Path) -> None:
    judge = FakeJudge(pushback)
    await judge.start()
    port = urlsplit(judge.url).port
    assert port is not None
    env = {
        "RLPROXY_JUDGE__MODE": "shadow", "RLPROXY_JUDGE__URL": judge.url, "RLPROXY_JUDGE__MODEL": "rule",
        "RLPROXY_JUDGE__VOTES": "1",
    }  # fmt: skip
    serving = Serving(tmp_path / "home", tiny_weights, **env)
    await serving.start()
    judge.garbage = b"\xff{[" * 9
    await converse(serving, "garbage")
    assert labels(await until(serving, lambda report: labels(report) != {})) == {"unclear": 1}

    judge.garbage, judge.delay_s = None, 1000.0
    asked = len(judge.requests)
    await converse(serving, "slow one", "slow two")
    await until(serving, lambda report: report["waiting"] == 2 and len(judge.requests) > asked)
    await converse(serving, "slow three")  # while the judge thinks
    await until(serving, lambda report: report["waiting"] == 3)

    await judge.stop()
    await until(serving, lambda report: "does not answer" in str(report["waits_for"]))
    await converse(serving, "down")
    await until(serving, lambda report: report["waiting"] == 4)

    limits = resource.prlimit(serving.process.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(serving.process.pid, resource.RLIMIT_FSIZE, (0, limits[1]))
    await converse(serving, "full")  # answered, and not captured
    resource.prlimit(serving.process.pid, resource.RLIMIT_FSIZE, limits)
    await converse(serving, "room again")
    await until(serving, lambda report: report["waiting"] >= 5)
    await serving.kill()

    left = await waiting(serving.home)
    expected = ["no, shorter " + name for name in ("slow one", "slow two", "slow three", "down", "room again")]
    assert [said for said in left if "full" not in said] == expected
    judge.delay_s = 0.0
    await judge.start(port)
    await serving.start()
    report = await until(serving, lambda report: report["waiting"] == 0)
    assert labels(report)["correction"] == len(left) and report["waits_for"] is None
    assert await serving.stop() == 0, serving.log
    await judge.stop()
