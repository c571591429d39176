"""A home folder from the clear to encrypted, or back: the database and all copies of it that lie beside it.

Owns which files those are and their order: the database first, so that from then on nothing new is in the clear. What
a kill leaves undone, the next call of the same does. Not here: one file's conversion (conversion), run folders and the
settings (proxy.cli.database.encrypting), backups that a person put elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from store.copies import backup
from store.errors import NoKey, StoreError
from store.file import conversion, driver, meta, schema, torn_log
from store.file.conversion import Progress
from store.file.db_key import Secret
from store.file.lock import Lock


@dataclass
class ConversionReport:
    files: list[Path] = field(default_factory=list)  # by now, those that were there already left out
    failures: dict[Path, str] = field(default_factory=dict)  # copies that could not be, and why


@contextmanager
def owned(home: Path) -> Iterator[None]:
    """No rlproxy runs here meanwhile, and nothing that was acknowledged is lost by opening the database. Raises
    StoreBusy, StoreDamaged."""
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    lock = Lock(home)
    try:
        torn_log.check(home / schema.NAME)
        yield
    finally:
        lock.release()


def encrypt(home: Path, secret: Secret, progress: Progress) -> ConversionReport:
    """Under `owned`. A home without a database gets an encrypted one at the first start."""
    return _all(home, secret, progress, encrypting=True)


def decrypt(home: Path, secret: Secret, progress: Progress) -> ConversionReport:
    """Under `owned`."""
    return _all(home, secret, progress, encrypting=False)


def is_encrypted(home: Path) -> bool | None:
    """None where there is no database. Only what it is not: a damaged one is not in the clear either."""
    path = home / schema.NAME
    conversion.tidy(path)
    return None if driver.is_new(path) else not driver.is_plain(path)


def note(home: Path, act: str, secret: Secret | None) -> None:
    """Under `owned`: that it was done, in the audit log; not of a database of an older rlproxy."""
    path = home / schema.NAME
    with closing(driver.connect(path, secret, with_names=True)) as db:
        if not schema.pending(db):
            db.execute("PRAGMA synchronous = FULL")
            db.execute("BEGIN IMMEDIATE")
            meta.audit(db, "cli", act, {})
            db.execute("COMMIT")


def _all(home: Path, secret: Secret, progress: Progress, *, encrypting: bool) -> ConversionReport:
    converted, path = ConversionReport(), home / schema.NAME
    conversion.tidy(path)
    torn_log.check(path)
    if not driver.is_new(path):
        if driver.is_plain(path) == encrypting:
            conversion.convert(path, secret, encrypt=encrypting, progress=progress)
            converted.files.append(path)
        elif encrypting:
            with closing(driver.connect(path, secret)):  # raises WrongKey: copies under another key would be lost
                pass
    for copy in copies(home):
        try:
            conversion.tidy(copy)
            if driver.is_plain(copy) == encrypting:
                conversion.convert(copy, secret, encrypt=encrypting, progress=progress)
                converted.files.append(copy)
        except (StoreError, OSError) as error:
            if isinstance(error, NoKey):
                raise
            converted.failures[copy] = str(error)
    return converted


def copies(home: Path) -> list[Path]:
    """Backups made by themselves, and databases that a restore has set aside."""
    set_aside = [f for f in home.glob(f"{schema.NAME}.replaced-*") if not f.name.endswith(("-wal", "-shm"))]
    endings = [conversion.COPY, conversion.OLD]
    files = [*(home / backup.FOLDER).glob("*.db"), *set_aside]
    return sorted(f for f in files if not f.name.endswith(tuple(endings)))
