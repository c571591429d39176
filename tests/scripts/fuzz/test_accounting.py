"""A lost completion is not counted as a deleted one, and a request that hangs is not counted as closed."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import unquote

import pytest

from scripts.fuzz.request_maker import Facts, Request, make_request
from scripts.fuzz.routes import Fuzz, Tally
from scripts.fuzz.stored import verdict
from scripts.fuzz.wire import Socket, sound
from scripts.harness.records import put
from store.store import Store

Connection = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
SHORT_S = 0.2


@asynccontextmanager
async def server(answering: Connection) -> AsyncIterator[int]:
    """A port where each connection is answered so, and closed."""

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await answering(reader, writer)
        finally:
            writer.close()

    async with await asyncio.start_server(connected, "127.0.0.1", 0) as listening:
        yield listening.sockets[0].getsockname()[1]


async def home_of(tmp_path: Path) -> Tally:
    """Four were acknowledged: one is there, three were deleted."""
    store = await Store.open(tmp_path)
    await put(store, "kept", "heard", "unheard")
    await put(store, "talk", session="s")
    await store.erasure.delete("heard")
    await store.erasure.delete("unheard")
    await store.erasure.forget("session", "s", "ann")
    await store.close()
    tally = Tally(deleted={"heard", "elsewhere"}, unheard={"unheard"}, forgotten=1)
    tally.acknowledged = dict.fromkeys(("kept", "heard", "unheard", "talk"), "seed 7 POST /v1/responses")
    return tally


async def test_what_was_deleted_is_not_lost(tmp_path: Path) -> None:
    tally = await home_of(tmp_path)
    found = await verdict(tmp_path, tally)
    assert tally.failures == []
    counts = [found[name] for name in ("missing", "deleted", "deleted_unheard", "forgotten", "lost")]
    assert counts == [3, 1, 1, 1, 0]


@pytest.mark.parametrize("asked", [False, True])
async def test_a_lost_completion_is_found_however_many_were_deleted(tmp_path: Path, asked: bool) -> None:
    tally = await home_of(tmp_path)
    tally.acknowledged["never"] = "seed 8 POST /api/chat"
    if asked:  # a DELETE without an answer does not excuse a row that nobody deleted
        tally.unheard.add("never")
    found = await verdict(tmp_path, tally)
    assert tally.failures == ["1 acknowledged completions are lost: never (seed 8 POST /api/chat)"]
    assert found["lost"] == 1


async def test_a_deletion_that_nobody_asked_for_is_found(tmp_path: Path) -> None:
    tally = await home_of(tmp_path)
    tally.deleted.remove("heard")
    await verdict(tmp_path, tally)
    (failure,) = tally.failures
    assert "2 acknowledged completions were deleted, 1 of those by a request to forget" in failure
    assert "heard (seed 7" in failure


async def test_a_delete_without_an_answer_may_be_done() -> None:
    async def wordless(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(100)

    async with server(wordless) as port:
        known, tally, seeds = Facts(port), Tally(), range(1, 200)
        await Fuzz(known, tally, iter(seeds)).worker()
        asked = [request for seed in seeds for request, _ in [make_request(random.Random(seed), known)]]
    deletes = [request.path for request in asked if request.method == "DELETE"]
    assert len(deletes) > 5
    assert tally.unheard == {unquote(path.rpartition(b"/")[2].decode(errors="replace")) for path in deletes}


async def test_silence_is_not_a_closed_connection() -> None:
    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await reader.read(1000):  # until the client has enough
            pass

    async with server(silent) as port:
        socket, request = Socket(port, SHORT_S), Request("GET", b"/rl/export")
        await socket.send([sound(random.Random(0), request, Facts(port))])
        with pytest.raises(TimeoutError):
            await socket.answer("GET")
        await socket.close()


async def test_a_stream_has_the_bound_for_each_piece() -> None:
    async def slow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
        for _ in range(6):
            writer.write(b"2\r\n{}\r\n")
            await asyncio.sleep(SHORT_S / 2)
        writer.write(b"0\r\n\r\n")
        await writer.drain()

    async with server(slow) as port:
        socket, request = Socket(port, SHORT_S), Request("GET", b"/rl/export")
        await socket.send([sound(random.Random(0), request, Facts(port))])
        answer = await socket.answer("GET")
        await socket.close()
    assert answer.whole and answer.body == b"{}" * 6
