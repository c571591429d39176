"""Headers that belong to one connection go no further, on either side, however often `Connection` is said."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import pytest

from scripts.harness.in_process import Proxy
from tests.harness.raw_http import head, raw

HOPS = (
    "Connection: x-one, X-Two",
    "Connection: x-three",
    "connection:, ,",
    "Proxy-Connection: keep-alive, x-four",
    "Keep-Alive: timeout=5",
    "TE: trailers",
    "Trailer: x-end",
    "Upgrade: h2c",
    "Proxy-Authorization: Basic eDp5",
    "Proxy-Authenticate: Basic",
    "x-one: 1",
    "x-two: 2",
    "x-three: 3",
    "x-four: 4",
)
KEPT = "x-request-id: 5"


@dataclass
class Raw:
    """A backend that notes what it gets, and answers with such headers itself."""

    url: str = ""
    got: list[str] = field(default_factory=list)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.closing(writer):
            await self._answer(reader, writer)

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        lines = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        if any(line.lower().startswith("x-request-id") for line in lines):
            self.got += lines
        body = b'{"object":"list","data":[{"id":"fake"}]}'
        said = ("HTTP/1.1 200 OK", "content-type: application/json", f"content-length: {len(body)}", KEPT, *HOPS)
        writer.write("\r\n".join([*said, "", ""]).encode() + body)


@pytest.fixture
async def behind(proxy: Proxy) -> AsyncIterator[Raw]:
    found = Raw()
    server = await asyncio.start_server(found.serve, "127.0.0.1", 0)
    found.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    await proxy.stop()
    await proxy.start(backend__url=found.url, backend__model="fake")
    yield found
    server.close()


def names(lines: list[str]) -> set[str]:
    return {line.partition(":")[0].lower() for line in lines if ":" in line}


@pytest.mark.parametrize("path", ["/v1/embeddings", "/v1/chat/completions", "/v1/messages/count_tokens"])
async def test_what_belongs_to_one_connection_ends_with_it(proxy: Proxy, behind: Raw, path: str) -> None:
    body = b'{"model":"fake","messages":[{"role":"user","content":"hi"}]}'
    answer = await raw(proxy, head("POST", path, "content-type: application/json", *HOPS, KEPT, body=body))
    dropped = {line.partition(":")[0].lower() for line in HOPS} - {"connection"}  # that one, each side says for itself
    sent = names(behind.got)
    assert "x-request-id" in sent and not sent & dropped
    came = answer.partition(b"\r\n\r\n")[0].decode().split("\r\n")
    assert "x-request-id" in names(came) and not names(came) & dropped
    said = [line.lower() for line in [*behind.got, *came] if line.lower().startswith("connection:")]
    assert not any("x-" in line for line in said)
