"""The body of a request: unpacked, parsed, whose it is, and the commands in it.

Owns the errors of a body (its limit, its packing, its nesting, that it is JSON), and the memory that is held for it.
What is done here with a body touches nothing else, so that all of it may run in a thread. What a body means belongs to
the dialects.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from aiohttp import web

from proxy.access.bodies import BODY, HELD_BYTES
from proxy.conversation.conversations import command_at, without_commands
from proxy.conversation.incremental_json import Body, EarlierBodies, KnownPrefix
from proxy.conversation.user_text import may_be_commands
from proxy.core.agent_wrappers import CLAUDE_CODE, NOBODY, Agent, agent_of, as_typed, newest_identities
from proxy.core.errors import BadRequest, TooLarge, Unreadable
from proxy.core.json_edit import DEEPEST, is_deeper, loads
from proxy.core.offload import LARGE, LIGHT, in_thread, whole_weight
from proxy.core.sharing.shares import SMALL, Room
from proxy.dialects import Dialect, ParsedRequest
from proxy.dialects.identity import HeadIdentity, RequestIdentity, body_identity, identity_of

MOST: Final = 20_000  # messages; agents' conversations reach a few thousand
COPIES: Final = 4  # of a text, while it is parsed, searched for secrets, and stored
RATIO: Final = 1032  # how much larger than its packed form a body may be (zlib)
_WINDOWS: Final = {"gzip": 16 + zlib.MAX_WBITS, "deflate": zlib.MAX_WBITS}  # as zlib wants them


class CommandLines(NamedTuple):
    """`/rl` lines in a conversation. None reaches the model."""

    messages: list[dict[str, Any]]  # as the person typed them
    position: int | None  # of the one that it ends in
    for_model: Sequence[int] | None  # messages for the model; None: all of them


class BodyFacts(NamedTuple):
    """Knowledge of a body, from its bytes and its head alone."""

    content: Body
    parsed: ParsedRequest
    identity: RequestIdentity
    agent: Agent | None  # that sent it, where that is known; NOBODY where no person types
    commands: CommandLines


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


async def hold_parsed(request: web.Request, raw: bytes, prefix: KnownPrefix) -> None:
    """Have memory for all that is made of a body: a few bytes may become many things. Raises TooMany, Overloaded,
    TooLarge where there can never be enough."""
    parsed_size = prefix.weight if len(raw) < LARGE else await in_thread(whole_weight, raw)
    if (size := (COPIES - 1) * len(raw) + parsed_size) > SMALL:
        hold(request, size)


def hold(request: web.Request, size: int) -> None:
    """Have so many bytes in the account of this request. Raises as `hold_parsed`."""
    if size > SMALL and (room := request.get(HELD_BYTES)) is not None:
        room.take_up_to(size)


def hold_stored(request: web.Request, size: int, stored: int, limit: int) -> None:
    """Have memory for a request of `size` bytes, and for so many bytes of earlier answers that it names, before these
    are read. Raises as `hold_parsed`, and TooLarge where both are over `limit` bytes."""
    size += stored
    if size > limit:
        raise TooLarge(
            f"With the earlier answers that it names the request has {size:,} bytes, over the {limit:,} of "
            "server.max_body_bytes; nothing was passed on. Begin a new conversation, or raise that setting."
        )
    hold(request, COPIES * size if stored else 0)


def hold_named(request: web.Request, size: int, add: Mapping[str, bytes], limit: int) -> None:
    """Have memory for a request of `size` bytes together with the earlier answers that it names, as it repeats them.
    Raises as `hold_stored`."""
    repeated = sum(map(len, add.values()))
    hold_stored(request, size, repeated, limit)
    things = sum(whole_weight(member) for member in add.values() if len(member) >= LIGHT)
    hold(request, COPIES * (size + repeated) + things)


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
    raw: bytes,
    bodies: EarlierBodies,
    prefix: KnownPrefix,
    dialect: Dialect,
    headers: Mapping[str, str],
    head: HeadIdentity,
    *,
    is_side: bool,
) -> BodyFacts:
    """`is_side`: its head says that no person types here. Raises BadRequest."""
    content, parsed = parse_request(raw, bodies, prefix, dialect)
    agent = agent_of(headers, parsed.messages)
    in_body = body_identity(content.parsed, claude_code=agent is not None and agent.name == CLAUDE_CODE)
    identity = identity_of(head, in_body, newest_identities(parsed.messages, agent))
    typist = agent if parsed.typed and not is_side else NOBODY
    return BodyFacts(content, parsed, identity, typist, command_lines(parsed.messages, typist))


def command_lines(messages: list[dict[str, Any]], agent: Agent | None) -> CommandLines:
    if not may_be_commands(messages, agent):
        return CommandLines(messages, None, None)
    typed = as_typed(messages, agent)
    if (position := command_at(typed, agent)) is not None:
        return CommandLines(typed, position, None)
    for_model = without_commands(messages, agent)
    return CommandLines(typed, None, for_model if len(for_model) < len(messages) else None)


def parse_request(
    raw: bytes, earlier_bodies: EarlierBodies, prefix: KnownPrefix, dialect: Dialect
) -> tuple[Body, ParsedRequest]:
    """Raises BadRequest."""
    try:
        body = earlier_bodies.read(raw, prefix)
    except ValueError as error:
        raise BadRequest(f"The body is not valid JSON ({error}).") from None
    marks = body.marks
    # So few brackets cannot be nested any deeper.
    if (marks is None or marks.objects + marks.lists > DEEPEST) and is_deeper(body.fresh, DEEPEST):
        raise BadRequest(f"The body is nested over {DEEPEST} levels deep; nothing was passed on.")
    try:
        request = dialect.parse(body.parsed)
    except Unreadable as error:
        return body, dialect.unread(body.parsed, error)
    if len(request.messages) > MOST:
        raise too_many(len(request.messages))
    return body, request


def with_members(
    dialect: Dialect, body: dict[str, Any], parsed: ParsedRequest, changed: Mapping[str, bytes]
) -> tuple[dict[str, Any], ParsedRequest]:
    """The request with these members in place, read again. Raises BadRequest."""
    if not changed:
        return body, parsed
    body = {**body, **{name: loads(value) for name, value in changed.items()}}
    parsed = dialect.read(body, parsed.referred)
    if len(parsed.messages) > MOST:
        raise too_many(len(parsed.messages))
    return body, parsed


def too_many(count: int) -> BadRequest:
    """More messages than any conversation has. Each is a row of the store, and all others wait for the last of them."""
    return BadRequest(
        f"The conversation has {count:,} messages, and rlproxy takes {MOST:,} at most; nothing was passed on. "
        "Send fewer of them: begin it anew, or sum up what was said."
    )
