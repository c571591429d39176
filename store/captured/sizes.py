"""Sizes of stored completions, known before they are read: a short request may name many long ones."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from store.captured.rows import to_json
from store.file.part import StorePart

# Of a message `m`, with what was cut out of it.
_MESSAGE = """(length(m.body) + CASE WHEN m.cut = 1 THEN coalesce((SELECT sum(length(b.data) * 4 / 3 + 4)
    FROM message_blobs p JOIN blobs b ON b.hash = p.blob WHERE p.message = m.hash), 0) ELSE 0 END)"""
_OF_KEYS = "(:any OR c.key IS NULL OR c.key IN (SELECT value FROM json_each(:keys)))"
_REPLIES = f"""SELECT coalesce(sum(coalesce({_MESSAGE}, 0) + coalesce(length(q.body), length(c.request), 0)), 0) AS size
FROM json_each(:ids) w JOIN completions c ON c.id = w.value AND {_OF_KEYS}
LEFT JOIN messages m ON m.hash = c.reply_hash LEFT JOIN requests q ON q.hash = c.request_hash"""  # noqa: S608  ours
_PROMPT = f"""WITH RECURSIVE path (hash) AS (
    SELECT c.prompt_hash FROM completions c WHERE c.id IN (SELECT value FROM json_each(:ids)) AND {_OF_KEYS}
    UNION SELECT m.parent FROM path JOIN messages m ON m.hash = path.hash WHERE m.parent IS NOT NULL)
SELECT coalesce(sum({_MESSAGE}), 0) AS size
FROM (SELECT hash FROM path UNION ALL SELECT hash FROM completion_system
    WHERE completion_id IN (SELECT value FROM json_each(:ids))) w
JOIN messages m ON m.hash = w.hash"""  # noqa: S608  ours


class SizeStore(StorePart):
    """`keys`: those of other keys count nothing; None: any may be read."""

    async def replies(self, ids: Sequence[str], keys: Collection[str] | None) -> int:
        """Bytes of the answers of these completions, and of their requests beside the messages."""
        return await self._sum(_REPLIES, keys, ids=to_json(list(ids)))

    async def whole(self, ids: Sequence[str], keys: Collection[str] | None) -> int:
        """Bytes of these completions with their prompts, each beginning that they share once."""
        return await self.replies(ids, keys) + await self._sum(_PROMPT, keys, ids=to_json(list(ids)))

    async def _sum(self, sql: str, keys: Collection[str] | None, **values: str | None) -> int:
        row = await self._reader.row(sql, {**values, "any": keys is None, "keys": to_json(sorted(keys or ()))})
        return 0 if row is None else int(row["size"])
