"""Recent answers to one asker: as much of it as it takes to know which answer they mean.

Owns these queries, whatever has become of an answer: whole, broken off, still under way. Not here: which of them is
meant (proxy), the answer that a conversation names by its thread (completions).
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import Final, NamedTuple

from store.captured.rows import from_json, to_json
from store.file.part import StorePart
from store.file.reader import Reader
from store.records import Message, RecentCompletion, RepeatedReply, Requester

SYSTEM_TEXTS: Final = 8  # that are looked at of one completion
_COLUMNS: Final = """SELECT c.seq, c.id, c.created_at, c.status, c.finished_at, c.session, c.model, c.thread,
c.asked, c.key, c.user, c.line, c.untrainable, coalesce(c.conversation, c.seq) AS conversation, {text} AS text,
CASE WHEN c.text = '' AND instr(m.body, '"tool_calls"') > 0 THEN m.role END AS calls_role,
CASE WHEN c.text = '' THEN m.body END AS calls_body
FROM completions c LEFT JOIN messages m ON m.hash = c.reply_hash """
_BRIEF: Final = _COLUMNS.format(text="substr(c.text, 1, 400)")
_SYSTEM: Final = """(SELECT json_group_array(substr(CAST(m.body AS TEXT), 1, :longest))
FROM (SELECT hash FROM completion_system WHERE completion_id = c.id ORDER BY at LIMIT :texts) few
JOIN messages m ON m.hash = few.hash)"""
# An error that came before any text was shown as an error; what is under way or broke off may have been seen.
_VISIBLE: Final = "(+c.status <> 'error' OR c.text <> '') AND +c.choice = 0"


class RequestDetails(NamedTuple):
    """How a completion was asked for, beside its conversation."""

    is_streamed: bool
    request: bytes  # the members beside the messages
    system: tuple[str, ...]  # the bodies of its system texts


async def _of(
    reader: Reader, select: str, requesters: Sequence[Requester], condition: str, limit: int, session: str | None = None
) -> list[RecentCompletion]:
    asker_condition = "c.key IS :key AND c.user IS :user" if session is None else "+c.key IS :key AND +c.user IS :user"
    of_session = "" if session is None else " AND c.session = :session"
    sql = f"{select} WHERE {asker_condition} AND {condition}{of_session} ORDER BY c.seq DESC LIMIT :limit"
    answers: list[RecentCompletion] = []
    for requester in requesters:
        rows = await reader.rows(sql, {**requester._asdict(), "session": session, "limit": limit})
        answers += [_recent_completion(row) for row in rows]
    return answers


def _recent_completion(row: sqlite3.Row) -> RecentCompletion:
    return RecentCompletion(
        seq=row["seq"],
        id=row["id"],
        created_at=row["created_at"],
        status=row["status"],
        finished_at=row["finished_at"],
        session=row["session"],
        model=row["model"],
        thread=row["thread"],
        conversation=row["conversation"],
        asked=row["asked"],
        requester=Requester(row["key"], row["user"]),
        text=row["text"],
        calls=None if row["calls_role"] is None else Message(row["calls_role"], row["calls_body"]),
        line=row["line"],
        untrainable=row["untrainable"],
    )


class AnswerStore(StorePart):
    async def newest(self, *, session: str | None = None, user: str | None = None) -> RecentCompletion | None:
        """The newest main turn, of a session or a user if given, whatever has become of it; its text in brief."""
        # The plus signs keep SQLite from an index that has the rows in another order than by age.
        conditions = f"+c.turn = 'main' AND {_VISIBLE} AND c.seq > 0"
        conditions += " AND c.session = :session" if session is not None else ""
        conditions += f" AND {'c' if session is None else '+c'}.user = :user" if user is not None else ""
        rows = await self._reader.rows(
            f"{_BRIEF} WHERE {conditions} ORDER BY c.seq DESC LIMIT 1", {"session": session, "user": user}
        )
        return _recent_completion(rows[0]) if rows else None

    async def newest_of(
        self, requesters: Sequence[Requester], *, session: str | None = None
    ) -> RecentCompletion | None:
        """Do `newest` for these askers alone: one look-up each, since an index gives the newest of one."""
        answers = await _of(self._reader, _BRIEF, requesters, f"+c.turn = 'main' AND {_VISIBLE}", 1, session)
        return max(answers, key=lambda answer: answer.seq, default=None)

    async def get(self, id: str) -> RecentCompletion | None:
        """One completion in brief."""
        return (await self.many([id])).get(id)

    async def main_turn(self, id: str) -> RecentCompletion | None:
        """The same; None where it is a side turn."""
        row = await self._reader.row(f"{_BRIEF} WHERE c.id = ? AND +c.turn = 'main'", (id,))
        return None if row is None else _recent_completion(row)

    async def many(self, ids: Sequence[str]) -> dict[str, RecentCompletion]:
        """Those of these that are there, by their ids; in brief."""
        rows = await self._reader.rows(f"{_BRIEF} WHERE c.id IN (SELECT value FROM json_each(?))", [to_json(list(ids))])  # noqa: S608
        return {row["id"]: _recent_completion(row) for row in rows}

    async def answers_to(
        self, requesters: Sequence[Requester], *, limit: int, longest: int, session: str | None = None
    ) -> list[RecentCompletion]:
        """The newest answers to these askers, at most `limit` each, main and side turns, newest first.

        Texts come whole; of those over `longest` characters the first `longest + 1`. Of a session alone, if given.
        """
        select = _COLUMNS.format(text=f"substr(c.text, 1, {longest + 1:d})")
        answers = await _of(self._reader, select, requesters, _VISIBLE, limit, session)
        return sorted(answers, key=lambda answer: answer.seq, reverse=True)

    async def askers_in(self, session: str) -> list[Requester]:
        """Everybody that asked in this session, each once."""
        rows = await self._reader.rows(
            "SELECT DISTINCT c.key, c.user FROM completions c WHERE c.session = ?", (session,)
        )
        return [Requester(row["key"], row["user"]) for row in rows]

    async def main_turns_of(self, requesters: Sequence[Requester], *, limit: int) -> list[RecentCompletion]:
        """The newest main turns of these askers, each at most `limit`, newest first, in brief."""
        answers = await _of(self._reader, _BRIEF, requesters, f"+c.turn = 'main' AND {_VISIBLE}", limit)
        return sorted(answers, key=lambda answer: answer.seq, reverse=True)

    async def goes_on_from(self, thread: bytes, requesters: Sequence[Requester], longest: int) -> list[RepeatedReply]:
        """The newest few replies of this thread to these askers, which a request that repeats one goes on from.

        Newest first; a greeting has thousands of replies. Of their first system texts come the beginnings, `longest`
        characters each.
        """
        rows = await self._reader.rows(
            f"""SELECT c.turn, c.turn_rule, c.id, c.finished_at, {_SYSTEM} AS system
            FROM completions c WHERE c.thread = :thread AND +c.status IN ('done', 'partial')
            AND EXISTS (SELECT 1 FROM json_each(:askers) w
                WHERE c.key IS json_extract(w.value, '$[0]') AND c.user IS json_extract(w.value, '$[1]'))
            ORDER BY c.seq DESC LIMIT 5""",  # noqa: S608  ours
            {
                "thread": thread,
                "askers": to_json([tuple(requester) for requester in requesters]),
                "longest": longest,
                "texts": SYSTEM_TEXTS,
            },
        )
        return [
            RepeatedReply(row["turn"], row["turn_rule"], tuple(from_json(row["system"])), row["id"], row["finished_at"])
            for row in rows
        ]

    async def request_details(self, id: str, longest: int) -> RequestDetails | None:
        """How this completion was asked for, with the beginnings of its system texts, `longest` characters each."""
        row = await self._reader.row(
            f"""SELECT c.streamed, coalesce(q.body, c.request) AS request, {_SYSTEM} AS system
            FROM completions c LEFT JOIN requests q ON q.hash = c.request_hash WHERE c.id = :id""",  # noqa: S608  ours
            {"id": id, "longest": longest, "texts": SYSTEM_TEXTS},
        )
        return (
            None
            if row is None
            else RequestDetails(bool(row["streamed"]), row["request"], tuple(from_json(row["system"])))
        )

    async def calls_to(self, requester: Requester, *, limit: int, longest: int) -> list[tuple[str, bytes]]:
        """The ids and bodies of those of this asker's newest answers that call tools, newest first; without those of
        more than `longest` bytes."""
        rows = await self._reader.rows(
            """SELECT c.id, m.body FROM (
                SELECT id, seq, reply_hash FROM completions WHERE key IS :key AND user IS :user
                ORDER BY seq DESC LIMIT :limit) c
            JOIN messages m ON m.hash = c.reply_hash WHERE length(m.body) <= :longest
            AND instr(m.body, '"tool_calls"') > 0 ORDER BY c.seq DESC""",
            {**requester._asdict(), "limit": limit, "longest": longest},
        )
        return [(row["id"], row["body"]) for row in rows]
