"""Data of chat platforms: links, reactions, and which events were taken.

A link says which completion a platform's message shows. A person's reactions on a message are kept as last heard of, by
when they happened. Their rating follows from them, since events may come twice and in any order. Not here: what an
emoji is worth and who may rate (proxy).
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Sequence
from typing import Final, NamedTuple

from store.errors import LinkTaken
from store.file.part import StorePart
from store.learning import ratings
from store.records import Link, NewRating, NewReaction, Rating, ReactionResult, Requester, Scale

RETENTION_S: Final = 8 * 86400.0  # no platform sends an event again after a week
MOST_SEEN: Final = 100_000  # characters of an answer, whose text a message on a platform is compared with
LINK: Final = "SELECT * FROM links WHERE platform = ? AND channel = ? AND message_id = ?"


def first_time(db: sqlite3.Connection, platform: str, event_id: str) -> bool:
    """Tell whether this event is new; from now on it is not. Events that nobody sends again are let go."""
    now = time.time()
    db.execute("DELETE FROM webhook_events WHERE at < ?", (now - RETENTION_S,))
    cursor = db.execute("INSERT INTO webhook_events VALUES (?, ?, ?) ON CONFLICT DO NOTHING", (platform, event_id, now))
    return cursor.rowcount == 1


# Links


def link(db: sqlite3.Connection, new: Link, *, whosever: bool) -> bool:
    """In place of the one that its message has; of another key's only with `whosever`. Raises LinkTaken.

    Returns:
        Whether this is the first message that shows the answer of a main turn.
    """
    ratings.must_exist(db, new.completion_id)
    is_first = db.execute(
        """SELECT 1 FROM completions c WHERE c.id = ? AND c.turn = 'main'
        AND NOT EXISTS (SELECT 1 FROM links l WHERE l.completion_id = c.id)""",
        (new.completion_id,),
    ).fetchone()
    existing = _link(db.execute(LINK, (new.platform, new.channel, new.message_id)).fetchone())
    if existing is not None and existing.key != new.key and not whosever:
        raise LinkTaken(new.channel, new.message_id)
    db.execute(
        """INSERT INTO links (platform, channel, message_id, completion_id, person, key, created_at)
        VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT (platform, channel, message_id) DO UPDATE SET
        completion_id = excluded.completion_id, person = excluded.person, key = excluded.key,
        created_at = excluded.created_at""",
        (new.platform, new.channel, new.message_id, new.completion_id, new.person, new.key, time.time()),
    )
    return is_first is not None


class NewestAnswer(NamedTuple):
    """The newest answer of one key in a channel."""

    completion_id: str
    person: str | None  # whom it was for, where a link says so
    key: str | None  # that asked for it
    holds: bool  # the key has not been revoked
    created_at: float


def _link(row: sqlite3.Row | None) -> Link | None:
    if row is None:
        return None
    return Link(row["platform"], row["channel"], row["message_id"], row["completion_id"], row["person"], row["key"])


# What was said lately


class SeenAnswer(NamedTuple):
    """A recent answer that a person may have seen."""

    completion_id: str
    text: str
    key: str | None = None  # that asked for it


# Reactions


def react(db: sqlite3.Connection, new: NewReaction) -> ReactionResult:
    """Take one reaction, or that it is gone, and give the rater's rating of the completion the value that follows."""
    if not first_time(db, new.platform, new.event_id):
        return ReactionResult("duplicate")
    ratings.must_have_answer(db, new.completion_id)
    if not _take(db, new):
        return ReactionResult("late")
    return _follow(db, new)


def _take(db: sqlite3.Connection, new: NewReaction) -> bool:
    """False where something newer is known of it."""
    key = {"completion": new.completion_id, "rater": new.rater, "platform": new.platform, "message": new.message}
    newer = db.execute(
        """SELECT 1 FROM reactions WHERE completion_id = :completion AND rater = :rater AND platform = :platform
        AND message = :message AND emoji IN (:emoji, '') AND at > :at""",
        {**key, "emoji": new.emoji, "at": new.timestamp},
    ).fetchone()
    if newer is not None:
        return False
    if new.emoji == "":
        db.execute(
            """UPDATE reactions SET value = NULL, at = :at WHERE completion_id = :completion AND rater = :rater
            AND platform = :platform AND message = :message AND emoji != '' AND at <= :at""",
            {**key, "at": new.timestamp},
        )
    db.execute(
        """INSERT INTO reactions (completion_id, rater, platform, message, emoji, value, scale, at, event_id)
        VALUES (:completion, :rater, :platform, :message, :emoji, :value, :scale, :at, :event)
        ON CONFLICT (completion_id, rater, platform, message, emoji) DO UPDATE SET value = excluded.value,
        scale = excluded.scale, at = excluded.at, event_id = excluded.event_id""",
        {
            **key,
            "emoji": new.emoji,
            "value": new.value,
            "scale": new.scale,
            "at": new.timestamp,
            "event": new.event_id,
        },
    )
    return True


def _follow(db: sqlite3.Connection, new: NewReaction) -> ReactionResult:
    owner = (new.completion_id, new.rater)
    own_rows = "completion_id = ? AND rater = ?"  # on whatever platform: one stays without another
    live = ratings.live_in(db, new.completion_id, new.rater)
    # A rating that was typed, or given elsewhere, is not taken back with an emoji.
    ours = live is not None and bool(
        db.execute(f"SELECT 1 FROM reactions WHERE {own_rows} AND rating_id = ?", (*owner, live.id)).fetchone()  # noqa: S608
    )
    wish = db.execute(
        f"""SELECT value, scale, platform, message, emoji FROM reactions WHERE {own_rows} AND value IS NOT NULL
        ORDER BY at DESC, (platform = ? AND message = ? AND emoji = ?) DESC LIMIT 1""",  # noqa: S608  ours
        (*owner, new.platform, new.message, new.emoji),
    ).fetchone()
    if wish is None:
        if live is None or not ours:
            return ReactionResult("nothing")
        return ReactionResult("retracted", ratings.retract(db, live.id))
    if live is not None and live.value == wish["value"]:
        return ReactionResult("same", live)
    if new.value is None and not ours:
        return ReactionResult("nothing")
    return ReactionResult("rated", _rate(db, new, wish["value"], wish["scale"], tuple(wish)[2:]))


def _rate(db: sqlite3.Connection, new: NewReaction, value: float, scale: Scale, of: tuple[str, ...]) -> Rating:
    rating = ratings.rate(
        db,
        NewRating(new.completion_id, new.rater, value, source=new.platform, source_event_id=new.event_id, scale=scale),
    )
    db.execute(
        """UPDATE reactions SET rating_id = ? WHERE completion_id = ? AND rater = ? AND platform = ?
        AND message = ? AND emoji = ?""",
        (rating.id, new.completion_id, new.rater, *of),
    )
    return rating


def _reaction(row: sqlite3.Row) -> NewReaction:
    return NewReaction(
        row["completion_id"], row["rater"], row["platform"], row["event_id"] or "", row["message"], row["emoji"],
        row["value"], row["at"], row["scale"],
    )  # fmt: skip


class ReactionStore(StorePart):
    async def of_event(self, platform: str, event_id: str) -> NewReaction | None:
        """The reaction that this event brought, as long as nothing newer is known of it."""
        row = await self._reader.row(
            "SELECT * FROM reactions WHERE platform = ? AND event_id = ?", (platform, event_id)
        )
        return None if row is None else _reaction(row)

    async def of_message(self, platform: str, message: str) -> list[NewReaction]:
        """All that people have on that message. It reads every reaction: only for what is rare."""
        rows = await self._reader.rows(
            "SELECT * FROM reactions WHERE platform = ? AND message = ? AND value IS NOT NULL", (platform, message)
        )
        return [_reaction(row) for row in rows]

    async def link(self, new: Link, *, whosever: bool = False) -> bool:
        """Say what a message shows, anew too; where another key has said it, `whosever` only. Raises LinkTaken.

        Returns:
            Whether this is the first message that shows the answer of a main turn.
        """
        return await self._writer.submit(lambda db: link(db, new, whosever=whosever))

    async def linked(self, platform: str, channel: str, message_id: str) -> Link | None:
        return _link(await self._reader.row(LINK, (platform, channel, message_id)))

    async def newest_linked(self, platform: str, channel: str, person: str) -> list[NewestAnswer]:
        """The answers that `/rl` without a message may mean there: the newest linked one of each key.

        For this person, where it is known whom they are for. Newest first, by the answer: a clock may be set back.
        """
        rows = await self._reader.rows(
            """SELECT w.* FROM (SELECT c.id, l.person, c.key, k.revoked_at, c.created_at, c.seq,
                row_number() OVER (PARTITION BY c.key ORDER BY c.seq DESC) AS place
                FROM links l CROSS JOIN completions c ON c.id = l.completion_id LEFT JOIN keys k ON k.id = c.key
                WHERE l.platform = ? AND l.channel = ? AND (l.person IS NULL OR l.person = ?)) w
            WHERE w.place = 1 ORDER BY w.seq DESC""",
            (platform, channel, person),
        )
        return [
            NewestAnswer(row["id"], row["person"], row["key"], row["revoked_at"] is None, row["created_at"])
            for row in rows
        ]

    async def newest_in(self, session: str) -> list[NewestAnswer]:
        """The newest main turn of each key in a session, whatever has become of it. Newest first."""
        rows = await self._reader.rows(
            """SELECT w.* FROM (SELECT c.id, c.key, k.revoked_at, c.created_at, c.seq,
                row_number() OVER (PARTITION BY c.key ORDER BY c.seq DESC) AS place
                FROM completions c LEFT JOIN keys k ON k.id = c.key WHERE c.session = ? AND +c.turn = 'main'
                AND (+c.status <> 'error' OR c.text <> '') AND +c.choice = 0) w
            WHERE w.place = 1 ORDER BY w.seq DESC""",
            (session,),
        )
        return [NewestAnswer(row["id"], None, row["key"], row["revoked_at"] is None, row["created_at"]) for row in rows]

    async def requester_of(self, completion_id: str) -> Requester | None:
        """Whose completion this is; None where there is none of that id."""
        row = await self._reader.row("SELECT c.key, c.user FROM completions c WHERE c.id = ?", (completion_id,))
        return None if row is None else Requester(row["key"], row["user"])

    async def newest_answers(self, sessions: Sequence[str], limit: int) -> list[SeenAnswer]:
        """The newest main turns of these sessions; without any, of all. Newest first, and of a text its first
        `MOST_SEEN` characters."""
        if not sessions:
            rows = await self._reader.rows(
                """SELECT c.id, substr(c.text, 1, ?) AS text, c.key FROM completions c
                WHERE +c.status IN ('done', 'partial') AND +c.turn = 'main' AND c.text != '' AND c.seq > 0
                ORDER BY c.seq DESC LIMIT ?""",
                (MOST_SEEN, limit),
            )
            return [SeenAnswer(row["id"], row["text"], row["key"]) for row in rows]
        answers: list[tuple[int, SeenAnswer]] = []
        for session in sessions:  # one by one: each comes newest first from its index
            rows = await self._reader.rows(
                """SELECT c.seq, c.id, substr(c.text, 1, ?) AS text, c.key FROM completions c WHERE c.session = ?
                AND +c.status IN ('done', 'partial') AND +c.turn = 'main' AND c.text != ''
                ORDER BY c.seq DESC LIMIT ?""",
                (MOST_SEEN, session, limit),
            )
            answers += [(row["seq"], SeenAnswer(row["id"], row["text"], row["key"])) for row in rows]
        return [answer for _, answer in sorted(answers, reverse=True)[:limit]]

    async def react(self, new: NewReaction) -> ReactionResult:
        """Take a reaction; the rating that follows from it is stored, replaced or retracted with it."""
        return await self._writer.submit(lambda db: react(db, new))

    async def first_time(self, platform: str, event_id: str) -> bool:
        """Tell whether this event is new; from now on it is not."""
        return await self._writer.submit(lambda db: first_time(db, platform, event_id))
