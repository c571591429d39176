"""Episodes that a function of the user's own rewards: which wait for it, what it said, and asking it again.

Owns these queries. An episode waits where it is open, nobody has rewarded it, and it has been quiet for a while. Not
here: rewards that a program gives (`episodes`), the function (proxy.feedback.reward_function).
"""

from __future__ import annotations

import sqlite3
import time
from typing import Final

from store.file.part import StorePart
from store.learning.episodes import SELECT, TURNS, Episode, NewReward, RewardResult, of_session, reward, to_episode

# Open, rewarded in no turn, and not seen by this code yet.
_UNSEEN: Final = """e.ended_at IS NULL AND e.left_out IS NULL AND e.reward IS NULL
AND (e.scored_by IS NULL OR e.scored_by <> :hash)
AND NOT EXISTS (SELECT 1 FROM turn_rewards w WHERE w.episode = e.seq)"""
_QUIET: Final = f"""e.opened_at < :since AND EXISTS (SELECT 1 {TURNS})
AND NOT EXISTS (SELECT 1 FROM completions c WHERE c.session = e.id AND coalesce(c.key, '') = e.key
    AND (c.created_at >= :since OR c.status = 'pending'))"""  # noqa: S608  constants of the store


def keep(db: sqlite3.Connection, episode: Episode, new: NewReward | None, hash: str) -> RewardResult | None:
    """Store what the code with this hash said; None: no reward. Somebody else's reward that came meanwhile stays."""
    unrewarded = db.execute(
        "UPDATE episodes SET scored_by = ? WHERE seq = ? AND ended_at IS NULL AND reward IS NULL RETURNING seq",
        (hash, episode.seq),
    ).fetchone()
    return reward(db, new) if unrewarded is not None and new is not None else None


def reset_scores(db: sqlite3.Connection, since: float) -> int:
    """Have the code asked again about episodes opened since then. These are those that it rewarded and no run has
    taken, and those that it had no reward for. Returns how many."""
    return db.execute(
        """UPDATE episodes SET scored_by = NULL, reward = NULL, comment = NULL, rewarded_at = NULL, ended_at = NULL
        WHERE scored_by IS NOT NULL AND error IS NULL AND taken = 0 AND left_out IS NULL AND opened_at >= ?""",
        (since,),
    ).rowcount


class EpisodeScoreStore(StorePart):
    async def waiting(self, hash: str, *, quiet_s: float, limit: int) -> list[Episode]:
        """Episodes for the code with this hash, the oldest first."""
        rows = await self._reader.rows(
            f"{SELECT} WHERE {_UNSEEN} AND {_QUIET} ORDER BY e.seq LIMIT :limit",
            {"hash": hash, "since": time.time() - quiet_s, "limit": limit},
        )
        return [to_episode(row) for row in rows]

    async def adopt(self, id: str, key: str | None) -> Episode:
        """The episode of this id, which a session becomes now. Raises UnknownEpisode, EpisodeTaken."""
        return await self._writer.submit(lambda db: of_session(db, id, key))

    async def keep(self, episode: Episode, new: NewReward | None, hash: str) -> RewardResult | None:
        """Do `keep` of this module."""
        return await self._writer.submit(lambda db: keep(db, episode, new, hash))

    async def reset_scores(self, since: float) -> int:
        """Do `again` of this module."""
        return await self._writer.submit(lambda db: reset_scores(db, since))
