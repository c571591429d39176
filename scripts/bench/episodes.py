"""Many agents at once while versions change: is each episode on one version, and is each reward counted once?

    python -m scripts.bench.episodes [--episodes 1000] [--clients 64] [--start-at 160] [--json FILE]

A real proxy on loopback, a backend and a trainer that are fakes. Runs start by themselves as groups close, so versions
go live among the episodes. Each has one to four turns that resend their history, and every tenth reward is sent twice.
Writes benchmarks/episodes.json; exits with 1 where anything is wrong.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any, Final

import structlog

from scripts.fakes.backend import FakeBackend
from scripts.fakes.launcher import FakeLauncher
from scripts.harness.circumstances import circumstances
from scripts.harness.in_process import Proxy

ROOT: Final = Path(__file__).resolve().parents[2]
MEMBERS: Final = 8  # of a group
TURNS: Final = 4  # of an episode, at most


@dataclass
class SentEpisode:
    """The answers that a client got about one episode."""

    id: str
    reward: float
    adapters: set[str] = field(default_factory=set)  # that answered its turns
    turns: int = 0
    stored: int = 0  # times that a reward was new


def numbers(episodes: int, swaps: int, sent: list[SentEpisode]) -> Iterator[int]:
    """So many whole groups, and more until so many versions after the first have answered (or it is hopeless)."""
    for number in count():
        served = {name for episode in sent for name in episode.adapters} if number % MEMBERS == 0 else set()
        if number >= episodes and number % MEMBERS == 0 and (len(served) > swaps or number >= 20 * episodes):
            return
        yield number


async def client(
    proxy: Proxy, tasks: Iterator[int], dice: random.Random, sent: list[SentEpisode], think_s: float
) -> None:
    for number in tasks:
        episode = SentEpisode(f"ep-{number}", float(dice.random() < 0.5))
        sent.append(episode)
        if dice.random() < 0.5:
            async with proxy.http.post("/rl/episodes", json={"id": episode.id}) as response:
                assert response.status == 201, await response.text()
        texts = [f"task {number // MEMBERS}"]
        for _ in range(dice.randint(1, TURNS)):
            await asyncio.sleep(dice.uniform(0, 2 * think_s))  # a tool at work
            async with await proxy.chat(*texts, headers={"x-rl-session": episode.id}) as response:
                answer = await response.json()
                assert response.status == 200, answer
                episode.adapters.add(response.headers["x-rl-adapter"])
            episode.turns += 1
            texts += [answer["choices"][0]["message"]["content"], f"result {dice.random()}"]
        for _ in range(2 if number % 10 == 0 else 1):
            body = {"reward": episode.reward, "group": f"g{number // MEMBERS}", "group_size": MEMBERS}
            async with proxy.http.post(f"/rl/episodes/{episode.id}/reward", json=body) as response:
                assert response.status in (200, 201), await response.text()
                episode.stored += response.status == 201


async def settled(proxy: Proxy, started: int) -> None:
    """Until no run is under way and none is due."""
    until = time.monotonic() + 60
    while time.monotonic() < until:
        status = await proxy.get("/rl/status")
        if status["training"]["run"] is None and status["episodes"]["ready"] < started:
            return
        await asyncio.sleep(0.05)
    raise TimeoutError(f"a run is still due: {status['training']}")


async def wrong(proxy: Proxy, sent: list[SentEpisode]) -> list[str]:
    """List where the store contradicts the answers that clients got."""
    stored = {row.id: row for row in await proxy.store.episodes.page(limit=len(sent) + 1)}
    mistakes = [f"{len(stored)} episodes of {len(sent)} are stored"] if len(stored) != len(sent) else []
    runs = await proxy.store.runs.recent(limit=1000)
    run_counts = Counter([row.seq for run in runs for row in await proxy.store.episode_groups.of_run(run.id)])
    for expected in sent:
        episode = stored.get(expected.id)
        if episode is None:
            mistakes.append(f"{expected.id} is not stored")
            continue
        name = f"v{episode.version}" if episode.version else "base"
        if expected.adapters != {name}:
            mistakes.append(f"{expected.id} has the version {name}, and {sorted(expected.adapters)} answered")
        if expected.stored != 1 or episode.reward != expected.reward:
            mistakes.append(
                f"{expected.id}: reward {expected.reward} is stored as {episode.reward}, {expected.stored} times"
            )
        if episode.turns != expected.turns:
            mistakes.append(f"{expected.id}: {expected.turns} turns are stored as {episode.turns}")
        if run_counts[episode.seq] > 1 or (run_counts[episode.seq] and episode.left_out):
            mistakes.append(f"{expected.id} is in {run_counts[episode.seq]} runs, left out: {episode.left_out}")
    return mistakes


async def measured(
    folder: Path, *, episodes: int, clients: int, swaps: int, start_at: int, think_s: float, seed: int = 0
) -> dict[str, Any]:
    backend = FakeBackend()
    await backend.start()
    proxy = Proxy(folder, backend, FakeLauncher())
    proxy.flags |= {"train.start_at_episodes": start_at, "train.group_size": MEMBERS}
    await proxy.start()
    sent: list[SentEpisode] = []
    try:
        tasks, began = numbers(episodes, swaps, sent), time.monotonic()
        dice = [random.Random(f"{seed} {index}") for index in range(clients)]
        await asyncio.gather(*(client(proxy, tasks, stream, sent, think_s) for stream in dice))
        seconds = time.monotonic() - began
        await settled(proxy, start_at)
        status = await proxy.get("/rl/status")
        served = Counter(name for episode in sent for name in episode.adapters)
        return {
            "episodes": len(sent),
            "clients": clients,
            "turns": sum(episode.turns for episode in sent),
            "seconds": round(seconds, 1),
            "live": status["live"],
            "runs": len(await proxy.store.runs.recent(limit=1000)),
            "episodes_by_version": dict(sorted(served.items())),
            "left_out": status["episodes"]["left_out"],
            "wrong": await wrong(proxy, sent),
        }
    finally:
        await proxy.stop()
        await backend.stop()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--episodes", type=int, default=1000)
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--swaps", type=int, default=5, help="go on until so many versions have answered")
    parser.add_argument("--start-at", type=int, default=160, help="train.start_at_episodes")
    parser.add_argument("--think-s", type=float, default=0.2, help="between two turns, on average")
    parser.add_argument("--json", type=Path, default=ROOT / "benchmarks/episodes.json")
    args = parser.parse_args()
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    about = circumstances()
    with tempfile.TemporaryDirectory(prefix="rlproxy-episodes-") as folder:
        report = asyncio.run(
            measured(
                Path(folder),
                episodes=args.episodes,
                clients=args.clients,
                swaps=args.swaps,
                start_at=args.start_at,
                think_s=args.think_s,
            )
        )
    args.json.write_text(json.dumps(about | report, indent=1) + "\n")
    print(json.dumps(report, indent=1))
    return 1 if report["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main())
