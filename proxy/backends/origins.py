"""The model file that each version was made from, kept where a version is taken out of the server.

A server's model may be updated under its name. An adapter belongs to the weights it was trained on: made anew on
others it would answer under its old name and say something else. Not here: what the server has (the backends).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

from proxy.backends.installed_versions import write

MOST: Final = 1000  # versions; the oldest are forgotten


class Origins:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._all: dict[str, str] = {}  # a version's number and digest; the digest of the model's file
        if path.exists():
            self._all = json.loads(path.read_text(encoding="utf-8"))

    def earlier_file(self, version: str, now: str | None) -> str | None:
        """The digest of the file that this version was made of, where the model has another one now."""
        digest = self._all.get(version)
        return digest if now is not None and digest != now else None

    def record(self, version: str, file: str | None) -> None:
        """Keeps the first entry: a version that is made anew uses the same file."""
        if file is None or version in self._all:
            return
        self._all = dict([*self._all.items(), (version, file)][-MOST:])
        write(self._path, self._all)
