"""Two relays, one PostgreSQL, three replicas: what is acknowledged is stored once, whatever is killed meanwhile.

    python -m scripts.chaos.cluster [--kills 40] [--clients 16] [--seed 1] [--json FILE]

Real: `rlproxy serve` twice, each a process with a home of its own; PostgreSQL from this machine's binaries, which waits
for its disk; HTTP over loopback. Fake: the three replicas, which answer as vLLM does. Clients ask one relay and rate at
any. Meanwhile a relay, the database or a replica is killed, or the database stands still. In the end everything is
there again, and the database is read: each acknowledged answer and rating once, and none that nobody sent.
Training is off: the learner has a test of its own (tests/test_sharing.py).
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import random
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import aiohttp

from scripts.chaos.nursery import Nursery
from scripts.fakes.backend import MODEL, FakeBackend
from scripts.harness.circumstances import circumstances
from scripts.harness.postgres import LACKS, PostgresServer, find_binaries

OUT: Final = Path(__file__).resolve().parents[2] / "benchmarks/cluster.json"
RATED: Final = 0.6  # share of answers that somebody rates
BETWEEN_S: Final = (0.3, 1.5)  # from one fault to the next
AWAY_S: Final = (0.2, 3.0)  # that the database or a replica is gone
FROZEN_S: Final = (1.0, 8.0)
DELIVERED_S: Final = 60.0  # for spooled answers, once the database is back
VALUES: Final = {"good": 1.0, "bad": -1.0}


@dataclass
class Ledger:
    """Requests of the clients, and the answers that they got."""

    requests: int = 0
    cut: int = 0  # answers that broke off, or never began
    answers: list[str] = field(default_factory=list)  # ids of those that came to their end
    ratings: dict[str, str] = field(default_factory=dict)  # by answer, the acknowledged one
    unsure: set[str] = field(
        default_factory=set
    )  # answers of which a rating was sent, and nobody said what became of it
    refused: Counter[str] = field(default_factory=Counter)  # ratings by status
    statuses: Counter[int] = field(default_factory=Counter)
    longest_s: float = 0.0


class Relay:
    """A process of rlproxy, and where it is reached now; None while it starts."""

    def __init__(self, nursery: Nursery) -> None:
        self.nursery = nursery
        self.http: aiohttp.ClientSession | None = None

    async def start(self) -> None:
        await self.nursery.born()
        self.http = self.nursery.client(await self.nursery.answers())

    async def kill(self) -> None:
        http, self.http = self.http, None
        await self.nursery.kill()
        if http is not None:
            await http.close()

    async def stop(self) -> int:
        http, self.http = self.http, None
        status = await self.nursery.stop()
        if http is not None:
            await http.close()
        return status


class Client:
    def __init__(self, number: int, relays: list[Relay], ledger: Ledger, seed: int) -> None:
        self._number = number
        self._relays = relays
        self._ledger = ledger
        self._dice = random.Random(seed)

    async def live(self) -> None:
        """Ask and rate, for ever."""
        while True:
            if (id := await self._ask()) is not None and self._dice.random() < RATED:
                await self._rate(id)
            await asyncio.sleep(self._dice.uniform(0.0, 0.02))

    async def _http(self) -> aiohttp.ClientSession:
        while True:
            up = [relay.http for relay in self._relays if relay.http is not None]
            if up:
                return self._dice.choice(up)
            await asyncio.sleep(0.01)

    async def _ask(self) -> str | None:
        """The id of an answer that came to its end."""
        http, ledger, began = await self._http(), self._ledger, time.monotonic()
        ledger.requests += 1
        text = f"client {self._number}, question {ledger.requests}"
        body = {"model": MODEL, "stream": True, "messages": [{"role": "user", "content": text}]}
        try:
            async with http.post("/v1/chat/completions", json=body) as response:
                content = await response.read()
                ledger.statuses[response.status] += 1
                if response.status == 200 and content.rstrip().endswith(b"data: [DONE]"):
                    ledger.longest_s = max(ledger.longest_s, time.monotonic() - began)
                    id = response.headers["x-rl-completion-id"]
                    ledger.answers.append(id)
                    return id
        except (aiohttp.ClientError, TimeoutError, OSError):
            pass
        ledger.cut += 1
        return None

    async def _rate(self, id: str) -> None:
        http, ledger = await self._http(), self._ledger
        rating = self._dice.choice(list(VALUES))
        ledger.unsure.add(id)  # until somebody says what became of it
        try:
            async with http.post("/v1/feedback", json={"completion_id": id, "rating": rating}) as response:
                await response.read()
                if response.status in (200, 201):
                    ledger.ratings[id] = rating
                else:
                    ledger.refused[str(response.status)] += 1
                if response.status < 500:
                    ledger.unsure.discard(id)
        except (aiohttp.ClientError, TimeoutError, OSError):
            ledger.refused["no answer"] += 1


class Cluster:
    def __init__(self, folder: Path, server: PostgresServer, url: str, replicas: list[FakeBackend]) -> None:
        flags = {
            "store.url": url, "train.enabled": False, "train.adapters_dir": str(folder / "adapters"),
            "backend.kind": "vllm", "backend.url": replicas[0].url,
            "backend.replicas": [replica.url for replica in replicas[1:]], "backend.model": MODEL,
        }  # fmt: skip
        self.relays = [Relay(Nursery(folder / f"relay{number}", flags)) for number in (1, 2)]
        self.server = server
        self.replicas = replicas
        self.faults: Counter[str] = Counter()

    async def start(self) -> None:
        for relay in self.relays:
            await relay.nursery.open()
        await self.relays[0].start()
        await self.relays[1].start()

    async def close(self) -> None:
        for relay in self.relays:
            if relay.http is not None:
                await relay.http.close()
            await relay.nursery.close()

    async def befall(self, dice: random.Random) -> None:
        """One fault, and what mends it."""
        faults: dict[str, Callable[[random.Random], Awaitable[None]]] = {
            "a relay is killed": self._kill_relay,
            "both relays are killed": self._kill_relays,
            "the database is killed": self._kill_database,
            "the database restarts": self._restart_database,
            "the database stands still": self._freeze_database,
            "a replica is gone": self._stop_replica,
        }
        name = dice.choices(list(faults), weights=(4, 1, 2, 1, 1, 2))[0]
        await faults[name](dice)
        self.faults[name] += 1

    async def _kill_relay(self, dice: random.Random) -> None:
        relay = dice.choice(self.relays)
        await relay.kill()
        await relay.start()

    async def _kill_relays(self, dice: random.Random) -> None:
        await asyncio.gather(*(relay.kill() for relay in self.relays))
        await asyncio.gather(*(relay.start() for relay in self.relays))

    async def _kill_database(self, dice: random.Random) -> None:
        self.server.kill()
        await asyncio.sleep(dice.uniform(*AWAY_S))
        await asyncio.to_thread(self.server.start)

    async def _restart_database(self, dice: random.Random) -> None:
        await asyncio.to_thread(self.server.stop)
        await asyncio.sleep(dice.uniform(*AWAY_S))
        await asyncio.to_thread(self.server.start)

    async def _freeze_database(self, dice: random.Random) -> None:
        with self.server.frozen():
            await asyncio.sleep(dice.uniform(*FROZEN_S))

    async def _stop_replica(self, dice: random.Random) -> None:
        replica = dice.choice(self.replicas)
        port = replica.port
        await replica.stop()
        await asyncio.sleep(dice.uniform(*AWAY_S))
        await replica.start(port)


async def delivered(server: PostgresServer, database: str, ledger: Ledger) -> float:
    """Seconds until the database had each acknowledged answer, whole; DELIVERED_S at most."""
    began = time.monotonic()
    while (elapsed := time.monotonic() - began) < DELIVERED_S:
        rows = await asyncio.to_thread(
            server.execute, "SELECT id FROM rlproxy.completions WHERE status = 'done'", database
        )
        if {id for (id,) in rows} >= set(ledger.answers):
            break
        await asyncio.sleep(0.2)
    return round(elapsed, 1)


def wrong(server: PostgresServer, database: str, ledger: Ledger) -> list[str]:
    """Differences between the database and what clients were told."""
    rows = server.execute("SELECT id, status FROM rlproxy.completions", database)
    states = dict(rows)
    faults = [f"{id} was answered and is not stored" for id in ledger.answers if id not in states]
    faults += [f"{id} was answered and is {states[id]}" for id in ledger.answers if states.get(id, "done") != "done"]
    if (doubled := len(rows) - len(states)) or len(ledger.answers) != len(set(ledger.answers)):
        faults.append(f"{doubled} ids are stored twice")
    whole_answers = sum(status == "done" for status in states.values())
    if whole_answers > ledger.requests:
        faults.append(f"{whole_answers} answers are stored, and {ledger.requests} were asked for")
    live = Counter[str]()
    values = {}
    for id, value in server.execute("SELECT completion_id, value FROM rlproxy.ratings WHERE live = 1", database):
        live[id] += 1
        values[id] = value
    faults += [f"{id} has {count} live ratings" for id, count in live.items() if count > 1]
    sure = {id: rating for id, rating in ledger.ratings.items() if id not in ledger.unsure}
    faults += [f"the rating of {id} is lost" for id in sure if id not in values]
    faults += [
        f"{id} is rated {values[id]}" for id, rating in sure.items() if values.get(id) not in (None, VALUES[rating])
    ]
    faults += [f"{id} is rated by nobody" for id in values if id not in ledger.ratings and id not in ledger.unsure]
    return faults


async def measured(kills: int, clients: int, seed: int) -> dict[str, Any]:
    binaries = find_binaries()
    if binaries is None:
        raise SystemExit(LACKS)
    dice, ledger = random.Random(seed), Ledger()
    server = PostgresServer(binaries, durable=True)
    replicas = [FakeBackend() for _ in range(3)]
    with tempfile.TemporaryDirectory(prefix="rlproxy-cluster-") as name:
        try:
            server.start()
            for replica in replicas:
                replica.pause_s = 0.002
                await replica.start()
            database = server.create()
            cluster = Cluster(Path(name), server, server.url(database), replicas)
            try:
                await cluster.start()
                people = [Client(n, cluster.relays, ledger, dice.randrange(2**32)) for n in range(clients)]
                tasks = [asyncio.create_task(person.live()) for person in people]
                for number in range(kills):
                    await asyncio.sleep(dice.uniform(*BETWEEN_S))
                    await cluster.befall(dice)
                    print(
                        f"{number + 1} of {kills}: {len(ledger.answers)} answers, {len(ledger.ratings)} ratings",
                        flush=True,
                    )
                await asyncio.sleep(2.0)
                for task in tasks:
                    task.cancel()
                await asyncio.wait(tasks)
                delivered_s = await delivered(server, database, ledger)
                for relay in cluster.relays:
                    status = await relay.stop()
                    assert status == 0, f"a stop ended with {status}"
                faults = await asyncio.to_thread(wrong, server, database, ledger)
            finally:
                with contextlib.suppress(ProcessLookupError):
                    await cluster.close()
        finally:
            for replica in replicas:
                await replica.stop()
            server.close()
    return {
        "faults": dict(cluster.faults), "clients": clients, "seed": seed, "asked": ledger.requests,
        "answers": len(ledger.answers), "cut": ledger.cut, "ratings": len(ledger.ratings), "unsure": len(ledger.unsure),
        "refused_ratings": dict(ledger.refused), "statuses": {str(k): n for k, n in ledger.statuses.items()},
        "longest_answer_s": round(ledger.longest_s, 2), "delivered_s": delivered_s, "wrong": faults[:50],
        "wrong_count": len(faults),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=40)
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path, default=OUT)
    arguments = parser.parse_args()
    about = circumstances()
    result = asyncio.run(measured(arguments.kills, arguments.clients, arguments.seed))
    print(json.dumps(result, indent=1))
    arguments.json.write_text(json.dumps({**about, **result}, indent=1) + "\n")
    raise SystemExit(result["wrong_count"] > 0)


if __name__ == "__main__":
    main()
