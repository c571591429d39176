"""Two relays behind a balancer, restarted one after the other under load: no request fails, no answer is cut.

Each relay has a home of its own, as SQLite wants it.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path

import aiohttp
import pytest

from scripts.fakes.backend import MODEL, FakeBackend
from scripts.harness.serving import Serving
from store.file.schema import NAME
from tests.harness.balancer import Balancer

CLIENTS = 8
ENOUGH_S = 120.0


@pytest.fixture
async def relays(tmp_path: Path, backend: FakeBackend) -> AsyncIterator[list[Serving]]:
    flags = ("--backend", "openai", "--backend-url", backend.url, "--model", MODEL)
    relays = []
    for name in ("one", "two"):
        relay = Serving(tmp_path / name, tmp_path / "no-weights", *flags, RLPROXY_SERVER__DRAIN_S="1.5")
        await relay.start()
        relay._command[relay._command.index("--port") + 1] = relay.url.rpartition(":")[2]  # the same after a restart
        relays.append(relay)
    yield relays
    for relay in relays:
        if relay.process.returncode is None:
            await relay.kill()


class Load:
    """Clients that never stop asking, half of them over one connection for as long as that is kept."""

    def __init__(self, url: str) -> None:
        self.answered = 0
        self.failures: list[str] = []
        self._url = url
        self._stop = False
        self._clients = [asyncio.create_task(self._ask(number)) for number in range(CLIENTS)]

    async def end(self) -> None:
        self._stop = True
        await asyncio.gather(*self._clients)

    async def _ask(self, number: int) -> None:
        keeps = number % 2 == 0
        connector = aiohttp.TCPConnector(force_close=not keeps)
        async with aiohttp.ClientSession(base_url=self._url, connector=connector) as http:
            while not self._stop:
                await self._one(http, stream=number % 4 < 2)

    async def _one(self, http: aiohttp.ClientSession, *, stream: bool) -> None:
        messages = [{"role": "user", "content": "a b c d e f"}]
        body = {"model": MODEL, "messages": messages, "stream": stream}
        try:
            async with http.post("/v1/chat/completions", json=body) as response:
                text = await response.text()
        except aiohttp.ClientError as error:
            self.failures.append(repr(error))
            return
        whole = text.endswith("data: [DONE]\n\n") if stream else "You said: a b c d e f" in text
        if response.status == 200 and whole:
            self.answered += 1
        else:
            self.failures.append(f"{response.status}: {text[-300:]}")


def stored(relay: Serving) -> int:
    with closing(sqlite3.connect(relay.home / NAME)) as db:
        (count,) = db.execute("SELECT count(*) FROM completions WHERE status = 'done'").fetchone()
    return int(count)


async def test_a_rolling_restart_fails_no_request(relays: list[Serving], backend: FakeBackend) -> None:
    backend.pause_s = 0.03
    ports = [int(relay.url.rpartition(":")[2]) for relay in relays]
    balancer = Balancer(*ports)
    await balancer.start()
    async with asyncio.timeout(ENOUGH_S):
        await balancer.wait_for(**{f"r{port}": True for port in ports})
        load = Load(balancer.url)
        for relay, port in zip(relays, ports, strict=True):
            answered = load.answered
            while load.answered < answered + 2 * CLIENTS:
                await asyncio.sleep(0.05)
            relay.tell_to_stop()
            await balancer.wait_for(**{f"r{port}": False})
            assert relay.process.returncode is None, "it said so before it stopped"
            assert await relay.stop() == 0
            await relay.start()
            await balancer.wait_for(**{f"r{port}": True})
        await load.end()
    await balancer.stop()
    for relay in relays:
        assert await relay.stop() == 0
    assert not load.failures, (load.answered, load.failures[:3])
    assert min(balancer.served.values()) > 0
    assert sum(map(stored, relays)) == load.answered, "each answer was stored, once"
