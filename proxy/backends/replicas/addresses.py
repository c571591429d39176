"""Servers that come and go under one name of the DNS.

`dns://vllm.models.svc:8000` is every address that the name has: a headless service of Kubernetes, a scaled service of
Compose, a record that somebody keeps. Owns which servers a name stands for now. Where the DNS does not answer, or has
no address, nobody is sent away for it: those that answer go on. Not here: whether a server answers (replicas).
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Sequence
from typing import Final
from urllib.parse import urlsplit

from config.sections import DNS

ASK_S: Final = 5.0  # for one answer of the DNS
Lookup = Callable[[str, int], Awaitable[Sequence[str]]]


class NameUnknown(Exception):
    """Nobody knows now which servers a name stands for; the reason, in a clause."""


async def system_lookup(host: str, port: int) -> Sequence[str]:
    """IP addresses of a host, by this system's resolver. Raises OSError, TimeoutError."""
    async with asyncio.timeout(ASK_S):
        entries = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(entry[4][0]) for entry in entries))


class ServerName:
    """A name that stands for servers."""

    def __init__(self, written: str, lookup: Lookup | None = None) -> None:
        """`written`: `dns://HOST:PORT`. `lookup`: None is by this system's resolver."""
        parts = urlsplit(written)
        self.written = written
        self._host, self._port = parts.hostname or "", parts.port or 80
        self._path = parts.path.rstrip("/")
        self._lookup = lookup or system_lookup

    @property
    def plain(self) -> str:
        """The name itself as an address: of a server that nobody has met yet."""
        return self._url(self._host)

    async def urls(self) -> list[str]:
        """Addresses of its servers, in the order of the numbers. Raises NameUnknown."""
        try:
            addresses = await self._lookup(self._host, self._port)
        except (OSError, TimeoutError) as error:
            raise NameUnknown(f"{self._host} has no address now ({error or 'the DNS does not answer'})") from error
        if not addresses:
            raise NameUnknown(f"{self._host} has no address now")
        return [self._url(address) for address in sorted(addresses)]

    def _url(self, host: str) -> str:
        host = f"[{host}]" if ":" in host else host
        return f"http://{host}:{self._port}{self._path}"


def is_name(address: str) -> bool:
    return address.lower().startswith(DNS)
