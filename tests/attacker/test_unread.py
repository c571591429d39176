"""Somebody who asks for long answers and does not read them."""

from __future__ import annotations

import asyncio
import contextlib
import json
from pathlib import Path

from scripts.fakes.endless import EndlessBackend
from scripts.harness.in_process import Proxy
from tests.attacker.test_endless import before
from tests.harness.raw_http import head


async def test_who_does_not_read_holds_no_place(proxy: Proxy) -> None:
    await proxy.stop()
    await proxy.start(server__max_requests=1, server__slow_client_s=0.2)
    proxy.backend.says = "word " * 200_000
    host, port = proxy.url.removeprefix("http://").split(":")
    body = json.dumps({"model": "fake", "stream": True, "messages": [{"role": "user", "content": "hi"}]}).encode()
    _, writer = await asyncio.open_connection(host, int(port), limit=1024)
    writer.transport.pause_reading()
    writer.write(head("POST", "/v1/chat/completions", "content-type: application/json", body=body))
    async with asyncio.timeout(60):
        while not [one async for one in proxy.store.transfer.export() if one["status"] == "partial"]:
            await asyncio.sleep(0.1)
        proxy.backend.says = "short"
        while (await proxy.chat("is there a place?")).status == 503:
            await asyncio.sleep(0.1)
    writer.close()
    with contextlib.suppress(ConnectionError):
        await writer.wait_closed()


async def test_who_does_not_read_a_whole_answer_holds_neither_place_nor_memory(tmp_path: Path) -> None:
    """It is sent while the request still has its place, and by then its client has to read it."""
    endless = EndlessBackend(20_000_000)
    await endless.start()
    endless.mood = "answer"
    bounds = {"server__max_body_bytes": 32_000_000, "server__max_held_bytes": 512_000_000}
    async with before(tmp_path, endless, server__max_requests=1, server__slow_client_s=0.2, **bounds) as proxy:
        host, port = proxy.url.removeprefix("http://").split(":")
        body = json.dumps({"model": "fake", "messages": [{"role": "user", "content": "hi"}]}).encode()
        reader, writer = await asyncio.open_connection(host, int(port), limit=1024)
        writer.transport.pause_reading()
        writer.write(head("POST", "/v1/chat/completions", "content-type: application/json", body=body))
        async with asyncio.timeout(60):
            while not [one async for one in proxy.store.transfer.export() if one["status"] == "done"]:
                await asyncio.sleep(0.1)
            endless.size = 1
            while (await proxy.chat("is there a place?")).status == 503:
                await asyncio.sleep(0.1)
            await asyncio.sleep(1.0)  # twice what it may take, and more
            size = 0
            writer.transport.resume_reading()
            with contextlib.suppress(ConnectionError):
                while piece := await reader.read(1 << 16):
                    size += len(piece)
        assert size < 15_000_000, "it was not waited for to its end"
        writer.close()
    await endless.stop()
