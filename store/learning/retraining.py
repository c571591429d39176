"""The history of ratings once more, on another base: which of it can train there, and the claim of each round.

Owns the state of a retrain, one named value, and the queries behind it. A retrain takes the live ratings that people
had given in the common line when it began. Each is in one round at most. The replies are another model's, so they train
by their words alone: not their token ids, nor their log-probs. Not here: the runs that carry it out (proxy), the
objective (trainer).
"""

from __future__ import annotations

import math
import sqlite3
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

import orjson

from store.captured.rows import to_run
from store.file import meta
from store.file.part import StorePart
from store.file.reader import Reader
from store.learning.samples import CANDIDATE, SampleRequirements, take
from store.line_records import COMMON
from store.records import BASE, Run

STATE: Final = "retrain"  # the meta key
TRAINS: Final = "trains"
# What becomes of each live rating, the first rule that fits. `left_out`: completions that a person leaves out. How many
# tokens another base makes of a picture is told by no server, so such answers train on the base that gave them alone.
_FATE: Final = """CASE
    WHEN r.human = 0 THEN 'label'
    WHEN c.id IN (SELECT value FROM json_each(:left_out)) THEN 'left_out'
    WHEN c.untrainable IS NOT NULL THEN c.untrainable
    WHEN c.images > 0 THEN 'has_image'
    WHEN r.value > 0 AND EXISTS (SELECT 1 FROM flags f WHERE f.completion_id = c.id) THEN 'flagged'
    WHEN c.status NOT IN ('done', 'partial') OR c.reply_hash IS NULL THEN 'no_answer'
    WHEN c.dialect = 'completions' AND c.translated = 0 THEN 'raw_text'
    WHEN r.value = 0 AND r.correction IS NULL THEN 'neutral'
    ELSE 'trains' END"""
_OF_HISTORY: Final = """FROM ratings r CROSS JOIN completions c ON c.id = r.completion_id
WHERE r.live = 1 AND r.seq <= :through AND +c.line = :line"""
_CLAIMABLE: Final = f"""SELECT {CANDIDATE} {_OF_HISTORY} AND {_FATE} = 'trains'
AND NOT EXISTS (SELECT 1 FROM run_samples s WHERE s.rating_id = r.id
                AND s.run_id IN (SELECT CAST(value AS INTEGER) FROM json_each(:runs))) ORDER BY r.seq"""  # noqa: S608  constants


@dataclass(frozen=True, slots=True)
class Retrain:
    """A retrain, under way or over."""

    model: str
    weights: str  # as `train.weights`
    first_version: int  # the number of its first version, at least
    through: int  # the newest rating (`seq`) that it takes
    left_out: tuple[str, ...]  # completions
    ratings: int  # that can train
    round_size: int  # completions
    rounds: int  # that it was planned to have
    started_at: float
    line: str = COMMON  # whose ratings train, and whose versions are made
    runs: tuple[int, ...] = ()
    over: str | None = None  # how it ended, in a line


@dataclass(frozen=True, slots=True)
class RatingHistory:
    """Live ratings by what becomes of them in a retrain, and what the ones that train are."""

    line: str
    through: int
    fates: Mapping[str, int]  # by the rule: `trains`, or why not
    completions: int  # of those that train
    liked: int
    disliked: int
    comments: int  # on disliked answers: only those teach
    corrections: int
    stars: int
    paired: int  # answers to a question that has a liked and a disliked one
    tokens: float | None  # of a prompt with its answer, the mean, as the servers counted

    @property
    def trains(self) -> int:
        return self.fates.get(TRAINS, 0)


def rounds_of(completions: int, most: int) -> tuple[int, int]:
    """How many rounds of about equal size these completions are, and the size of one."""
    rounds = max(1, math.ceil(completions / most))
    return rounds, math.ceil(completions / rounds)


def claim(db: sqlite3.Connection, requirements: SampleRequirements) -> Run | None:
    """The next round of the retrain under way; None where nothing is left of it, or another run is open."""
    state = _read(meta.read_meta(db, STATE, None))
    if state is None or state.over is not None or not requirements.retrains:
        return None
    if db.execute("SELECT 1 FROM runs WHERE status IN ('claimed', 'running')").fetchone() is not None:
        return None
    rows = db.execute(_CLAIMABLE, _parameters(state)).fetchall()
    run = take(db, requirements, rows)
    if run is not None:
        _write(db, state, runs=(*state.runs, run.id))
    return run


def begin(db: sqlite3.Connection, new: Retrain, actor: str) -> None:
    meta.set_meta(db, STATE, asdict(new))
    meta.audit(db, actor, "retrain", {"weights": new.weights, "ratings": new.ratings, "left_out": len(new.left_out)})


def end(db: sqlite3.Connection, line: str, actor: str) -> None:
    state = _read(meta.read_meta(db, STATE, None))
    if state is None or state.over is not None:
        return
    _write(db, state, over=line)
    meta.audit(db, actor, "retrained", {"weights": state.weights, "runs": list(state.runs), "line": line})


def _write(db: sqlite3.Connection, state: Retrain, **changes: Any) -> None:
    meta.set_meta(db, STATE, asdict(state) | changes)


def _read(value: dict[str, Any] | None) -> Retrain | None:
    if value is None:
        return None
    return Retrain(**(value | {"runs": tuple(value["runs"]), "left_out": tuple(value["left_out"])}))


def _json(values: Sequence[Any]) -> str:
    return orjson.dumps(sorted(values)).decode()


def _parameters(of: Retrain) -> dict[str, Any]:
    return {
        "through": of.through,
        "line": of.line,
        "left_out": _json(of.left_out),
        "runs": _json(of.runs),
    }


async def _history(reader: Reader, left_out: Sequence[str], line: str) -> RatingHistory:
    newest = await reader.row("SELECT coalesce(max(seq), 0) AS through FROM ratings", ())
    assert newest is not None  # an aggregate always has one
    parameters = {"through": newest["through"], "line": line, "left_out": _json(left_out)}
    fates = await reader.rows(
        f"SELECT {_FATE} AS fate, count(*) AS count {_OF_HISTORY} GROUP BY fate",
        parameters,
    )
    row = await reader.row(
        f"""SELECT count(DISTINCT c.id) AS completions, total(r.value > 0) AS liked, total(r.value < 0) AS disliked,
        total(r.value < 0 AND r.comment IS NOT NULL) AS comments, total(r.correction IS NOT NULL) AS corrections,
        total(r.scale = 'stars') AS stars, avg(CAST(json_extract(c.usage, '$.prompt_tokens') AS REAL)
        + CAST(json_extract(c.usage, '$.completion_tokens') AS REAL)) AS tokens {_OF_HISTORY} AND {_FATE} = 'trains'""",
        parameters,
    )
    pairs = await reader.row(
        f"""SELECT total(answers) AS paired FROM (SELECT count(DISTINCT c.id) AS answers {_OF_HISTORY}
        AND {_FATE} = 'trains' AND c.prompt_hash IS NOT NULL GROUP BY c.prompt_hash
        HAVING max(r.value) > 0 AND min(r.value) < 0) w""",  # noqa: S608  constants
        parameters,
    )
    assert row is not None and pairs is not None
    counts = {name: int(row[name]) for name in ("completions", "liked", "disliked", "comments", "corrections", "stars")}
    return RatingHistory(
        line=line,
        through=newest["through"],
        fates={each["fate"]: each["count"] for each in fates},
        paired=int(pairs["paired"]),
        tokens=row["tokens"],
        **counts,
    )


class RetrainStore(StorePart):
    async def state(self) -> Retrain | None:
        """The last one there was, under way or over."""
        return _read(await meta.get_meta(self._reader, STATE, None))

    async def history(self, left_out: Sequence[str] = (), line: str = COMMON) -> RatingHistory:
        """Count the ratings of a line that a retrain would take if it began now, and those that it would leave out."""
        return await _history(self._reader, left_out, line)

    async def begin(self, new: Retrain, actor: str) -> None:
        await self._writer.submit(lambda db: begin(db, new, actor))

    async def claim(self, requirements: SampleRequirements) -> Run | None:
        return await self._writer.submit(lambda db: claim(db, requirements))

    async def end(self, line: str, actor: str) -> None:
        """It is over, however far it came; a call after the first changes nothing."""
        await self._writer.submit(lambda db: end(db, line, actor))

    async def rounds(self, of: Retrain) -> list[Run]:
        """Its runs so far, the oldest first."""
        rows = await self._reader.rows(
            "SELECT * FROM runs WHERE id IN (SELECT CAST(value AS INTEGER) FROM json_each(?)) ORDER BY id",
            (_json(of.runs),),
        )
        return [to_run(row) for row in rows]

    async def parent(self, of: Retrain) -> int:
        """The version that its next round goes on from; the base before there is one."""
        return max((run.version for run in await self.rounds(of) if run.status == "done"), default=BASE)

    async def untried(self, of: Retrain) -> int:
        """Ratings that could train and are in no round yet."""
        row = await self._reader.row(f"SELECT count(*) AS count FROM ({_CLAIMABLE}) w", _parameters(of))  # noqa: S608
        assert row is not None
        return int(row["count"])


def new_retrain(model: str, weights: str, first_version: int, history: RatingHistory, left_out: Sequence[str],
                most: int) -> Retrain:  # fmt: skip
    """Plan one; `most`: completions of a round, at most."""
    rounds, size = rounds_of(history.completions, most)
    return Retrain(
        model, weights, first_version, history.through, tuple(left_out), history.trains, size, rounds, time.time(),
        history.line,
    )  # fmt: skip
