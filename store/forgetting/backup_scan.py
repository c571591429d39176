"""Copies of the database in the home folder, and which of them still hold what somebody wants forgotten.

Owns finding them, whatever their names: those made before a migration, those that a restore set aside, backups that a
person put there. One is deleted whole or left as it is. A backup with rows taken out would be a copy of a moment that
never was. Not here: copies elsewhere, which nobody can find, and exports, which are plain text files.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Final, NamedTuple

from store.errors import StoreError
from store.file import driver, schema
from store.file.db_key import Secret
from store.records import Target

MAGIC: Final = driver.PLAIN_HEADER
SIDE_FILES: Final = ("-wal", "-shm", "-journal")
NOT_IN: Final = frozenset({"runs", "logs", "tensorboard", "gguf", "mlx"})  # folders of the home that hold no copies
LIKELY: Final = (".db", ".sqlite", ".sqlite3")  # what cannot be read and has no magic is one by its name
SET_ASIDE: Final = f"{schema.NAME}.replaced-"  # so begins one that a restore has put aside
PAGE: Final = 4096  # bytes; an encrypted database has whole pages and no magic
_HAS: Final = {
    "completion": "SELECT 1 FROM completions WHERE id = :name LIMIT 1",
    "session": "SELECT 1 FROM completions WHERE session = :name LIMIT 1",
    "user": "SELECT 1 FROM completions WHERE user = :name LIMIT 1",
    "rater": "SELECT 1 FROM ratings WHERE rater = :name UNION ALL SELECT 1 FROM reactions WHERE rater = :name LIMIT 1",
}


class BackupScan(NamedTuple):
    holding: tuple[Path, ...]
    unread: tuple[Path, ...]  # damaged, encrypted with another key, or not ours: nobody knows what is in it


def looked_through(home: Path, kind: Target, name: str, secret: Secret | None = None) -> BackupScan:
    """`db_key` opens those that are encrypted. Blocking."""
    holding, unread = [], []
    for file in sorted(_copies(home, is_encrypted=secret is not None)):
        has = _has(file, kind, name, secret)
        if has is None and _looks_like_one(file):
            unread.append(file)
        elif has:
            holding.append(file)
    return BackupScan(tuple(holding), tuple(unread))


def delete(files: Iterable[Path]) -> None:
    """With what SQLite keeps beside them. Blocking; raises OSError."""
    for file in files:
        for ending in ("", *SIDE_FILES):
            file.with_name(file.name + ending).unlink(missing_ok=True)


def _copies(home: Path, *, is_encrypted: bool) -> Iterator[Path]:
    """`is_encrypted`: files that only the key can tell, too."""
    for folder, inside, names in os.walk(home):
        directory = Path(folder)
        inside[:] = [
            name for name in inside if not ((directory == home and name in NOT_IN) or _is_version(directory / name))
        ]
        for name in names:
            file = directory / name
            # Opening a pipe would wait for whoever writes into it.
            if name.endswith(SIDE_FILES) or file == home / schema.NAME or file.is_symlink() or not file.is_file():
                continue
            if _looks_like_one(file) or (is_encrypted and _has_whole_pages(file)):
                yield file


def _is_version(folder: Path) -> bool:
    """An adapter's folder: gigabytes, and no database among them."""
    return (folder / "manifest.json").exists()


def _looks_like_one(file: Path) -> bool:
    return _begins_as_one(file) or file.name.endswith(LIKELY) or file.name.startswith(SET_ASIDE)


def _has_whole_pages(file: Path) -> bool:
    try:
        size = file.stat().st_size
    except OSError:
        return False
    return size > 0 and size % PAGE == 0


def _begins_as_one(file: Path) -> bool:
    try:
        with file.open("rb") as opened:
            return opened.read(len(MAGIC)) == MAGIC
    except OSError:
        return False


def _has(file: Path, kind: Target, name: str, secret: Secret | None) -> bool | None:
    # Without a log of its own it is not in use, and looking must leave no such log beside it.
    is_alone = not file.with_name(file.name + "-wal").exists()
    try:
        secret = None if _begins_as_one(file) else secret
        with closing(driver.connect(file, secret, read_only=True, immutable=is_alone)) as db:
            schema.check(db, file)
            return db.execute(_HAS[kind], {"name": name}).fetchone() is not None
    except driver.errors(StoreError):
        return None
