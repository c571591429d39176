"""What rlproxy has put into somebody else's server, written down in our own home.

Owns the record: names, what each was made of, and the order of their use. Nothing that is not in it is ever removed,
and nothing that is there under one of its names without being in it is ever replaced. Removing is the backends'.
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, Final

KEPT: Final = 2  # versions that stay in the server though nobody uses them: a rollback finds them there


class Made:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._all: dict[str, dict[str, Any]] = {}  # the least recently used first
        if path.exists():
            self._all = json.loads(path.read_text(encoding="utf-8"))

    def about(self, name: str) -> Mapping[str, Any] | None:
        """What was said when it was made; None where it is not ours."""
        return self._all.get(name)

    def names(self) -> Collection[str]:
        return self._all.keys()

    def put(self, name: str, **about: Any) -> None:
        """Written before it is made, so that a crash in between leaves nothing that we do not know of."""
        self._all.pop(name, None)
        self._all[name] = about
        self._write()

    def used(self, name: str) -> None:
        if next(reversed(self._all), None) != name:
            self._all[name] = self._all.pop(name)
            self._write()

    def drop(self, name: str) -> None:
        if self._all.pop(name, None) is not None:
            self._write()

    def spare(self, in_use: Collection[str]) -> list[str]:
        """What may go: neither in use nor among the last two that were."""
        return [name for name in list(self._all)[:-KEPT] if name not in in_use]

    def _write(self) -> None:
        write(self._path, self._all)


def write(path: Path, what: Mapping[str, Any]) -> None:
    """On disk when it returns, whole or not at all."""
    temporary = path.with_name(f".{path.name}.tmp")
    with temporary.open("w", encoding="utf-8") as file:
        json.dump(what, file, indent=1)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
