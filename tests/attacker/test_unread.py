"""Somebody who asks for long answers and does not read them."""

from __future__ import annotations

import asyncio
import contextlib
import json

from scripts.harness.in_process import Proxy
from tests.attacker.test_attacker import head
from tests.proxy.conftest import backend, proxy  # noqa: F401


async def test_who_does_not_read_holds_no_place(proxy: Proxy) -> None:  # noqa: F811
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
