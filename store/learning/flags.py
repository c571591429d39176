"""Answers that a check of the user's own has flagged, and how far it has looked.

A liked answer that is flagged does not train (`samples.FRESH`). Owns the rows, and which answers the check has not
seen. Not here: the check itself (proxy.signals.answer_check).
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Collection
from typing import Final

import orjson

from store.file import meta
from store.file.part import StorePart

NEWEST_CHECKED: Final = "answers_checked"  # the meta key of the newest completion that was checked, by seq
_NEWEST: Final = "SELECT coalesce(max(seq), 0) AS seq FROM completions"
# In their order, up to the first that has not ended.
_UNCHECKED: Final = """SELECT c.seq, c.id, c.status, c.turn FROM completions c WHERE c.seq > ? AND c.seq < coalesce(
    (SELECT min(p.seq) FROM completions p WHERE p.status = 'pending' AND p.seq > ?), 9223372036854775807)
ORDER BY c.seq LIMIT ?"""


def keep(db: sqlite3.Connection, seq: int, completion_id: str, reason: str | None, code: str) -> None:
    """Store the check's reason to flag a completion, in place of one before; None: it has found nothing."""
    db.execute("DELETE FROM flags WHERE completion_id = ?", (completion_id,))
    if reason is not None:
        db.execute(
            """INSERT INTO flags (completion_id, reason, code, flagged_at) SELECT ?, ?, ?, ?
            WHERE EXISTS (SELECT 1 FROM completions c WHERE c.id = ?)""",
            (completion_id, reason, code, time.time(), completion_id),
        )
    meta.set_meta(db, NEWEST_CHECKED, seq)


class FlagStore(StorePart):
    async def begin(self) -> None:
        """Pass over what was answered before the check was first set."""
        if await meta.get_meta(self._reader, NEWEST_CHECKED, None) is None:
            row = await self._reader.row(_NEWEST)
            assert row is not None  # an aggregate always has one
            newest = int(row["seq"])
            await self._writer.submit(lambda db: meta.set_meta(db, NEWEST_CHECKED, newest))

    async def unchecked(self, limit: int) -> list[tuple[int, str | None]]:
        """The oldest answers that the check has not seen, by seq and id; the id of one that it need not see is None."""
        newest = await meta.get_meta(self._reader, NEWEST_CHECKED, 0)
        rows = await self._reader.rows(_UNCHECKED, (newest, newest, limit))
        return [
            (row["seq"], row["id"] if row["turn"] == "main" and row["status"] in ("done", "partial") else None)
            for row in rows
        ]

    async def keep(self, seq: int, completion_id: str, reason: str | None, code: str) -> None:
        """Do `flags.keep`."""
        await self._writer.submit(lambda db: keep(db, seq, completion_id, reason, code))

    async def pass_over(self, seq: int) -> None:
        await self._writer.submit(lambda db: meta.set_meta(db, NEWEST_CHECKED, seq))

    async def forget_other_code(self, code: str) -> None:
        """Take back what a file said that is another one now."""
        if await self._reader.row("SELECT 1 FROM flags WHERE code <> ? LIMIT 1", (code,)) is not None:
            await self._writer.submit(lambda db: db.execute("DELETE FROM flags WHERE code <> ?", (code,)))

    async def check_again(self, since: float) -> int:
        """Have the check see again what was answered since then, Unix seconds; how many that is."""
        row = await self._reader.row(
            "SELECT coalesce(max(seq), 0) AS seq FROM completions WHERE created_at < ?", (since,)
        )
        assert row is not None
        position = int(row["seq"])
        await self._writer.submit(lambda db: meta.set_meta(db, NEWEST_CHECKED, position))
        return await self.count_unchecked()

    async def count_unchecked(self) -> int:
        newest = await meta.get_meta(self._reader, NEWEST_CHECKED, 0)
        row = await self._reader.row("SELECT count(*) AS count FROM completions c WHERE c.seq > ?", (newest,))
        assert row is not None
        return int(row["count"])

    async def ids(self) -> list[str]:
        """All flagged completions."""
        return [row["completion_id"] for row in await self._reader.rows("SELECT completion_id FROM flags")]

    async def reasons(self, ids: Collection[str]) -> dict[str, str]:
        """Why these completions were flagged, of those among them that were."""
        rows = await self._reader.rows(
            "SELECT completion_id, reason FROM flags WHERE completion_id IN (SELECT value FROM json_each(?))",
            (orjson.dumps(sorted(ids)).decode(),),
        )
        return {row["completion_id"]: row["reason"] for row in rows}
