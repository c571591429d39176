"""kill -9 of the proxy at random instants under load, and what is on its disk after each."""

from __future__ import annotations

import asyncio
import random
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from scripts.chaos.agents import Agent
from scripts.chaos.check import wrong
from scripts.chaos.nursery import Nursery
from scripts.chaos.people import NEVER, Ledger, Person, living
from scripts.fakes.backend import MODEL, FakeBackend
from store.file.schema import NAME

PEOPLE = 6
AGENTS = 2  # of those, programs that reward episodes
MOST = 40  # answers and ratings of a life: counted, since how fast the machine is must not matter
LONGEST_S = 8.0  # and where even those take too long
BETWEEN_S = 0.02  # after the last of them: between any two
EARLY = 0.15  # share of the kills that come while the proxy still recovers from the one before
LIVES_A_HOME = 25  # then a new one: what is checked after each kill must not grow for ever


class Tally(dict[str, Any]):
    """Counts, and what went wrong."""

    def __init__(self, **counts: int) -> None:
        super().__init__(counts, wrong=[])


async def killed(instants: int, folder: Path, seed: int, until: float = float("inf")) -> Tally:
    """So many lives, or as many as begin before `until` (of the monotonic clock)."""
    tally = Tally(instants=0, while_starting=0, asked=0, whole=0, acts=0, rewards=0, cut=0)
    backend = FakeBackend()
    backend.pause_s = 0.001
    await backend.start()
    try:
        while tally["instants"] < instants and time.monotonic() < until:
            lives = min(LIVES_A_HOME, instants - tally["instants"])
            await _one_home(lives, folder / f"home{tally['instants']}", backend, random.Random(seed), tally, until)
            seed += 1
    finally:
        await backend.stop()
    return tally


def clients(ledger: Ledger, now: Callable[[], float], dice: random.Random) -> list[Person]:
    """People and agents, with seeds of their own."""
    kinds = [Agent] * AGENTS + [Person] * (PEOPLE - AGENTS)
    return [kind(ledger, now, dice.randrange(2**32)) for kind in kinds]


def flags(backend: FakeBackend) -> dict[str, Any]:
    return {"backend.kind": "openai", "backend.url": backend.url, "backend.model": MODEL, "train.enabled": False}


async def _one_home(
    lives: int, home: Path, backend: FakeBackend, dice: random.Random, tally: Tally, until: float
) -> None:
    ledger = Ledger()
    people = clients(ledger, time.monotonic, dice)
    nursery = Nursery(home, flags(backend))
    await nursery.open()
    try:
        for _ in range(lives):
            if time.monotonic() > until:
                break
            await nursery.born()
            if tally["instants"] and dice.random() < EARLY:
                await asyncio.sleep(dice.uniform(0.0, 0.3))
                tally["while_starting"] += 1
                await nursery.kill()
            else:
                await _life(nursery, people, ledger, dice)
            tally["instants"] += 1
            tally["wrong"] += await asyncio.to_thread(after_a_kill, home, ledger)
        await last_life(nursery, people, home, ledger, tally)
    finally:
        await nursery.close()
    tally["cut"] += ledger.cut


async def last_life(nursery: Nursery, people: list[Person], home: Path, ledger: Ledger, tally: Tally) -> None:
    """Once to the end: what was cut is sent again, and the stop is in order. Counts what the ledger has."""
    await nursery.born()
    async with nursery.client(await nursery.answers()) as http:
        await asyncio.gather(*(person.resend(http) for person in people))
    if (status := await nursery.stop()) != 0:
        tally["wrong"].append(f"the last stop ended with {status}")
    tally["wrong"] += await asyncio.to_thread(wrong, home, ledger)
    tally["asked"] += ledger.request_count
    tally["whole"] += len(ledger.answers)
    tally["acts"] += ledger.acknowledged
    tally["rewards"] += sum(reward.acknowledged_at < NEVER for reward in ledger.rewards.values())


async def _life(nursery: Nursery, people: list[Person], ledger: Ledger, dice: random.Random) -> None:
    async with nursery.client(await nursery.answers()) as http:
        await asyncio.gather(*(person.resend(http) for person in people))
        async with living(people, http):
            await _some_life(ledger, dice.randint(0, MOST))
            await asyncio.sleep(dice.uniform(0.0, BETWEEN_S))
            await nursery.kill()


async def _some_life(ledger: Ledger, count: int) -> None:
    until = time.monotonic() + LONGEST_S
    goal = ledger.confirmations() + count
    while ledger.confirmations() < goal and time.monotonic() < until:
        await asyncio.sleep(0.002)


def after_a_kill(home: Path, ledger: Ledger) -> list[str]:
    """Look for damage on a copy: the next proxy must find the write-ahead log as the dead one left it."""
    with tempfile.TemporaryDirectory(dir=home.parent) as scratch:
        for name in (NAME, f"{NAME}-wal"):
            if (home / name).exists():
                shutil.copyfile(home / name, Path(scratch) / name)
        return wrong(Path(scratch), ledger)
