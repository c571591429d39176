"""Ratings: one live a completion and rater, the last wins, the history stays.

Not here: who may rate (proxy), which ratings a run takes (`samples`), reactions on chat platforms
(`reactions`), what all of them come to (`opinion`).
"""

from __future__ import annotations

import secrets
import sqlite3
import sys
import time
from dataclasses import replace
from typing import Any, Final

import orjson

from store.captured.items import OPEN
from store.captured.rows import to_rating
from store.errors import EventTaken, NoAnswer, UnknownCompletion, UnknownRating
from store.file.part import StorePart
from store.learning.rater_quota import LEAST_WEIGHT as LEAST_WEIGHT
from store.learning.rater_quota import MOST_WEIGHT
from store.records import RATING_TEXTS, NewRating, Rating

JUDGEMENT: Final = ("value", "weight", "scale", *RATING_TEXTS)
JUDGED: Final = "judge"  # the source of a judge's labels that became ratings
BY_ID = "SELECT r.* FROM ratings r WHERE r.id = ?"
LIVE = "SELECT r.* FROM ratings r WHERE r.completion_id = ? AND r.rater = ? AND r.live = 1"
EVENT = "SELECT r.* FROM ratings r WHERE r.source = ? AND r.source_event_id = ? AND r.rater = coalesce(?, r.rater)"
TRAINED = """SELECT r.* FROM ratings r CROSS JOIN run_samples s ON s.rating_id = r.id
CROSS JOIN runs u ON u.id = s.run_id
WHERE r.completion_id = ? AND r.rater = ? AND u.status IN ('claimed', 'running', 'done') ORDER BY r.seq DESC LIMIT 1"""


def valid(new: NewRating) -> None:
    if not -1 <= new.value <= 1:  # false for NaN too
        raise ValueError(f"a rating is between -1 and 1, not {new.value}")
    if not LEAST_WEIGHT <= new.weight <= MOST_WEIGHT:
        raise ValueError(f"the weight of a rating is from {LEAST_WEIGHT:g} to {MOST_WEIGHT:g}, not {new.weight}")


_OF_LINE: Final = "SELECT 1 FROM completions WHERE id = ? AND line = ?"


def rate(db: sqlite3.Connection, new: NewRating) -> Rating:
    """Raises EventTaken where an event comes again and says something else."""
    if new.line is not None and db.execute(_OF_LINE, (new.completion_id, new.line)).fetchone() is None:
        raise UnknownCompletion(new.completion_id)
    if new.source_event_id is not None:
        stored = _rating(db.execute(EVENT, (new.source, new.source_event_id, new.rater)).fetchone())
        if stored is not None:
            if not _says(stored, new):
                raise EventTaken(stored)
            return replace(stored, duplicate=True)
    must_have_answer(db, new.completion_id)
    if new.human:
        take_back_judged(db, new.completion_id)
    live_row, other_key = db.execute(LIVE, (new.completion_id, new.rater)).fetchone(), _other_key(db, new)
    by_same = live_row is not None and live_row["other_key"] == other_key  # a name of two keys may be two people's
    new = replace(new, **_texts(new, live_row if by_same else None))
    if by_same and new.source_event_id is None and judgement(to_rating(live_row)) == judgement(new):
        unhook(db, live_row["id"])
        return replace(to_rating(live_row), duplicate=True)  # one with an event's id gets its row: it keeps that id
    if live_row is not None:
        db.execute("UPDATE ratings SET live = 0 WHERE id = ?", (live_row["id"],))
    return insert(
        db, new, id="rt-" + secrets.token_urlsafe(15), created_at=time.time(), source_event_id=new.source_event_id,
        replaced=live_row and live_row["id"], other_key=other_key,
        counterpart=_counterpart(new, live_row if by_same else None),
    )  # fmt: skip


def insert(db: sqlite3.Connection, rating: NewRating | Rating, **columns: Any) -> Rating:
    """A live row of what the rating says, and of these columns."""
    columns_of_rating = {
        name: getattr(rating, name) for name in (*JUDGEMENT, "completion_id", "rater", "source", "human")
    }
    row = {**columns_of_rating, "live": 1, "repeats": repeated(db, rating), **columns}
    places = ", ".join(f":{name}" for name in row)
    query = f"INSERT INTO ratings ({', '.join(row)}) VALUES ({places}) RETURNING *"  # noqa: S608  our own columns
    return to_rating(db.execute(query, row).fetchone())


def _other_key(db: sqlite3.Connection, new: NewRating) -> str | None:
    """The key that rates, where the completion is another key's. Completions of before there were keys are nobody's."""
    if new.key is None:
        return None
    (owner,) = db.execute("SELECT key FROM completions WHERE id = ?", (new.completion_id,)).fetchone()
    return None if owner in (None, new.key) else new.key


def take_back_judged(db: sqlite3.Connection, completion_id: str) -> None:
    """A person rates it: what a judge said of it counts no more, also where that has trained."""
    db.execute(
        """UPDATE ratings SET live = 0, retracted_at = ?
        WHERE completion_id = ? AND live = 1 AND human = 0 AND source = ?""",
        (time.time(), completion_id, JUDGED),
    )


def repeated(db: sqlite3.Connection, new: NewRating | Rating) -> str | None:
    """The id of the rater's rating that a run took last, where `new` says the same. It does not train once more,
    whatever lies between the two."""
    last = _rating(db.execute(TRAINED, (new.completion_id, new.rater)).fetchone())
    return last.id if last is not None and judgement(last) == judgement(new) else None


def unhook(db: sqlite3.Connection, id: str) -> None:
    """Let a rating stand by itself: it was given in another way, too, so it does not go with a reaction."""
    db.execute("UPDATE reactions SET rating_id = NULL WHERE rating_id = ?", (id,))


def _says(rating: Rating, new: NewRating) -> bool:
    """Tell if the rating of an event says all that the event says now. Words that are left out stay as they were."""
    texts = ((getattr(rating, name), getattr(new, name)) for name in RATING_TEXTS)
    return (
        (rating.completion_id, rating.value, rating.weight, rating.scale)
        == (new.completion_id, new.value, new.weight, new.scale)
    ) and all(new_text is None or (stored or "") == new_text for stored, new_text in texts)


def judgement(rating: NewRating | Rating) -> tuple[Any, ...]:
    """All that training takes from a rating; an empty text is none."""
    return tuple(None if (value := getattr(rating, name)) == "" else value for name in JUDGEMENT)


def _texts(new: NewRating, live_row: sqlite3.Row | None) -> dict[str, Any]:
    """The texts to store. One that is not given stays as it was, while the judgement stays on its side. Praise takes
    back a correction, and a reason against the reply."""
    same_side = live_row is not None and (live_row["value"] > 0) == (new.value > 0)
    stored = live_row if live_row is not None and same_side else dict.fromkeys(RATING_TEXTS)
    new_texts = {name: getattr(new, name) for name in RATING_TEXTS}
    return {name: stored[name] if text is None else text or None for name, text in new_texts.items()}


def _counterpart(new: NewRating, live_row: sqlite3.Row | None) -> float | None:
    """The value by the other scale that stays beside this one. A rating of the other side is a change of mind."""
    if live_row is None or live_row["value"] * new.value <= 0:
        return None
    same_scale = (live_row["scale"] == "thumb") == (new.scale == "thumb")
    value: float | None = live_row["counterpart" if same_scale else "value"]
    return value


def retract(db: sqlite3.Connection, id: str) -> Rating:
    """Take a rating back; one that is not live any more stays as it is."""
    db.execute("UPDATE ratings SET live = 0, retracted_at = ? WHERE id = ? AND live = 1", (time.time(), id))
    row = db.execute(BY_ID, (id,)).fetchone()
    if row is None:
        raise UnknownRating(id)
    return to_rating(row)


def live_in(db: sqlite3.Connection, completion_id: str, rater: str) -> Rating | None:
    """Do `live` within the writer's transaction."""
    return _rating(db.execute(LIVE, (completion_id, rater)).fetchone())


def must_exist(db: sqlite3.Connection, completion_id: str) -> None:
    if db.execute("SELECT 1 FROM completions c WHERE c.id = ?", (completion_id,)).fetchone() is None:
        raise UnknownCompletion(completion_id)


def must_have_answer(db: sqlite3.Connection, completion_id: str) -> None:
    """Raises UnknownCompletion; and NoAnswer where the completion has ended without a reply, or was cut before it had
    any: nobody can have seen it. A model that ends without a word has answered, and people may dislike that."""
    row = db.execute(
        f"""SELECT c.status, c.reply_hash, c.error, c.text, m.body, {OPEN} AS open FROM completions c
        LEFT JOIN messages m ON m.hash = c.reply_hash WHERE c.id = ?""",  # noqa: S608  ours
        (completion_id,),
    ).fetchone()
    if row is None:
        raise UnknownCompletion(completion_id)
    if row["status"] == "pending" and row["open"]:
        raise NoAnswer(completion_id, "it is worked on in the background: fetch it first")
    if row["reply_hash"] is None and row["status"] != "pending":
        raise NoAnswer(completion_id, row["error"])
    is_wordless = row["body"] is not None and _is_empty([row["text"], orjson.loads(row["body"])])  # speech has a text
    if is_wordless and row["status"] not in ("pending", "done"):
        raise NoAnswer(completion_id, row["error"] or "it was cut before it had words or a call")


def _is_empty(value: Any) -> bool:
    """Tell whether a message has nothing to be seen; the name of a part's kind is not."""
    if isinstance(value, str):
        return not value.strip()
    if isinstance(value, dict):
        return all(_is_empty(item) for name, item in value.items() if name not in ("type", "role"))
    return value is None or (isinstance(value, list) and all(map(_is_empty, value)))


def _rating(row: sqlite3.Row | None) -> Rating | None:
    return None if row is None else to_rating(row)


class RatingStore(StorePart):
    async def rate(self, new: NewRating) -> Rating:
        """Store a rating in place of the rater's live one; an event seen before changes nothing.

        Raises EventTaken where it says something else now."""
        valid(new)
        return await self._writer.submit(lambda db: rate(db, new))

    async def retract(self, rating_id: str) -> Rating:
        return await self._writer.submit(lambda db: retract(db, rating_id))

    async def versions_of(self, rating_id: str) -> list[int]:
        """Versions that learned from it."""
        rows = await self._reader.rows(
            "SELECT runs.version FROM run_samples JOIN runs ON runs.id = run_id "
            "WHERE rating_id = ? AND split = 'train' AND status = 'done' ORDER BY runs.version",
            (rating_id,),
        )
        return [row["version"] for row in rows]

    async def get(self, rating_id: str) -> Rating | None:
        return _rating(await self._reader.row(BY_ID, (rating_id,)))

    async def of_event(self, source: str, event_id: str, rater: str | None = None) -> Rating | None:
        """The one that this event gave; by whomever, without a rater."""
        return _rating(await self._reader.row(EVENT, (source, event_id, rater)))

    async def of_events(
        self, source: str, prefix: str, *, rater: str | None = None, live: bool = False
    ) -> list[Rating]:
        """Those of a source whose events' ids begin so, newest first; of one rater if given; with `live` those that
        count."""
        rows = await self._reader.rows(
            """SELECT r.* FROM ratings r WHERE r.source = ? AND r.source_event_id BETWEEN ? AND ?
            AND r.rater = coalesce(?, r.rater) AND +r.live >= ? ORDER BY r.seq DESC""",
            (source, prefix, prefix + chr(sys.maxunicode), rater, int(live)),
        )
        return [to_rating(row) for row in rows]

    async def live(self, completion_id: str, rater: str) -> Rating | None:
        return _rating(await self._reader.row(LIVE, (completion_id, rater)))

    async def newest_times(self, limit: int) -> list[float]:
        """When people gave those of the newest `limit` ratings that count, the newest first."""
        rows = await self._reader.rows(
            """SELECT r.created_at FROM ratings r WHERE r.seq > (SELECT coalesce(max(seq), 0) FROM ratings) - ?
            AND +r.live = 1 AND +r.human = 1 ORDER BY r.seq DESC""",
            (limit,),
        )
        return [row["created_at"] for row in rows]

    async def last(self, rater: str, *, session: str | None = None, line: str | None = None) -> Rating | None:
        """The newest live one of that rater, the one an undo takes back; of one line if given."""
        return _rating(
            await self._reader.row(
                """SELECT r.* FROM ratings r CROSS JOIN completions c ON c.id = r.completion_id
                WHERE r.rater = :rater AND r.live = 1 AND (:session IS NULL OR +c.session = :session)
                AND (:line IS NULL OR +c.line = :line) ORDER BY r.seq DESC LIMIT 1""",
                {"rater": rater, "session": session, "line": line},
            )
        )

    async def line_of(self, rating_id: str) -> str | None:
        """The line of the completion that this rating is about; None for an unknown rating."""
        row = await self._reader.row(
            "SELECT c.line FROM ratings r CROSS JOIN completions c ON c.id = r.completion_id WHERE r.id = ?",
            (rating_id,),
        )
        return None if row is None else row["line"]

    async def history(self, completion_id: str) -> list[Rating]:
        """All there ever were, newest first."""
        rows = await self._reader.rows(
            "SELECT r.* FROM ratings r WHERE r.completion_id = ? ORDER BY r.seq DESC", (completion_id,)
        )
        return [to_rating(row) for row in rows]
