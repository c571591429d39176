"""Which episodes train: groups that have closed, and the claim that takes them for a run.

A group closes when as many members as it has have ended, or some time after the last one did. One of rollouts waits a
day for what it lacks: they are sampled whenever nobody asks. A group is as old as its oldest member. An episode outside
any group is compared with the running baseline and trains as soon as it has ended.
A group whose rewards are all the same teaches nothing, unless words do: it is left out, and counted. Not here:
rewards (`episodes`), advantages (trainer.lessons.trajectories).
"""

from __future__ import annotations

import sqlite3
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, NamedTuple

import orjson

from store.captured import completions
from store.captured.rows import to_run
from store.file.part import StorePart
from store.learning import line_reach
from store.learning.episodes import SELECT, Episode, to_episode
from store.learning.runs import RunRequirements, another_is_open, begin
from store.line_records import COMMON
from store.records import Completion, Run

RECENT_S: Final = 30 * 86400.0
ROLLOUTS_WAIT_S: Final = 86400.0  # for the answers that a group of rollouts lacks
LeftOutReason = Literal["no-variance", "stale", "mixed", "no-turns", "error"]
# A turn that trains, as a rated completion that does (samples.FRESH).
TRAINS: Final = f"""(c.turn = 'main' OR c.turn_rule = '{completions.ROLLOUTS}')
AND c.status IN ('done', 'partial') AND c.reply_hash IS NOT NULL
AND c.version IS NOT NULL AND c.untrainable IS NULL
AND (c.dialect <> 'completions' OR c.exact = 1 OR c.translated = 1)"""
WAITING: Final = "e.split = 'train' AND e.ended_at IS NOT NULL AND e.left_out IS NULL AND e.taken = 0"
_MEMBERS: Final = f"""SELECT e.seq, e.key, e.team, e.team_size, e.reward, e.error, e.ended_at, e.version, e.scored_by,
count(c.seq) AS turns, min(c.version) AS oldest, max(c.version) AS newest,
(SELECT count(*) FROM turn_rewards w WHERE w.episode = e.seq) AS told,
e.prompt IS NOT NULL AS is_rollout, e.prompt IS NOT NULL AND e.reward < 0 AND e.comment IS NOT NULL AS commented,
(SELECT count(*) FROM episodes o WHERE o.prompt = e.prompt AND o.version = e.version
    AND (o.ended_at IS NOT NULL OR o.scored_by IS NOT NULL)) AS judged_rollouts
FROM episodes e INDEXED BY episodes_waiting
LEFT JOIN completions c ON c.session = e.id AND coalesce(c.key, '') = e.key AND {TRAINS}
WHERE {WAITING} AND +e.line = ?
GROUP BY e.seq ORDER BY e.ended_at, e.seq"""  # noqa: S608  constants of this module


class Member(NamedTuple):
    seq: int
    reward: float | None
    version: int | None  # the oldest of its turns
    turns: int
    mixed: bool  # its turns are of several versions
    has_turn_rewards: bool  # single turns were rewarded
    is_commented: bool  # a rollout, with words on what was wrong with it
    is_rollout: bool


@dataclass(frozen=True, slots=True)
class Group:
    """Members of the group that may train."""

    members: tuple[Member, ...]
    is_named: bool
    closed: bool

    @property
    def oldest(self) -> int:
        return min(member.version or 0 for member in self.members)

    @property
    def teaches(self) -> bool:
        """Tell whether its members can be told apart, or words teach. One alone is compared with the baseline, but no
        rollout: the baseline is of other prompts."""
        if len(self.members) == 1 and not self.members[0].is_rollout:
            return True
        return (
            any(member.has_turn_rewards or member.is_commented for member in self.members)
            or len({member.reward for member in self.members}) > 1
        )


@dataclass(frozen=True, slots=True)
class ReadyEpisodes:
    """Episodes that a run could take, and what became of others."""

    episodes: int = 0
    groups: int = 0
    forming: int = 0  # episodes of groups that have not closed
    closes_in_s: float | None = None  # the next one by its time
    left_out: dict[str, int] = field(default_factory=dict)  # episodes, by why, so far


class RunTurn(NamedTuple):
    """A turn as a run takes it."""

    episode: Episode
    turn: int  # from 0
    turns: int
    reward: float | None  # of this very turn
    completion: Completion


def sort_out(
    rows: Iterable[sqlite3.Row], *, size: int, timeout_s: float, now: float
) -> tuple[list[Group], dict[int, LeftOutReason], float | None]:
    """Groups of members that may train; those that never will, by why; and when the next group closes by its time."""
    teams: dict[tuple[str, str | int, str | None], list[sqlite3.Row]] = {}
    for row in rows:
        name = row["seq"] if row["team"] is None else row["team"]
        code = row["scored_by"] if row["is_rollout"] else None  # code that changed meanwhile has another scale
        teams.setdefault((row["key"], name, code), []).append(row)
    groups: list[Group] = []
    out: dict[int, LeftOutReason] = {}
    closes: list[float] = []
    for team in teams.values():
        is_named = team[0]["team"] is not None
        target_size = max((row["team_size"] or 0 for row in team), default=0) or size
        quiet = now - max(row["ended_at"] for row in team)
        judged = max(row["judged_rollouts"] for row in team)  # also those that the code has no reward for
        wait_s = max(timeout_s, ROLLOUTS_WAIT_S) if team[0]["is_rollout"] else timeout_s
        closed = not is_named or max(len(team), judged) >= target_size or quiet > wait_s
        if not closed:
            closes.append(wait_s - quiet)
        members: list[Member] = []
        for row in team:
            if row["error"] is not None:  # it counts as a member, and as nothing else
                if closed:
                    out[row["seq"]] = "error"
                continue
            mixed = row["oldest"] != row["newest"]
            reason: LeftOutReason | None = "no-turns" if not row["turns"] else "mixed" if mixed else None
            if reason is None:
                members.append(
                    Member(
                        row["seq"], row["reward"], row["oldest"], row["turns"], mixed, bool(row["told"]),
                        bool(row["commented"]), bool(row["is_rollout"]),
                    )
                )  # fmt: skip
            elif closed:
                out[row["seq"]] = reason
        if members:
            groups.append(Group(tuple(members), is_named, closed))
    return groups, out, min(closes, default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeRequirements(RunRequirements):
    size: int  # of a group that does not say its own
    timeout_s: float  # after which a group closes with fewer


def claim(db: sqlite3.Connection, requirements: EpisodeRequirements) -> Run | None:
    """Make a run of closed groups, the oldest first, up to `limit` episodes.

    What never trains is marked on the way. None while another run is open, or too few are left.
    """
    if another_is_open(db):
        return None
    rows = db.execute(_MEMBERS, (requirements.line,)).fetchall()
    near = line_reach.of_line(db, requirements.line, requirements.live, requirements.max_version_gap)
    groups, out, _ = sort_out(rows, size=requirements.size, timeout_s=requirements.timeout_s, now=time.time())
    closed = [group for group in groups if group.closed]
    if sum(len(group.members) for group in closed) < requirements.min_total:
        return None
    claimed: list[Group] = []
    for group in closed:
        reason: LeftOutReason | None = None
        if group.oldest < near.oldest:
            reason = "stale"
        elif not group.teaches:
            reason = "no-variance"
        if reason is not None:
            out |= {member.seq: reason for member in group.members}
        elif sum(len(earlier_group.members) for earlier_group in claimed) < requirements.limit:
            claimed.append(group)
    db.executemany(
        "UPDATE episodes SET left_out = ? WHERE seq = ?",
        [(left_out_reason, seq) for seq, left_out_reason in out.items()],
    )
    if not claimed:
        return None
    members = [member for group in claimed for member in group.members]
    run = begin(db, requirements, samples=sum(member.turns for member in members))
    db.executemany("INSERT INTO run_episodes VALUES (?, ?)", [(run.id, member.seq) for member in members])
    return run


class EpisodeGroupStore(StorePart):
    async def ready(
        self, *, live: int, max_version_gap: int, size: int, timeout_s: float, line: str = COMMON
    ) -> ReadyEpisodes:
        """Count what a run of this line could take now, and what has been left out so far."""
        rows = await self._reader.rows(_MEMBERS, (line,))
        near = await line_reach.load(self._reader, line, live, max_version_gap)
        groups, out, closes = sort_out(rows, size=size, timeout_s=timeout_s, now=time.time())
        closed = [g for g in groups if g.closed and g.oldest >= near.oldest]
        skipped = await self._reader.rows(
            """SELECT left_out AS why, count(*) AS n FROM episodes WHERE left_out IS NOT NULL AND line = ?
            GROUP BY left_out""",
            (line,),
        )
        return ReadyEpisodes(
            episodes=sum(len(group.members) for group in closed),
            groups=len(closed),
            forming=sum(len(group.members) for group in groups if not group.closed),
            closes_in_s=closes,
            left_out=dict(Counter({row["why"]: row["n"] for row in skipped}) + Counter(out.values())),
        )

    async def claim(self, requirements: EpisodeRequirements) -> Run | None:
        """Do `claim` of this module."""
        return await self._writer.submit(lambda db: claim(db, requirements))

    async def of_run(self, run_id: int) -> list[Episode]:
        rows = await self._reader.rows(
            SELECT + "WHERE e.seq IN (SELECT t.episode FROM run_episodes t WHERE t.run_id = ?) ORDER BY e.seq",  # noqa: S608  constants
            (run_id,),
        )
        return [to_episode(row) for row in rows]

    async def run_turns(self, run_id: int) -> list[RunTurn]:
        """All that train, by episode and in their order; those of what was forgotten meanwhile are missing."""
        rows = await self._turn_rows(run_id)
        episodes = {episode.seq: episode for episode in await self.of_run(run_id)}
        whole = await completions.load(self._reader, [row["id"] for row in rows])
        by: dict[int, list[sqlite3.Row]] = {}
        for row in rows:
            if row["episode"] in episodes and row["id"] in whole:
                by.setdefault(row["episode"], []).append(row)
        return [
            RunTurn(episodes[seq], index, len(turns), row["value"], whole[row["id"]])
            for seq, turns in by.items()
            for index, row in enumerate(turns)
        ]

    async def turn_ids(self, run_id: int) -> dict[tuple[int, int], str]:
        """The completion of each turn that a run has, by its episode's `seq` and its place from 0."""
        by: dict[int, list[str]] = {}
        for row in await self._turn_rows(run_id):
            by.setdefault(row["episode"], []).append(row["id"])
        return {(seq, index): id for seq, ids in by.items() for index, id in enumerate(ids)}

    async def runs_of(self, completion_id: str) -> list[Run]:
        """Runs that took the episode of this turn, newest first."""
        rows = await self._reader.rows(
            """SELECT u.* FROM completions c CROSS JOIN episodes e ON e.id = c.session AND e.key = coalesce(c.key, '')
            CROSS JOIN run_episodes t ON t.episode = e.seq CROSS JOIN runs u ON u.id = t.run_id
            WHERE c.id = ? ORDER BY u.id DESC""",
            (completion_id,),
        )
        return [to_run(row) for row in rows]

    async def _turn_rows(self, run_id: int) -> list[sqlite3.Row]:
        return await self._reader.rows(
            f"""SELECT e.seq AS episode, c.id, w.value FROM run_episodes t CROSS JOIN episodes e ON e.seq = t.episode
            CROSS JOIN completions c ON c.session = e.id AND coalesce(c.key, '') = e.key AND {TRAINS}
            LEFT JOIN turn_rewards w ON w.episode = e.seq AND w.completion_id = c.id
            WHERE t.run_id = ? ORDER BY e.seq, c.seq""",  # noqa: S608  constants of this module
            (run_id,),
        )

    async def recently_trained(self) -> tuple[int, int]:
        """Samples of ratings and turns of episodes in the runs of 30 days that made a version; fresh ratings count."""
        row = await self._reader.row(
            """SELECT total(iif(t.run_id IS NULL, u.samples, 0)) AS people,
            total(iif(t.run_id IS NULL, 0, u.samples)) AS programs
            FROM runs u LEFT JOIN (SELECT DISTINCT run_id FROM run_episodes) t ON t.run_id = u.id
            WHERE u.status = 'done' AND u.created_at > ?""",
            (time.time() - RECENT_S,),
        )
        rated = await self._reader.row(
            "SELECT count(*) AS n FROM ratings r WHERE r.live = 1 AND r.human = 1 AND r.created_at > ? "
            "AND NOT EXISTS (SELECT 1 FROM run_samples s WHERE s.rating_id = r.id)",
            (time.time() - RECENT_S,),
        )
        assert row is not None and rated is not None
        return int(row["people"]) + int(rated["n"]), int(row["programs"])

    async def run_counts(self, run_ids: Sequence[int]) -> dict[int, int]:
        """Episodes of each of these runs, of those that have some."""
        rows = await self._reader.rows(
            """SELECT t.run_id, count(*) AS n FROM run_episodes t
            WHERE t.run_id IN (SELECT CAST(value AS INTEGER) FROM json_each(?)) GROUP BY t.run_id""",
            (orjson.dumps(list(run_ids)).decode(),),
        )
        return {row["run_id"]: row["n"] for row in rows}
