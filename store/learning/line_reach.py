"""How far apart two versions of a line are.

Version numbers are unique in a home, so those of a line have gaps: versions of other lines between two of them do not
count. Not here: which gap a run allows (proxy).
"""

from __future__ import annotations

import sqlite3
from collections.abc import Collection
from typing import Final, NamedTuple

from store.file.reader import Reader
from store.records import BASE

MOST: Final = 2**31 - 1  # a version's number

# Of versions of the line itself there may be many, and none of them is looked at.
_FOREIGN: Final = """SELECT version FROM adapters WHERE line < :line
UNION ALL SELECT version FROM adapters WHERE line > :line"""


class Reach(NamedTuple):
    """The versions that a run may take samples of: from `oldest` to `newest`."""

    oldest: int
    newest: int

    def parameters(self) -> dict[str, int]:
        """For `samples.NEAR`."""
        return self._asdict()


def reach(live: int, gap: int, foreign_versions: Collection[int]) -> Reach:
    """At most `gap` versions away from `live`, on both sides: after a rollback a version may be above the live one.
    `foreign_versions` are those of other lines."""
    oldest, newest = live - gap, live + gap
    for version in sorted(foreign_versions, reverse=True):
        if oldest <= version < live:
            oldest -= 1
    for version in sorted(foreign_versions):
        if live < version <= newest:
            newest += 1
    return Reach(max(oldest, BASE), min(newest, MOST))


def of_line(db: sqlite3.Connection, line: str, live: int, gap: int) -> Reach:
    return reach(live, gap, {row["version"] for row in db.execute(_FOREIGN, {"line": line})})


async def load(reader: Reader, line: str, live: int, gap: int) -> Reach:
    return reach(live, gap, {row["version"] for row in await reader.rows(_FOREIGN, {"line": line})})
