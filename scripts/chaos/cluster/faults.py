"""Faults of the machines, one after the other, and what mends each."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple

from scripts.chaos.cluster.machines import Cluster
from scripts.chaos.cluster.network import Network, full

AWAY_S: Final = (0.2, 3.0)  # that the database or a replica is gone
FROZEN_S: Final = (1.0, 8.0)
MINUTE_S: Final = 60.0
CUT_S: Final = (1.0, 12.0)
FULL_S: Final = (1.0, 8.0)
TAKEN_OVER_S: Final = 60.0  # until another relay learns
RUN_S: Final = 5.0  # that is waited for a run to kill


class Fault(NamedTuple):
    name: str
    began: float  # epoch seconds
    ended: float


class Faults:
    def __init__(self, cluster: Cluster, dice: random.Random, network: Network | None) -> None:
        """`network`: without one nothing is cut and no disk is full."""
        self._cluster = cluster
        self._dice = dice
        self._network = network
        self.log: list[Fault] = []
        self.misses: Counter[str] = Counter()  # faults that met nothing to befall
        self.problems: list[str] = []
        self._kinds: dict[str, tuple[int, Callable[[], Awaitable[None]]]] = {
            "a relay is killed": (5, self._kill_relay),
            "the database is killed": (2, self._kill_database),
            "a replica is gone and comes back empty": (3, self._stop_replica),
            "the learner is killed": (3, self._kill_learner),
            "both relays are killed": (1, self._kill_relays),
            "the run is killed": (4, self._kill_run),
            "the database restarts": (2, self._restart_database),
            "the database stands still": (2, self._freeze_database),
            "the learner is away until another learns": (1, self._replace_learner),
        }
        if network is not None:
            self._kinds |= {
                "a relay is cut off the database": (3, self._cut_relay),
                "both relays are cut off the database": (1, self._cut_database),
                "the learner is cut off until another learns": (1, self._cut_learner),
                "a relay is cut off a replica": (2, self._cut_replica),
                "the database's disk is full": (2, self._fill_disk),
            }

    @property
    def names(self) -> list[str]:
        return list(self._kinds)

    async def befall(self, name: str | None = None) -> None:
        """One fault, by chance or by its name, until it is mended."""
        name = name or self._dice.choices(self.names, weights=[weight for weight, _ in self._kinds.values()])[0]
        began = time.time()
        await self._kinds[name][1]()
        self.log.append(Fault(name, began, time.time()))

    async def freeze_for_a_minute(self) -> None:
        began = time.time()
        with self._cluster.server.frozen():
            await asyncio.sleep(MINUTE_S)
        self.log.append(Fault("the database stands still for a minute", began, time.time()))

    async def _while(self, seconds: tuple[float, float]) -> None:
        await asyncio.sleep(self._dice.uniform(*seconds))

    # Relays and runs

    async def _kill_relay(self) -> None:
        relay = self._dice.choice(self._cluster.relays)
        await relay.kill()
        await relay.start()

    async def _kill_learner(self) -> None:
        relay = await asyncio.to_thread(self._cluster.learner)
        await relay.kill()
        await relay.start()

    async def _kill_relays(self) -> None:
        await asyncio.gather(*(relay.kill() for relay in self._cluster.relays))
        await asyncio.gather(*(relay.start() for relay in self._cluster.relays))

    async def _replace_learner(self) -> None:
        relay = await asyncio.to_thread(self._cluster.learner)
        await relay.kill()
        try:
            await self._taken_over()
        finally:
            await relay.start()

    async def _taken_over(self) -> None:
        """Wait until another relay learns."""
        learner = await asyncio.to_thread(self._cluster.learner)
        deadline = time.monotonic() + TAKEN_OVER_S
        while await asyncio.to_thread(self._cluster.learner) is learner:
            if time.monotonic() > deadline:
                self.problems.append(f"no other relay learned within {TAKEN_OVER_S:g} s")
                return
            await asyncio.sleep(0.5)

    async def _kill_run(self) -> None:
        deadline = time.monotonic() + RUN_S
        while not any(relay.kill_trainer() for relay in self._cluster.relays):
            if time.monotonic() > deadline:
                self.misses["no run to kill"] += 1
                return
            await asyncio.sleep(0.1)

    # The database

    async def _kill_database(self) -> None:
        self._cluster.server.kill()
        await self._while(AWAY_S)
        await self._start_database()

    async def _restart_database(self) -> None:
        await asyncio.to_thread(self._cluster.server.stop)
        await self._while(AWAY_S)
        await self._start_database()

    async def _start_database(self) -> None:
        await asyncio.to_thread(self._cluster.database_machine.run, self._cluster.server.start)

    async def _freeze_database(self) -> None:
        with self._cluster.server.frozen():
            await self._while(FROZEN_S)

    async def _fill_disk(self) -> None:
        with full(self._cluster.server.folder.parent):
            await self._while(FULL_S)
        if self._cluster.server.has_ended:  # its journal had no room: whoever minds it starts it again
            self.misses["the full database ended"] += 1
            await self._start_database()
        await asyncio.to_thread(self._cluster.server.wait)

    # The network

    def _net(self) -> Network:
        assert self._network is not None
        return self._network

    async def _cut_relay(self) -> None:
        relay = self._dice.choice(self._cluster.relays)
        with self._net().cut(relay.machine, self._cluster.database_machine):
            await self._while(CUT_S)

    async def _cut_database(self) -> None:
        with self._net().cut(self._cluster.database_machine, *(relay.machine for relay in self._cluster.relays)):
            await self._while(CUT_S)

    async def _cut_learner(self) -> None:
        relay = await asyncio.to_thread(self._cluster.learner)
        with self._net().cut(relay.machine, self._cluster.database_machine):
            await self._taken_over()

    async def _cut_replica(self) -> None:
        relay, replica = self._dice.choice(self._cluster.relays), self._dice.choice(self._cluster.replicas)
        with self._net().cut(relay.machine, replica.machine):
            await self._while(CUT_S)

    async def _stop_replica(self) -> None:
        replica = self._dice.choice(self._cluster.replicas)
        port = replica.port
        await replica.stop()
        await self._while(AWAY_S)
        await replica.start(port)
