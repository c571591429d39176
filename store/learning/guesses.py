"""Guesses of a trusted critic about unrated answers, and so which of them to ask about.

A rating says most where the critic cannot tell (the Fisher information of logistic regression, p(1 − p), is largest at
even odds). One answer in five is drawn at random, so that what the critic is sure of is asked about, too. Owns the
rows. Not here: the critic (trainer.lessons.critic), the list that shows them (captured.inbox).
"""

from __future__ import annotations

import itertools
import sqlite3
from collections.abc import Mapping
from typing import Final

from store.captured import inbox
from store.file.part import StorePart
from store.records import CompletionSummary

AT_RANDOM: Final = 5  # every fifth
LOOK: Final = 2000  # newest main turns that a draw looks at
_UNRATED: Final = """c.turn = 'main' AND c.status = 'done' AND c.untrainable IS NULL
AND NOT EXISTS (SELECT 1 FROM ratings r WHERE r.completion_id = c.id AND +r.live = 1)"""
_UNSURE: Final = f"""SELECT c.seq FROM guesses g CROSS JOIN completions c ON c.id = g.completion_id
WHERE {_UNRATED} ORDER BY abs(g.odds), c.seq DESC LIMIT ?"""  # noqa: S608  a constant
_DRAWN: Final = f"""SELECT c.seq FROM completions c
WHERE c.seq > (SELECT coalesce(max(seq), 0) FROM completions) - {LOOK} AND {_UNRATED}
ORDER BY random() LIMIT ?"""  # noqa: S608  constants


def replace_all(db: sqlite3.Connection, run: int, odds: Mapping[str, float]) -> None:
    """In place of those before: they are of an older critic. An answer that is gone has none."""
    db.execute("DELETE FROM guesses")
    db.executemany(
        """INSERT INTO guesses SELECT c.id, ?, ? FROM completions c WHERE c.id = ?
        ON CONFLICT (completion_id) DO UPDATE SET odds = excluded.odds, run_id = excluded.run_id""",
        [(each, run, id) for id, each in odds.items()],
    )


class GuessStore(StorePart):
    async def replace_all(self, run: int, odds: Mapping[str, float]) -> None:
        await self._writer.submit(lambda db: replace_all(db, run, odds))

    async def to_ask(self, limit: int) -> list[CompletionSummary]:
        """Unrated answers, those first that a rating would say most of, every fifth at random; none where no critic is
        trusted."""
        unsure = [row["seq"] for row in await self._reader.rows(_UNSURE, (limit,))]
        if not unsure:
            return []
        drawn = [row["seq"] for row in await self._reader.rows(_DRAWN, (limit,))]
        order = mixed(unsure, drawn)[:limit]
        summaries = {summary.seq: summary for summary in await inbox.load(self._reader, order)}
        return [summaries[seq] for seq in order if seq in summaries]


def mixed(unsure: list[int], drawn: list[int]) -> list[int]:
    """Each once; every fifth place is of those that were drawn, while there are any."""
    drawn_seqs, order = iter(drawn), dict[int, None]()  # a dict keeps the first place of each
    for seq in dict.fromkeys(unsure):
        if len(order) % AT_RANDOM == AT_RANDOM - 1:
            order |= dict.fromkeys(
                itertools.islice((drawn_seq for drawn_seq in drawn_seqs if drawn_seq not in order), 1)
            )
        order[seq] = None
    return list(order)
