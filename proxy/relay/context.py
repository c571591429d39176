"""A request as the relay knows it: its head, its body and whose it is. Each is read once, before the model is asked.

Owns these facts, the ids of its completions, and the errors of a body: its limit, its packing, that it is JSON. What a
body means belongs to the dialects; what is done because of it, to relay.
"""

from __future__ import annotations

import secrets
import time
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from aiohttp import web

from config.settings import Settings
from proxy.access.bodies import BODY, HELD_BYTES
from proxy.access.security import RequestHead, outgoing_headers
from proxy.conversation.incremental_json import Body, EarlierBodies, KnownPrefix
from proxy.conversation.retries import COUNT, Attempt
from proxy.conversation.turns import marked_side
from proxy.core.agent_wrappers import CLAUDE_CODE, Agent, agent_of, named_by_newest
from proxy.core.errors import BadRequest, TooLarge, Unreadable
from proxy.core.http_message import header_lines
from proxy.core.json_edit import DEEPEST, deeper
from proxy.core.offload import LARGE, LIGHT, in_thread, whole_weight
from proxy.core.sharing.shares import SMALL, Room
from proxy.core.upstream import end_to_end
from proxy.dialects import Dialect, ParsedRequest
from proxy.dialects.identity import HeadIdentity, RequestIdentity, named, named_by_head, speaker
from proxy.relay.capture_optout import says_off
from store.records import Requester

MOST: Final = 20_000  # messages; agents' conversations reach a few thousand
_ALPHABET: Final = "0123456789abcdefghijklmnopqrstuvwxyz"
IDS_AT_ONCE: Final = 256
_RANDOM: Final[list[bytes]] = []
_PAIRS: Final = [a + b for a in _ALPHABET for b in _ALPHABET]
COPIES: Final = 4  # of a text, while it is parsed, searched for secrets, and stored
RATIO: Final = 1032  # how much larger than its packed form a body may be (zlib)
_WINDOWS: Final = {"gzip": 16 + zlib.MAX_WBITS, "deflate": zlib.MAX_WBITS}  # as zlib wants them


@dataclass(frozen=True, slots=True, eq=False)
class HeadFacts:
    """Facts of a head. They hold for every request with the same one."""

    named: HeadIdentity
    off: bool  # nothing of it is to be kept
    side: bool  # it says itself that no person reads the answer
    counted: bool  # its client counts its tries
    id: str | None  # that its client chose for the completion
    coding: str  # in which its body is packed; empty where it is not
    target: str  # the route at the backend
    lines: bytes  # its headers, as the backend gets them


@dataclass(slots=True)
class RequestContext:
    request: web.Request
    head: HeadFacts
    dialect: Dialect
    requester: Requester  # whose key, and whom it names
    speaker: RequestIdentity
    agent: Agent | None  # that sent it, where that is known; NOBODY where no person types
    body: Body
    weight: int  # bytes that it counts as, with those that it named
    previous: str | None  # the answer that it named
    started: float
    attempt: Attempt | None  # where its SDK may send it again
    id: str | None  # of its completion; None where it is not captured


def head_facts(head: RequestHead, settings: Settings, backend: Mapping[str, str]) -> HeadFacts:
    """`backend`: the headers by which rlproxy is known there. Raises BadRequest."""
    said = head.headers
    off = says_off(said)
    side = marked_side(said, settings.turns.rules)
    sent = outgoing_headers(end_to_end(said), settings=settings.server, backend=backend)
    sent.popall("content-encoding", None)  # it is undone when the body is read
    sent["accept-encoding"] = "identity"  # the answer has to be read here
    sent["content-type"] = "application/json"
    return HeadFacts(
        named_by_head(said, head.session),
        off,
        side,
        COUNT in said,
        said.get("x-rl-completion-id"),
        coding_of(said),
        head.target,
        header_lines(sent),
    )


def coding_of(headers: Mapping[str, str]) -> str:
    coding = headers.get("content-encoding", "identity").lower()
    return "" if coding == "identity" else coding


async def plain_body(request: web.Request, coding: str, limit: int) -> bytes:
    """The body of a request, unpacked. Raises TooLarge, BadRequest, TooMany, Overloaded."""
    raw: bytes = request.get(BODY, b"")
    if not coding:
        return raw
    hold(request, min(limit, RATIO * len(raw)))
    return await _unpacked_apart(raw, coding, limit)


async def hold_parsed(request: web.Request, raw: bytes, known: KnownPrefix) -> None:
    """Have memory for all that is made of a body: a few bytes may become many things. Raises TooMany, Overloaded,
    TooLarge where there can never be enough."""
    parsed_size = known.weight if len(raw) < LARGE else await in_thread(whole_weight, raw)
    hold(request, (COPIES - 1) * len(raw) + parsed_size)


def hold(request: web.Request, size: int) -> None:
    """Have so many bytes in the account of this request. Raises as `hold_parsed`."""
    if size > SMALL and (room := request.get(HELD_BYTES)) is not None:
        room.take_up_to(size)


def hold_named(request: web.Request, size: int, add: Mapping[str, bytes], limit: int) -> None:
    """Have memory for a request of `size` bytes together with the earlier answers that it names. Raises as
    `hold_parsed`, and TooLarge where both are over `limit` bytes."""
    size += sum(map(len, add.values()))
    if size > limit:
        raise TooLarge(
            f"With the earlier answers that it names the request has {size:,} bytes, over the {limit:,} of "
            "server.max_body_bytes; nothing was passed on. Begin a new conversation, or raise that setting."
        )
    hold(request, COPIES * size + sum(whole_weight(member) for member in add.values() if len(member) >= LIGHT))


def room_for(request: web.Request, most: int, copies: int = 1) -> Room:
    """Room for what is kept of an answer, in the account of its request."""
    return Room(most, request.get(HELD_BYTES), copies)


async def _unpacked_apart(raw: bytes, coding: str, limit: int) -> bytes:
    """Raises TooLarge, BadRequest."""
    if coding not in _WINDOWS:
        raise BadRequest(f"A body in content-encoding {coding} is not read here; send it plain, or as gzip.")
    return await in_thread(_unpacked, raw, coding, limit)


def _unpacked(raw: bytes, encoding: str, limit: int) -> bytes:
    unpack = zlib.decompressobj(_WINDOWS[encoding])
    try:
        body = unpack.decompress(raw, limit)
    except zlib.error as error:
        raise BadRequest(f"The body is no {encoding} ({error}).") from None
    if unpack.unconsumed_tail:
        raise TooLarge(f"The body is over {limit} bytes; raise server.max_body_bytes to allow it.")
    return body


def body_facts(
    raw: bytes, bodies: EarlierBodies, known: KnownPrefix, dialect: Dialect, head: HeadFacts, headers: Mapping[str, str]
) -> tuple[Body, ParsedRequest, Agent | None, RequestIdentity]:
    """The body, what its dialect makes of it, the agent that sent it, and whose it is. Raises BadRequest."""
    body, parsed = parse_request(raw, bodies, known, dialect)
    agent = agent_of(headers, parsed.messages)
    said = named(body.parsed, claude_code=agent is not None and agent.name == CLAUDE_CODE)
    return body, parsed, agent, speaker(head.named, said, named_by_newest(parsed.messages, agent))


def parse_request(
    raw: bytes, before: EarlierBodies, known: KnownPrefix, dialect: Dialect
) -> tuple[Body, ParsedRequest]:
    """Raises BadRequest."""
    try:
        body = before.read(raw, known)
    except ValueError as error:
        raise BadRequest(f"The body is not valid JSON ({error}).") from None
    marks = body.marks
    # So few brackets cannot be nested any deeper.
    if (marks is None or marks.objects + marks.lists > DEEPEST) and deeper(body.fresh, DEEPEST):
        raise BadRequest(f"The body is nested over {DEEPEST} levels deep; nothing was passed on.")
    try:
        request = dialect.parse(body.parsed)
    except Unreadable as error:
        return body, dialect.unread(body.parsed, error)
    if len(request.messages) > MOST:
        raise too_many(len(request.messages))
    return body, request


def too_many(count: int) -> BadRequest:
    """More messages than any conversation has. Each is a row of the store, and all others wait for the last of them."""
    return BadRequest(
        f"The conversation has {count:,} messages, and rlproxy takes {MOST:,} at most; nothing was passed on. "
        "Send fewer of them: begin it anew, or sum up what was said."
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
