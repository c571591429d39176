"""Answers that ended before they were begun, stored by the group: each is one row of a table, written once.

Owns the order in which the rows of a group go into the tables. All of one table go by one statement, which costs a
tenth less than one statement an answer. Not here: which answers share a group (writer), what was begun (completions).
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from dataclasses import replace
from typing import Any, Final

from store.captured import conversations, items, prompt_ids, requests, tree
from store.captured.rows import IDS, LOGPROBS, pack, pack_pieces, to_json
from store.errors import DuplicateCompletion
from store.records import FinishedCompletion, NewCompletion

_COMPLETION: Final = """INSERT INTO completions (seq, id, request_id, choice, created_at, dialect, backend, model,
served_model, version, line, session, user, turn, turn_rule, streamed, sampling, request_hash, request,
untrainable, images, asked, redacted, key, forms, above, typed, tool_errors, prompt_hash, conversation,
status, finished_at, reply_hash, text, finish_reason, usage, prompt_block, prompt_token_ids, token_ids,
logprobs, unconstrained_logprobs, pieces, logprobs_of, exact, inexact_reason, error, translated, thread)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?,
?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (id) DO NOTHING"""
_LISTED: Final = "INSERT INTO listed (seq, turn, model, version, session, conversation) VALUES (?, ?, ?, ?, ?, ?)"
MOST: Final = 32  # rows of one statement: their token ids are in memory twice until then
FORGOTTEN: Final = "a lesson in its prompt was forgotten"
WITH_FORGOTTEN: Final = "lesson"  # the rule by which it does not train
_LESSON_RATINGS: Final = "SELECT id FROM ratings WHERE id IN (SELECT value FROM json_each(?))"
_LAST: Final = "SELECT seq FROM sqlite_sequence WHERE name = 'completions'"


def record(db: sqlite3.Connection, rows: Iterable[tuple[NewCompletion, FinishedCompletion]]) -> None:
    """Raises DuplicateCompletion, and then nothing of it may stay."""
    group = _Group(db)
    for new, end in rows:
        if group.is_full or group.may_have_above(new):
            group.store()
        group.add(new, end)
    group.store()


def without_forgotten_lessons(db: sqlite3.Connection, new: NewCompletion) -> NewCompletion:
    """The same without lessons that were forgotten since its prompt was made; it does not train if one was in it."""
    if not new.lessons:
        return new
    ids = to_json([lesson.rating for lesson in new.lessons])
    ratings = {row["id"] for row in db.execute(_LESSON_RATINGS, (ids,))}
    lessons = tuple(lesson for lesson in new.lessons if lesson.rating in ratings)
    if all(lesson.left_out or lesson.rating in ratings for lesson in new.lessons):
        return replace(new, lessons=lessons)
    return replace(new, lessons=lessons, untrainable=WITH_FORGOTTEN)


def without_prompt_ids(end: FinishedCompletion) -> FinishedCompletion:
    """The same without the token ids of its prompt, which spell out a lesson that was forgotten."""
    return replace(end, prompt_token_ids=None, exact=False, inexact_reason=FORGOTTEN)


def add_extras(db: sqlite3.Connection, new: NewCompletion) -> None:
    """Keep what was in its prompt besides what its client sent (learning.lessons), and whose experiment it is of."""
    if (turn := new.experiment) is not None:
        db.execute("INSERT INTO experiment_turns VALUES (?, ?, ?, ?)", (new.id, *turn))
    if new.lessons:
        db.executemany(
            "INSERT INTO completion_lessons VALUES (?, ?, ?, ?, ?)",
            [(new.id, index, lesson.rating, lesson.text, lesson.left_out) for index, lesson in enumerate(new.lessons)],
        )


class _Group:
    """Rows on their way into the tables."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db
        last = db.execute(_LAST).fetchone()
        self._seq = 0 if last is None else int(last["seq"])
        self._clear()

    def _clear(self) -> None:
        self._messages: dict[bytes, tree.NewMessage] = {}  # by their names, each after its parent
        self._completions: list[tuple[Any, ...]] = []
        self._listed: list[tuple[Any, ...]] = []
        self._asides: list[tuple[str, int, bytes]] = []
        self._with_extras: list[tuple[NewCompletion, FinishedCompletion]] = []  # with rows in other tables
        self._threads: set[bytes | None] = set()
        self._sessions: set[str | None] = set()

    @property
    def is_full(self) -> bool:
        return len(self._completions) >= MOST

    def may_have_above(self, new: NewCompletion) -> bool:
        """Tell whether it may go on with an answer of this group, which the tables do not have yet."""
        thread = new.above
        return thread is not None and (thread in self._threads or new.session in self._sessions)

    def add(self, new: NewCompletion, end: FinishedCompletion) -> None:
        db = self._db
        new = without_forgotten_lessons(db, new)
        if new.untrainable == WITH_FORGOTTEN:
            end = without_prompt_ids(end)
        self._seq += 1
        tree_messages, names = tree.tree_part(new.prompt, new.nodes, new.asides)
        prompt, reply = tree.gather(db, tree_messages, names, end.reply, self._messages)
        self._asides += tree.gather_aside(db, new.id, new.prompt, new.nodes, new.asides, self._messages)
        block, ids = prompt_ids.add(db, pack(IDS, end.prompt_token_ids))
        conversation = conversations.of(db, new)
        thread = reply if end.thread is None else end.thread
        self._completions.append(
            (
                self._seq, new.id, new.request_id, new.choice, new.created_at, new.dialect, new.backend, new.model,
                new.served_model, new.version, new.line, new.session, new.user, new.turn, new.turn_rule, new.streamed,
                to_json(new.sampling), *requests.add(db, new.request),
                end.untrainable if new.untrainable is None else new.untrainable, new.images, new.asked,
                to_json(end.redacted or new.redacted or None), new.key, to_json(new.forms), new.above, new.typed,
                to_json(new.tool_errors or None), prompt, conversation,
                end.status, end.finished_at, reply, end.text, end.finish_reason, to_json(end.usage), block, ids,
                pack(IDS, end.token_ids), pack(LOGPROBS, end.logprobs),
                pack(LOGPROBS, end.unconstrained_logprobs), pack_pieces(end.pieces), end.logprobs_of,
                end.exact, end.inexact_reason, end.error, end.translated, thread,
            )
        )  # fmt: skip
        self._listed.append((self._seq, new.turn, new.model, new.version, new.session, conversation or self._seq))
        self._threads.add(thread)
        if new.session is not None:
            self._sessions.add(new.session)
        if new.lessons or new.experiment or end.items:
            self._with_extras.append((new, end))

    def store(self) -> None:
        """Store all of them. Raises DuplicateCompletion."""
        if not self._completions:
            return
        db = self._db
        tree.store_new(db, self._messages.values())
        if db.executemany(_COMPLETION, self._completions).rowcount != len(self._completions):
            raise DuplicateCompletion(f"There is a completion {self._duplicate_id()!r} already.")
        db.executemany(_LISTED, self._listed)
        db.executemany(tree.ASIDES, self._asides)
        for new, end in self._with_extras:
            add_extras(db, new)
            items.add(db, end.id, end.items)
        self._clear()

    def _duplicate_id(self) -> str:
        """The first id that was there before."""
        lookup = "SELECT seq FROM completions WHERE id = ?"
        ids = ((seq, id) for seq, id, *_ in self._completions)
        return next(str(id) for seq, id in ids if self._db.execute(lookup, (id,)).fetchone()["seq"] != seq)
