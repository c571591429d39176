"""Completions as lists show them: filtered, searched, newest first, without prompts and token ids.

Owns the table `listed` (kept by triggers) and the search index. The index is filled behind the capture, so that no
answer waits for it. A page goes on from a `seq`, never from an offset. Not here: a completion whole
(`completions`).
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

import orjson

from store.captured.completions import BY_SOMEBODY
from store.captured.rows import to_rating
from store.file.part import StorePart
from store.file.reader import Reader
from store.records import CompletionQuery, CompletionSummary, Message, Rating

SHOWN_CHARACTERS: Final = 6000  # characters of an answer that a list shows
BATCH_SIZE: Final = 200  # completions that go into the search in one operation
LOOK: Final = 10_000  # rows that one page looks through: filters that leave nothing must not cost more
COUNTED_TURNS: Final = 100  # turns of a conversation, at most
PREFIX_LETTERS: Final = 3  # letters of which a word may be the beginning
SLICE: Final = 200  # pages of the index that one operation merges
NEWEST: Final = 2**63 - 1
IN_ORDER: Final = "/* ORDER BY i.seq DESC */"  # as `looked` has them: SQLite keeps that, and would sort once more

COLUMNS: Final = f"""c.seq, c.id, c.created_at, c.status, c.model, c.version, c.session, c.user, c.turn, c.dialect,
c.asked, substr(c.text, 1, {SHOWN_CHARACTERS}) AS text, length(c.text) AS length, c.finish_reason, c.error,
c.untrainable, c.images, c.choice, c.prompt_hash, coalesce(c.conversation, c.seq) AS conversation"""
CALLS: Final = """SELECT c.seq, m.body FROM completions c JOIN messages m ON m.hash = c.reply_hash
WHERE c.seq IN (SELECT CAST(value AS INTEGER) FROM json_each(?)) AND m.cut = 0 AND instr(m.body, '"tool_calls"') > 0"""
RATINGS: Final = """SELECT r.* FROM ratings r WHERE +r.live = 1
AND r.completion_id IN (SELECT value FROM json_each(?)) ORDER BY r.seq DESC"""
UNSEARCHED: Final = "SELECT {} FROM listed l INDEXED BY listed_unsearched WHERE l.searched = 0 AND l.seq > 0"
# The distinct values of an index, one look-up each.
MODELS: Final = """WITH RECURSIVE found (model) AS (
    SELECT min(l.model) FROM listed l
    UNION ALL SELECT (SELECT min(l.model) FROM listed l WHERE l.model > found.model) FROM found
    WHERE found.model IS NOT NULL)
SELECT model FROM found WHERE model IS NOT NULL"""


def sought(text: str) -> str:
    """A person's search as an FTS5 query: all these words; one of three letters or more perhaps only begun."""
    words = text.replace("\0", " ").split()
    return " ".join('"' + word.replace('"', '""') + ('"*' if len(word) >= PREFIX_LETTERS else '"') for word in words)


def query(page: CompletionQuery) -> tuple[str, dict[str, Any]]:
    """The seqs of one page, newest first, of the `LOOK` newest rows that the first filter leaves."""
    first, later_tests, values = _filters(page)
    sql = f"WITH looked AS ({_looked(page, first)}) SELECT i.seq FROM looked i WHERE 1 = 1{_all(later_tests, 'i')}"  # noqa: S608
    if page.newest_of_each:
        same = _all(first + later_tests, "n")
        newer = f"SELECT 1 FROM listed n WHERE n.conversation = i.conversation AND n.seq > i.seq{same}"  # noqa: S608
        sql += f" AND NOT EXISTS ({newer})"
    return f"{sql} {IN_ORDER} LIMIT :limit", values


def reach(page: CompletionQuery) -> tuple[str, dict[str, Any]]:
    """How many rows that page has looked through, and the last of them."""
    first, _, values = _filters(page)
    return f"SELECT count(*) AS looked, min(i.seq) AS last FROM ({_looked(page, first, 'l.seq')}) i", values  # noqa: S608


def _filters(page: CompletionQuery) -> tuple[list[str], list[str], dict[str, Any]]:
    """The filter that finds rows by its index, the others, and what they are compared with."""
    values: dict[str, Any] = {"below": NEWEST if page.before_seq is None else page.before_seq}
    values |= {"limit": page.limit, "look": LOOK}
    columns = [
        column
        for column in ("conversation", "session", "version", "model", "turn")
        if getattr(page, column) is not None
    ]
    values |= {column: getattr(page, column) for column in columns}
    tests = [f"{{}}.{column} = :{column}" for column in columns]
    if page.unrated:  # a partial index has to be told the value itself
        tests.insert(sum(column in ("conversation", "session", "version") for column in columns), "{}.rated = 0")
    if page.search:
        values["search"] = sought(page.search)
        return [], tests, values
    if columns == ["turn"] and not page.unrated:  # which has no index: nearly all are main turns
        return [], tests, values
    return tests[:1], tests[1:], values


def _looked(page: CompletionQuery, first: list[str], columns: str = "l.*") -> str:
    if page.search:
        source, seq = (
            "search CROSS JOIN listed l ON l.seq = search.rowid WHERE search MATCH :search AND",
            "search.rowid",
        )
    else:
        source, seq = "listed l WHERE", "l.seq"
    by_index = "".join(f" AND {test.format('l')}" for test in first)
    return f"SELECT {columns} FROM {source} {seq} < :below{by_index} ORDER BY {seq} DESC LIMIT :look"  # noqa: S608


def _all(tests: list[str], alias: str) -> str:
    """These tests; the plus signs keep SQLite from choosing an index for one of them."""
    return "".join(f" AND {test.format(f'+{alias}')}" for test in tests)


async def _count_hidden(reader: Reader, page: CompletionQuery, seqs: list[int]) -> dict[int, int]:
    """How many turns of their conversations stand behind these: earlier ones that the filters let through too, or
    any others where a search found them."""
    if not page.newest_of_each and not page.search:
        return {}
    first, later_tests, values = _filters(page)
    other_turns = " AND e.seq <> l.seq" if page.search else f" AND e.seq < l.seq{_all(first + later_tests, 'e')}"
    sql = f"""SELECT l.seq, (SELECT count(*) FROM (SELECT 1 FROM listed e
    WHERE e.conversation = l.conversation{other_turns} LIMIT {COUNTED_TURNS}) w) AS others
    FROM listed l WHERE l.seq IN (SELECT CAST(value AS INTEGER) FROM json_each(:seqs))"""  # noqa: S608
    rows = await reader.rows(sql, {**values, "seqs": orjson.dumps(seqs).decode()})
    return {row["seq"]: row["others"] for row in rows if row["others"]}


async def load(reader: Reader, seqs: Iterable[int]) -> list[CompletionSummary]:
    """Newest first; those that are gone meanwhile are left out."""
    wanted_seqs = orjson.dumps(list(seqs)).decode()
    rows = await reader.rows(
        f"""SELECT {COLUMNS} FROM completions c WHERE c.seq IN (SELECT CAST(value AS INTEGER) FROM json_each(?))
        ORDER BY c.seq DESC""",  # noqa: S608
        (wanted_seqs,),
    )
    calls = {row["seq"]: Message("assistant", row["body"]) for row in await reader.rows(CALLS, (wanted_seqs,))}
    ratings: dict[str, list[Rating]] = {}
    for row in await reader.rows(RATINGS, (orjson.dumps([row["id"] for row in rows]).decode(),)):
        ratings.setdefault(row["completion_id"], []).append(to_rating(row))
    return [
        CompletionSummary(**dict(row), calls=calls.get(row["seq"]), ratings=tuple(ratings.get(row["id"], ())))
        for row in rows
    ]


# The search index


async def unsearched(reader: Reader) -> bool:
    return await reader.row(UNSEARCHED.format("1") + " LIMIT 1") is not None


def index(db: sqlite3.Connection) -> int:
    """Put the newest completions that the search does not know yet into it; how many."""
    rows = db.execute(
        f"""SELECT c.seq, c.asked, substr(c.text, 1, 4000) AS text FROM completions c
        WHERE c.seq IN ({UNSEARCHED.format("l.seq")} ORDER BY l.seq DESC LIMIT ?) ORDER BY c.seq""",  # noqa: S608
        (BATCH_SIZE,),
    ).fetchall()
    for row in rows:
        db.execute("INSERT INTO search (rowid, asked, text) VALUES (?, ?, ?)", tuple(row))
        db.execute("UPDATE listed SET searched = 1 WHERE seq = ?", (row["seq"],))
    return len(rows)


def purge(db: sqlite3.Connection, first: bool) -> bool:
    """One slice of rewriting the index without what was deleted from it; whether there is more to do."""
    changes_before = db.total_changes
    db.execute("INSERT INTO search (search, rank) VALUES ('merge', ?)", (-SLICE if first else SLICE,))
    return db.total_changes - changes_before >= 2


@dataclass(frozen=True, slots=True)
class Inbox:
    """A page of a list."""

    rows: list[CompletionSummary]
    hidden_turns: dict[int, int]  # by seq: how many more turns its conversation has, up to a bound; nothing where none
    before_seq: int | None  # where the next page goes on; None: there is nothing more


class InboxStore(StorePart):
    async def page(self, filters: CompletionQuery) -> Inbox:
        """A page of what ended, newest first, without prompts. A search first indexes the newest that it lacks.

        A page may be short and have another after it: no page looks through more than `LOOK` rows.
        """
        if filters.search:
            await self.index_words()
        if filters.search is not None and not sought(filters.search):
            return Inbox([], {}, None)
        seqs = [row["seq"] for row in await self._reader.rows(*query(filters))]
        if len(seqs) == filters.limit:
            next_seq: int | None = seqs[-1]
        else:
            looked = await self._reader.row(*reach(filters))
            next_seq = looked["last"] if looked is not None and looked["looked"] == LOOK else None
        return Inbox(await load(self._reader, seqs), await _count_hidden(self._reader, filters, seqs), next_seq)

    async def get(self, id: str) -> CompletionSummary | None:
        row = await self._reader.row("SELECT c.seq FROM completions c WHERE c.id = ?", (id,))
        return None if row is None else next(iter(await load(self._reader, [row["seq"]])), None)

    async def siblings(self, prompt_hash: bytes) -> list[CompletionSummary]:
        """The newest answers to the same prompt that ended well."""
        rows = await self._reader.rows(
            f"""SELECT c.seq FROM completions c WHERE c.prompt_hash = ? AND +c.status = 'done'
            AND {BY_SOMEBODY} ORDER BY c.seq DESC LIMIT 12""",  # noqa: S608  ours
            (prompt_hash,),
        )
        return await load(self._reader, [row["seq"] for row in rows])

    async def models(self) -> list[str]:
        """All that answered, by the names they were asked for."""
        return [row["model"] for row in await self._reader.rows(MODELS)]

    async def any(self) -> bool:
        return await self._reader.row("SELECT 1 FROM listed l WHERE l.seq > 0 LIMIT 1") is not None

    async def index_words(self) -> int:
        """Make some more completions known to the search, the newest first; how many."""
        if not await unsearched(self._reader):
            return 0
        return await self._writer.submit(index)
