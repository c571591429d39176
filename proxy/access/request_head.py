"""The head of a request, read once: its route and role, its key, and whether the guard has to look closer.

Owns what is refused by the head alone: its size, a path that two servers read differently, own headers that contradict
themselves. Agents send the same head with every request, but for the length of its body. So what was read of one holds
for the next, in memory only. Not here: whose key it is (keys), what a page may do (security).
"""

from __future__ import annotations

import re
from collections import OrderedDict
from dataclasses import dataclass
from typing import Final

from aiohttp import web
from multidict import CIMultiDictProxy

from proxy.access.keys import given_key
from proxy.access.limits import HEAD_LIMIT
from proxy.access.roles import Rule, least, rule
from proxy.core.errors import BadRequest, HeadTooLarge
from proxy.core.upstream import target_of
from store.records import Role

KNOWN: Final = 256  # heads that are remembered
SHORT: Final = 4096  # bytes of a head that is
_SPLITS: Final = frozenset("/\\%")  # in a session's name: a second server could read another path
_DOTS: Final = re.compile(r"(^|[/\\]|%2f|%5c)(\.|%2e){1,2}($|[/\\?#]|%2f|%5c)", re.IGNORECASE)


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class RequestHead:
    method: str
    target: str  # the route at the backend, as it is sent there
    headers: CIMultiDictProxy[str]
    session: str | None  # in the path
    rule: Rule
    least: Role  # that a key needs
    key: str  # that it shows; empty where there is none
    by_page: bool  # a cookie of the page may say who asks


HEAD: Final = web.RequestKey("head", RequestHead)


class RequestHeads:
    """The heads that came lately."""

    def __init__(self) -> None:
        self._known: OrderedDict[object, RequestHead] = OrderedDict()

    def of(self, request: web.Request) -> RequestHead:
        """Raises HeadTooLarge, BadRequest. One header too long, and too many, are refused by the parser."""
        said: list[tuple[bytes, bytes]] = []
        size = 0
        for pair in request.raw_headers:
            size += len(pair[0]) + len(pair[1])
            if len(pair[0]) != 14 or pair[0].lower() != b"content-length":
                said.append(pair)
        name = request.method, request.raw_path, *said
        found = self._known.get(name)
        if found is None:
            if size > HEAD_LIMIT:
                raise HeadTooLarge(f"The headers are over {HEAD_LIMIT} bytes together; nothing was done.")
            found = read_head(request)
            if size + len(request.raw_path) <= SHORT:
                self._known[name] = found
                if len(self._known) > KNOWN:
                    self._known.popitem(last=False)
        return found


def read_head(request: web.Request) -> RequestHead:
    """Raises BadRequest."""
    _check_path(request)
    _check_own(request)
    found, headers = rule(request), request.headers
    keyed = "authorization" in headers or "x-api-key" in headers
    return RequestHead(
        request.method,
        target_of(request),
        headers,
        request.match_info.get("session"),
        found,
        least(request, found),
        given_key(headers),
        not keyed and (request.method in ("GET", "HEAD") or found.kind == "page"),
    )


def _check_path(request: web.Request) -> None:
    """Raises BadRequest for a path that is cut or put together in more than one way."""
    path = request.raw_path
    if not path.startswith("/") or "#" in path or _DOTS.search(path.partition("?")[0]):
        raise BadRequest("A path starts with /, and has no # and no dots as a part; nothing was passed on.")
    if not _SPLITS.isdisjoint(request.match_info.get("session", "")):
        raise BadRequest("A session in the path has no slash, backslash or percent sign; x-rl-session takes any name.")


def _check_own(request: web.Request) -> None:
    """rlproxy's own headers are UTF-8, or they can be neither stored nor said again. Each says one thing, or a second
    one could take back that nothing is to be kept. Other headers only pass through."""
    said: dict[str, bytes] = {}
    for name, value in request.raw_headers:
        if name[:5].lower() != b"x-rl-":
            continue
        own = name.lower().decode("utf-8", "replace")
        try:
            value.decode()
        except UnicodeDecodeError:
            raise BadRequest(f"The header {own} is not UTF-8; nothing was done.", param=own) from None
        if said.setdefault(own, value) != value:
            raise BadRequest(f"The header {own} came twice and says two things; nothing was done.", param=own)
