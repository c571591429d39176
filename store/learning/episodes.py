"""Episodes: an agent's attempts at tasks, with the rewards that a program gave them.

Owns opening, rewarding and reading them. An episode's turns are the completions of its session and key; its reward is
never a rating, so nothing that counts people's ratings sees it. Not here: which episodes train (`episode_groups`), what
a request may say (proxy.feedback.episodes).
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple

from store.captured.completions import ROLLOUTS
from store.captured.rows import from_json, to_json, to_record
from store.errors import (
    EpisodeEnded,
    EpisodeTaken,
    EpisodeUsed,
    NoReward,
    StoreError,
    UnknownCompletion,
    UnknownEpisode,
)  # fmt: skip
from store.file.part import StorePart
from store.line_records import COMMON

Split = Literal["train", "eval"]
State = Literal["open", "rewarded", "error"]
STATES: Final[tuple[State, ...]] = ("open", "rewarded", "error")

# Runs whose samples are used up, or about to be.
TOOK: Final = """SELECT max(t.run_id) FROM run_episodes t JOIN runs u ON u.id = t.run_id
WHERE t.episode = e.seq AND u.status IN ('claimed', 'running', 'done')"""
TURNS: Final = f"""FROM completions c WHERE c.session = e.id AND coalesce(c.key, '') = e.key
AND (c.turn = 'main' OR c.turn_rule = '{ROLLOUTS}') AND c.status <> 'error'"""
SELECT: Final = f"SELECT e.*, (SELECT count(*) {TURNS}) AS turns, ({TOOK}) AS run FROM episodes e "  # noqa: S608  ours
_STATE: Final = "CASE WHEN e.error IS NOT NULL THEN 'error' WHEN e.ended_at IS NULL THEN 'open' ELSE 'rewarded' END"


@dataclass(frozen=True, slots=True)
class Episode:
    seq: int
    id: str
    key: str
    posted: bool
    task: str | None
    group: str | None
    group_size: int | None
    split: Split
    meta: Any
    version: int | None
    opened_at: float
    reward: float | None
    comment: str | None
    error: str | None
    ended_at: float | None
    left_out: str | None
    scored_by: str | None  # the sha256 of the user's own code that has looked at it
    turns: int
    run: int | None  # that took it
    line: str = COMMON
    prompt: str | None = None  # the completion whose prompt rlproxy itself had answered again (rollouts)

    @property
    def state(self) -> State:
        if self.error is not None:
            return "error"
        return "open" if self.ended_at is None else "rewarded"


@dataclass(frozen=True, slots=True)
class NewEpisode:
    id: str
    key: str
    version: int | None
    task: str | None = None
    group: str | None = None
    group_size: int | None = None
    split: Split = "train"
    meta: Any = None
    posted: bool = True
    user: str | None = None  # as in NewReward
    line: str = COMMON
    prompt: str | None = None  # as in Episode


@dataclass(frozen=True, slots=True)
class NewReward:
    """A program's words on an episode. `value` or `error` or, of one with rewarded turns, neither."""

    episode: str
    key: str | None  # None: of any key, for an admin
    value: float | None = None
    completion_id: str | None = None  # the turn that it is about; None: the outcome
    final: bool = True
    error: str | None = None
    comment: str | None = None
    group: str | None = None
    group_size: int | None = None
    user: str | None = None  # whom the request names: then no other user's session is meant
    split: Split | None = None  # None: as the episode was opened, else train


class RewardResult(NamedTuple):
    episode: Episode
    result: Literal["stored", "changed", "same"]


class Turn(NamedTuple):
    """A main turn of an episode."""

    completion_id: str
    reward: float | None


class VersionEpisodes(NamedTuple):
    """Rewarded episodes of one version and split, rollouts apart."""

    version: int | None
    split: Split
    rollouts: bool
    episodes: int
    successes: int  # reward above 0
    mean: float


class EpisodeNumbers(NamedTuple):
    open: int
    rewarded: int
    error: int
    unrewarded: int  # open, without a request for an hour; no rollout that the user's own code has seen


QUIET_S: Final = 3600.0


def open_episode(db: sqlite3.Connection, new: NewEpisode) -> tuple[Episode, bool]:
    """The episode, and whether it is new. Raises EpisodeTaken where one of that id and key says something else."""
    if new.user is not None and is_of_another(db, new.id, new.key, new.user):
        raise EpisodeTaken(new.id)
    existing = _row(db, new.id, new.key)
    if existing is not None:
        same = (existing.task, existing.group, existing.group_size, existing.split, existing.meta) == (
            new.task, new.group, new.group_size, new.split, new.meta,
        )  # fmt: skip
        if existing.ended_at is not None or (new.posted and not same):
            raise EpisodeTaken(new.id)
        return existing, False
    db.execute(
        """INSERT INTO episodes (id, key, posted, task, team, team_size, split, meta, version, opened_at, line,
        prompt) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)""",
        (
            new.id, new.key, new.posted, new.task, new.group, new.group_size, new.split, to_json(new.meta),
            new.version, time.time(), new.line, new.prompt,
        ),
    )  # fmt: skip
    episode = _row(db, new.id, new.key)
    assert episode is not None
    return episode, True


def reward(db: sqlite3.Connection, new: NewReward) -> RewardResult:
    """Store what a program says. Saying the same again changes nothing.

    Raises UnknownEpisode, UnknownCompletion, NoReward, EpisodeEnded (a turn's reward after the end). Raises EpisodeUsed
    for another reward than the one that a run has taken, EpisodeTaken where it was opened for another split.
    """
    if new.key is not None and new.user is not None and is_of_another(db, new.episode, new.key, new.user):
        raise UnknownEpisode(new.episode)
    episode = of_session(db, new.episode, new.key, new.split or "train")
    if new.split is not None and episode.split != new.split:
        if episode.posted or episode.ended_at is not None:
            raise EpisodeTaken(episode.id, f"was opened with the split {episode.split}")
        db.execute("UPDATE episodes SET split = ? WHERE seq = ?", (new.split, episode.seq))  # nobody had said which
    if new.completion_id is not None:
        result = _reward_turn(db, episode, new, new.completion_id)
    else:
        result = _reward_outcome(db, episode, new)
    if result == "same":
        return RewardResult(episode, result)
    stored = _row(db, episode.id, episode.key)
    assert stored is not None
    return RewardResult(stored, result)


def _reward_turn(
    db: sqlite3.Connection, episode: Episode, new: NewReward, completion_id: str
) -> Literal["stored", "changed", "same"]:
    completion = db.execute(
        "SELECT 1 FROM completions c WHERE c.id = ? AND c.session = ? AND coalesce(c.key, '') = ?",
        (completion_id, episode.id, episode.key),
    ).fetchone()
    if completion is None:
        raise UnknownCompletion(completion_id)
    stored = db.execute(
        "SELECT value FROM turn_rewards WHERE episode = ? AND completion_id = ?", (episode.seq, completion_id)
    ).fetchone()
    same = stored is not None and stored["value"] == new.value
    if same and (not new.final or episode.ended_at is not None) and not _regroups(episode, new):
        return "same"
    _may_change(episode)
    if episode.ended_at is not None:
        raise EpisodeEnded(episode.id)
    db.execute(
        """INSERT INTO turn_rewards (episode, completion_id, value, at) VALUES (?, ?, ?, ?)
        ON CONFLICT (episode, completion_id) DO UPDATE SET value = excluded.value, at = excluded.at""",
        (episode.seq, completion_id, new.value, time.time()),
    )
    _set(db, episode, new, ends=new.final, reward=episode.reward)
    return "stored" if stored is None else "changed"


def _reward_outcome(db: sqlite3.Connection, episode: Episode, new: NewReward) -> Literal["stored", "changed", "same"]:
    ends = new.final or new.error is not None
    is_rewarded = episode.ended_at is not None or (not ends and episode.reward is not None)
    if is_rewarded and (episode.reward, episode.error) == (new.value, new.error) and not _regroups(episode, new):
        return "same"
    _may_change(episode)
    if new.value is None and new.error is None:
        rewarded = db.execute("SELECT 1 FROM turn_rewards WHERE episode = ?", (episode.seq,)).fetchone()
        if rewarded is None:
            raise NoReward(episode.id)
    _set(db, episode, new, ends=ends or episode.ended_at is not None, reward=new.value)
    return "stored" if episode.ended_at is None and episode.reward is None else "changed"


def _regroups(episode: Episode, new: NewReward) -> bool:
    return new.group is not None and new.group != episode.group


def _may_change(episode: Episode) -> None:
    if episode.run is not None:
        raise EpisodeUsed(episode.id, f"run {episode.run} has taken it")
    if episode.left_out is not None:
        raise EpisodeUsed(episode.id, f"it was left out of training already ({episode.left_out})")


def _set(db: sqlite3.Connection, episode: Episode, new: NewReward, *, ends: bool, reward: float | None) -> None:
    now = time.time()
    db.execute(
        """UPDATE episodes SET reward = ?, comment = coalesce(?, comment), error = ?, team = coalesce(?, team),
        team_size = coalesce(?, team_size), rewarded_at = ?, ended_at = ? WHERE seq = ?""",
        (
            reward, new.comment, new.error, new.group, new.group_size, now,
            (episode.ended_at or now) if ends else episode.ended_at, episode.seq,
        ),
    )  # fmt: skip


def is_of_another(db: sqlite3.Connection, id: str, key: str, user: str) -> bool:
    """Tell whether somebody else has asked in this session by that key, which several people may share."""
    row = db.execute(
        """SELECT 1 FROM completions c WHERE c.session = ? AND coalesce(c.key, '') = ? AND +c.user IS NOT NULL
        AND +c.user <> ? LIMIT 1""",
        (id, key, user),
    ).fetchone()
    return row is not None


def _row(db: sqlite3.Connection, id: str, key: str | None) -> Episode | None:
    """Find it by key; for an admin (None) the only one of that id. Raises EpisodeTaken where there are several."""
    rows = db.execute(SELECT + "WHERE e.id = :id AND (:key IS NULL OR e.key = :key)", {"id": id, "key": key}).fetchall()
    if len(rows) > 1:
        raise EpisodeTaken(id, "is the id of episodes of several keys: say it with the key that asked")
    return to_episode(rows[0]) if rows else None


def reward_each(db: sqlite3.Connection, new: Sequence[NewReward], *, dry_run: bool) -> list[RewardResult | StoreError]:
    """Do `reward` of each; what is wrong with one costs that one. `dry_run`: say what would be stored, and store
    nothing."""
    results: list[RewardResult | StoreError] = []
    for new_reward in new:
        db.execute("SAVEPOINT one_reward")
        try:
            results.append(reward(db, new_reward))
        except StoreError as error:
            results.append(error)
        if dry_run or isinstance(results[-1], StoreError):
            db.execute("ROLLBACK TO one_reward")
        db.execute("RELEASE one_reward")
    return results


def of_session(db: sqlite3.Connection, id: str, key: str | None, split: Split = "train") -> Episode:
    """The episode of this id; a session that nobody called an episode yet becomes one. Raises UnknownEpisode,
    EpisodeTaken."""
    if (existing := _row(db, id, key)) is not None:
        return existing
    rows = db.execute(
        """SELECT coalesce(c.key, '') AS key, min(c.created_at) AS at, min(c.version) AS first, max(c.version) AS last,
        min(c.line) AS line FROM completions c WHERE c.session = :id AND (:key IS NULL OR coalesce(c.key, '') = :key)
        GROUP BY coalesce(c.key, '')""",
        {"id": id, "key": key},
    ).fetchall()
    if not rows:
        raise UnknownEpisode(id)
    if len(rows) > 1:
        raise EpisodeTaken(id, "is the session of several keys: say it with the key that asked")
    (row,) = rows
    db.execute(
        "INSERT INTO episodes (id, key, posted, split, version, opened_at, line) VALUES (?, ?, 0, ?, ?, ?, ?)",
        (id, row["key"], split, row["first"], row["at"], row["line"]),
    )
    episode = _row(db, id, row["key"])
    assert episode is not None
    return episode


def to_episode(row: sqlite3.Row) -> Episode:
    group, meta = row["team"], from_json(row["meta"])
    return to_record(Episode, row, posted=bool(row["posted"]), group=group, group_size=row["team_size"], meta=meta)


class EpisodeStore(StorePart):
    async def open(self, new: NewEpisode) -> tuple[Episode, bool]:
        """The episode, and whether it is new. Raises EpisodeTaken."""
        return await self._writer.submit(lambda db: open_episode(db, new))

    def queue(self, new: NewEpisode) -> None:
        """Open one at once; nobody waits for the disk. What is lost in a crash is only that its version was pinned."""
        future = self._writer.submit(lambda db: open_episode(db, new))
        future.add_done_callback(lambda finished: finished.cancelled() or finished.exception())

    async def reward(self, new: NewReward) -> RewardResult:
        """Raises UnknownEpisode, UnknownCompletion, EpisodeEnded, EpisodeUsed, EpisodeTaken."""
        return await self._writer.submit(lambda db: reward(db, new))

    async def reward_each(self, new: Sequence[NewReward], *, dry_run: bool) -> list[RewardResult | StoreError]:
        """Do `reward_each` of this module."""
        return await self._writer.submit(lambda db: reward_each(db, new, dry_run=dry_run))

    async def find(self, id: str, key: str | None) -> Episode | None:
        """Find it by key, or (None) of any; the newest of several."""
        row = await self._reader.row(
            SELECT + "WHERE e.id = :id AND (:key IS NULL OR e.key = :key) ORDER BY e.seq DESC",
            {"id": id, "key": key},
        )
        return None if row is None else to_episode(row)

    async def page(
        self,
        *,
        limit: int,
        before_seq: int | None = None,
        key: str | None = None,
        group: str | None = None,
        state: State | None = None,
        split: Split | None = None,
    ) -> list[Episode]:
        """Newest first."""
        rows = await self._reader.rows(
            SELECT
            + f"""WHERE (:before IS NULL OR e.seq < :before) AND (:key IS NULL OR e.key = :key)
            AND (:team IS NULL OR e.team = :team) AND (:state IS NULL OR {_STATE} = :state)
            AND (:split IS NULL OR e.split = :split) ORDER BY e.seq DESC LIMIT :limit""",
            {"before": before_seq, "key": key, "team": group, "state": state, "split": split, "limit": limit},
        )
        return [to_episode(row) for row in rows]

    async def turns(self, episode: Episode) -> list[Turn]:
        """Its main turns, oldest first."""
        rows = await self._reader.rows(
            f"""SELECT c.id, w.value {
                TURNS.replace(
                    "FROM completions c",
                    "FROM episodes e CROSS JOIN completions c "
                    "LEFT JOIN turn_rewards w ON w.episode = e.seq AND w.completion_id = c.id",
                )
            } AND e.seq = ?
            ORDER BY c.seq""",
            (episode.seq,),
        )
        return [Turn(row["id"], row["value"]) for row in rows]

    async def side_turns(self, episode: Episode) -> int:
        row = await self._reader.row(
            "SELECT count(*) AS n FROM completions c WHERE c.session = ? AND coalesce(c.key, '') = ? "
            "AND c.turn = 'side' AND c.turn_rule <> ?",
            (episode.id, episode.key, ROLLOUTS),
        )
        return int(row["n"]) if row else 0

    async def sessions_turns(self, id: str, key: str | None) -> int:
        """Main turns of a session that is not an episode yet."""
        row = await self._reader.row(
            """SELECT count(*) AS n FROM completions c WHERE c.session = :id AND c.turn = 'main'
            AND (:key IS NULL OR coalesce(c.key, '') = :key)""",
            {"id": id, "key": key},
        )
        return int(row["n"]) if row else 0

    async def by_version(self, key: str | None = None) -> list[VersionEpisodes]:
        rows = await self._reader.rows(
            """SELECT e.version, e.split, e.prompt IS NOT NULL AS rollouts, count(*) AS n, total(e.reward > 0) AS good,
            avg(e.reward) AS mean
            FROM episodes e WHERE e.reward IS NOT NULL AND e.error IS NULL AND (:key IS NULL OR e.key = :key)
            GROUP BY e.version, e.split, e.prompt IS NOT NULL
            ORDER BY e.version NULLS FIRST, e.split, e.prompt IS NOT NULL""",
            {"key": key},
        )
        return [
            VersionEpisodes(
                row["version"], row["split"], bool(row["rollouts"]), row["n"], int(row["good"]), row["mean"]
            )
            for row in rows
        ]

    async def evaluated(self, version: int, *, until: float | None = None) -> list[bool]:
        """Did each rewarded evaluation episode of this version succeed (a reward above 0)? Oldest first; `until`:
        only those that had ended by then, Unix seconds."""
        rows = await self._reader.rows(
            """SELECT e.reward > 0 AS good FROM episodes e WHERE e.version = :version AND e.split = 'eval'
            AND e.reward IS NOT NULL AND e.error IS NULL AND e.ended_at < coalesce(:before, 9e99)
            ORDER BY e.ended_at, e.seq""",
            {"version": version, "before": until},
        )
        return [bool(row["good"]) for row in rows]

    async def rewards(self, key: str | None = None, limit: int = 2000) -> list[tuple[float, float, int | None, Split]]:
        """(time, reward, version, split) of the newest, oldest first, without rollouts."""
        rows = await self._reader.rows(
            """SELECT e.rewarded_at, e.reward, e.version, e.split FROM episodes e
            WHERE e.reward IS NOT NULL AND e.error IS NULL AND e.prompt IS NULL AND (:key IS NULL OR e.key = :key)
            ORDER BY e.seq DESC LIMIT :limit""",
            {"key": key, "limit": limit},
        )
        return [tuple(row) for row in reversed(rows)]

    async def counts(self, key: str | None = None) -> EpisodeNumbers:
        row = await self._reader.row(
            f"""SELECT total({_STATE} = 'open') AS open, total({_STATE} = 'rewarded') AS rewarded,
            total({_STATE} = 'error') AS error, total({_STATE} = 'open' AND e.opened_at < :since
            AND (e.prompt IS NULL OR e.scored_by IS NULL) AND NOT EXISTS (
                SELECT 1 FROM completions c WHERE c.session = e.id AND c.created_at >= :since)) AS unrewarded
            FROM episodes e WHERE (:key IS NULL OR e.key = :key)""",  # noqa: S608  constants of this module
            {"key": key, "since": time.time() - QUIET_S},
        )
        assert row is not None
        return EpisodeNumbers(*(int(row[name]) for name in EpisodeNumbers._fields))

    async def any_waiting(self) -> bool:
        """Tell whether ended episodes wait that no run has and that were not left out: cheap, asked often."""
        row = await self._reader.row(
            """SELECT 1 FROM episodes e WHERE e.left_out IS NULL AND e.taken = 0 AND e.ended_at IS NOT NULL
            AND e.split = 'train' LIMIT 1"""
        )
        return row is not None

    async def open_count(self, key: str) -> int:
        """Count that key's episodes that may still be rewarded."""
        row = await self._reader.row(
            "SELECT count(*) AS n FROM episodes e WHERE e.ended_at IS NULL AND e.left_out IS NULL AND e.key = ?", (key,)
        )
        return int(row["n"]) if row else 0

    async def programs(self) -> dict[str, float]:
        """When each key last opened or rewarded an episode, Unix seconds."""
        rows = await self._reader.rows(
            """SELECT e.key, max(max(coalesce(e.rewarded_at, 0), iif(e.posted = 1, e.opened_at, 0))) AS at
            FROM episodes e GROUP BY e.key"""
        )
        return {row["key"]: row["at"] for row in rows}
