"""The course of one request: when each of its stages began and ended, and which trace it belongs to.

Owns the marks that the relay sets, and W3C's `traceparent`, read and written. They are set whether or not anything is
exported, since `/metrics` shows them too. Not here: spans (spans), their way to a collector (exporter).
"""

from __future__ import annotations

import asyncio
import random
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from store.records import FinishedCompletion, Message, NewCompletion

_TRACEPARENT: Final = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
SAMPLED: Final = 1  # the flag by which an agent says that it records this trace
_random: Final = random.Random()  # noqa: S311  the ids of a trace are not a secret


class TraceIds(NamedTuple):
    """The place of a request in a trace."""

    trace_id: int
    parent_id: int | None  # the agent's span; None where the trace begins here
    upstream_id: int  # of the span that asks the backend
    is_sampled: bool

    @property
    def header(self) -> bytes:
        """The line by which the backend goes on with the trace."""
        return b"traceparent: 00-%032x-%016x-%02x\r\n" % (self.trace_id, self.upstream_id, self.is_sampled)


def trace_ids(traceparent: str | None, share: float) -> TraceIds:
    """The agent's trace goes on; without one a trace begins, recorded in `share` (0 to 1) of all cases."""
    parent = read_traceparent(traceparent)
    upstream_id = _random.getrandbits(64) or 1
    if parent is None:
        return TraceIds(_random.getrandbits(128) or 1, None, upstream_id, _random.random() < share)
    trace_id, parent_id, flags = parent
    return TraceIds(trace_id, parent_id, upstream_id, bool(flags & SAMPLED))


def read_traceparent(header: str | None) -> tuple[int, int, int] | None:
    """(trace id, span id, flags) of a header as W3C Trace Context 1 has it; None for any other."""
    match = None if header is None else _TRACEPARENT.fullmatch(header.strip())
    if match is None or match[1] == "ff" or (match[1] == "00" and match[5]):
        return None
    trace_id, span_id = int(match[2], 16), int(match[3], 16)
    return (trace_id, span_id, int(match[4], 16)) if trace_id and span_id else None


@dataclass(frozen=True, slots=True)
class CompletionFacts:
    """Facts of a stored completion that its spans name. Texts are there only where they were wanted."""

    id: str
    dialect: str
    backend: str
    model: str  # as the client asked
    served_model: str  # as the backend was asked
    version: int | None
    session: str | None
    turn: str
    streamed: bool
    sampling: Mapping[str, float]
    choices: int
    status: str
    prompt_tokens: int | None  # None: the server told neither a count nor ids
    answer_tokens: int | None
    finish_reasons: tuple[str, ...]
    prompt: tuple[Message, ...] = ()
    replies: tuple[Message, ...] = ()

    @property
    def weight(self) -> int:
        """Bytes of its texts."""
        return sum(len(message.body) for message in (*self.prompt, *self.replies))


def completion_facts(
    rows: Sequence[NewCompletion], ends: Sequence[FinishedCompletion], *, with_content: bool
) -> CompletionFacts:
    """`rows` and `ends`: one a choice, as they are stored, so secrets are redacted in them."""
    row, end = rows[0], ends[0]
    return CompletionFacts(
        id=row.id,
        dialect=row.dialect,
        backend=row.backend,
        model=row.model,
        served_model=row.served_model,
        version=row.version,
        session=row.session,
        turn=row.turn,
        streamed=row.streamed,
        sampling=row.sampling,
        choices=len(rows),
        status=end.status,
        prompt_tokens=_count(end.usage, "prompt_tokens", [end.prompt_token_ids]),
        answer_tokens=_count(end.usage, "completion_tokens", [end.token_ids for end in ends]),
        finish_reasons=tuple(end.finish_reason for end in ends if end.finish_reason),
        prompt=row.prompt if with_content else (),
        replies=tuple(end.reply for end in ends if end.reply is not None) if with_content else (),
    )


def _count(usage: Mapping[str, Any] | None, name: str, ids: Sequence[Sequence[int] | None]) -> int | None:
    """The server's own count, else that of the ids that it sent."""
    count = (usage or {}).get(name)
    if isinstance(count, int) and not isinstance(count, bool) and count >= 0:
        return count
    return None if None in ids else sum(len(each) for each in ids if each is not None)


@dataclass(slots=True)
class RequestTrace:
    """The marks of one request, by the performance counter. None: it did not come so far."""

    started: float
    ids: TraceIds | None = None  # None: nothing is exported
    with_content: bool = False
    backend_url: str | None = None
    departure: float | None = None  # when the question left, the last time that it was asked
    head: float | None = None  # when the answer began
    first_chunk: float | None = None  # when the first bytes of a stream came
    answered: float | None = None  # when all of it had come
    storing: float | None = None  # when its completion went to the store
    stored: float | None = None  # when it was on disk
    completion: CompletionFacts | None = None  # None: it was not captured
    ended: float = 0.0  # when its client had all of it
    error: str | None = None  # the kind of its error
    finishing: asyncio.Task[Any] | None = None  # what stores it after its client has gone

    def overhead(self, start: float) -> float:
        """Seconds from `start`, by the performance counter, until the question left."""
        return 0.0 if self.departure is None else self.departure - start

    def note_chunk(self) -> None:
        """Some of the stream has come."""
        if self.first_chunk is None:
            self.first_chunk = time.perf_counter()

    def note_answered(self) -> None:
        """All of the answer has come, or no more of it will."""
        if self.answered is None:
            self.answered = time.perf_counter()

    def note_storing(self, rows: Sequence[NewCompletion], ends: Sequence[FinishedCompletion]) -> None:
        """The completion goes to the store."""
        self.storing = time.perf_counter()
        self.note_answered()
        self.completion = completion_facts(rows, ends, with_content=self.with_content)

    def note_stored(self) -> None:
        """The completion is on disk."""
        self.stored = time.perf_counter()
