"""Two relays, one database and three replicas on their machines, and how each ends and starts again."""

from __future__ import annotations

import contextlib
import json
import socket
import time
from pathlib import Path
from typing import Any, Final

import aiohttp
import psutil
import psycopg
from aiohttp import web

from proxy.backends.installed_versions import mark_of
from scripts.chaos.cluster.network import Machine
from scripts.chaos.cluster.stand_in import JOURNAL
from scripts.chaos.nursery import Nursery, StartEnded
from scripts.fakes.backend import MODEL, FakeBackend
from scripts.harness.postgres import PostgresServer
from store.postgres.relays import FILE

STARTS: Final = 5  # of a relay that does not start, as a supervisor would try
CLIENT_S: Final = 90.0  # that a client waits for an answer
_LEARNER: Final = "SELECT value FROM rlproxy.meta WHERE key = 'learner'"


class Relay:
    """A process of rlproxy, and where it is reached now; None while it is not there."""

    def __init__(self, home: Path, flags: dict[str, Any], journal: Path, machine: Machine) -> None:
        self.machine = machine
        self.home = home
        self.nursery = Nursery(
            home, flags, module="scripts.chaos.cluster.relay", command=machine.command, env={JOURNAL: str(journal)}
        )
        self.http: aiohttp.ClientSession | None = None

    async def start(self) -> None:
        for _ in range(STARTS):
            await self.nursery.born()
            with contextlib.suppress(StartEnded):
                url = await self.nursery.answers()
                break
        else:
            raise AssertionError(self.nursery.log.read_text()[-2000:])
        connector = aiohttp.TCPConnector(
            limit=0, socket_factory=lambda info: self.machine.run(lambda: socket.socket(*info[:3]))
        )
        self.http = aiohttp.ClientSession(url, connector=connector, timeout=aiohttp.ClientTimeout(total=CLIENT_S))

    async def kill(self) -> None:
        http, self.http = self.http, None
        await self.nursery.kill()
        if http is not None:
            await http.close()

    async def stop(self) -> int:
        """Its status."""
        http, self.http = self.http, None
        status = await self.nursery.stop()
        if http is not None:
            await http.close()
        return status

    def kill_trainer(self) -> bool:
        """Kill the run that this relay trains, if any."""
        with contextlib.suppress(psutil.NoSuchProcess):
            for child in psutil.Process(self.nursery.pid).children(recursive=True):
                if "scripts.chaos.cluster.stand_in" in child.cmdline():
                    child.kill()
                    return True
        return False


class Replica(FakeBackend):
    """A fake of vLLM whose answers say which weights they are of. One that was away has forgotten its adapters."""

    def __init__(self, machine: Machine) -> None:
        super().__init__()
        self.machine = machine
        self.pause_s = 0.002
        self.loads: dict[str, float] = {}  # when each adapter was first loaded

    async def listen(self, app: web.Application, port: int = 0, host: str = "") -> None:
        self._runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.SockSite(self._runner, self.machine.listen(port)).start()
        self.url = f"http://{self.machine.address}:{self._runner.addresses[0][1]}"

    async def stop(self) -> None:
        await super().stop()
        self.adapters.clear()

    async def _load(self, request: web.Request) -> web.Response:
        adapters = set(self.adapters)
        response = await super()._load(request)
        for name in self.adapters.keys() - adapters:
            self.loads.setdefault(name, time.time())
        return response

    def _words(self, body: dict[str, Any], index: int) -> list[str]:
        self.requests.clear()  # nobody looks at them, and an hour of them is a lot
        self.asked.clear()
        self.headers.clear()
        return ["These ", "are ", "the ", "words ", "of ", body["model"]]


class Cluster:
    def __init__(self, folder: Path, server: PostgresServer, machines: list[Machine]) -> None:
        """`machines`: of two relays, the database, three replicas."""
        self.server = server
        self.database_machine = machines[2]
        self.replicas = [Replica(machine) for machine in machines[3:]]
        self.folder = folder
        self.journal = folder / "trainers.jsonl"
        self._relay_machines = machines[:2]
        self.relays: list[Relay] = []
        self.database = ""

    async def start(self) -> None:
        for replica in self.replicas:
            await replica.start()
        self.database = self.server.create()
        flags = {
            "store.url": self.server.url(self.database), "backend.kind": "vllm", "backend.url": self.replicas[0].url,
            "backend.replicas": [replica.url for replica in self.replicas[1:]], "backend.model": MODEL,
            "train.adapters_dir": str(self.folder / "adapters"), "train.weights": "/nowhere", "train.nice": 0,
            "train.min_free_memory_gb": 0, "train.start_at": 32, "train.max_version_gap": 10_000, "train.watch": False,
            "log.level": "info",
        }  # fmt: skip
        self.relays = [
            Relay(self.folder / f"relay{number}", flags, self.journal, machine)
            for number, machine in enumerate(self._relay_machines, 1)
        ]
        for relay in self.relays:
            await relay.nursery.open()
        for relay in self.relays:
            await relay.start()

    async def close(self) -> None:
        for relay in self.relays:
            if relay.http is not None:
                await relay.http.close()
            await relay.nursery.close()
        for replica in self.replicas:
            await replica.stop()

    def learner(self) -> Relay:
        """The relay that was the last to learn."""
        with contextlib.suppress(psycopg.Error):
            for (value,) in self.server.execute(_LEARNER, self.database):
                for relay in self.relays:
                    if (relay.home / FILE).read_text().strip() == json.loads(value):
                        return relay
        return self.relays[0]

    async def training(self) -> list[str]:
        """The line of each relay's status about its training."""
        lines = []
        for relay in self.relays:
            assert relay.http is not None
            async with relay.http.get("/rl/status") as response:
                training = (await response.json()).get("training", {})
            lines.append(f"{training.get('line')} ({training.get('waits_for')})")
        return lines

    def names(self, version: int) -> list[str]:
        """Names of a version at the replicas, one of each relay."""
        return [f"{MODEL}@v{version}-{mark_of(relay.home)}" for relay in self.relays]
