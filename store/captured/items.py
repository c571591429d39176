"""Which completion has an item of that id: of a message, a call or a piece of reasoning, as its backend named it.

A client of the Responses API names items of earlier answers in place of sending them again. Not here: whose completion
may be looked at, and what an item says (proxy).
"""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Sequence
from typing import Final, NamedTuple

from store.captured import blobs, tree
from store.captured.rows import to_json
from store.file.part import StorePart
from store.records import Item, Message, Requester

RESPONSE: Final = "response"  # the kind of an answer that its backend still works on, in the background
OPEN: Final = "EXISTS (SELECT 1 FROM items i WHERE i.completion_id = c.id AND i.kind = 'response')"
MOST: Final = 10_000  # answers that are looked through for the items of one request


class AnswerById(NamedTuple):
    """An answer by its id: what was said, and the request's members beside its messages."""

    completion_id: str
    requester: Requester
    reply: Message | None
    request: bytes


class ItemPlace(NamedTuple):
    """Where an item is."""

    id: str
    completion_id: str
    position: int  # among the items of its kind
    kind: str
    requester: Requester
    session: str | None


def add(db: sqlite3.Connection, completion_id: str, items: Sequence[Item]) -> None:
    kinds: dict[str, int] = {}
    for item in items:
        position = kinds[item.kind] = kinds.get(item.kind, -1) + 1
        db.execute(
            "INSERT INTO items VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING",
            (item.id, completion_id, position, item.kind),
        )


def _of_keys(keys: Collection[str] | None) -> str:
    return "" if keys is None else "AND (c.key IS NULL OR c.key IN (SELECT value FROM json_each(:keys)))"


class ItemStore(StorePart):
    async def name_response(self, completion_id: str, id: str) -> None:
        """Note the id by which the backend knows this completion as a whole: it is asked for it again."""
        await self._writer.submit(lambda db: add(db, completion_id, [Item(id, RESPONSE)]))

    async def response_of(self, completion_id: str) -> str | None:
        """The backend's id of this completion; None where there is none."""
        row = await self._reader.row(
            "SELECT id FROM items WHERE completion_id = ? AND kind = ?", (completion_id, RESPONSE)
        )
        return None if row is None else str(row["id"])

    async def places(self, ids: Sequence[str], keys: Collection[str] | None = None) -> list[ItemPlace]:
        """The completions that have these items, as their backend named them, the newest first.

        With `keys`: of completions that one of these keys asked for, or of which the key is not known. Nothing where
        there are too many: an id of which only the newest answer was looked at would seem to be that answer's alone.
        """
        rows = await self._reader.rows(
            f"""SELECT i.id, i.completion_id, i.at, i.kind, c.key, c.user, c.session FROM json_each(:ids) w
            JOIN items i ON i.id = w.value JOIN completions c ON c.id = i.completion_id {_of_keys(keys)}
            ORDER BY c.seq DESC LIMIT {MOST + 1:d}""",  # noqa: S608  ours
            {"ids": to_json(list(ids)), "keys": to_json(sorted(keys or ()))},
        )
        if len(rows) > MOST:
            return []
        return [
            ItemPlace(
                row["id"],
                row["completion_id"],
                row["at"],
                row["kind"],
                Requester(row["key"], row["user"]),
                row["session"],
            )
            for row in rows
        ]

    async def answers(self, ids: Sequence[str], most: int, keys: Collection[str] | None = None) -> list[AnswerById]:
        """Those of these completions that are there, in one query; at most one more than `most`. `keys`: as in
        `places`."""
        async with self._reader.snapshot() as db:
            rows = list(
                await db.execute_fetchall(
                    f"""SELECT c.id, c.key, c.user, coalesce(q.body, c.request) AS request, m.*
                    FROM json_each(:ids) w JOIN completions c ON c.id = w.value {_of_keys(keys)}
                    LEFT JOIN messages m ON m.hash = c.reply_hash LEFT JOIN requests q ON q.hash = c.request_hash
                    LIMIT {most + 1:d}""",  # noqa: S608  ours
                    {"ids": to_json(list(ids)), "keys": to_json(sorted(keys or ()))},
                )
            )
            replied = [row for row in rows if row["hash"] is not None]
            uncut = await blobs.bodies(db, tree.cut(replied))
        replies = {row["id"]: tree.message(row, uncut) for row in replied}
        return [
            AnswerById(row["id"], Requester(row["key"], row["user"]), replies.get(row["id"]), row["request"])
            for row in rows
        ]

    async def replies(self, ids: Sequence[str]) -> dict[str, Message]:
        """The replies of these completions, by their ids."""
        async with self._reader.snapshot() as db:
            rows = list(
                await db.execute_fetchall(
                    """SELECT c.id, m.* FROM json_each(?) w JOIN completions c ON c.id = w.value
                    JOIN messages m ON m.hash = c.reply_hash""",
                    [to_json(list(ids))],
                )
            )
            uncut = await blobs.bodies(db, tree.cut(rows))
        return {row["id"]: tree.message(row, uncut) for row in rows}
