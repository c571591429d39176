"""Completions as plain dicts, one a JSONL line: everything needed to train elsewhere or to read by eye."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from store.captured import completions
from store.captured.rows import as_text, to_json
from store.captured.sizes import SizeStore
from store.copies import imports
from store.file.part import StorePart
from store.file.reader import Reader
from store.learning import signals
from store.records import RATING_TEXTS, Completion, Message, Rating, Signal, Turn

FORMAT = 1  # of a line, in docs/guides/export.md
PAGE_BYTES = 1 << 24  # of a page, unless one completion alone has more
PAGE = 50  # a page is one snapshot: none is held while a slow client reads


@dataclass(frozen=True, slots=True)
class Filter:
    """Which completions: all that is given must hold."""

    rated: bool = False
    rollouts: bool = False  # also what rlproxy sampled itself
    session: str | None = None
    user: str | None = None
    version: int | None = None
    line: str | None = None
    turn: Turn | None = None
    since: float | None = None  # Unix seconds
    until: float | None = None

    def conditions(self) -> tuple[str, list[Any]]:
        parts = [
            ("c.session = ?", self.session), ("c.user = ?", self.user), ("c.version = ?", self.version),
            ("c.line = ?", self.line), ("c.turn = ?", self.turn), ("c.created_at >= ?", self.since),
            ("c.created_at < ?", self.until),
        ]  # fmt: skip
        conditions = [(sql, value) for sql, value in parts if value is not None]
        flags = [completions.RATED] if self.rated else []
        flags += [] if self.rollouts else [completions.BY_SOMEBODY]
        return "".join(f" AND {sql}" for sql in [*flags, *(sql for sql, _ in conditions)]), [
            value for _, value in conditions
        ]


async def export(reader: Reader, sizes: SizeStore, only: Filter) -> AsyncIterator[dict[str, Any]]:
    """Oldest first."""
    last_seq = 0
    while rows := await _page(reader, sizes, only, last_seq):
        ids = to_json([row["id"] for row in rows])
        condition = "WHERE c.id IN (SELECT value FROM json_each(?)) ORDER BY c.seq"
        page = await completions.select(reader, condition, [ids])
        followed = await signals.of_all(reader, [completion.new.id for completion in page])
        for completion in page:
            yield to_dict(completion, followed.get(completion.new.id, ()))
        last_seq = rows[-1]["seq"]


async def _page(reader: Reader, sizes: SizeStore, only: Filter, last_seq: int) -> list[sqlite3.Row]:
    """Completions that are read at once: fewer where they are long, as somebody may have stored many such."""
    conditions, values = only.conditions()
    sql = f"SELECT c.id, c.seq FROM completions c WHERE c.seq > ?{conditions} ORDER BY c.seq LIMIT ?"  # noqa: S608  ours
    rows = await reader.rows(sql, [last_seq, *values, PAGE])
    while len(rows) > 1 and await sizes.whole([row["id"] for row in rows], None) > PAGE_BYTES:
        rows = rows[: len(rows) // 2]
    return rows


def to_dict(completion: Completion, followed: Sequence[Signal] = ()) -> dict[str, Any]:
    new, end = completion.new, completion.end
    return {
        "format": FORMAT,
        "id": new.id,
        "request_id": new.request_id,
        "choice": new.choice,
        "status": completion.status,
        "created_at": new.created_at,
        "finished_at": end and end.finished_at,
        "dialect": new.dialect,
        "backend": new.backend,
        "model": new.model,
        "served_model": new.served_model,
        "version": new.version,
        "line": new.line,
        "session": new.session,
        "user": new.user,
        "turn": new.turn,
        "rollout": new.key == completions.ROLLOUTS,
        "sampling": new.sampling,
        "request": orjson.loads(new.request) if new.request else None,
        "messages": [message(entry) for entry in new.prompt],
        "reply": message(end.reply) if end and end.reply else None,
        "text": end.text if end else "",
        "finish_reason": end and end.finish_reason,
        "usage": end and end.usage,
        "prompt_token_ids": end and end.prompt_token_ids,
        "token_ids": end and end.token_ids,
        "logprobs": end and end.logprobs,
        "unconstrained_logprobs": end and end.unconstrained_logprobs,
        "pieces": end and as_text(end.pieces),
        "logprobs_of": end and end.logprobs_of,
        "exact": bool(end and end.exact),
        "inexact_reason": end and end.inexact_reason,
        "error": end and end.error,
        "translated": bool(end and end.translated),
        "untrainable": new.untrainable,
        "images": new.images,
        "redacted": list(new.redacted),
        "ratings": [rating(entry) for entry in completion.ratings],
        "signals": [signal(entry) for entry in followed],
    }


def without_tokens(completion: Completion) -> dict[str, Any]:
    """The line for a function of the user's own."""
    left_out = ("prompt_token_ids", "token_ids", "logprobs", "unconstrained_logprobs", "signals")
    return {key: value for key, value in to_dict(completion).items() if key not in left_out}


def signal(signal: Signal) -> dict[str, Any]:
    return {
        "kind": signal.kind,
        "next_id": signal.next_id,
        "said": signal.said,
        "created_at": signal.created_at,
        "state": signal.state,
        "label": signal.label,
        "value": signal.value,
        "judge": signal.judge,
        "hint": signal.hint,
        "why": signal.why,
        "rating_id": signal.rating_id,
    }


def message(message: Message) -> dict[str, Any]:
    """The body is the message itself, or its content alone."""
    body = orjson.loads(message.body)
    return {"role": message.role} | (body if isinstance(body, dict) else {"content": body})


def rating(rating: Rating) -> dict[str, Any]:
    members = ("id", "rater", "value", *RATING_TEXTS, "scale", "weight", "source", "human", "created_at")
    return {name: getattr(rating, name) for name in members}


class TransferStore(StorePart):
    def export(self, only: Filter | None = None) -> AsyncIterator[dict[str, Any]]:
        return export(self._reader, SizeStore(self._reader, self._writer), only or Filter())

    async def take(self, rows: Sequence[imports.ImportedCompletions]) -> imports.ImportCounts:
        """Store what of these is new: completions by their ids, ratings by theirs."""
        return await self._writer.submit(lambda db: imports.take(db, rows))
