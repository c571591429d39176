"""Versions that learned from what was forgotten: they go, their ratings come again, and others are made without it.

Owns the state of that, one named value, and what changes in the database when it begins. The versions are withdrawn and
have no folder any more. The runs that made them have failed after the fact, so their ratings are fresh again. The
baselines are those of the clean version. Not here: which versions learned from it (forget), the files, the swap and
the runs (proxy).
"""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Iterable
from typing import Any, Final

import orjson

from store.file import meta
from store.file.part import StorePart
from store.file.reader import Reader
from store.learning import runs
from store.line_records import COMMON
from store.records import BASE, Adapter, Rebuild

STATE: Final = "rebuild"  # the meta key
WITHDRAWN_REASON: Final = "it learned from what was forgotten"

_LINES: Final = """SELECT DISTINCT a.line FROM adapters a
WHERE a.version IN (SELECT CAST(value AS INTEGER) FROM json_each(?))"""


def begin(db: sqlite3.Connection, versions: Collection[int]) -> None:
    """In the transaction that forgets. One that is under way grows by these."""
    version_list = _json(versions)
    previous = _read(meta.read_meta(db, STATE, None))
    if previous is None or previous.over is not None:
        previous = Rebuild()
    rows = db.execute(
        "SELECT version, path FROM adapters WHERE version IN (SELECT CAST(value AS INTEGER) FROM json_each(?))",
        (version_list,),
    )
    paths = {row["version"]: row["path"] for row in rows.fetchall() if row["path"]}
    made_by = [
        row["id"]
        for row in db.execute(
            """SELECT id FROM runs WHERE status = 'done'
            AND version IN (SELECT CAST(value AS INTEGER) FROM json_each(?))""",
            (version_list,),
        )
    ]
    db.execute(
        """UPDATE adapters SET withdrawn = ?, path = ''
        WHERE version IN (SELECT CAST(value AS INTEGER) FROM json_each(?))""",
        (WITHDRAWN_REASON, version_list),
    )
    db.execute(
        """UPDATE runs SET status = 'failed', reason = 'its version is gone: ' || ? || '; its other ratings are fresh '
        || 'again' WHERE id IN (SELECT CAST(value AS INTEGER) FROM json_each(?))""",
        (WITHDRAWN_REASON, _json(made_by)),
    )
    parents = {row["version"]: (row["parent"], bool(row["withdrawn"])) for row in _lineage(db)}
    deleted = _deleted_versions(db)
    (live,) = db.execute("SELECT live FROM pointer").fetchone()
    goes_on = clean(parents, live, deleted)
    if live == goes_on:  # that it is the last one before, too, is for a rollback never to find
        db.execute(
            "UPDATE pointer SET previous = live WHERE previous IN (SELECT CAST(value AS INTEGER) FROM json_each(?))",
            (version_list,),
        )
    touched = _lines_of(db, versions)
    if COMMON in touched:
        _set_baselines(db, COMMON, goes_on)
    for row in db.execute("SELECT name, live FROM lines").fetchall():
        line_goes_on = clean(parents, row["live"], deleted)
        if row["live"] == line_goes_on:
            db.execute(
                """UPDATE lines SET previous = live WHERE name = ?
                AND previous IN (SELECT CAST(value AS INTEGER) FROM json_each(?))""",
                (row["name"], version_list),
            )
        if row["name"] in touched:
            _set_baselines(db, row["name"], line_goes_on)
    meta.set_meta(
        db,
        STATE,
        {
            "versions": sorted({*previous.versions, *versions}),
            "paths": {str(version): path for version, path in (previous.paths | paths).items()},
            "runs": sorted({*previous.runs, *made_by}),
            "clean": goes_on,
            "made": list(previous.new_runs),
            "over": None,
        },
    )


def claimed(db: sqlite3.Connection, run_id: int) -> None:
    """This run is one of those that make up for what goes."""
    state = meta.read_meta(db, STATE, None)
    meta.set_meta(db, STATE, {**state, "made": [*state["made"], run_id]})


def end(db: sqlite3.Connection, line: str) -> None:
    """The files are gone, too; `line` says what took their place."""
    state = meta.read_meta(db, STATE, None)
    meta.set_meta(db, STATE, {**state, "paths": {}, "over": line})
    meta.audit(db, "rlproxy", "rebuilt", {"versions": state["versions"], "runs": state["made"], "line": line})


def clean(parents: dict[int, tuple[int, bool]], version: int, deleted: Collection[int]) -> int:
    """The version itself unless it is gone, else the newest one that it came from and that may answer.

    `parents` says of each version its parent and whether it was withdrawn.
    """
    ancestor, visited = version, set[int]()
    while ancestor != BASE and (
        ancestor in deleted or (ancestor != version and parents.get(ancestor, (BASE, False))[1])
    ):
        if ancestor in visited:  # one that is its own ancestor: no run makes that, whoever edits a backup can
            return BASE
        visited.add(ancestor)
        ancestor = parents.get(ancestor, (BASE, False))[0]
    return ancestor


def clean_of(adapters: Iterable[Adapter], version: int) -> int:
    listed = list(adapters)
    parents = {a.version: (a.parent, a.withdrawn is not None) for a in listed}
    return clean(parents, version, {a.version for a in listed if a.is_deleted})


def may_claim(db: sqlite3.Connection, live: int) -> bool:
    """Tell whether a run may be built on this version; the swap to a clean one may still be on its way."""
    return db.execute("SELECT 1 FROM adapters WHERE version = ? AND path = ''", (live,)).fetchone() is None


async def state(reader: Reader) -> Rebuild | None:
    """The last one there was, over or not."""
    return _read(await meta.get_meta(reader, STATE, None))


def _read(value: dict[str, Any] | None) -> Rebuild | None:
    if value is None:
        return None
    return Rebuild(
        versions=tuple(value["versions"]),
        paths={int(version): path for version, path in value["paths"].items()},
        runs=tuple(value["runs"]),
        clean=value["clean"],
        new_runs=tuple(value["made"]),
        over=value["over"],
    )


def _lineage(db: sqlite3.Connection) -> list[sqlite3.Row]:
    return db.execute("SELECT version, parent, withdrawn FROM adapters").fetchall()


def _lines_of(db: sqlite3.Connection, versions: Iterable[int]) -> set[str]:
    """The lines that made these."""
    rows = db.execute(_LINES, (_json(versions),))
    return {row["line"] for row in rows}


def _deleted_versions(db: sqlite3.Connection) -> set[int]:
    return {row["version"] for row in db.execute("SELECT version FROM adapters WHERE path = ''")}


def _set_baselines(db: sqlite3.Connection, line: str, version: int) -> None:
    """Set both to what the run that made this version left; 0 without one."""
    row = db.execute(
        """SELECT json_extract(u.result, '$.baseline_after') AS baseline,
        json_extract(u.result, '$.episode_baseline_after') AS episode_baseline
        FROM adapters a JOIN runs u ON u.id = a.run_id WHERE a.version = ?""",
        (version,),
    ).fetchone()
    baseline, episode_baseline = (0.0, 0.0) if row is None else (row["baseline"], row["episode_baseline"])
    meta.set_meta(db, meta.of_line(runs.BASELINE, line), float(baseline or 0.0))
    meta.set_meta(db, meta.of_line(runs.EPISODE_BASELINE, line), float(episode_baseline or 0.0))


def _json(numbers: Iterable[int]) -> str:
    return orjson.dumps(sorted(numbers)).decode()


class RebuildStore(StorePart):
    async def state(self) -> Rebuild | None:
        """The rebuild of versions that learned from what was forgotten: the last one, under way or over."""
        return await state(self._reader)

    async def lines(self) -> set[str]:
        """The lines whose versions a rebuild under way makes anew."""
        under_way = await self.state()
        if under_way is None or under_way.over is not None:
            return set()
        return {row["line"] for row in await self._reader.rows(_LINES, (_json(under_way.versions),))}

    async def end(self, line: str) -> None:
        """End the rebuild: it is over, and the old versions' files are deleted."""
        await self._writer.submit(lambda db: end(db, line))
