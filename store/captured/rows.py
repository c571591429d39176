"""Rows of the tables to records, and lists of numbers to blobs. Not here: queries."""

from __future__ import annotations

import dataclasses
import functools
import sqlite3
from array import array
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import orjson

from store.line_records import Pointer, StoredLine
from store.records import (
    Adapter,
    Completion,
    FinishedCompletion,
    Message,
    NewCompletion,
    Rating,
    Run,
)

T = TypeVar("T")
IDS = "I"  # uint32; of the kinds of an array the one that is made fastest
LOGPROBS = "f"  # float32: what the backends compute in


def pack(kind: str, numbers: Sequence[int] | Sequence[float] | None) -> bytes | None:
    return None if numbers is None else array(kind, numbers).tobytes()


def unpack(kind: str, blob: bytes | None) -> list[Any] | None:
    return None if blob is None else array(kind, blob).tolist()


def pack_pieces(pieces: Sequence[bytes] | None) -> bytes | None:
    """How many they are, the length of each, and all of them one after the other. Raises OverflowError where one is
    longer than 65,535 bytes."""
    if pieces is None:
        return None
    return array("I", [len(pieces)]).tobytes() + array("H", map(len, pieces)).tobytes() + b"".join(pieces)


def unpack_pieces(blob: bytes | None) -> list[bytes] | None:
    if blob is None:
        return None
    (count,) = array("I", blob[:4])
    pieces, offset = [], 4 + 2 * count
    for length in array("H", blob[4:offset]):
        pieces.append(blob[offset : offset + length])
        offset += length
    return pieces


def as_text(pieces: Sequence[bytes] | None) -> list[str] | None:
    """For JSON: a character for each byte, as Latin-1 has it, since a piece may be a part of a character."""
    return None if pieces is None else [piece.decode("latin-1") for piece in pieces]


def to_json(value: Any) -> str | None:
    return None if value is None else orjson.dumps(value).decode()


def from_json(text: str | None) -> Any:
    return None if text is None else orjson.loads(text)


def to_record(kind: Callable[..., T], row: sqlite3.Row, **extra: Any) -> T:
    """A record of the columns that have its fields' names, and of `extra`. IndexError: there is no such column."""
    return kind(**{name: row[name] for name in _columns(kind, *extra)}, **extra)


@functools.cache
def _columns(kind: Any, *extra: str) -> list[str]:
    return [field.name for field in dataclasses.fields(kind) if field.name not in extra]


def to_completion(
    row: sqlite3.Row,
    reply: bytes | None,
    prompt: tuple[Message, ...],
    ratings: tuple[Rating, ...],
    prompt_ids: bytes | None = None,
) -> Completion:
    """`row` is of completions joined with the reply's message (`completions.SELECT`), whose whole body is `reply`;
    `prompt_ids` are all of the prompt's."""
    new = NewCompletion(
        id=row["id"],
        request_id=row["request_id"],
        choice=row["choice"],
        created_at=row["created_at"],
        dialect=row["dialect"],
        backend=row["backend"],
        model=row["model"],
        served_model=row["served_model"],
        version=row["version"],
        session=row["session"],
        user=row["user"],
        turn=row["turn"],
        turn_rule=row["turn_rule"],
        streamed=bool(row["streamed"]),
        prompt=prompt,
        request=row["request_apart"] or row["request"],
        sampling=from_json(row["sampling"]),
        untrainable=row["untrainable"],
        images=row["images"],
        redacted=tuple(from_json(row["redacted"]) or ()),
        key=row["key"],
        forms=from_json(row["forms"]),
        typed=row["typed"],
        line=row["line"],
    )
    return to_record(
        Completion,
        row,
        new=new,
        end=None if row["status"] == "pending" else _end(row, reply, prompt_ids),
        ratings=ratings,
    )


def _end(row: sqlite3.Row, reply: bytes | None, prompt_ids: bytes | None) -> FinishedCompletion:
    return to_record(
        FinishedCompletion,
        row,
        reply=None if reply is None else Message(row["reply_role"], reply),
        usage=from_json(row["usage"]),
        prompt_token_ids=unpack(IDS, prompt_ids),
        token_ids=unpack(IDS, row["token_ids"]),
        logprobs=unpack(LOGPROBS, row["logprobs"]),
        unconstrained_logprobs=unpack(LOGPROBS, row["unconstrained_logprobs"]),
        pieces=unpack_pieces(row["pieces"]),
        exact=bool(row["exact"]),
        translated=bool(row["translated"]),
        redacted=tuple(from_json(row["redacted"]) or ()),
        items=(),
    )


def to_rating(row: sqlite3.Row) -> Rating:
    return to_record(Rating, row, live=bool(row["live"]), human=bool(row["human"]), duplicate=False)


def to_run(row: sqlite3.Row) -> Run:
    return to_record(Run, row, result=from_json(row["result"]), retrains=bool(row["retrains"]))


def to_adapter(row: sqlite3.Row) -> Adapter:
    return to_record(Adapter, row, manifest=from_json(row["manifest"]))


def to_pointer(row: sqlite3.Row) -> Pointer:
    return Pointer(row["live"], row["previous"], row["changed_at"], row["reason"], row["actor"])


def to_line(row: sqlite3.Row) -> StoredLine:
    lists = {name: tuple(from_json(row[name])) for name in ("users", "agents")}
    return to_record(StoredLine, row, **lists)
