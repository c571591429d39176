"""The one error of this room, and the suggestion it makes for a mistyped name."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class SettingsError(ValueError):
    """A setting that cannot be used. One sentence: key, value, what is allowed, where it came from."""


def nearest(name: str, names: Iterable[str]) -> str:
    """A clause naming the known name most like `name`: "did you mean 'server.port'?"."""
    (best,) = difflib.get_close_matches(name, sorted(names), n=1, cutoff=0.0)
    return f"did you mean {best!r}?"
