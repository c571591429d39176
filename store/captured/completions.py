"""Completions: begun when a request is sent, finished when its answer ended, expired or forgotten later.

Plain functions: those that write take the writer's connection and run inside its transaction, those that read
take the reader. Not here: what a rating means for a completion (`ratings`, `samples`).
"""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import TypedDict, Unpack

import aiosqlite
import orjson

from store.captured import blobs, conversations, items, prompt_ids, requests, tree
from store.captured.recording import (
    WITH_FORGOTTEN,
    add_extras,
    record,
    without_forgotten_lessons,
    without_prompt_ids,
)
from store.captured.rows import IDS, LOGPROBS, pack, pack_pieces, to_completion, to_json, to_rating
from store.errors import CompletionEnded, DuplicateCompletion, UnknownCompletion
from store.file.part import StorePart
from store.file.reader import Reader
from store.line_records import COMMON
from store.records import (
    Candidate,
    Completion,
    FinishedCompletion,
    Message,
    NewCompletion,
    Rating,
    Requester,
    ReturnedConversation,
    Turn,
)

SELECT = """SELECT c.*, m.role AS reply_role, m.body AS reply_body, m.cut AS reply_cut, q.body AS request_apart
FROM completions c LEFT JOIN messages m ON m.hash = c.reply_hash LEFT JOIN requests q ON q.hash = c.request_hash """
# What a list shows: neither the prompt and the reply as messages, nor tokens, which are most of a completion.
SIZES = "SELECT length(m.body) AS size FROM completions c LEFT JOIN messages m ON m.hash = c.reply_hash "
BRIEF = """SELECT c.seq, c.id, c.request_id, c.choice, c.created_at, c.dialect, c.backend, c.model, c.served_model,
c.version, c.line, c.session, c.user, c.key, c.turn, c.turn_rule, c.streamed, c.sampling, c.untrainable, c.images,
c.redacted, c.prompt_hash, c.reply_hash,
c.status, c.finished_at, c.text, c.finish_reason, c.usage, c.exact, c.inexact_reason, c.error, c.thread, c.translated,
x'7b7d' AS request, NULL AS forms, NULL AS typed, NULL AS request_apart, NULL AS prompt_token_ids, NULL AS token_ids,
NULL AS logprobs, NULL AS unconstrained_logprobs, NULL AS pieces, NULL AS logprobs_of
FROM completions c """
RATED = "EXISTS (SELECT 1 FROM ratings r WHERE r.completion_id = c.id AND +r.live = 1)"
ROLLOUTS = "rollouts"  # the key, and the rule of the turn, of answers that rlproxy sampled itself (learning.rollouts)
BY_SOMEBODY = f"coalesce(c.key, '') <> '{ROLLOUTS}'"
# Turns that a run has in its folder stay, and the prompts of rollouts: else nobody could forget those texts any more.
EXPIRING = """c.created_at < ? AND (+c.status <> 'pending'
    OR EXISTS (SELECT 1 FROM items i WHERE i.completion_id = c.id AND i.kind = 'response'))
AND NOT EXISTS (SELECT 1 FROM ratings r WHERE r.completion_id = c.id)
AND NOT EXISTS (SELECT 1 FROM episodes e WHERE e.id = c.session
    AND (e.ended_at IS NOT NULL AND e.left_out IS NULL AND e.prompt IS NULL
        OR EXISTS (SELECT 1 FROM run_episodes t WHERE t.episode = e.seq)))
AND NOT EXISTS (SELECT 1 FROM episodes e WHERE e.prompt = c.id
    AND (EXISTS (SELECT 1 FROM run_episodes t WHERE t.episode = e.seq)
        OR EXISTS (SELECT 1 FROM completions d CROSS JOIN ratings r ON r.completion_id = d.id
            WHERE d.session = e.id AND d.key = e.key)))"""
OPEN_AND_EMPTY = """DELETE FROM episodes WHERE ended_at IS NULL AND opened_at < ?
AND NOT EXISTS (SELECT 1 FROM completions c WHERE c.session = episodes.id)"""
ROLLOUTS_OF = """SELECT c.id FROM json_each(?) j CROSS JOIN episodes e ON e.prompt = j.value
CROSS JOIN completions c ON c.session = e.id AND c.key = e.key"""
# The best first, of those the newest. Of a greeting there are thousands: how many are alike is not counted to the end.
REPLIES = """SELECT c.id, c.created_at, substr(c.text, 1, 200) AS text, c.session, c.reply_hash, c.model, c.system,
iif(c.session IS :session, 8, 0) + iif(c.reply_hash IS :path, 4, 0) + iif(c.system = :system, 2, 0)
+ iif(c.model = :model, 1, 0) AS fits
FROM (SELECT c.*, (SELECT coalesce(group_concat(hex(a.hash), ''), '')
        FROM (SELECT hash FROM completion_system WHERE completion_id = c.id ORDER BY at) a) AS system
    FROM completions c WHERE c.thread = :thread AND +c.status IN ('done', 'partial')
    AND EXISTS (SELECT 1 FROM json_each(:askers) w
        WHERE c.key IS json_extract(w.value, '$[0]') AND c.user IS json_extract(w.value, '$[1]'))) c
ORDER BY fits DESC, c.seq DESC LIMIT 1000"""
_PENDING = "SELECT status, prompt_hash, untrainable FROM completions WHERE id = ?"
CHUNK = 100  # completions deleted in one operation: others may write in between
CHANGES = 2000  # rows deleted after which it ends sooner: a conversation may have very many messages
NEWEST = 2**63 - 1  # above any seq
STOPPED = "rlproxy stopped before this answer ended"


def begin(db: sqlite3.Connection, rows: Iterable[NewCompletion]) -> None:
    for new in (without_forgotten_lessons(db, row) for row in rows):
        cursor = db.execute(
            """INSERT INTO completions (id, request_id, choice, created_at, dialect, backend, model,
            served_model, version, line, session, user, turn, turn_rule, streamed, sampling, request_hash, request,
            untrainable, images, asked, redacted, key, forms, above, typed, tool_errors, prompt_hash, conversation,
            status)
            VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 'pending')
            ON CONFLICT (id) DO NOTHING""",
            (
                new.id, new.request_id, new.choice, new.created_at, new.dialect, new.backend, new.model,
                new.served_model, new.version, new.line, new.session, new.user, new.turn, new.turn_rule, new.streamed,
                to_json(new.sampling), *requests.add(db, new.request), new.untrainable, new.images, new.asked,
                to_json(new.redacted or None), new.key, to_json(new.forms), new.above, new.typed,
                to_json(new.tool_errors or None),
                tree.add(db, *tree.tree_part(new.prompt, new.nodes, new.asides)), conversations.of(db, new),
            ),
        )  # fmt: skip
        if not cursor.rowcount:
            raise DuplicateCompletion(f"There is a completion {new.id!r} already.")
        tree.add_aside(db, new.id, new.prompt, new.nodes, new.asides)
        add_extras(db, new)


def finish(db: sqlite3.Connection, rows: Iterable[FinishedCompletion]) -> None:
    for end in rows:
        pending = db.execute(_PENDING, (end.id,)).fetchone()
        if pending is None:
            raise UnknownCompletion(end.id)
        if pending["status"] != "pending":
            raise CompletionEnded(f"The completion {end.id!r} has ended already.")
        if pending["untrainable"] == WITH_FORGOTTEN:
            end = without_prompt_ids(end)
        reply = None if end.reply is None else tree.add_child(db, pending["prompt_hash"], end.reply)
        block, ids = prompt_ids.add(db, pack(IDS, end.prompt_token_ids))
        db.execute(
            """UPDATE completions SET status = ?, finished_at = ?, reply_hash = ?, text = ?,
            finish_reason = ?, usage = ?, prompt_block = ?, prompt_token_ids = ?, token_ids = ?, logprobs = ?,
            unconstrained_logprobs = ?, pieces = ?, logprobs_of = ?, exact = ?, inexact_reason = ?, error = ?,
            translated = ?, thread = ?, untrainable = coalesce(untrainable, ?),
            redacted = coalesce(?, redacted) WHERE id = ?""",
            (
                end.status, end.finished_at, reply, end.text, end.finish_reason, to_json(end.usage),
                block, ids, pack(IDS, end.token_ids), pack(LOGPROBS, end.logprobs),
                pack(LOGPROBS, end.unconstrained_logprobs), pack_pieces(end.pieces), end.logprobs_of, end.exact,
                end.inexact_reason, end.error, end.translated,
                reply if end.thread is None else end.thread, end.untrainable, to_json(end.redacted or None), end.id,
            ),
        )  # fmt: skip
        items.add(db, end.id, end.items)


def recover(db: sqlite3.Connection) -> int:
    """End what the last process left pending, but for what the backend works on in the background."""
    return db.execute(
        f"""UPDATE completions AS c SET status = 'error', error = ?, finished_at = ?
        WHERE status = 'pending' AND NOT {items.OPEN}""",  # noqa: S608  ours
        (STOPPED, time.time()),
    ).rowcount


def expire(db: sqlite3.Connection, cutoff: float) -> int:
    """Delete a chunk of the old ones that nobody ever rated, and so no run ever used."""
    rows = db.execute(
        f"SELECT c.id FROM completions c WHERE {EXPIRING} LIMIT ?",  # noqa: S608  ours
        (cutoff, CHUNK),
    )
    start, deleted = db.total_changes, 0
    for id in [row["id"] for row in rows]:
        deleted += forget(db, [id])
        if db.total_changes - start >= CHANGES:
            break
    if not deleted:
        db.execute(OPEN_AND_EMPTY, (cutoff,))
    return deleted


def forget(db: sqlite3.Connection, ids: Iterable[str]) -> int:
    """Delete completions with their ratings, links, what was sampled to their prompts, and whatever messages only they
    had."""
    leaves: list[bytes] = []
    blocks: list[bytes] = []
    count = 0
    ids = list(ids)
    sampled = [row["id"] for row in db.execute(ROLLOUTS_OF, (to_json(ids),))]
    for id in dict.fromkeys([*ids, *sampled]):
        system = db.execute("DELETE FROM completion_system WHERE completion_id = ? RETURNING hash", (id,)).fetchall()
        row = db.execute(
            "DELETE FROM completions WHERE id = ? RETURNING reply_hash, prompt_hash, prompt_block", (id,)
        ).fetchone()
        if row is not None:
            count += 1
            *messages, block = row
            leaves += [key for key in (*messages, *(row["hash"] for row in system)) if key is not None]
            blocks += [] if block is None else [block]
    db.execute("DELETE FROM episodes WHERE prompt IN (SELECT value FROM json_each(?))", (to_json(ids),))
    tree.prune(db, leaves)
    prompt_ids.prune(db, blocks)
    return count


def forget_unrated(db: sqlite3.Connection, ids: Iterable[str]) -> int:
    rated = "SELECT 1 FROM ratings r WHERE r.completion_id = ?"
    return forget(db, [id for id in ids if db.execute(rated, (id,)).fetchone() is None])


def pass_over(db: sqlite3.Connection, ids: Sequence[str], rule: str) -> None:
    """Side turns from now on, by this rule; what somebody has rated was seen, and stays what it is."""
    rated = "SELECT 1 FROM ratings r WHERE r.completion_id = ?"
    for id in ids:
        if db.execute(rated, (id,)).fetchone() is None:
            db.execute("UPDATE completions SET turn = 'side', turn_rule = ? WHERE id = ?", (rule, id))
            db.execute("UPDATE listed SET turn = 'side' WHERE seq = (SELECT seq FROM completions WHERE id = ?)", (id,))


async def load(reader: Reader, ids: Sequence[str]) -> dict[str, Completion]:
    return {
        completion.new.id: completion
        for completion in await select(reader, "WHERE c.id IN (SELECT value FROM json_each(?))", [to_json(ids)])
    }


async def select(reader: Reader, condition: str, values: Sequence[object]) -> list[Completion]:
    """Completions whole, with their prompts and live ratings, all of one moment."""
    async with reader.snapshot() as db:
        rows = list(await db.execute_fetchall(SELECT + condition, values))
        ids = orjson.dumps([row["id"] for row in rows]).decode()
        tree_rows = list(await db.execute_fetchall(tree.PATHS_OF_COMPLETIONS, (ids,)))
        system = list(await db.execute_fetchall(tree.SYSTEM_OF_COMPLETIONS, (ids,)))
        blocks = prompt_ids.blocks(await db.execute_fetchall(prompt_ids.PATHS_OF_COMPLETIONS, (ids,)))
        cut = {row["reply_hash"]: row["reply_body"] for row in rows if row["reply_cut"]}
        uncut = await blobs.bodies(db, cut | tree.cut(tree_rows) | tree.cut(system))
        nodes = tree.nodes(tree_rows, uncut)
        system_texts: dict[str, list[tuple[int, Message]]] = {}
        for row in system:
            system_texts.setdefault(row["completion_id"], []).append((row["at"], tree.message(row, uncut)))
        ratings = await _ratings(db, [row["id"] for row in rows])
    return [
        to_completion(
            row,
            uncut.get(row["reply_hash"], row["reply_body"]),
            tree.whole(tree.path(nodes, row["prompt_hash"]), system_texts.get(row["id"], ())),
            ratings.get(row["id"], ()),
            prompt_ids.whole(blocks, row["prompt_block"], row["prompt_token_ids"]),
        )
        for row in rows
    ]


async def _ratings(db: aiosqlite.Connection, ids: Sequence[str]) -> dict[str, tuple[Rating, ...]]:
    """The live ones of these completions, newest first."""
    ratings: defaultdict[str, list[Rating]] = defaultdict(list)
    for row in await db.execute_fetchall(
        """SELECT r.* FROM ratings r WHERE +r.live = 1
        AND r.completion_id IN (SELECT value FROM json_each(?)) ORDER BY r.seq DESC""",
        (orjson.dumps(ids).decode(),),
    ):
        ratings[row["completion_id"]].append(to_rating(row))
    return {id: tuple(ratings) for id, ratings in ratings.items()}


class PageQuery(TypedDict, total=False):
    limit: int
    before_seq: int | None
    session: str | None
    unrated: bool
    version: int | None
    turn: Turn | None
    line: str | None


def _page(query: PageQuery) -> tuple[str, list[object]]:
    """The condition of a page, and its values."""
    end_seq = query.get("before_seq")
    condition = f"WHERE c.seq < ? AND {BY_SOMEBODY}"
    values: list[object] = [NEWEST if end_seq is None else end_seq]
    for column in ("session", "version", "turn", "line"):
        if (value := query.get(column)) is not None:
            condition += f" AND c.{column} = ?"
            values.append(value)
    if query.get("unrated"):
        condition += f" AND NOT {RATED}"
    return condition + " ORDER BY c.seq DESC LIMIT ?", [*values, query.get("limit", 50)]


class CompletionStore(StorePart):
    def begin(self, rows: Sequence[NewCompletion]) -> asyncio.Future[None]:
        """Queue new completions at once. Nobody need await this: a failure comes again from `finish`."""
        future = self._writer.submit(lambda db: begin(db, rows))
        future.add_done_callback(lambda finished: finished.cancelled() or finished.exception())
        return future

    async def finish(self, rows: Sequence[FinishedCompletion]) -> None:
        await self._writer.submit(lambda db: finish(db, rows))

    def record(self, new: Sequence[NewCompletion], finished: Sequence[FinishedCompletion]) -> asyncio.Future[None]:
        """Begin and finish in one operation, each as one row. It is queued when this returns."""
        rows = list(zip(new, finished, strict=True))
        return self._writer.submit_rows(record, rows)

    async def get(self, id: str) -> Completion | None:
        return (await load(self._reader, [id])).get(id)

    async def page(self, **query: Unpack[PageQuery]) -> list[Completion]:
        """The newest that match, newest first, in brief: without prompts, replies as messages, requests and tokens.

        `get` has those.
        """
        condition, values = _page(query)
        async with self._reader.snapshot() as db:
            rows = list(await db.execute_fetchall(BRIEF + condition, values))
            ratings = await _ratings(db, [row["id"] for row in rows])
        return [to_completion(row, None, (), ratings.get(row["id"], ())) for row in rows]

    async def page_size(self, **query: Unpack[PageQuery]) -> int:
        """Bytes of the answers on this page, before they are read."""
        condition, values = _page(query)
        row = await self._reader.row(f"SELECT coalesce(sum(size), 0) AS size FROM ({SIZES}{condition}) w", values)  # noqa: S608  ours
        return 0 if row is None else int(row["size"])

    async def messages(self, hash: bytes) -> tuple[Message, ...]:
        """The conversation up to this message, root first, without system texts; empty if it is not known."""
        return await tree.conversation(self._reader, hash)

    async def find_reply(self, sent: ReturnedConversation, requesters: Sequence[Requester]) -> list[Candidate]:
        """The completion that gave this reply to one of these askers; several where it may be one or the other.

        The best fit counts: the session before the exact words, then the system texts, then the model. Of several that
        fit alike and differ in any of these, none is more likely. Where they differ in nothing, the same thing was
        asked twice, and the newest is meant.
        """
        rows = await self._reader.rows(
            REPLIES,
            {
                "thread": sent.thread,
                "askers": to_json([tuple(requester) for requester in requesters]),
                "path": sent.path,
                "system": "".join(name.hex().upper() for name in sent.system),
                "model": sent.model,
                "session": sent.session,
            },
        )
        candidates: dict[tuple[object, ...], Candidate] = {}
        for row in rows:
            if row["fits"] == rows[0]["fits"]:
                kind = (row["session"], row["reply_hash"], row["system"], row["model"])
                candidates.setdefault(kind, Candidate(row["id"], row["created_at"], row["text"]))
        return list(candidates.values())

    async def many(self, ids: Sequence[str]) -> list[Completion]:
        """Whole, with their prompts; in the order of `ids`, those that are there."""
        completions = await load(self._reader, ids)
        return [completions[id] for id in ids if id in completions]

    async def pass_over(self, ids: Sequence[str], rule: str) -> None:
        """Nobody saw these as answers: side turns, by that rule."""
        await self._writer.submit(lambda db: pass_over(db, ids, rule))

    async def exact_unrated(self, *, version: int, limit: int, line: str = COMMON) -> list[Completion]:
        """The newest that a run may calibrate on: main turns of that version in that line, exact, with no rating."""
        # The plus signs keep SQLite from choosing an index on status, where nearly every row is alike.
        return await select(
            self._reader,
            f"""WHERE c.version = ? AND +c.line = ? AND +c.status = 'done' AND +c.turn = 'main' AND c.exact = 1
            AND c.untrainable IS NULL AND c.images = 0 AND NOT {RATED}
            ORDER BY c.seq DESC LIMIT ?""",
            [version, line, limit],
        )

    async def newest_turns(self, limit: int, *, foreign: bool, has_pictures: bool = False) -> list[Completion]:
        """The newest of the common line that a run might take, rated or not: main turns, and what was rated. Among the
        last thousand. `has_pictures`: also such prompts, each with its pictures."""
        return await select(
            self._reader,
            f"""WHERE c.seq > (SELECT max(seq) FROM completions) - 1000 AND +c.status = 'done' AND +c.line = 'common'
            AND (c.images = 0 OR ?) AND c.reply_hash IS NOT NULL AND (c.version IS NULL) = ? AND c.untrainable IS NULL
            AND (c.dialect <> 'completions' OR c.exact = 1 OR c.translated = 1)
            AND (+c.turn = 'main' OR {RATED}) ORDER BY c.seq DESC LIMIT ?""",  # noqa: S608  ours
            [has_pictures, foreign, limit],
        )

    async def expire(self, cutoff: float) -> int:
        """Delete what is older and was never rated; how many completions went."""
        total = 0
        while deleted := await self._writer.submit(lambda db: expire(db, cutoff)):
            total += deleted
        return total

    async def expiring(self, cutoff: float) -> int:
        """How many that would be."""
        row = await self._reader.row(f"SELECT count(*) AS going FROM completions c WHERE {EXPIRING}", (cutoff,))  # noqa: S608
        assert row is not None
        return int(row["going"])

    async def forget(self, ids: Sequence[str]) -> int:
        """Delete the rows of these completions, rated or not, with all that hangs on them."""
        return await self._writer.submit(lambda db: forget(db, ids))

    async def forget_unrated(self, ids: Sequence[str]) -> int:
        """Delete those of these that nobody has ever rated; also such as are only queued to be stored yet."""
        return await self._writer.submit(lambda db: forget_unrated(db, ids))
