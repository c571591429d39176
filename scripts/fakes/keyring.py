"""A keyring as Python's `keyring` knows them, in a file: for a machine that has none."""

from __future__ import annotations

import json
from pathlib import Path

from keyring.backend import KeyringBackend
from keyring.errors import KeyringLocked


class FileKeyring(KeyringBackend):
    priority = 1

    def __init__(self, path: Path, *, locked: bool = False) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._path = path
        self._locked = locked

    def get_password(self, service: str, username: str) -> str | None:
        if self._locked:
            raise KeyringLocked("it is locked")
        return self._all().get(f"{service} {username}")

    def set_password(self, service: str, username: str, password: str) -> None:
        self._path.write_text(json.dumps({**self._all(), f"{service} {username}": password}))

    def delete_password(self, service: str, username: str) -> None:
        passwords = self._all()
        del passwords[f"{service} {username}"]
        self._path.write_text(json.dumps(passwords))

    def _all(self) -> dict[str, str]:
        passwords: dict[str, str] = json.loads(self._path.read_text()) if self._path.exists() else {}
        return passwords
