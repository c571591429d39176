"""Requests as bytes: what no client library sends."""

from __future__ import annotations

import asyncio

from scripts.harness.in_process import Proxy

CHAT = b'{"model":"fake","messages":[{"role":"user","content":"hi"}]}'


async def raw(proxy: Proxy, sent: bytes, *, within_s: float = 20.0, whole: bool = True) -> bytes:
    """What comes back for these bytes, until the connection is closed; else the first of it."""
    host, port = proxy.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(sent)
    got = b""
    try:
        async with asyncio.timeout(within_s):
            while piece := await reader.read(65536):
                got += piece
                if not whole:
                    break
    except ConnectionError:
        pass  # closed before it had read all that was sent
    finally:
        writer.close()
    return got


def head(method: str, path: str, *lines: str, host: str = "localhost", body: bytes = b"") -> bytes:
    first = f"{method} {path} HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\ncontent-length: {len(body)}\r\n"
    return (first + "".join(f"{line}\r\n" for line in lines) + "\r\n").encode("latin-1") + body


def status(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1]) if answer else 0
