"""Record of what rlproxy has put into somebody else's server, written down in our own home.

Owns the record: names, what each was made of, and the order of their use. A mark tells the names of this home from
those of another one at the same server. Nothing that is not in the record is ever removed. Nothing that is there under
one of its names without being in it is ever replaced. Removing is the backends'.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import secrets
from collections.abc import Collection, Iterator, Mapping
from functools import cached_property
from itertools import count
from pathlib import Path
from typing import Any, Final

SPARES: Final = 2  # versions that stay in the server though nobody uses them: a rollback finds them there
MARK: Final = "home-mark.json"
MACHINE: Final = Path("/etc/machine-id")  # two machines may share a server, and a home's path


def mark_of(home: Path) -> str:
    """Six hexadecimal digits that are in every name this home gives to something in a shared server.

    They follow from a random word, written once, and from where the home is. So a copy of a home has another mark: it
    neither answers with its original's versions nor removes them. A home that was moved makes its versions anew.
    """
    path = home / MARK
    try:
        word = str(json.loads(path.read_text(encoding="utf-8"))["word"])
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        word = secrets.token_hex(8)
        home.mkdir(parents=True, exist_ok=True)
        write(path, {"word": word})
    machine = ""
    with contextlib.suppress(OSError):
        machine = MACHINE.read_text(encoding="utf-8").strip()
    return hashlib.sha256(f"{word}\n{machine}\n{os.path.realpath(home)}".encode()).hexdigest()[:6]


class InstalledVersions:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._all: dict[str, dict[str, Any]] = {}  # the least recently used first
        if path.exists():
            self._all = json.loads(path.read_text(encoding="utf-8"))

    @cached_property
    def mark(self) -> str:
        return mark_of(self._path.parent)

    def adopt(self) -> None:
        """Adopt what was written before homes had a mark."""
        if any("home" not in entry for entry in self._all.values()):
            self._all = {name: {"home": self.mark, **entry} for name, entry in self._all.items()}
            self._write()

    def entry(self, name: str) -> Mapping[str, Any] | None:
        """The entry from when it was made; None where it is not ours, or of the home that this one was copied from."""
        entry = self._all.get(name)
        return entry if entry is not None and entry.get("home", self.mark) == self.mark else None

    def names(self) -> Collection[str]:
        return [name for name in self._all if self.entry(name) is not None]

    def candidates(self, name: str) -> Iterator[str]:
        """Names that a version may have there, the best first: `name` by itself only where this home has made that."""
        if self.entry(name) is not None:
            yield name
        yield f"{name}-{self.mark}"
        for n in count(2):
            yield f"{name}-{self.mark}-{n}"

    def record(self, name: str, **entry: Any) -> None:
        """Written before it is made, so that a crash in between leaves nothing that we do not know of."""
        self._all.pop(name, None)
        self._all[name] = {**entry, "home": self.mark}
        self._write()

    def mark_used(self, name: str) -> None:
        if next(reversed(self._all), None) != name:
            self._all[name] = self._all.pop(name)
            self._write()

    def drop(self, name: str) -> None:
        if self._all.pop(name, None) is not None:
            self._write()

    def spare(self, in_use: Collection[str]) -> list[str]:
        """Versions that may go: neither in use nor among the last two that were."""
        return [name for name in list(self.names())[:-SPARES] if name not in in_use]

    def _write(self) -> None:
        write(self._path, self._all)


def write(path: Path, content: Mapping[str, Any]) -> None:
    """On disk when it returns, whole or not at all."""
    temporary = path.with_name(f".{path.name}.tmp")
    with temporary.open("w", encoding="utf-8") as file:
        json.dump(content, file, indent=1)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
