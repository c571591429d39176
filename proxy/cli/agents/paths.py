"""Where in a configuration file a value stands. Shared by the three formats."""

from __future__ import annotations

from typing import Any, Final, NamedTuple


class PathItem(NamedTuple):
    """An element of a list, known by one of its members."""

    key: str
    value: str


Place = tuple["str | PathItem", ...]  # from the top of the file inwards
MISSING: Final = object()


class UnreadableSettings(Exception):
    """The file is not what its agent would read; nothing in it is touched. The message says why."""


def look(value: Any, place: Place) -> Any:
    """The value there, or MISSING."""
    for step in place:
        if isinstance(step, PathItem):
            items = value if isinstance(value, list) else []
            value = next((i for i in items if isinstance(i, dict) and i.get(step.key) == step.value), MISSING)
        else:
            value = value.get(step, MISSING) if isinstance(value, dict) else MISSING
        if value is MISSING:
            return MISSING
    return value
