"""Going out of service: not ready, every connection closed after its answer, and nobody turned away."""

from __future__ import annotations

import asyncio

from proxy.access.draining import DRAINING
from scripts.harness.in_process import Proxy


async def test_not_ready_and_yet_it_answers(proxy: Proxy) -> None:
    async with proxy.http.get("/readyz") as before:
        assert before.status == 200 and before.headers.get("connection") != "close"
    proxy.app[DRAINING].begin()
    async with proxy.http.get("/readyz") as response:
        assert response.status == 503 and "stopping" in await response.text()
        assert response.headers["connection"] == "close" and response.headers["retry-after"]
    async with proxy.http.get("/healthz") as alive:
        assert alive.status == 200, "a liveness probe must not kill what is on its way out"
    for stream in (False, True):
        response = await proxy.chat("hello", stream=stream)
        text = await response.text()
        assert response.status == 200 and response.headers["connection"] == "close"
        assert text.endswith("data: [DONE]\n\n") if stream else "You said: hello" in text


async def test_a_connection_ends_with_its_answer(proxy: Proxy) -> None:
    """One that was kept open before takes its client's next question, and no more after it."""
    port = int(proxy.url.rpartition(":")[2])
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    ask = b"GET /healthz HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n"
    writer.write(ask)
    await reader.readuntil(b"}")
    proxy.app[DRAINING].begin()
    writer.write(ask)
    async with asyncio.timeout(20):
        answer = await reader.read()  # to the end of the connection
    assert answer.startswith(b"HTTP/1.1 200") and answer.endswith(b"}")
    writer.close()
