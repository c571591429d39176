"""Two small files beside the database that outlive it: keys that were revoked, and what was forgotten.

Owns them, and in them whether a key is asked for: a line closes the home, a line with a later number opens it. A
database can be replaced by an older one: by `rlproxy restore`, by hand, or because it was damaged. These
files only grow, so what an older database has again is known to be gone. They hold no names and no text: ids of keys,
and hashes of the ids of completions and ratings.
Not here: who applies them (keys, backup).
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Final, NamedTuple

from store.errors import StoreError
from store.file import conversion

REVOKED: Final = "rlproxy.revoked"  # a line for each key; and one once there was any key
FORGOTTEN: Final = "rlproxy.forgotten"  # a line for each completion or rating
NEEDED: Final = "keys-needed"  # with a number: again, after so many openings
OPENED: Final = "keys-open"  # with a number: the first time, the second time
STATE: Final = re.compile(rf"({NEEDED}|{OPENED})(?:-(\d+))?")
HASH_BYTES: Final = 16


class RevokedKeys(NamedTuple):
    needed: bool  # there was a key once, so nobody comes in without one
    keys: frozenset[str]
    openings: int = 0  # how often an admin has ended that

    @property
    def is_open(self) -> bool:
        """Tell whether an admin has ended the need for keys, and nobody has made one since."""
        return self.openings > 0 and not self.needed


def revoked(home: Path) -> RevokedKeys:
    """Blocking; raises StoreError."""
    lines = _lines(home / REVOKED)
    states = [match for line in lines if (match := STATE.fullmatch(line)) is not None]
    closed, opened = ([int(match[2] or 0) for match in states if match[1] == kind] for kind in (NEEDED, OPENED))
    openings = max(opened, default=0)
    return RevokedKeys(max(closed, default=-1) >= openings, lines - {match[0] for match in states}, openings)


def note_keys(home: Path, keys: Iterable[str], *, needed: bool) -> None:
    """Append what the file lacks; on disk when this returns. Blocking; raises StoreError."""
    stored = revoked(home)
    state = f"{NEEDED}-{stored.openings}" if stored.openings else NEEDED
    _append(home / REVOKED, [*([state] if needed and not stored.needed else []), *set(keys) - stored.keys])


def note_opened(home: Path) -> None:
    """No key is asked for until the next one is made; on disk when this returns. Blocking; raises StoreError."""
    if (stored := revoked(home)).needed:
        _append(home / REVOKED, [f"{OPENED}-{stored.openings + 1}"])


def forgotten(home: Path) -> frozenset[str]:
    """Hashes, as `hash_of` makes them. Blocking; raises StoreError."""
    return _lines(home / FORGOTTEN)


def note_forgotten(home: Path, ids: Iterable[str]) -> None:
    """Append what the file lacks; on disk when this returns. Blocking; raises StoreError."""
    lines = _lines(home / FORGOTTEN)
    _append(home / FORGOTTEN, [line for line in map(hash_of, ids) if line not in lines])


def hash_of(id: str) -> str:
    return hashlib.blake2b(id.encode(), digest_size=HASH_BYTES).hexdigest()


def _lines(file: Path) -> frozenset[str]:
    try:
        return frozenset(file.read_text(encoding="ascii").split())
    except FileNotFoundError:
        return frozenset()
    except (OSError, UnicodeDecodeError) as error:
        raise StoreError(
            f"{file} cannot be read ({error}). It says what must not come back with an older database, so nothing was "
            "opened: make it readable, or put back a copy of it."
        ) from error


def _append(file: Path, lines: list[str]) -> None:
    if not lines:
        return
    # A line that a kill has cut ends here: it is of no key then, and the next start notes that key again.
    text = "\n" + "".join(f"{line}\n" for line in lines)
    try:
        with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "wb") as opened:
            opened.write(text.encode("ascii"))
            opened.flush()
            os.fsync(opened.fileno())
        conversion.sync(file.parent)
    except OSError as error:
        raise StoreError(f"{file} could not be written ({error}), so a backup may bring back what is gone.") from error
