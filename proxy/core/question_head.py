"""The head of a question to a server: its address, its headers as they are sent, and the length of its body.

Owns no connection (backend_http) and no choice of headers. Source: RFC 9112.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping
from functools import lru_cache
from typing import Final, NamedTuple

from yarl import URL

from proxy.core.http_body import Body

_BODILESS: Final = ("GET", "HEAD", "OPTIONS", "DELETE")


class ServerAddress(NamedTuple):
    """A server, as its URL names it."""

    host: str
    port: int
    tls: bool
    path: str  # before every route
    head: bytes  # headers that each question to it has


@lru_cache(maxsize=64)
def address_of(url: str) -> ServerAddress:
    """Raises ValueError."""
    parts = URL(url)
    tls = parts.scheme == "https"
    head = f"host: {parts.raw_authority.rpartition('@')[2]}\r\n"
    if parts.user is not None:
        key = f"{parts.user}:{parts.password or ''}"
        head += f"authorization: Basic {b64encode(key.encode()).decode()}\r\n"
    port = parts.port or (443 if tls else 80)
    return ServerAddress(parts.raw_host or "", port, tls, parts.raw_path.rstrip("/"), head.encode())


class HeaderLines(NamedTuple):
    """Headers as they are sent."""

    lines: bytes
    without_key: bytes  # the same without `authorization`: the server's own address has one


def header_lines(headers: Mapping[str, str]) -> HeaderLines:
    """Raises ValueError for a header with a line end in it."""
    said = [(name, f"{name}: {value}\r\n") for name, value in headers.items()]
    if "user-agent" not in headers:
        said.append(("user-agent", "user-agent: rlproxy\r\n"))
    if any(line.count("\n") != 1 or line.count("\r") != 1 for _, line in said):
        raise ValueError("A header has a line end in it; nothing was sent.")
    all_of_them = "".join([line for _, line in said])
    keyless = "".join([line for name, line in said if name.lower() != "authorization"])
    return HeaderLines(all_of_them.encode("utf-8", "surrogateescape"), keyless.encode("utf-8", "surrogateescape"))


def question_head(method: str, address: ServerAddress, target: str, headers: HeaderLines, body: Body) -> bytes:
    # A second key would be refused, or be the one that counts.
    lines = headers.without_key if b"authorization:" in address.head else headers.lines
    if isinstance(body, bytes):
        length = b"content-length: %d\r\n" % len(body)
    elif body is None:
        length = b"" if method in _BODILESS else b"content-length: 0\r\n"
    else:
        length = b"transfer-encoding: chunked\r\n"
    route = f"{method} {address.path}{target} HTTP/1.1\r\n".encode()
    return b"%s%s%s%s\r\n" % (route, address.head, lines, length)
