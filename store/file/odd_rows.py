"""Values that rlproxy wrote as JSON, in a file that somebody may have edited: each has the shape that its readers know.

A schema that is the migrations' says nothing about the rows. One of another shape is refused by its name, before
anything is read by it. Not here: the schema (`schema`), what a page says (`integrity`).
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import orjson

from store.errors import StoreDamaged

Shape = Callable[[Any], bool]
MOST_NUMBER: Final = 2**63  # of SQLite


class _Column(NamedTuple):
    table: str
    id: str
    name: str
    shape: Shape


def check(db: sqlite3.Connection, path: Path) -> None:
    """Raises StoreDamaged where a value has another shape than rlproxy gives it, naming it."""
    if odd := next(_odd(db), None):
        raise StoreDamaged(
            f"{path} was edited, or is damaged: {odd} is not what rlproxy writes there. Nothing of it was used; "
            "restore another backup."
        )


def _odd(db: sqlite3.Connection) -> Iterator[str]:
    for key, value in db.execute("SELECT key, value FROM meta"):
        if not _fits(value, _shape_of(str(key))):
            yield f"meta {str(key)[:60]!r}"
    for column in COLUMNS:
        names = f"{column.id}, {column.name}"
        for id, value in db.execute(f"SELECT {names} FROM {column.table} WHERE {column.name} IS NOT NULL"):  # noqa: S608  ours
            if not _fits(value, column.shape):
                yield f"{column.table}.{column.name} of {str(id)[:60]}"


def _shape_of(key: str) -> Shape:
    name = key.partition("@")[0]  # a line has values of its own
    return SHAPES.get(name, _hex if _RUN_KEY.fullmatch(key) else _anything)


def _fits(text: Any, shape: Shape) -> bool:
    try:
        return shape(orjson.loads(text))
    except (ValueError, TypeError):  # not text at all, where the column lets it in
        return False


# Shapes


def _anything(_: Any) -> bool:
    return True


def _text(value: Any) -> bool:
    return isinstance(value, str)


def _flag(value: Any) -> bool:
    return isinstance(value, bool)


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) < MOST_NUMBER


def _number(value: Any) -> bool:
    return _whole(value) or isinstance(value, float)


def _hex(value: Any) -> bool:
    return isinstance(value, str) and re.fullmatch(r"[0-9a-f]{64}", value) is not None


def _object(value: Any) -> bool:
    return isinstance(value, dict)


def _or_null(shape: Shape) -> Shape:
    return lambda value: value is None or shape(value)


def _list_of(shape: Shape) -> Shape:
    return lambda value: isinstance(value, list) and all(map(shape, value))


def _map_of(shape: Shape, name: Callable[[str], bool] = _text) -> Shape:
    return lambda value: isinstance(value, dict) and all(name(key) and shape(item) for key, item in value.items())


def _members(needed: Mapping[str, Shape], optional: Mapping[str, Shape] | None = None) -> Shape:
    """An object that has these; what else it has is left alone."""
    maybe = optional or {}

    def fits(value: Any) -> bool:
        return (
            isinstance(value, dict)
            and all(key in value and shape(value[key]) for key, shape in needed.items())
            and all(shape(value[key]) for key, shape in maybe.items() if key in value)
        )

    return fits


def _version_number(name: str) -> bool:
    return re.fullmatch(r"[0-9]{1,18}", name, re.ASCII) is not None


_RUN_KEY: Final = re.compile(r"run_key\.[0-9]+", re.ASCII)
_NUMBERS: Final = _or_null(_map_of(_or_null(_number)))
_FIGURES: Final = (
    "prompts", "held_back", "different", "limit", "tokens_before", "tokens_after", "tokens_error", "ended_before",
    "ended_after",
)  # fmt: skip
_CHANGES: Final = _members(dict.fromkeys(_FIGURES, _number))
_GATE: Final = _map_of(_members({"ok": _flag}))
_OUTCOME: Final = _members(
    {}, {"tokens": _or_null(_number), "accepted": _or_null(_number), "flags": _or_null(_list_of(_text))}
)
_VERDICT: Final = _members(
    {"state": lambda value: value in ("same", "other", "unknown", "unasked"), "line": _text},
    {
        "apart": _or_null(_number),
        "regret": _or_null(_number),
        "rendering": _or_null(_object),
        "scored": _flag,
        "noise": _NUMBERS,
    },
)
SHAPES: Final[Mapping[str, Shape]] = {
    "baseline": _number,
    "baselines_before": _or_null(_members({"run": _whole, "baselines": _map_of(_number)})),
    "by_hand": _or_null(_whole),
    "closed_cleanly": _flag,
    "episode_baseline": _number,
    "foreign_version": _whole,
    "forgetting": _members({"completions": _list_of(_text), "ratings": _list_of(_text)}),
    "gaps": _whole,
    "judge_asks": _members({}, {"id": _or_null(_text), "at": _number}),
    "judge_cost": _members({}, {"day": _text, "today": _whole, "all": _whole}),
    "judge_state": _list_of(_anything),
    "lent": _flag,
    "lessons_since": _or_null(_whole),
    "match": _or_null(_members({"of": _object, "verdict": _VERDICT})),
    "not_yet_live": _or_null(_whole),
    "own_after": _whole,
    "page_secret": _text,
    "paused": _flag,
    "ranked_after": _whole,
    "rated_before": _whole,
    "rebuild": _or_null(
        _members(
            {
                "versions": _list_of(_whole),
                "paths": _map_of(_text, _version_number),
                "runs": _list_of(_whole),
                "clean": _whole,
                "made": _list_of(_whole),
                "over": _or_null(_text),
            }
        )
    ),
    "rehearsal": _or_null(_members({"found": _object, "of": _anything})),
    "retention_days": _or_null(_members({"days": _number, "by": _text, "at": _number})),
    "signals_after": _whole,
    "signals_ended": _whole,
    "tune": _flag,
    "tuned": _map_of(_number),
    "uncaptured_sessions": _list_of(_text),
}
COLUMNS: Final = (
    _Column(
        "adapters",
        "version",
        "manifest",
        _members(
            {},
            {
                "files": _or_null(_map_of(_text)),
                "metrics": _or_null(_object),
                "gate": _or_null(_GATE),
                "changes": _or_null(_CHANGES),
            },
        ),
    ),
    _Column(
        "runs",
        "id",
        "result",
        _members(
            {},
            {
                "metrics": _or_null(_object),
                "gate": _or_null(_GATE),
                "samples": _or_null(_map_of(_OUTCOME)),
                "reason": _or_null(_text),
            },
        ),
    ),
    _Column("audit", "seq", "detail", _anything),
    _Column("lines", "name", "users", _list_of(_text)),
    _Column("lines", "name", "agents", _list_of(_text)),
)
