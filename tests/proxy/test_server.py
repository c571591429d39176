"""A stop, with a real process: in its order, with a second signal at once, and what is on the disk after either."""

from __future__ import annotations

import asyncio
import signal
import sqlite3
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path

import aiohttp
import pytest

from config.settings import load
from proxy import server
from proxy.core.address_file import ADDRESS_FILE
from scripts.fakes.backend import MODEL, FakeBackend
from scripts.harness.in_process import Proxy
from scripts.harness.serving import Serving
from store.file.schema import NAME

ENOUGH_S = 30.0
BODY = {"model": MODEL, "messages": [{"role": "user", "content": "a b c d e f"}], "stream": True}


@pytest.fixture
async def served(tmp_path: Path, backend: FakeBackend) -> AsyncIterator[Serving]:
    flags = ("--backend", "openai", "--backend-url", backend.url, "--model", MODEL)
    served = Serving(tmp_path / "home", tmp_path / "no-weights", *flags)
    await served.start()
    yield served
    if served.process.returncode is None:
        await served.kill()
    await served.http.close()


def rows(served: Serving, query: str) -> list[tuple[object, ...]]:
    with closing(sqlite3.connect(served.home / NAME)) as db:
        return [tuple(row) for row in db.execute(query)]


async def refused(served: Serving) -> None:
    """New connections are, from soon after the signal."""
    async with asyncio.timeout(ENOUGH_S):
        while True:
            try:
                async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=1)) as http:
                    await (await http.get(f"{served.url}/healthz")).read()
                    await asyncio.sleep(0.02)
            except aiohttp.ClientConnectorError:
                return
            except (TimeoutError, aiohttp.ClientError):  # let in just before, and closed or not heard any more
                continue


async def test_a_stop_takes_nobody_new_and_lets_answers_end(served: Serving, backend: FakeBackend) -> None:
    backend.pause_s = 0.3
    async with served.http.post("/v1/chat/completions", json=BODY) as response:
        await response.content.readany()
        served.tell_to_stop()
        await refused(served)
        assert served.process.returncode is None
        assert (await response.read()).endswith(b"data: [DONE]\n\n")
    assert await served.stop() == 0
    assert rows(served, "SELECT status, text FROM completions") == [("done", "You said: a b c d e f ")]
    assert rows(served, "SELECT value FROM meta WHERE key = 'closed_cleanly'") == [("true",)]
    assert not (served.home / ADDRESS_FILE).exists() and not (served.home / f"{NAME}-wal").exists()
    assert served.log.index("stopping") < served.log.index("rlproxy: stopped.")


async def test_who_listens_to_events_is_not_waited_for(served: Serving) -> None:
    """An open page is not an answer under way: its stream ends, and it connects again to who comes next."""
    async with served.http.get("/rl/events") as one, served.http.get("/rl/events?after=0") as other:
        served.tell_to_stop()
        async with asyncio.timeout(ENOUGH_S):
            await asyncio.gather(one.read(), other.read())  # to their ends, which are sound ones
            assert await served.process.wait() == 0
    assert "Traceback" not in served.log, served.log


@pytest.mark.parametrize("drip", [b"", b"x: y\r\n"], ids=["silent", "dripping"])
@pytest.mark.parametrize(
    "begun", [b"", b"GET /healthz HTTP/1.1\r\n", b"GET /healthz HTTP/1.1\r\nhost: a\r\n\r\nGET / HTTP/1.1\r\n"]
)
async def test_a_head_that_does_not_come_to_its_end_is_not_waited_for(
    tmp_path: Path, backend: FakeBackend, monkeypatch: pytest.MonkeyPatch, begun: bytes, drip: bytes
) -> None:
    monkeypatch.setattr(server, "KEEPALIVE_S", 0.5)
    flags = {"home": tmp_path / "home", "backend.kind": "vllm", "backend.url": backend.url, "server.port": 0}
    async with asyncio.timeout(ENOUGH_S), server.serving(load(flags, environ={}).settings) as found:
        reader, writer = await asyncio.open_connection("127.0.0.1", int(found.rpartition(":")[2]))
        writer.write(begun)
        reading = asyncio.create_task(reader.read())
        while not reading.done():
            if begun:
                writer.write(drip)
            await asyncio.wait({reading}, timeout=0.1)
        writer.close()
        assert reading.exception() is None or isinstance(reading.exception(), ConnectionError)


@pytest.mark.parametrize("second", [signal.SIGTERM, signal.SIGINT])
async def test_a_second_signal_stops_at_once(served: Serving, backend: FakeBackend, second: signal.Signals) -> None:
    kept = (await served.chat("before", model=MODEL))[0]["id"]
    await served.rate(kept, "good")
    backend.hold.clear()
    waiting = asyncio.create_task(served.http.post("/v1/chat/completions", json=BODY))
    async with asyncio.timeout(ENOUGH_S):
        while len(backend.requests) < 2:
            await asyncio.sleep(0.01)
        served.tell_to_stop()
        await refused(served)
        assert served.process.returncode is None, "an answer is under way"
        served.process.send_signal(second)
        assert await served.process.wait() == 130
    with pytest.raises(aiohttp.ClientError):
        await waiting
    backend.hold.set()
    await served.http.close()
    await served.start()
    counts = (await served.status())["counts"]
    assert await served.stop() == 0
    assert (counts["done"], counts["good"], counts["pending"]) == (1, 1, 0)
    assert counts["error"] + counts["partial"] == 1, "what was cut is kept, and said to be"


async def test_answers_that_do_not_end_in_time_are_kept_as_far_as_they_came(proxy: Proxy) -> None:
    proxy.backend.pause_s = 0.4  # of which a stop waits for two or three
    response = await proxy.chat("a b c d e f g h i j", stream=True)
    await response.content.readany()
    await proxy.stop()
    with closing(sqlite3.connect(proxy.home / NAME)) as db:
        (found,) = db.execute("SELECT status, text FROM completions").fetchall()
    status, text = found
    assert status == "partial" and text and "You said: a b c d e f g h i j".startswith(text)
    response.close()
    await proxy.start()


async def test_who_leaves_before_being_told_to_go_on_is_no_error(served: Serving) -> None:
    """The server says `100 Continue` before any code of ours runs; its own log takes a client that left for a bug."""
    port = int(served.url.rpartition(":")[2])
    head = b"POST /v1/feedback HTTP/1.1\r\nhost: 127.0.0.1\r\nexpect: 100-continue\r\ncontent-length: 2\r\n\r\n"
    for _ in range(20):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(head)
        writer.write_eof()
        await reader.read()
        writer.close()
    assert await served.stop() == 0
    assert "Error handling" not in served.log and "Traceback" not in served.log, served.log
