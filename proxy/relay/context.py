"""A request as the relay knows it: the facts of its head, and what each stage adds.

Owns these facts, and the ids of completions. Not here: how a body is read (request_body), what is done because of it
(relay).
"""

from __future__ import annotations

import secrets
import time
from dataclasses import dataclass, field
from typing import Any, Final

from aiohttp import web

from config.settings import Settings
from proxy.access.keys import Scope
from proxy.access.security import RequestHead, outgoing_headers
from proxy.conversation.conversations import canonical
from proxy.conversation.incremental_json import Body
from proxy.conversation.retries import COUNT, Attempt
from proxy.conversation.turns import is_marked_side
from proxy.core.agent_wrappers import Agent
from proxy.core.http_message import header_lines
from proxy.core.upstream import end_to_end
from proxy.core.version_names import label
from proxy.dialects import Dialect, ParsedRequest
from proxy.dialects.identity import HeadIdentity, RequestIdentity, head_identity
from proxy.relay.capture.optout import says_off
from proxy.relay.early_stream import HeldStream
from proxy.relay.model_servers import ModelServer
from proxy.relay.request_body import CommandLines, coding_of
from proxy.telemetry.request_trace import RequestTrace
from proxy.versions.arms import Assignment
from proxy.versions.live_version import Lease
from proxy.versions.named_version import NamedVersion
from store.captured.tree import SYSTEM_ROLES
from store.line_records import COMMON
from store.records import Requester

_ALPHABET: Final = "0123456789abcdefghijklmnopqrstuvwxyz"
IDS_AT_ONCE: Final = 256
_RANDOM: Final[list[bytes]] = []
_PAIRS: Final = [a + b for a in _ALPHABET for b in _ALPHABET]


@dataclass(frozen=True, slots=True, eq=False)
class HeadFacts:
    """Facts of a head. They hold for every request with the same one."""

    identity: HeadIdentity
    off: bool  # nothing of it is to be kept
    side: bool  # it says itself that no person reads the answer
    counts_tries: bool  # its client counts its tries
    id: str | None  # that its client chose for the completion
    coding: str  # in which its body is packed; empty where it is not
    target: str  # the route at the backend
    lines: bytes  # its headers, as the backend gets them


@dataclass(slots=True)
class RequestContext:
    """Knowledge of one request. Each stage of the relay adds to it, and takes nothing back."""

    request: web.Request
    head: HeadFacts
    dialect: Dialect
    trace: RequestTrace
    started: float  # by the performance counter; later, without the time that it waited

    # parse
    content: Body  # the body as its client sent it
    as_sent: ParsedRequest
    body: dict[str, Any]  # parsed, with the answers spelled out that it only named
    parsed: ParsedRequest  # likewise
    add: dict[str, bytes]  # the members that differ for that from what its client sent
    weight: int  # bytes that it counts as, with those that it named
    agent: Agent | None  # that sent it, where that is known; NOBODY where no person types
    identity: RequestIdentity
    scope: Scope
    requester: Requester  # whose completion it is
    commands: CommandLines
    digest: bytes | None  # the same for each try of it; None where its client does not count them
    server: ModelServer  # the home's own, until its model's name is read
    id: str | None = None  # of its completion; None where it is not captured

    # command
    attempt: Attempt | None = None  # where its SDK may send it again

    # version
    version: NamedVersion = field(init=False)
    line: str = COMMON
    is_episode: bool = False
    pinned: int | None = None  # the version of its episode
    assigned: Assignment | None = None  # by an experiment

    # admit
    stream: HeldStream | None = None  # where its client is held while it waits
    lease: Lease = field(init=False)

    def answered_by(self) -> dict[str, str]:
        """The headers that prove which weights answer."""
        headers = {"x-rl-adapter": label(self.lease.version)}
        return headers if self.line == COMMON else {**headers, "x-rl-line": self.line}

    @property
    def wanted_model(self) -> str:
        """The model that it asks for, by its server's name; where a version answers, by its client's."""
        return self.lease.model if self.lease.version is None else self.parsed.model

    @property
    def promised(self) -> int | None:
        """The version that its episode or an experiment gives it; None: the one that its name means."""
        return self.pinned if self.assigned is None else self.assigned.version

    def conversation(self) -> bytes | None:
        """Bytes that are the same for all turns of its conversation; by its first message where it has no session."""
        name: str | bytes | None = self.identity.session
        if name is None:
            first = next((message for message in self.parsed.messages if message.get("role") not in SYSTEM_ROLES), None)
            name = None if first is None else canonical(first).body
        if name is None:
            return None
        requester = f"{self.requester.key}\0{self.requester.user}\0".encode(errors="surrogatepass")
        return requester + (name.encode(errors="surrogatepass") if isinstance(name, str) else name)

    @property
    def size(self) -> int:
        """Bytes of it, with what it named."""
        return len(self.content.raw) + sum(map(len, self.add.values()))


def head_facts(head: RequestHead, settings: Settings, server: ModelServer) -> HeadFacts:
    """`server`: where the request goes. Raises BadRequest."""
    headers = head.headers
    off = says_off(headers)
    side = is_marked_side(headers, settings.turns.rules)
    sent = outgoing_headers(
        end_to_end(headers),
        settings=settings.server,
        backend=server.backend.headers(),
        passes_keys=not server.is_further,
    )
    sent.popall("content-encoding", None)  # it is undone when the body is read
    sent["accept-encoding"] = "identity"  # the answer has to be read here
    sent["content-type"] = "application/json"
    if settings.telemetry.otlp:
        sent.popall("traceparent", None)  # each question has its own (in_flight)
    return HeadFacts(
        head_identity(headers, head.session),
        off,
        side,
        COUNT in headers,
        headers.get("x-rl-completion-id"),
        coding_of(headers),
        head.target,
        header_lines(sent),
    )


def new_id() -> str:
    """`rl-` and 24 characters: milliseconds first, so that ids sort by time, then 80 random bits."""
    if not _RANDOM:  # many at once: the call gives the interpreter lock away, and has to get it back
        fresh = secrets.token_bytes(10 * IDS_AT_ONCE)
        _RANDOM.extend([fresh[start : start + 10] for start in range(0, len(fresh), 10)])
    number = (time.time_ns() // 1_000_000) << 80 | int.from_bytes(_RANDOM.pop(), "big")
    digits = []
    for _ in range(12):
        number, pair = divmod(number, 36 * 36)
        digits.append(_PAIRS[pair])
    return "rl-" + "".join(reversed(digits))


def choice_id(request_id: str, choice: int) -> str:
    """The id to rate choice `choice` by: the response's own id for the first, then `<id>.1`, `<id>.2`, …"""
    return request_id if choice == 0 else f"{request_id}.{choice}"
