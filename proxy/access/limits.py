"""How much: requests at once, and requests a minute.

Owns what is refused before anybody looks at what is asked, so that no key holds what others need. Each key, and without
keys each address, has its share of the places; models, rlproxy's own routes and event streams are counted apart.
Admins and commands of this machine get in where all places are taken. Not here: the bytes of bodies (bodies), their
pace (pace), who waits for the GPU (versions.admission). A head that does not come to its end is the server's: an idle
connection is closed after KEEPALIVE_S, whatever trickles in.
"""

from __future__ import annotations

import math
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Final, Literal

from config.sections import ServerSection
from proxy.access.keys import Principal
from proxy.core.errors import Overloaded, TooMany
from proxy.core.sharing.fd_limits import answers_at_once
from proxy.core.sharing.shares import Holder, Shares

HEAD_LIMIT: Final = 64 * 1024  # bytes of all headers together, and of any one
MOST_HEADERS: Final = 128
BUCKETS: Final = 10_000
RESERVE: Final = 32  # places for what admins do, and as many again for commands of this machine
EVENT_STREAMS: Final = 256  # each lasts for as long as a page is open, so they have places of their own
PROBES: Final = 64  # of whether it is ready: they wait for the backend, and show no key

PlaceKind = Literal["requests", "events", "probes"]
_NAMES: Final = {
    "requests": "requests under way (server.max_requests)",
    "events": "streams of /rl/events",
    "probes": "requests that ask whether it is ready",
}


class Limits:
    def __init__(self, settings: ServerSection) -> None:
        self._settings = settings
        self._places: dict[PlaceKind, Shares] = {
            "requests": Shares(min(settings.max_requests, answers_at_once())),
            "events": Shares(EVENT_STREAMS, factor=1),
            "probes": Shares(PROBES),
        }
        self._buckets: OrderedDict[str, tuple[float, float]] = (
            OrderedDict()
        )  # by key: tokens, and when there were so many

    def under_way(self, kind: PlaceKind) -> int:
        return self._places[kind].in_use

    def enter(self, kind: PlaceKind, holder: Holder, reserve: Callable[[], int] = lambda: 0) -> None:
        """Take a place, until `leave`. `reserve`: how many of those that are kept for admins it may have. Raises
        TooMany where this holder has its share of them, Overloaded where all are taken."""
        places = self._places[kind]
        refusal = places.take(holder)
        if refusal is not None and (reserved_places := reserve()):
            refusal = places.take(holder, reserve=reserved_places)
        if refusal == "share":
            raise TooMany(
                f"This key has {places.held_by(holder)} {_NAMES[kind]}, its share of {places.most}; nothing was passed "
                "on, ask again when one of them has ended.",
                retry_after=1,
            )
        if refusal is not None:
            raise Overloaded(f"There are {places.in_use} {_NAMES[kind]} already; ask again in a moment.", retry_after=1)

    def leave(self, kind: PlaceKind, holder: Holder) -> None:
        self._places[kind].give_back(holder)

    def spend(self, principal: Principal) -> None:
        """One request of this key: a minute's worth may come at once. Raises TooMany."""
        rate = self._settings.requests_per_minute
        if rate == 0:
            return
        key, now = principal.id or f"{principal.role} of the settings", time.monotonic()
        tokens, updated_at = self._buckets.get(key, (float(rate), now))
        tokens = min(float(rate), tokens + (now - updated_at) * rate / 60)
        self._buckets[key] = (tokens - 1 if tokens >= 1 else tokens, now)
        self._buckets.move_to_end(key)
        while len(self._buckets) > BUCKETS:
            self._buckets.popitem(last=False)
        if tokens < 1:
            wait = math.ceil((1 - tokens) * 60 / rate)
            raise TooMany(
                f"This key has made its {rate} requests a minute (server.requests_per_minute); ask again in {wait} s.",
                retry_after=wait,
            )
