"""Signals: what happened after a completion, the queue of those that a judge is to label, and who agrees with it.

A signal is not a rating. Owns the rows, the bounds of the queue, and which turns people and a judge have both looked
at. Not here: what a signal means (proxy.signals), how a label becomes a rating (labels).
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Sequence
from typing import Any, Final, NamedTuple, cast

from typing_extensions import TypedDict

from store.captured.rows import from_json, to_json
from store.file import meta
from store.file.part import StorePart
from store.file.reader import Reader
from store.learning import labels, ratings
from store.learning.labels import OWN_CODE, RULES, TrustedJudge
from store.records import Message, NewSignal, Requester, SharedJudgement, Signal

LAST_SEEN_KEY: Final = "signals_after"  # the newest completion that was looked at, by seq
ENDED: Final = "signals_ended"  # and the newest that was looked at once it had ended
OWN_SCORED_KEY: Final = "own_after"  # the newest signal that the user's own code has scored
COST: Final = "judge_cost"  # what the judge cost today, and in all
ASK: Final = "judge_asks"  # the completion that people are asked about, and when
MOST_WAITING: Final = 1000  # of the queue; the oldest go unlabelled
CLIENT_LEFT: Final = "the client went away"  # the error of an answer that its client broke off

# A request that may follow an answer, and what it takes to know which.
_NEXT: Final = """SELECT c.seq, c.id, c.request_id, c.choice, c.turn, c.created_at, c.key, c.user, c.session, c.model,
c.above, c.asked, c.typed, c.tool_errors, c.prompt_hash,
(SELECT coalesce(group_concat(hex(a.hash), ''), '')
    FROM (SELECT hash FROM completion_system WHERE completion_id = c.id ORDER BY at) a) AS system
FROM completions c WHERE c.seq > ? ORDER BY c.seq LIMIT ?"""
# From the last message of each prompt up to its newest reply, the reply with them.
_TAILS: Final = """WITH RECURSIVE path (seq, hash, step) AS (
    SELECT c.seq, c.prompt_hash, 0 FROM completions c WHERE c.seq IN (SELECT CAST(value AS INTEGER) FROM json_each(?))
    UNION ALL SELECT path.seq, m.parent, step + 1 FROM path JOIN messages m ON m.hash = path.hash
    WHERE m.parent IS NOT NULL AND m.role <> 'assistant' AND step < 256)
SELECT path.seq, m.hash, m.role, m.body, m.cut, m.parent FROM path JOIN messages m ON m.hash = path.hash
ORDER BY path.seq, step"""
_PRECEDING: Final = """+c.turn = 'main' AND c.choice = 0 AND +c.seq < :seq AND +c.status IN ('done', 'partial')
AND c.finished_at <= :at AND c.finished_at >= :at - :within AND +c.key IS :key AND +c.user IS :user
AND +c.session IS :session AND c.request_id <> :request
AND NOT EXISTS (SELECT 1 FROM completions o WHERE o.request_id = c.request_id AND o.choice = 1
    AND o.seq > c.seq AND o.seq <= c.seq + 8)"""  # the choices of a request are stored together
_SAME_PROMPT: Final = f"""SELECT c.id FROM completions c WHERE c.prompt_hash = :leaf AND {_PRECEDING}
AND (SELECT coalesce(group_concat(hex(a.hash), '') , '') FROM
    (SELECT hash FROM completion_system WHERE completion_id = c.id ORDER BY at) a) = :system
ORDER BY c.seq DESC LIMIT 1"""  # noqa: S608  constants of this module
_OTHER_QUESTION: Final = f"""SELECT c.id, c.asked FROM messages m CROSS JOIN completions c ON c.prompt_hash = m.hash
WHERE m.parent = :parent AND m.role = 'user' AND m.hash <> :leaf AND {_PRECEDING} ORDER BY c.seq DESC LIMIT 1"""  # noqa: S608
_BROKEN_OFF: Final = """SELECT c.id, c.seq FROM completions c WHERE c.seq > ? AND c.seq <= ? AND +c.turn = 'main'
AND c.choice = 0 AND +c.status = 'partial' AND c.error = ? ORDER BY c.seq"""
_SETTLED: Final = """SELECT coalesce(min(c.seq) - 1, (SELECT coalesce(max(seq), 0) FROM completions)) AS seq
FROM completions c WHERE c.status = 'pending' AND c.seq > ?"""
# What people and a judge have both looked at, the newest rating first.
_SHARED: Final = """SELECT s.completion_id, max(r.seq) AS newest, avg(r.value) AS person,
total(DISTINCT s.value) AS judged FROM signals s
CROSS JOIN ratings r ON r.completion_id = s.completion_id AND r.live = 1 AND r.human = 1
WHERE s.state = 'labelled' AND ((s.judge = ? AND s.config = ?)
    OR (? AND s.judge = 'rules' AND s.kind = 'message' AND s.label = 'nothing'))
GROUP BY s.completion_id ORDER BY newest DESC LIMIT ?"""
_UNSEEN: Final = """SELECT count(*) AS unseen FROM signals s WHERE s.state = 'labelled' AND s.judge = :judge
AND s.config = :config AND s.value <> 0 AND s.labelled_at > (SELECT coalesce(max(r.created_at), 0) FROM signals j
    CROSS JOIN ratings r ON r.completion_id = j.completion_id AND r.live = 1 AND r.human = 1
    WHERE j.state = 'labelled' AND j.judge = :judge AND j.config = :config)
AND NOT EXISTS (SELECT 1 FROM ratings r WHERE r.completion_id = s.completion_id AND r.live = 1 AND r.human = 1)"""
_PRAISE: Final = " OR ".join(
    f"w.text LIKE '%{word}%'"
    for word in (
        "great question",
        "good question",
        "excellent",
        "absolutely right",
        "fantastic",
        "wonderful",
        "brilliant",
    )
)
# What a judge that likes to be pleased would drive up.
_BY_VERSION: Final = f"""SELECT w.version, count(*) AS turns, avg(length(w.text)) AS characters,
avg(iif({_PRAISE}, 1.0, 0.0)) AS praise FROM (SELECT c.version, c.text FROM completions c
    WHERE c.seq > (SELECT max(seq) FROM completions) - 5000 AND +c.turn = 'main' AND +c.status = 'done'
    AND c.version IS NOT NULL) w GROUP BY w.version ORDER BY w.version"""  # noqa: S608
_DRAW: Final = """SELECT w.completion_id FROM (SELECT s.completion_id FROM signals s
    CROSS JOIN completions c ON c.id = s.completion_id AND c.turn = 'main'
    WHERE s.state = 'labelled' AND s.judge = ? AND s.config = ? AND s.kind <> 'aborted'
    AND NOT EXISTS (SELECT 1 FROM ratings r WHERE r.completion_id = s.completion_id AND r.human = 1)
    GROUP BY s.completion_id ORDER BY max(s.labelled_at) DESC LIMIT 500) w ORDER BY random() LIMIT 1"""
_COUNTS: Final = """SELECT coalesce(judge, '') AS judge, state, coalesce(label, '') AS label, kind, count(*) AS count
FROM signals GROUP BY 1, 2, 3, 4"""


class FollowUp(NamedTuple):
    """A request, and what in it comes after its newest reply."""

    seq: int
    id: str
    request_id: str
    turn: str
    created_at: float
    requester: Requester
    session: str | None
    model: str
    above: bytes | None
    asked: str
    typed: str | None
    tool_errors: tuple[str, ...]
    system: str
    leaf: bytes | None
    reply: bytes | None  # the strict name of the newest reply in it
    answer: Message | None  # that reply
    parent: bytes | None  # of its last message
    tail: tuple[Message, ...]  # what comes after that reply, oldest first


def add(db: sqlite3.Connection, new: NewSignal) -> int | None:
    """Store a signal; None where it is known, or its completion is gone."""
    ruled = new.label is not None
    row = db.execute(
        """INSERT INTO signals (completion_id, kind, next_id, said, created_at, state, label, value, judge, config,
        why, labelled_at) SELECT ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, CAST(? AS REAL)
        WHERE EXISTS (SELECT 1 FROM completions c WHERE c.id = ?)
        AND (CAST(? AS TEXT) IS NULL OR EXISTS (SELECT 1 FROM completions c WHERE c.id = ?))
        ON CONFLICT DO NOTHING RETURNING seq""",
        (
            new.completion_id, new.kind, new.next_id, new.said, time.time(), "labelled" if ruled else "waiting",
            new.label, new.value, RULES if ruled else None, "" if ruled else None, new.why,
            time.time() if ruled else None, new.completion_id, new.next_id, new.next_id,
        ),
    ).fetchone()  # fmt: skip
    return None if row is None else int(row["seq"])


def bound(db: sqlite3.Connection) -> None:
    """The oldest beyond the bound go unlabelled."""
    db.execute(
        """UPDATE signals SET state = 'dropped', why = 'the queue was full' WHERE state = 'waiting' AND seq <= (
        SELECT seq FROM signals WHERE state = 'waiting' ORDER BY seq DESC LIMIT 1 OFFSET ?)""",
        (MOST_WAITING,),
    )


def followed(db: sqlite3.Connection, signals: Sequence[NewSignal], last_seq: int) -> None:
    """These were found, and all up to that request has been looked at: in one transaction, so each is found once."""
    for new in signals:
        add(db, new)
    bound(db)
    meta.set_meta(db, LAST_SEEN_KEY, last_seq)


def broken_off(db: sqlite3.Connection, ids: Sequence[str], reason: str, until: int) -> None:
    for id in ids:
        add(db, NewSignal(id, "aborted", label="nothing", why=reason))
    meta.set_meta(db, ENDED, until)


def label(
    db: sqlite3.Connection,
    seq: int,
    *,
    judge: str,
    config: str,
    name: str,
    value: float,
    hint: str | None,
    reason: str,
    tokens: int,
    day: str,
) -> None:
    """Store a judge's label; one that was taken back meanwhile keeps nothing of it. The cost counts in any case."""
    db.execute(
        """UPDATE signals SET state = 'labelled', judge = ?, config = ?, label = ?, value = ?, hint = ?, why = ?,
        tokens = tokens + ?, labelled_at = ? WHERE seq = ? AND state = 'waiting'""",
        (judge, config, name, value, hint, reason, tokens, time.time(), seq),
    )
    spend(db, tokens, day)


def spend(db: sqlite3.Connection, tokens: int, day: str) -> None:
    cost = meta.read_meta(db, COST, {})
    today = int(cost.get("today", 0)) if cost.get("day") == day else 0
    meta.set_meta(db, COST, {"day": day, "today": today + tokens, "all": int(cost.get("all", 0)) + tokens})


def score(db: sqlite3.Connection, of: Signal, own_score: OwnScore | None, config: str) -> None:
    """Store the score of the user's own code for a turn, in place of the one before; None: nothing. All up to that
    signal is scored then."""
    turn_key = (of.completion_id, of.next_id)
    stored = db.execute(
        "SELECT * FROM signals WHERE completion_id = ? AND kind = 'own' AND next_id IS ? AND orphan = 0", turn_key
    ).fetchone()
    if stored is not None and (
        own_score is None or own_score.value != stored["value"] or own_score.hint != stored["hint"]
    ):
        if stored["rating_id"] is not None:
            ratings.retract(db, stored["rating_id"])
        db.execute("DELETE FROM signals WHERE seq = ?", (stored["seq"],))
        stored = None
    if stored is not None:
        db.execute("UPDATE signals SET config = ? WHERE seq = ?", (config, stored["seq"]))
    elif own_score is not None:
        now = time.time()
        db.execute(
            """INSERT INTO signals (completion_id, kind, next_id, said, created_at, state, label, value, judge, config,
            hint, why, labelled_at) SELECT ?, 'own', ?, '', ?, 'labelled', 'own', ?, ?, ?, ?, 'your own code', ?
            WHERE EXISTS (SELECT 1 FROM completions c WHERE c.id = ?) ON CONFLICT DO NOTHING""",
            (*turn_key, now, own_score.value, OWN_CODE, config, own_score.hint, now, of.completion_id),
        )
    meta.set_meta(db, OWN_SCORED_KEY, of.seq)


class OwnScore(NamedTuple):
    """A score of the user's own code."""

    value: float
    hint: str | None


async def of_all(reader: Reader, ids: Sequence[str]) -> dict[str, list[Signal]]:
    """Signals of these completions, by their ids; each oldest first."""
    by_completion: dict[str, list[Signal]] = {}
    rows = await reader.rows(
        "SELECT s.* FROM signals s WHERE s.completion_id IN (SELECT value FROM json_each(?)) ORDER BY s.seq",
        (to_json(list(ids)),),
    )
    for row in rows:
        by_completion.setdefault(row["completion_id"], []).append(_signal(row))
    return by_completion


class SignalCount(TypedDict):
    judge: str
    state: str
    label: str
    kind: str
    count: int


class VersionText(TypedDict):
    """Figures that a judge that likes to be pleased would drive up; `praise` is a share of the turns."""

    version: int
    turns: int
    characters: float | None
    praise: float | None


class SignalStore(StorePart):
    async def unseen(self, limit: int) -> list[FollowUp]:
        """Requests that nobody has looked at, oldest first, each with what comes after its newest reply."""
        last_seq = await self._last_seq()
        unseen = await self._reader.rows(_NEXT, (last_seq, limit))
        # Of the others nothing can be told.
        traceable = [row["seq"] for row in unseen if row["session"] is not None or row["above"] is not None]
        tails: dict[int, list[sqlite3.Row]] = {}
        for tail_row in await self._reader.rows(_TAILS, (to_json(traceable),)) if traceable else ():
            tails.setdefault(tail_row["seq"], []).append(tail_row)
        follow_ups = []
        for row in unseen:
            rows = tails.get(row["seq"], [])
            reply = rows[-1] if rows and rows[-1]["role"] == "assistant" else None
            tail = tuple(
                Message(message_row["role"], message_row["body"])
                for message_row in reversed(rows if reply is None else rows[:-1])
            )
            side = "side" if row["choice"] else row["turn"]
            follow_ups.append(
                FollowUp(
                    row["seq"], row["id"], row["request_id"], side, row["created_at"],
                    Requester(row["key"], row["user"]), row["session"], row["model"], row["above"], row["asked"],
                    row["typed"], tuple(from_json(row["tool_errors"]) or ()), row["system"], row["prompt_hash"],
                    None if reply is None else reply["hash"],
                    None if reply is None or reply["cut"] else Message(reply["role"], reply["body"]),
                    rows[0]["parent"] if rows else None, tail,
                )
            )  # fmt: skip
        return follow_ups

    async def _last_seq(self) -> int:
        return int(await meta.get_meta(self._reader, LAST_SEEN_KEY, 0))

    async def is_only(self, request: FollowUp) -> bool:
        """It goes on from a reply, and at most one completion of its asker has given that one."""
        if request.above is None:
            return False
        row = await self._reader.row(
            """SELECT count(*) AS count FROM (SELECT 1 FROM completions c WHERE c.thread = ? AND +c.key IS ?
            AND +c.user IS ? AND +c.status IN ('done', 'partial') LIMIT 2) w""",
            (request.above, request.requester.key, request.requester.user),
        )
        return row is not None and row["count"] < 2

    async def find_same_question(self, request: FollowUp, within: float) -> str | None:
        """The answer to this very question that its asker got shortly before."""
        row = await self._reader.row(_SAME_PROMPT, _about(request, within))
        return None if row is None else str(row["id"])

    async def find_other_question(self, request: FollowUp, within: float) -> tuple[str, str] | None:
        """The answer to another question at this very place, and that question."""
        row = await self._reader.row(_OTHER_QUESTION, _about(request, within))
        return None if row is None else (str(row["id"]), str(row["asked"]))

    async def note(self, signals: Sequence[NewSignal], last_seq: int) -> None:
        await self._writer.submit(lambda db: followed(db, signals, last_seq))

    async def note_broken_off(self, reason: str) -> int:
        """Answers that their clients broke off since this was asked; how many."""
        ended = int(await meta.get_meta(self._reader, ENDED, 0))
        settled = await self._reader.row(_SETTLED, (ended,))
        assert settled is not None
        until = int(settled["seq"])
        if until <= ended:
            return 0
        ids = [row["id"] for row in await self._reader.rows(_BROKEN_OFF, (ended, until, CLIENT_LEFT))]
        await self._writer.submit(lambda db: broken_off(db, ids, reason, until))
        return len(ids)

    async def add(self, new: NewSignal) -> bool:
        """False where it is known."""
        return await self._writer.submit(lambda db: add(db, new)) is not None

    async def of(self, completion_id: str) -> list[Signal]:
        """Signals of one completion, oldest first."""
        return (await of_all(self._reader, [completion_id])).get(completion_id, [])

    async def everything(self) -> list[Signal]:
        """All there are, oldest first; for tests and benchmarks."""
        return [_signal(row) for row in await self._reader.rows("SELECT s.* FROM signals s ORDER BY s.seq")]

    async def waiting(self, limit: int) -> list[Signal]:
        """The oldest of the queue."""
        rows = await self._reader.rows(
            "SELECT s.* FROM signals s WHERE s.state = 'waiting' ORDER BY s.seq LIMIT ?", (limit,)
        )
        return [_signal(row) for row in rows]

    async def drop(self, seq: int, reason: str) -> None:
        await self._writer.submit(
            lambda db: db.execute("UPDATE signals SET state = 'dropped', why = ? WHERE seq = ?", (reason, seq))
        )

    async def label(self, seq: int, **members: Any) -> None:
        """Do `signals.label`."""
        await self._writer.submit(lambda db: label(db, seq, **members))

    async def spend(self, tokens: int, day: str) -> None:
        await self._writer.submit(lambda db: spend(db, tokens, day))

    async def cost(self, day: str) -> tuple[int, int]:
        """Tokens of a judge: on this day, and in all."""
        cost = await meta.get_meta(self._reader, COST, {})
        return cost.get("today", 0) if cost.get("day") == day else 0, cost.get("all", 0)

    async def shared(self, judge: str, config: str, limit: int, *, polite: bool = False) -> list[SharedJudgement]:
        """Turns that people and this judge have both looked at, the newest rating first. `polite`: those as well after
        which only thanks were said, which no judge is asked about."""
        rows = await self._reader.rows(_SHARED, (judge, config, polite, limit))
        return [SharedJudgement(row["completion_id"], row["person"], row["judged"]) for row in rows]

    async def unseen_by_people(self, judge: str, config: str) -> int:
        """Labels that may train, of turns that came after the newest one that people and this judge both looked at."""
        row = await self._reader.row(_UNSEEN, {"judge": judge, "config": config})
        assert row is not None
        return int(row["unseen"])

    async def begin_scoring(self) -> None:
        """Pass over what was found before the user's own code was first set."""
        if await meta.get_meta(self._reader, OWN_SCORED_KEY, None) is None:
            await self._writer.submit(_pass_over_all)

    async def unscored(self, limit: int) -> list[Signal]:
        """The oldest that the user's own code has not seen."""
        last_seq = await meta.get_meta(self._reader, OWN_SCORED_KEY, 0)
        rows = await self._reader.rows(
            "SELECT s.* FROM signals s WHERE s.seq > ? AND +s.kind <> 'own' ORDER BY s.seq LIMIT ?", (last_seq, limit)
        )
        return [_signal(row) for row in rows]

    async def count_unscored(self) -> int:
        last_seq = await meta.get_meta(self._reader, OWN_SCORED_KEY, 0)
        row = await self._reader.row(
            "SELECT count(*) AS left FROM signals s WHERE s.seq > ? AND s.kind <> 'own'", (last_seq,)
        )
        assert row is not None
        return int(row["left"])

    async def score(self, of: Signal, own_score: OwnScore | None, config: str) -> None:
        """Do `signals.score`."""
        await self._writer.submit(lambda db: score(db, of, own_score, config))

    async def rescore(self, since: float) -> int:
        """Have the user's own code see again what was found since then, Unix seconds; how many that is."""
        await self._writer.submit(lambda db: _rescore(db, since))
        return await self.count_unscored()

    async def draw(self, judge: str, config: str) -> str | None:
        """A judged main turn that no person has rated, any of the newest ones alike; None where there is none."""
        row = await self._reader.row(_DRAW, (judge, config))
        return None if row is None else str(row["completion_id"])

    async def apply(self, trusted: Sequence[TrustedJudge]) -> tuple[int, int]:
        """Do `labels.apply`."""
        return await self._writer.submit(lambda db: labels.apply(db, trusted))

    async def by_version(self) -> list[VersionText]:
        """Figures of each version's main turns, of the newest few thousand: how many there are, and their mean length
        in characters. The third is the share that has a word of praise for its reader."""
        return [cast(VersionText, dict(row)) for row in await self._reader.rows(_BY_VERSION)]

    async def counts(self) -> list[SignalCount]:
        """How many signals of each kind have which label by whom."""
        return [cast(SignalCount, dict(row)) for row in await self._reader.rows(_COUNTS)]


def _pass_over_all(db: sqlite3.Connection) -> None:
    (newest,) = db.execute("SELECT coalesce(max(seq), 0) FROM signals").fetchone()
    meta.set_meta(db, OWN_SCORED_KEY, newest)


def _rescore(db: sqlite3.Connection, since: float) -> None:
    (last_seq,) = db.execute("SELECT coalesce(max(seq), 0) FROM signals WHERE created_at < ?", (since,)).fetchone()
    meta.set_meta(db, OWN_SCORED_KEY, last_seq)


def _about(request: FollowUp, within: float) -> dict[str, Any]:
    return {
        "seq": request.seq, "at": request.created_at, "within": within, "key": request.requester.key,
        "user": request.requester.user,
        "session": request.session, "request": request.request_id, "leaf": request.leaf, "parent": request.parent,
        "system": request.system,
    }  # fmt: skip


def _signal(row: sqlite3.Row) -> Signal:
    return Signal(**{name: value for name, value in dict(row).items() if name != "orphan"})
