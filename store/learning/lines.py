"""Lines: several sequences of versions of one base, each with a live pointer of its own.

The common line is in every home and has no row in `lines`. Its pointer is the table `pointer`, and its named values
have their plain names. Owns the rows of the other lines. Not here: a move of a pointer (`versions`), how far apart two
versions of a line are (line_reach), which request a line answers (proxy).
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Collection
from typing import Final

from store.captured.rows import from_json, to_json, to_line, to_pointer
from store.errors import NameTaken, UnknownLine
from store.file import driver, meta
from store.file.part import StorePart
from store.learning.episode_groups import WAITING as EPISODES_WAITING
from store.learning.samples import UNUSED
from store.line_records import COMMON, LineCounts, Pointer, StoredLine

# The second condition is what the index is over.
_OF_LINE: Final = "c.line = n.name AND c.line <> 'common'"
_COUNTS: Final = f"""SELECT n.name AS line, (SELECT count(*) FROM completions c WHERE {_OF_LINE}) AS completions,
(SELECT count(*) FROM completions c CROSS JOIN ratings r ON r.completion_id = c.id
    WHERE {_OF_LINE} AND +r.live = 1 AND +r.human = 1) AS ratings,
(SELECT count(*) FROM adapters a WHERE a.line = n.name) AS versions FROM lines n"""  # noqa: S608  a constant


def create(db: sqlite3.Connection, new: StoredLine, actor: str) -> None:
    """Raises NameTaken, also for a user or an agent of another line."""
    _check_members(db, new.name, new.users, new.agents)
    reason = f"the line begins with {'the base model' if not new.origin else f'v{new.origin}'}"
    try:
        db.execute(
            """INSERT INTO lines (name, live, previous, changed_at, reason, actor, origin, created_at, users, agents)
            VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)""",
            (
                new.name, new.origin, new.origin, new.created_at, reason, actor, new.origin, new.created_at,
                to_json(new.users), to_json(new.agents),
            ),
        )  # fmt: skip
    except driver.errors() as error:
        if driver.code(error) != driver.CONSTRAINT:
            raise
        raise NameTaken(f"There is a line named {new.name} already.") from None
    meta.audit(db, actor, "line created", {"line": new.name, "from": new.origin})


def change(
    db: sqlite3.Connection, name: str, users: Collection[str] | None, agents: Collection[str] | None, actor: str
) -> None:
    """Set whose requests a line answers; None leaves them as they are. Raises UnknownLine, NameTaken."""
    row = _row(db, name)
    _check_members(db, name, users or (), agents or ())
    new_users = row["users"] if users is None else to_json(sorted(set(users)))
    new_agents = row["agents"] if agents is None else to_json(sorted(set(agents)))
    db.execute("UPDATE lines SET users = ?, agents = ? WHERE name = ?", (new_users, new_agents, name))
    meta.audit(db, actor, "line changed", {"line": name})


def retire(db: sqlite3.Connection, name: str, retired: bool, actor: str) -> None:
    """End it, or take that back. Raises UnknownLine; NameTaken where another line has got one of its members."""
    row = _row(db, name)
    if not retired:
        _check_members(db, name, from_json(row["users"]), from_json(row["agents"]))
    db.execute("UPDATE lines SET retired_at = ? WHERE name = ?", (time.time() if retired else None, name))
    meta.audit(db, actor, "line retired" if retired else "line restored", {"line": name})


def _check_members(db: sqlite3.Connection, name: str, users: Collection[str], agents: Collection[str]) -> None:
    """Raises NameTaken where another line that answers has one of them. In the writer, since two admins may ask at
    once, also at two relays."""
    if not users and not agents:
        return
    for row in db.execute("SELECT name, users, agents FROM lines WHERE retired_at IS NULL AND name <> ?", (name,)):
        for kind, members in (("user", users), ("agent", agents)):
            if shared_members := set(from_json(row[f"{kind}s"])).intersection(members):
                raise NameTaken(f"The {kind} {min(shared_members)} is of the line {row['name']}.")


def _row(db: sqlite3.Connection, name: str) -> sqlite3.Row:
    row: sqlite3.Row | None = db.execute("SELECT * FROM lines WHERE name = ?", (name,)).fetchone()
    if row is None:
        raise UnknownLine(f"The line {name} does not exist.")
    return row


class LineStore(StorePart):
    async def all(self) -> list[StoredLine]:
        """All beside the common one, also those that are retired; the oldest first."""
        return [to_line(row) for row in await self._reader.rows("SELECT * FROM lines ORDER BY created_at, name")]

    async def pointers(self) -> dict[str, Pointer]:
        """Pointers of all lines, the common one first."""
        common = await self._reader.row("SELECT * FROM pointer")
        assert common is not None  # the first migration put it there
        rows = await self._reader.rows("SELECT * FROM lines ORDER BY created_at, name")
        return {COMMON: to_pointer(common)} | {row["name"]: to_pointer(row) for row in rows}

    async def counts(self) -> dict[str, LineCounts]:
        """Counts of the lines beside the common one."""
        rows = await self._reader.rows(_COUNTS)
        return {row["line"]: LineCounts(row["completions"], row["ratings"], row["versions"]) for row in rows}

    async def with_samples(self, *, foreign: bool) -> set[str]:
        """Lines that have a rating or an episode that no run has taken, however old."""
        rated = await self._reader.rows(f"SELECT DISTINCT c.line {UNUSED}", {"foreign": foreign})
        waiting = await self._reader.rows(f"SELECT DISTINCT e.line FROM episodes e WHERE {EPISODES_WAITING}")  # noqa: S608
        return {row["line"] for row in (*rated, *waiting)}

    async def last_runs(self) -> dict[str, int]:
        """The newest run of each line that had one."""
        rows = await self._reader.rows(
            "SELECT u.line, max(u.id) AS id FROM runs u WHERE u.retrains = 0 GROUP BY u.line"
        )
        return {row["line"]: row["id"] for row in rows}

    async def create(self, new: StoredLine, actor: str) -> None:
        """Raises NameTaken."""
        await self._writer.submit(lambda db: create(db, new, actor))

    async def change(
        self, name: str, users: Collection[str] | None, agents: Collection[str] | None, actor: str
    ) -> None:
        """Raises UnknownLine, NameTaken."""
        await self._writer.submit(lambda db: change(db, name, users, agents, actor))

    async def retire(self, name: str, retired: bool, actor: str) -> None:
        """Raises UnknownLine, NameTaken."""
        await self._writer.submit(lambda db: retire(db, name, retired, actor))
