"""Forgetting, because a person says so: a completion, a session, a user's conversations, or a rater's ratings.

Owns which rows go and which versions were trained on them, in one transaction. Messages go as far as nothing else hangs
on them, pictures with their last message. Which samples have to leave the run folders is written down in the same
transaction. So a crash before the files are done is made good at the next start. Rows that are deleted are overwritten
(`secure_delete`), and the log of the database is emptied after; no VACUUM: the file keeps its size, with zeros. Not
here: the files of a run (proxy), copies that SQLite has left in the file (page_gaps).
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import orjson

from store.captured import completions
from store.captured.completions import ROLLOUTS_OF
from store.errors import InOpenRun
from store.file import meta, tombstones
from store.learning import lessons, unlearning, versions
from store.records import Forgetting, Target

OWED: Final = "forgetting"  # the meta key of what has still to leave the run folders
NOTHING: Final[dict[str, list[str]]] = {"completions": [], "ratings": []}
GAPS: Final = "gaps"  # there while the file may have copies of it in its gaps: how often something was forgotten
_COMPLETIONS: Final = {
    "completion": "SELECT c.id FROM completions c WHERE c.id = ?",
    "session": "SELECT c.id FROM completions c WHERE c.session = ?",
    "user": "SELECT c.id FROM completions c WHERE c.user = ?",
}
_OF_COMPLETIONS: Final = """SELECT r.id FROM json_each(?) j CROSS JOIN ratings r ON r.completion_id = j.value"""
# A judge's ratings have words of the request that came after, also those that were taken back: they go with it, too.
_JUDGED_BY: Final = """SELECT DISTINCT r.id FROM json_each(?) j CROSS JOIN signals s ON s.next_id = j.value
CROSS JOIN ratings r ON r.completion_id = s.completion_id AND r.source = 'judge'"""
_OF_RATER: Final = "SELECT r.id FROM ratings r WHERE r.rater = ?"
_RUNS: Final = """SELECT DISTINCT u.id, u.status, s.split FROM json_each(?) j
CROSS JOIN run_samples s ON s.rating_id = j.value CROSS JOIN runs u ON u.id = s.run_id"""
_OF_EPISODES: Final = """SELECT DISTINCT u.id, u.status, 'train' AS split FROM json_each(?) j
CROSS JOIN completions c ON c.id = j.value CROSS JOIN episodes e ON e.id = c.session AND e.key = coalesce(c.key, '')
CROSS JOIN run_episodes t ON t.episode = e.seq CROSS JOIN runs u ON u.id = t.run_id"""
_EPISODES: Final = """SELECT DISTINCT e.seq AS id FROM json_each(?) j CROSS JOIN completions c ON c.id = j.value
CROSS JOIN episodes e ON e.id = c.session AND e.key = coalesce(c.key, '')"""
# A run of an earlier release may have trained once more on what one before it took: only its result says so.
_REPLAYED: Final = """SELECT DISTINCT u.id FROM adapters a CROSS JOIN runs u ON u.id = a.run_id
CROSS JOIN json_each(u.result, '$.samples') o
WHERE CAST(json_extract(o.value, '$.used') AS TEXT) IN ('1', 'true')
AND o.key IN (SELECT value FROM json_each(?))"""

FORGOTTEN_OF: Final = "SELECT f.hash FROM json_each(?) j CROSS JOIN forgotten f ON f.hash = j.value"
_NOTE: Final = "INSERT INTO forgotten SELECT value FROM json_each(?) WHERE true ON CONFLICT DO NOTHING"


def look(db: sqlite3.Connection, kind: Target, name: str) -> Forgetting:
    """Count what would go, without touching it."""
    reactions = 0
    if kind == "rater":
        completions: list[str] = []
        ratings = _ids(db, _OF_RATER, name)
        (reactions,) = db.execute("SELECT count(*) FROM reactions WHERE rater = ?", (name,)).fetchone()
    else:
        completions = _ids(db, _COMPLETIONS[kind], name)
        completions += _ids(db, ROLLOUTS_OF, _json(completions))
        ratings = _ids(db, _OF_COMPLETIONS, _json(completions))
        ratings += [id for id in _ids(db, _JUDGED_BY, _json(completions)) if id not in set(ratings)]
    runs = db.execute(_RUNS, (_json(ratings),)).fetchall()
    runs += db.execute(_OF_EPISODES, (_json(completions),)).fetchall()
    trained_by = {row["id"] for row in runs if row["split"] == "train"}
    trained_by |= {row["id"] for row in db.execute(_REPLAYED, (_json(ratings),))}
    # Whatever its run came to: a version that was given back has learned, and has its files. One that is gone has none.
    adapters = db.execute("SELECT version, parent, run_id FROM adapters WHERE path != ''").fetchall()
    parents = {row["version"]: row["parent"] for row in adapters}
    trained = {row["version"] for row in adapters if row["run_id"] in trained_by}
    open_run = next((row["id"] for row in runs if row["status"] in ("claimed", "running")), None)
    heirs = tuple(sorted(heirs_of(parents, trained)))
    return Forgetting(tuple(completions), tuple(ratings), tuple(sorted(trained)), heirs, open_run, reactions)


def forget(db: sqlite3.Connection, kind: Target, name: str, actor: str, *, retrain: bool = False) -> Forgetting:
    """Raises InOpenRun where a run under way has taken one of the ratings.

    `retrain`: the versions that learned from it go, too, and so no run may be under way on top of one.
    """
    forgetting = look(db, kind, name)
    if forgetting.open_run is not None:
        raise InOpenRun(forgetting.open_run)
    tainted = {*forgetting.trained, *forgetting.heirs}
    if retrain and (on_top := _open_run_on(db, tainted)) is not None:
        raise InOpenRun(on_top)
    if forgetting.reactions:  # a rating follows from what is left of them
        db.execute("DELETE FROM reactions WHERE rater = ?", (name,))
    if not forgetting.completions and not forgetting.ratings:
        return forgetting
    erase(db, forgetting)
    # Counts alone: a log that keeps the names has not forgotten them.
    detail: dict[str, Any] = {
        "what": kind,
        "completions": len(forgetting.completions),
        "ratings": len(forgetting.ratings),
    }
    meta.audit(
        db, actor, "forget", {**detail, "trained": forgetting.trained, "heirs": forgetting.heirs, "retrain": retrain}
    )
    if retrain and tainted:
        unlearning.begin(db, tainted)
    return forgetting


def delete(db: sqlite3.Connection, id: str) -> bool:
    """One completion, because its client says so; False where it is gone already. Raises InOpenRun."""
    forgetting = look(db, "completion", id)
    if forgetting.open_run is not None:
        raise InOpenRun(forgetting.open_run)
    erase(db, forgetting)
    return bool(forgetting.completions)


def erase(db: sqlite3.Connection, forgetting: Forgetting) -> None:
    """The rows; and what the run folders may have of them is owed. An episode goes with its last turn, and never trains
    without one that it had."""
    episodes = _ids(db, _EPISODES, _json(forgetting.completions))
    taught = lessons.forget(db, forgetting.ratings)
    versions.forget_answer_pairs(db, {*forgetting.trained, *forgetting.heirs}, taught)
    completions.forget(db, forgetting.completions)
    db.execute(
        """DELETE FROM episodes WHERE seq IN (SELECT CAST(value AS INTEGER) FROM json_each(?)) AND NOT EXISTS (
        SELECT 1 FROM completions c WHERE c.session = episodes.id AND coalesce(c.key, '') = episodes.key)""",
        (_json(episodes),),
    )
    db.execute(
        "UPDATE episodes SET left_out = 'forgotten' WHERE seq IN (SELECT CAST(value AS INTEGER) FROM json_each(?))",
        (_json(episodes),),
    )
    if forgetting.ratings:  # a critic was made of them
        db.execute("DELETE FROM guesses")
    db.execute("DELETE FROM ratings WHERE id IN (SELECT value FROM json_each(?))", (_json(forgetting.ratings),))
    hashes = [tombstones.hash_of(id) for id in (*forgetting.completions, *forgetting.ratings)]
    db.execute(_NOTE, (_json(hashes),))
    owe(db, {"completions": [*forgetting.completions, *taught], "ratings": forgetting.ratings})
    meta.set_meta(db, GAPS, meta.read_meta(db, GAPS, 0) + 1)


def owe(db: sqlite3.Connection, additional: Mapping[str, Sequence[str]]) -> None:
    """Text that the run folders may still have."""
    owed = meta.read_meta(db, OWED, NOTHING)
    meta.set_meta(db, OWED, {key: [*ids, *additional.get(key, ())] for key, ids in owed.items()})


def overwritten(db: sqlite3.Connection, owed: int) -> None:
    """The gaps of the file, since something was forgotten for the time `owed`."""
    if meta.read_meta(db, GAPS, 0) == owed:
        db.execute("DELETE FROM meta WHERE key = ?", (GAPS,))


def paid(db: sqlite3.Connection, owed: dict[str, list[str]]) -> None:
    """These have left the run folders."""
    now = meta.read_meta(db, OWED, NOTHING)
    remaining = {key: [id for id in ids if id not in set(owed[key])] for key, ids in now.items()}
    meta.set_meta(db, OWED, remaining)


def _open_run_on(db: sqlite3.Connection, versions: Iterable[int]) -> int | None:
    row = db.execute(
        """SELECT id FROM runs WHERE status IN ('claimed', 'running')
        AND parent IN (SELECT CAST(value AS INTEGER) FROM json_each(?))""",
        (orjson.dumps(sorted(versions)).decode(),),
    ).fetchone()
    return None if row is None else int(row["id"])


def heirs_of(parents: dict[int, int], trained: set[int]) -> set[int]:
    """Versions that were built on these."""
    heirs: set[int] = set()
    for version in sorted(parents):  # a parent has the lower number
        if version not in trained and parents[version] in trained | heirs:
            heirs.add(version)
    return heirs


def _ids(db: sqlite3.Connection, sql: str, value: str) -> list[str]:
    return [row["id"] for row in db.execute(sql, (value,))]


def _json(ids: Iterable[str]) -> str:
    return orjson.dumps(list(ids)).decode()
