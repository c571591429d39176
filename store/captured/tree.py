"""The conversation tree: messages addressed by what they say and what they answer.

The hash of a message covers its parent's, so one hash names a whole conversation up to there. A prompt that is sent
again with every turn is stored once. System texts are not part of it, since agents change them from turn to turn. Each
completion has its own, by place, and a prompt is read as it was sent.
"""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

from store.captured import blobs
from store.file.reader import Reader
from store.records import Message

SIZE = 16  # bytes of a hash
SHORT = 4096  # bytes
T = TypeVar("T")

SYSTEM_ROLES = ("system", "developer")  # roles whose messages hang on the completion, not in the tree

Nodes = Mapping[bytes, tuple[bytes | None, Message]]  # hash -> parent, message

PATH = """WITH RECURSIVE path (hash) AS (
    SELECT ? UNION SELECT m.parent FROM path JOIN messages m ON m.hash = path.hash WHERE m.parent IS NOT NULL)
SELECT m.* FROM path JOIN messages m ON m.hash = path.hash"""
# Shared beginnings come once, however many of these completions share them.
PATHS_OF_COMPLETIONS = """WITH RECURSIVE path (hash) AS (
    SELECT c.prompt_hash FROM completions c WHERE c.id IN (SELECT value FROM json_each(?))
    UNION SELECT m.parent FROM path JOIN messages m ON m.hash = path.hash WHERE m.parent IS NOT NULL)
SELECT m.* FROM path JOIN messages m ON m.hash = path.hash"""
SYSTEM_OF_COMPLETIONS = """SELECT s.completion_id, s.at, m.*
FROM completion_system s JOIN messages m ON m.hash = s.hash
WHERE s.completion_id IN (SELECT value FROM json_each(?)) ORDER BY s.completion_id, s.at"""

NewMessage = tuple[bytes, bytes | None, Message]  # its name, its parent's, itself

ASIDES = "INSERT INTO completion_system VALUES (?, ?, ?)"
_INSERT = "INSERT INTO messages VALUES (?, ?, ?, ?, ?) ON CONFLICT DO NOTHING"


def message_hash(parent: bytes | None, role: str, body: bytes) -> bytes:
    digest = hashlib.blake2b(digest_size=SIZE)
    # Each field with its length before it: no two triples are the same bytes.
    for part in (parent or b"", role.encode(), body):
        digest.update(len(part).to_bytes(8, "big"))
        digest.update(part)
    return digest.digest()


def chain(messages: Iterable[Message]) -> list[bytes]:
    """The hash of each message when each answers the one before."""
    hashes: list[bytes] = []
    for message in messages:
        hashes.append(message_hash(hashes[-1] if hashes else None, message.role, message.body))
    return hashes


def add(db: sqlite3.Connection, messages: Sequence[Message], hashes: Sequence[bytes] | None = None) -> bytes | None:
    """Store what of this conversation is new; the hash of its last message. `hashes`: `chain`, where it is known."""
    if hashes is None:
        hashes = chain(messages)
    stored_count = _count_stored(db, hashes)
    store_new(
        db,
        (
            (hashes[index], hashes[index - 1] if index else None, messages[index])
            for index in range(stored_count, len(hashes))
        ),
    )
    return hashes[-1] if hashes else None


def gather(
    db: sqlite3.Connection,
    messages: Sequence[Message],
    hashes: Sequence[bytes] | None,
    reply: Message | None,
    new: dict[bytes, NewMessage],
) -> tuple[bytes | None, bytes | None]:
    """Note in `new` what of this conversation and of the answer to it is neither stored nor noted there; `put` stores
    it. The hashes of the last message and of the answer."""
    hashes = chain(messages) if hashes is None else hashes
    stored_count = _noted(hashes, new) or _count_stored(db, hashes)
    for index in range(stored_count, len(hashes)):
        new[hashes[index]] = (hashes[index], hashes[index - 1] if index else None, messages[index])
    last = hashes[-1] if hashes else None
    if reply is None:
        return last, None
    key = message_hash(last, reply.role, reply.body)
    new[key] = (key, last, reply)
    return last, key


def gather_aside(
    db: sqlite3.Connection,
    completion_id: str,
    prompt: Sequence[Message],
    hashes: Sequence[bytes] | None,
    asides: Sequence[int] | None,
    new: dict[bytes, NewMessage],
) -> list[tuple[str, int, bytes]]:
    """Note in `new` the system texts of a prompt; one that is known already costs a row, no text. Returns their places,
    for `ASIDES`. `hashes`: of all of the prompt; `asides`: where its system texts are, each if it is known."""
    positions = places(prompt) if asides is None else asides
    rows = []
    for index in positions:
        message = prompt[index]
        key = message_hash(None, message.role, message.body) if hashes is None else hashes[index]
        # A second look costs less than a long text.
        if key not in new and (len(message.body) < SHORT or not _exists(db, key)):
            new[key] = (key, None, message)
        rows.append((completion_id, index, key))
    return rows


def add_aside(
    db: sqlite3.Connection,
    completion_id: str,
    prompt: Sequence[Message],
    hashes: Sequence[bytes] | None = None,
    asides: Sequence[int] | None = None,
) -> None:
    """Store the system texts of a prompt with their places."""
    new: dict[bytes, NewMessage] = {}
    rows = gather_aside(db, completion_id, prompt, hashes, asides, new)
    if rows:
        store_new(db, new.values())
        db.executemany(ASIDES, rows)


def places(prompt: Sequence[Message]) -> tuple[int, ...]:
    """Where its system texts are."""
    return tuple(index for index, message in enumerate(prompt) if message.role in SYSTEM_ROLES)


def tree_part(
    prompt: Sequence[Message], hashes: Sequence[bytes] | None = None, asides: Sequence[int] | None = None
) -> tuple[Sequence[Message], Sequence[bytes] | None]:
    """The part of a prompt that belongs into the tree, and its part of `hashes`."""
    positions = places(prompt) if asides is None else asides
    return without(prompt, positions), hashes and without(hashes, positions)


def without(items: Sequence[T], asides: Sequence[int]) -> Sequence[T]:
    """All but those at these places, which nearly always are the first ones."""
    if all(index == place for index, place in enumerate(asides)):
        return items[len(asides) :]
    left_out = set(asides)
    return [item for index, item in enumerate(items) if index not in left_out]


def whole(messages: Sequence[Message], system_texts: Iterable[tuple[int, Message]]) -> tuple[Message, ...]:
    """The prompt as it was sent: `system_texts` has the system texts, first place first."""
    return tuple(woven(messages, system_texts))


def woven(items: Sequence[T], insertions: Iterable[tuple[int, T]]) -> list[T]:
    """The items with these among them, each at its place in the whole, first place first."""
    woven_items: list[T] = []
    position = 0
    for index, inserted in insertions:
        count = index - len(woven_items)
        woven_items += items[position : position + count]
        position += count
        woven_items.append(inserted)
    woven_items += items[position:]
    return woven_items


def add_child(db: sqlite3.Connection, parent: bytes | None, message: Message) -> bytes:
    key = message_hash(parent, message.role, message.body)
    store_new(db, [(key, parent, message)])
    return key


async def conversation(reader: Reader, leaf: bytes) -> tuple[Message, ...]:
    async with reader.snapshot() as db:
        rows = list(await db.execute_fetchall(PATH, (leaf,)))
        uncut = await blobs.bodies(db, cut(rows))
    message_nodes = nodes(rows, uncut)
    return path(message_nodes, leaf) if leaf in message_nodes else ()


def prune(db: sqlite3.Connection, leaves: Iterable[bytes]) -> None:
    """Delete these messages and their parents as far as nothing hangs on them any more."""
    delete_upwards(
        db,
        """DELETE FROM messages AS m WHERE hash = ?
        AND NOT EXISTS (SELECT 1 FROM messages child WHERE child.parent = m.hash)
        AND NOT EXISTS (SELECT 1 FROM completions c WHERE c.prompt_hash = m.hash)
        AND NOT EXISTS (SELECT 1 FROM completions c WHERE c.reply_hash = m.hash)
        AND NOT EXISTS (SELECT 1 FROM completion_system s WHERE s.hash = m.hash)
        RETURNING parent""",
        leaves,
    )


def delete_upwards(db: sqlite3.Connection, delete: str, leaves: Iterable[bytes]) -> None:
    """Run `delete` on each of these, and on its parent where it went: it deletes what nothing needs and returns the
    parent."""
    open_ends = list(leaves)
    while open_ends:
        row = db.execute(delete, (open_ends.pop(),)).fetchone()
        if row is not None and row["parent"] is not None:
            open_ends.append(row["parent"])


def cut(rows: Iterable[sqlite3.Row]) -> dict[bytes, bytes]:
    """The bodies among these that lack their blobs, by hash."""
    return {row["hash"]: row["body"] for row in rows if row["cut"]}


def nodes(rows: Iterable[sqlite3.Row], uncut: Mapping[bytes, bytes]) -> Nodes:
    """`uncut` has the bodies that were cut, whole."""
    return {row["hash"]: (row["parent"], message(row, uncut)) for row in rows}


def message(row: sqlite3.Row, uncut: Mapping[bytes, bytes]) -> Message:
    return Message(row["role"], uncut.get(row["hash"], row["body"]))


def path(message_nodes: Nodes, leaf: bytes | None) -> tuple[Message, ...]:
    """The conversation that ends in `leaf`, root first."""
    messages: list[Message] = []
    while leaf is not None:
        leaf, message = message_nodes[leaf]
        messages.append(message)
    return tuple(reversed(messages))


def _exists(db: sqlite3.Connection, key: bytes) -> bool:
    return db.execute("SELECT 1 FROM messages WHERE hash = ?", (key,)).fetchone() is not None


def _noted(hashes: Sequence[bytes], new: Mapping[bytes, NewMessage]) -> int:
    """Count the first of them up to the last one that is noted; those before it are noted or stored. 0 without any."""
    if not hashes or hashes[0] not in new:
        return 0
    return next(start for start in range(len(hashes), 0, -1) if hashes[start - 1] in new)


def _count_stored(db: sqlite3.Connection, hashes: Sequence[bytes]) -> int:
    """How many of the first of them are stored, without the last one, which is mostly new. Each that is stored has all
    before it stored, too."""
    low = high = max(0, len(hashes) - 1)
    step = 1
    while low and not _exists(db, hashes[low - 1]):
        low, high, step = max(0, low - step), low - 1, 2 * step
    while low < high:
        middle = (low + high + 1) // 2
        if _exists(db, hashes[middle - 1]):
            low = middle
        else:
            high = middle - 1
    return low


def store_new(db: sqlite3.Connection, new: Iterable[NewMessage]) -> None:
    """Store those that are new, each after its parent."""
    rows: list[tuple[bytes, bytes | None, str, bytes, bool]] = []
    for key, parent, message in new:
        body, pieces = blobs.cut(message.body)
        row = (key, parent, message.role, body, bool(pieces))
        if pieces:
            db.executemany(_INSERT, rows)
            rows.clear()
            if db.execute(_INSERT, row).rowcount:
                blobs.store_pieces(db, key, pieces)
        else:
            rows.append(row)
    db.executemany(_INSERT, rows)
