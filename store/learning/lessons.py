"""Lessons: comments on disliked answers that act at once, and the prompts that they were in.

A lesson is a live rating by a person with a comment, of a disliked answer. Owns what was said of one since (new words,
an end), and which completions had one in their prompt. It counts how those were liked with and without it. It knows
what runs have measured: while a version is live that answers the same without a lesson, that one is retired. What is
forgotten takes its lessons along. Not here: which lessons fit a question (proxy.conversation.lesson_topics), where they
stand in a prompt (proxy.relay.lessons).
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Literal, NamedTuple

import orjson

from config.word_marks import mark_of
from store.captured import prompt_ids
from store.captured.recording import FORGOTTEN, WITH_FORGOTTEN
from store.errors import UnknownRating
from store.file import meta
from store.file.part import StorePart
from store.learning.lesson_scope import is_about_form
from store.learning.rater_quota import OWNER
from store.learning.ratings import JUDGED
from store.line_records import COMMON
from store.records import BASE, PromptLesson

SINCE: Final = "lessons_since"  # the newest rating, by seq, of before lessons were turned on
LONGEST: Final = 2000  # characters: it stands in every prompt that it fits
SMALL_REMAINDER: Final = 0.1  # of what a lesson changes; more than this is surely not left (docs/lab/lessons.md)
# Only what the owner or its asker said of an answer: nobody else's words get into a person's prompts, also not those of
# somebody who has the same name behind another key. Those that have ended, too. A version has learned one where a
# finished run trained on it.
_ALL: Final = f"""SELECT r.id, r.seq, r.completion_id, r.comment, r.created_at, c.key, c.user, c.line, c.asked,
l.text, l.always, l.ended, l.why, coalesce(l.changed_at, 0) AS changed_at,
(SELECT min(u.version) FROM run_samples t CROSS JOIN runs u ON u.id = t.run_id
    CROSS JOIN adapters a ON a.version = u.version
    WHERE t.rating_id = r.id AND t.split = 'train' AND u.status = 'done') AS learned
FROM ratings r CROSS JOIN completions c ON c.id = r.completion_id LEFT JOIN lessons l ON l.rating_id = r.id
WHERE r.seq > ? AND r.live = 1 AND r.human = 1 AND r.source <> '{JUDGED}' AND r.value < 0 AND r.comment IS NOT NULL
AND trim(r.comment) <> '' AND length(r.comment) <= {LONGEST} AND r.other_key IS NULL
AND (r.rater = '{OWNER}' OR r.rater = c.user
    OR (c.user IS NULL AND EXISTS (SELECT 1 FROM keys k WHERE k.id = c.key AND k.name = r.rater)))
ORDER BY r.seq DESC"""  # noqa: S608  a constant
_LESSON_RATING: Final = """SELECT 1 FROM ratings r WHERE r.id = ? AND r.live = 1 AND r.human = 1 AND r.value < 0
AND r.comment IS NOT NULL AND r.other_key IS NULL"""
_SET: Final = """INSERT INTO lessons (rating_id, text, always, ended, why, changed_at) VALUES (?, ?, ?, ?, ?, ?)
ON CONFLICT (rating_id) DO UPDATE SET text = excluded.text, always = excluded.always, ended = excluded.ended,
why = excluded.why, changed_at = excluded.changed_at"""
# Only where nobody has said anything of it since it was read.
_SETTLE: Final = """INSERT INTO lessons (rating_id, always, ended, why, changed_at) VALUES (?, ?, ?, ?, ?)
ON CONFLICT (rating_id) DO UPDATE SET ended = excluded.ended, why = excluded.why, changed_at = excluded.changed_at
WHERE lessons.changed_at = ?"""
# How people liked each version's answers with the lesson in the prompt and without, since anybody said something of it.
_TALLIES: Final = """SELECT p.rating_id, p.left_out, c.version, total(c.value > 0) AS liked, count(*) AS rated
FROM completion_lessons p CROSS JOIN
    (SELECT c.id, c.version, c.created_at, (SELECT total(r.value) FROM ratings r
        WHERE r.completion_id = c.id AND r.live = 1 AND r.human = 1) AS value FROM completions c
        WHERE EXISTS (SELECT 1 FROM ratings r WHERE r.completion_id = c.id AND +r.live = 1 AND +r.human = 1)) c
    ON c.id = p.completion_id AND c.value <> 0
LEFT JOIN lessons l ON l.rating_id = p.rating_id
WHERE p.rating_id IN (SELECT value FROM json_each(?)) AND c.created_at > coalesce(l.changed_at, 0)
GROUP BY 1, 2, 3"""
# What each run found that lessons still change in its version's answers.
_GAPS: Final = """SELECT u.version, u.created_at, g.key AS rating, g.value AS gap
FROM runs u CROSS JOIN json_each(u.result, '$.lessons') g WHERE u.status = 'done' ORDER BY u.version"""
_PARENTS: Final = "SELECT version, parent FROM adapters"
_LIVE: Final = "SELECT ? AS line, live FROM pointer UNION ALL SELECT name, live FROM lines"
_IN_PROMPTS: Final = """SELECT p.completion_id, p.rating_id, p.text FROM completion_lessons p
WHERE p.left_out = 0 AND p.completion_id IN (SELECT value FROM json_each(?)) ORDER BY p.completion_id, p.at"""


LessonState = Literal["active", "removed", "retired"]


class LessonGap(NamedTuple):
    """How much a lesson in the prompt still changes what a version says, as the run that made it has measured."""

    version: int
    bound: float  # so much of what it changed in the base's eyes at most, 0 to 1

    @property
    def is_closed(self) -> bool:
        """The version says much the same without the lesson."""
        return self.bound <= SMALL_REMAINDER


@dataclass(frozen=True, slots=True)
class CommentLesson:
    """A comment on a disliked answer, which acts at once in later prompts of the same asker."""

    rating: str  # that brought it
    completion: str
    key: str | None  # whose answer it was
    user: str | None
    question: str  # what had been asked
    text: str  # as it stands in prompts
    edited: bool
    always: bool  # whatever is asked: a person has said so, or else its words do (lesson_scope)
    state: LessonState
    end_reason: str | None  # of one that is removed or retired
    created_at: float
    learned: int | None  # the first version that trained on it
    line: str = COMMON  # of the answer; it is in prompts of that line alone
    has_ended: bool = False  # removed, so whichever version answers
    is_unneeded: bool = False  # versions that have learned it are liked as much without it
    changed_at: float = 0.0  # when anybody last said something of it; 0: never
    gaps: tuple[LessonGap, ...] = ()  # by version, of its words, since anybody last said something of it
    is_measured: bool = False  # a run has measured it, perhaps before that
    parents: Mapping[int, int] = field(default_factory=dict)  # of each version, the one that it was built on

    def gap_of(self, version: int) -> LessonGap | None:
        """The measurement of the run of this version, or of the newest run that it was built on and that made one."""
        gaps = {gap.version: gap for gap in self.gaps}
        return next((gaps[ancestor] for ancestor in lineage(self.parents, version) if ancestor in gaps), None)

    def is_learned(self, version: int) -> bool:
        """Tell if the version, or one that it was built on, trained on it."""
        return self.learned is not None and self.learned in lineage(self.parents, version)

    def is_retired(self, version: int) -> bool:
        """Tell if the version goes without it, by its run's measurement, or where there is none by likes."""
        gap = self.gap_of(version)
        return self.is_unneeded and self.is_learned(version) if gap is None else gap.is_closed


def lineage(parents: Mapping[int, int], version: int) -> Iterator[int]:
    """A version and those that it was built on, the newest first; without the base."""
    while version != BASE:
        yield version
        parent = parents.get(version, BASE)
        version = parent if parent < version else BASE  # no run makes another, whoever edits a backup can


class LessonTally(NamedTuple):
    """How answers were liked, with a lesson in the prompt and without."""

    liked_with: int = 0
    rated_with: int = 0
    liked_without: int = 0
    rated_without: int = 0


def say(
    db: sqlite3.Connection,
    rating: str,
    *,
    text: str | None,
    always: bool,
    ended: str | None,
    reason: str | None,
    actor: str,
) -> None:
    """Write down what holds of a lesson from now on. Raises UnknownRating."""
    if db.execute(_LESSON_RATING, (rating,)).fetchone() is None:
        raise UnknownRating(rating)
    db.execute(_SET, (rating, text, always, ended, reason, time.time()))
    meta.audit(db, actor, "lesson", {"id": rating, "state": ended or "active", "always": always})


def settle(db: sqlite3.Connection, lesson: CommentLesson, reason: str | None) -> bool:
    """Retire a lesson by how answers were liked, for this reason; without one it acts again.

    False where its rating was undone, or where anybody has said something of it since it was read.
    """
    if db.execute(_LESSON_RATING, (lesson.rating,)).fetchone() is None:
        return False
    ended, changed_at = ("retired", lesson.changed_at) if reason is not None else (None, time.time())
    values = (lesson.rating, lesson.always, ended, reason, changed_at, lesson.changed_at)
    is_settled = db.execute(_SETTLE, values).rowcount > 0
    if is_settled:
        state = {"id": lesson.rating, "state": ended or "active", "always": lesson.always}
        meta.audit(db, "rlproxy", "lesson", state)
    return is_settled


def forget(db: sqlite3.Connection, ratings: Sequence[str]) -> list[str]:
    """Completions that had one of these in their prompt: their ids spell it out, so they go, and nothing of them trains
    any more."""
    rating_ids = orjson.dumps(list(ratings)).decode()
    rows = db.execute(
        """SELECT DISTINCT c.id, c.prompt_block FROM completion_lessons p CROSS JOIN completions c
        ON c.id = p.completion_id WHERE p.rating_id IN (SELECT value FROM json_each(?)) AND p.left_out = 0""",
        (rating_ids,),
    ).fetchall()
    completion_ids = [row["id"] for row in rows]
    db.execute(
        """UPDATE completions SET prompt_block = NULL, prompt_token_ids = NULL, exact = 0, inexact_reason = ?,
        untrainable = ? WHERE id IN (SELECT value FROM json_each(?))""",
        (FORGOTTEN, WITH_FORGOTTEN, orjson.dumps(completion_ids).decode()),
    )
    prompt_ids.prune(db, {row["prompt_block"] for row in rows if row["prompt_block"] is not None})
    db.execute("DELETE FROM completion_lessons WHERE rating_id IN (SELECT value FROM json_each(?))", (rating_ids,))
    return completion_ids


class MeasuredGap(NamedTuple):
    created_at: float  # of its run
    gap: LessonGap
    words: int | None  # a mark of those that were measured; None of earlier runs


def _measured(row: sqlite3.Row) -> MeasuredGap | None:
    """None where it is not a figure: a result may come from another machine, or from a backup that was edited."""
    try:
        content = orjson.loads(row["gap"])
        bound = content["bound"]
    except (TypeError, ValueError, KeyError):
        return None
    if type(bound) not in (int, float):
        return None
    return MeasuredGap(row["created_at"], LessonGap(row["version"], float(bound)), content.get("words"))


def begin(db: sqlite3.Connection) -> int:
    """Since which rating comments are lessons: from when they were first turned on."""
    since = meta.read_meta(db, SINCE, None)
    if since is None:
        (since,) = db.execute("SELECT coalesce(max(seq), 0) FROM ratings").fetchone()
        meta.set_meta(db, SINCE, since)
    return int(since)


def _lesson(row: sqlite3.Row, measured: Sequence[MeasuredGap], parents: Mapping[int, int], live: int) -> CommentLesson:
    text = row["text"] or row["comment"].strip()
    marks, is_removed = (None, mark_of(text)), row["ended"] == "removed"
    lesson = CommentLesson(
        rating=row["id"],
        completion=row["completion_id"],
        key=row["key"],
        user=row["user"],
        question=row["asked"],
        text=text,
        edited=row["text"] is not None,
        always=is_about_form(text, row["asked"]) if row["always"] is None else bool(row["always"]),
        state="removed" if is_removed else "active",
        end_reason=row["why"] if is_removed else None,
        created_at=row["created_at"],
        learned=row["learned"],
        line=row["line"],
        has_ended=is_removed,
        is_unneeded=row["ended"] == "retired",
        changed_at=row["changed_at"],
        gaps=tuple(each.gap for each in measured if each.created_at > row["changed_at"] and each.words in marks),
        is_measured=bool(measured),
        parents=parents,
    )
    if is_removed or not lesson.is_retired(live):
        return lesson
    if (gap := lesson.gap_of(live)) is None:
        return replace(lesson, state="retired", end_reason=row["why"])
    reason = f"v{gap.version} answers much the same without it (at most {gap.bound:.0%} of what it changed is left)"
    return replace(lesson, state="retired", end_reason=reason)


class LessonStore(StorePart):
    async def begin(self) -> None:
        """Comments from now on are lessons, unless they were before."""
        await self._writer.submit(begin)

    async def all(self) -> list[CommentLesson]:
        """Newest first, with those that have ended; none where they were never turned on."""
        since = await meta.get_meta(self._reader, SINCE, None)
        if since is None:
            return []
        measured: dict[str, list[MeasuredGap]] = {}
        for row in await self._reader.rows(_GAPS):
            if (gap := _measured(row)) is not None:
                measured.setdefault(row["rating"], []).append(gap)
        parents = {row["version"]: row["parent"] for row in await self._reader.rows(_PARENTS)}
        live = {row["line"]: row["live"] for row in await self._reader.rows(_LIVE, (COMMON,))}
        return [
            _lesson(row, measured.get(row["id"], ()), parents, live.get(row["line"], BASE))
            for row in await self._reader.rows(_ALL, (int(since),))
        ]

    async def say(
        self, rating: str, *, text: str | None, always: bool, ended: str | None, reason: str | None, actor: str
    ) -> None:
        """Raises UnknownRating where there is no such lesson."""
        await self._writer.submit(
            lambda db: say(db, rating, text=text, always=always, ended=ended, reason=reason, actor=actor)
        )

    async def settle(self, lesson: CommentLesson, reason: str | None) -> bool:
        """Retire a lesson by likes, or without a reason let it act again. False: it has changed since it was read."""
        return await self._writer.submit(lambda db: settle(db, lesson, reason))

    async def tallies(self, lessons: Iterable[CommentLesson]) -> dict[str, LessonTally]:
        """Counts of liked answers with and without each lesson that a version has learned, or a run has measured.

        Of a lesson that no run has measured only versions that have learned it count: others may be liked less for
        anything. Answers from before anybody last said something of it do not count.
        """
        learned = {each.rating: each for each in lessons if each.learned is not None or each.is_measured}
        counts = {rating: [0, 0, 0, 0] for rating in learned}
        if not counts:
            return {}
        for row in await self._reader.rows(_TALLIES, (orjson.dumps(list(counts)).decode(),)):
            lesson, version, offset = learned[row["rating_id"]], row["version"], 2 * row["left_out"]
            if lesson.is_measured or (version is not None and lesson.is_learned(version)):
                counts[lesson.rating][offset] += int(row["liked"])
                counts[lesson.rating][offset + 1] += row["rated"]
        return {rating: LessonTally(*each) for rating, each in counts.items()}

    async def in_prompts(self, completions: Iterable[str]) -> dict[str, list[PromptLesson]]:
        """The lessons in each of these completions' prompts, in order."""
        lessons: dict[str, list[PromptLesson]] = {}
        for row in await self._reader.rows(_IN_PROMPTS, (orjson.dumps(list(completions)).decode(),)):
            lessons.setdefault(row["completion_id"], []).append(PromptLesson(row["rating_id"], row["text"]))
        return lessons
