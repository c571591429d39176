"""How far apart two versions of a line are.

Version numbers are unique in a home, so those of a line have gaps: versions of other lines between two of them do not
count. Not here: which gap a run allows (proxy).
"""

from __future__ import annotations

import sqlite3
from collections.abc import Collection
from typing import Final, NamedTuple

from store.file.reader import Reader

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
    return Reach(_last(live, gap, foreign_versions, -1), _last(live, gap, foreign_versions, 1))


def _last(live: int, gap: int, foreign_versions: Collection[int], step: int) -> int:
    version, distance = live, 0
    while True:
        distance += version == live or version not in foreign_versions
        if distance > gap:
            return version
        version += step
        if version < 0:
            return 0


def of_line(db: sqlite3.Connection, line: str, live: int, gap: int) -> Reach:
    return reach(live, gap, {row["version"] for row in db.execute(_FOREIGN, {"line": line})})


async def load(reader: Reader, line: str, live: int, gap: int) -> Reach:
    return reach(live, gap, {row["version"] for row in await reader.rows(_FOREIGN, {"line": line})})
