"""Experiments of two real adapters on live traffic: how many ratings until the better one is promoted?

    python -m scripts.research.experiment_live [--experiments N] [--json FILE]

Real: `rlproxy serve` in a process of its own with the built-in backend, the two runs that make the versions, and their
serving. Scripted: people, who like 0.2 of the answers of v1 and 0.6 of those of v2. Forty conversations ask at once;
each is rated once. In each experiment the proxy is stopped once and killed once with -9, and every conversation asks
again afterwards: it must meet its version. The model has random weights of a few thousand parameters, as only its
versions matter here.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import tempfile
from pathlib import Path
from typing import Any, Final

from scripts.harness.circumstances import circumstances
from scripts.harness.serving import Serving
from scripts.harness.tiny_model import make_tiny_model
from trainer.formats.weights import resolve

RESULT: Final = Path(__file__).resolve().parents[2] / "benchmarks/experiment_live.json"
LIKED: Final = {"v1": 0.2, "v2": 0.6}
AT_ONCE: Final = 40
PER_RUN: Final = 12  # ratings
SETTINGS: Final = {
    "RLPROXY_GATE__BASE_NLL_RISE": "100", "RLPROXY_GATE__TEXT_NLL_RISE": "100", "RLPROXY_GATE__MARGIN_SLACK": "100",
    "RLPROXY_GATE__MIN_LENGTH_RATIO": "0", "RLPROXY_GATE__MAX_LOOPING": "8", "RLPROXY_GATE__MAX_CHANCE": "1",
    "RLPROXY_TRAIN__STAND_STILL_S": "0", "RLPROXY_TRAIN__WATCH": "false",
}  # fmt: skip


class Conversations:
    """Conversations of one experiment, and what became of their requests."""

    def __init__(self, serving: Serving, name: str) -> None:
        self._serving = serving
        self._name = name
        self.versions: dict[str, str] = {}  # that answered first
        self.failed = self.moved = self.requests = 0

    async def begin(self) -> list[tuple[str, str]]:
        """(version, completion id) of the first answers of AT_ONCE new conversations."""
        start = len(self.versions)
        names = [f"{self._name}-{n}" for n in range(start, start + AT_ONCE)]
        answers = await asyncio.gather(*(self._ask(name, "Hello") for name in names))
        replies = [answer for answer in answers if answer is not None]
        self.versions |= {name: answer[0] for name, answer in zip(names, answers, strict=True) if answer is not None}
        return replies

    async def go_on(self) -> None:
        """A second turn in each of the newest AT_ONCE: does it meet its version?"""
        names = list(self.versions)[-AT_ONCE:]
        answers = await asyncio.gather(*(self._ask(name, "Hello", "An answer.", "Go on") for name in names))
        for name, answer in zip(names, answers, strict=True):
            self.moved += answer is not None and answer[0] != self.versions[name]

    async def _ask(self, session: str, *texts: str) -> tuple[str, str] | None:
        self.requests += 1
        messages = [{"role": "assistant" if i % 2 else "user", "content": text} for i, text in enumerate(texts)]
        body = {"model": "small", "messages": messages, "max_tokens": 4}
        headers = {"x-rl-session": session}
        async with self._serving.http.post("/v1/chat/completions", json=body, headers=headers) as response:
            answer = await response.json()
            if response.status != 200:
                self.failed += 1
                return None
            return response.headers["x-rl-adapter"], answer["id"]


async def experiments(serving: Serving) -> dict[str, Any]:
    async with serving.http.get("/rl/experiments") as response:
        return dict(await response.json())


async def one_experiment(serving: Serving, number: int, dice: random.Random) -> dict[str, Any]:
    """One experiment, from v1 live to its end."""
    await serving.post("/rl/promote/1")
    async with serving.http.post("/rl/experiments", json={"version": 2, "against": 1}) as response:
        if response.status != 201:
            raise SystemExit(await response.text())
    conversations = Conversations(serving, f"talk-{number}")
    ratings, ends = {"v1": 0, "v2": 0}, ["kill -9", "restart"]
    dice.shuffle(ends)
    while (await experiments(serving))["running"] is not None:
        replies = await conversations.begin()
        while ends:
            await (serving.kill() if ends.pop() == "kill -9" else serving.stop())
            await serving.start()
            await conversations.go_on()
        for version, id in replies:
            await serving.rate(id, "good" if dice.random() < LIKED[version] else "bad")
            ratings[version] += 1
            if (await experiments(serving))["running"] is None:
                break
    end = (await experiments(serving))["ended"][0]
    return {
        "outcome": end["outcome"], "ratings": sum(ratings.values()), "by_version": ratings,
        "requests": conversations.requests, "failed": conversations.failed, "moved": conversations.moved,
        "live": (await serving.status())["live"],
    }  # fmt: skip


async def make_versions(serving: Serving) -> None:
    """Two real runs."""
    for version in (1, 2):
        for n in range(PER_RUN):
            answer, _ = await serving.chat(f"Question {version} {n}", max_tokens=4)
            await serving.rate(answer["id"], "good" if n % 2 else "bad")
        async with asyncio.timeout(1200):
            while (await serving.status())["live"] != version:
                await asyncio.sleep(0.2)
    await serving.post("/rl/pause")


async def measured(count: int) -> list[dict[str, Any]]:
    dice = random.Random(20261128)
    with tempfile.TemporaryDirectory() as name:
        weights = make_tiny_model(resolve().path, Path(name) / "tiny")
        serving = Serving(Path(name) / "home", weights, "--start-at", str(PER_RUN), **SETTINGS)
        await serving.start()
        try:
            await make_versions(serving)
            rows = []
            for number in range(count):
                rows.append(await one_experiment(serving, number, dice))
                print(rows[-1], flush=True)
            return rows
        finally:
            await serving.stop()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--experiments", type=int, default=21)
    parser.add_argument("--json", type=Path, default=RESULT)
    arguments = parser.parse_args()
    about = circumstances()
    rows = asyncio.run(measured(arguments.experiments))
    promoted = [row["ratings"] for row in rows if row["outcome"] == "promoted"]
    summary = {
        "experiments": len(rows),
        "promoted": len(promoted),
        "median_ratings": statistics.median(row["ratings"] for row in rows),
        "most_ratings": max(row["ratings"] for row in rows),
        "requests": sum(row["requests"] for row in rows),
        "failed": sum(row["failed"] for row in rows),
        "moved": sum(row["moved"] for row in rows),
    }
    print(summary)
    arguments.json.write_text(json.dumps({**about, "liked": LIKED, "summary": summary, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
