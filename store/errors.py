"""Errors of the store.

StoreError
├── StoreBusy              another process owns the home folder
├── StoreClosed            the store was closed before this
├── StoreDamaged           the database failed its check
├── ForeignSchema          the file has tables, triggers or the like that no rlproxy made
├── StoreFull              no space: nothing of this operation was kept
├── StoreAway              the shared database cannot be reached, or does not answer
├── KeyProblem
│   ├── NoKey              the key is not where the settings say, or is none
│   ├── WrongKey           the key that is there does not open this file
│   ├── NotEncrypted       there is a key, and the database is in the clear
│   └── MissingExtra       what encryption needs is not installed
├── DuplicateCompletion    the id was given before
├── CompletionEnded        it was finished before
├── RunEnded               it was ended before
├── InOpenRun              a run under way has it: it cannot be forgotten now
├── NameTaken              another key or line has it
├── NoAnswer               the completion has ended without a reply, so nothing of it can be rated
├── EventTaken             the event was stored, and said something else then
├── LinkTaken              another key has linked that message
├── EpisodeTaken           another episode has that id
├── EpisodeEnded           its reward was given
├── EpisodeUsed            a run has taken it with another reward
├── NoReward               it cannot end without one
└── Unknown
    ├── UnknownCompletion
    ├── UnknownRating
    ├── UnknownRun
    ├── UnknownAdapter
    ├── UnknownEpisode
    ├── UnknownLine
    └── UnknownKey
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import Final

from store.records import Rating

POSTGRES_FULL: Final = "53100"  # PostgreSQL's disk_full


class StoreError(Exception):
    pass


class StoreBusy(StoreError):
    def __init__(self, home: str, pid: int | None) -> None:
        super().__init__(f"{home} is in use by {f'process {pid}' if pid else 'another process'}.")
        self.pid = pid


class StoreClosed(StoreError):
    pass


class StoreDamaged(StoreError):
    pass


class ForeignSchema(StoreError):
    """A file that could act by itself, as by a trigger; nothing of it was read and nothing was changed."""

    def __init__(self, path: str, differences: Sequence[str]) -> None:
        listed = ", ".join(differences[:5]) + (f" and {len(differences) - 5} more" if len(differences) > 5 else "")
        super().__init__(
            f"{path} is not as rlproxy makes its databases ({listed}). Foreign parts could act by themselves, as to "
            "bring back a revoked key, so it was not opened. The file and the home are as they were. Restore another "
            "backup, or take away with SQLite's own shell what you added yourself (as by DROP TRIGGER)."
        )


class StoreFull(StoreError):
    pass


class StoreAway(StoreError):
    """The shared database (`store.url`) cannot be reached, or has not answered."""


class KeyProblem(StoreError):
    """An error of encryption at rest; nothing was changed."""


class NoKey(KeyProblem):
    pass


class WrongKey(KeyProblem):
    def __init__(self, path: str) -> None:
        super().__init__(
            f"The key does not open {path}: it is of another key, or the file is damaged; nothing was changed."
        )


class NotEncrypted(KeyProblem):
    def __init__(self, path: str) -> None:
        super().__init__(
            f"store.key_from names a key and {path} is not encrypted: run `rlproxy encrypt`, or take the setting away."
        )


class MissingExtra(KeyProblem):
    pass


class NotOverwritten(StoreError):
    """The forgotten data is deleted, and copies of it may still be in gaps of the file."""


class DuplicateCompletion(StoreError):
    pass


class CompletionEnded(StoreError):
    pass


class RunEnded(StoreError):
    pass


class ExperimentRuns(StoreError):
    """One runs already."""

    def __init__(self, version: int) -> None:
        super().__init__(
            f"The experiment with v{version} is running, and one runs at a time: wait for its end, or "
            "`rlproxy experiment stop`."
        )


class InOpenRun(StoreError):
    def __init__(self, run: int) -> None:
        super().__init__(
            f"Run {run} is training on it, or from a version that did: cancel that run, or wait until it has ended. "
            "Nothing was forgotten."
        )
        self.run = run


class NameTaken(StoreError):
    pass


class Unknown(StoreError):
    pass


class UnknownCompletion(Unknown):
    def __init__(self, id: str) -> None:
        super().__init__(f"There is no completion {id!r}.")


class UnknownRating(Unknown):
    def __init__(self, id: str) -> None:
        super().__init__(f"There is no rating {id!r}.")


class NoAnswer(StoreError):
    def __init__(self, id: str, error: str | None) -> None:
        reason = f": {error}" if error else ""
        super().__init__(f"The completion {id} has no answer{reason}")
        self.id, self.reason = id, error


class EventTaken(StoreError):
    """An event that was stored says something else now."""

    def __init__(self, rating: Rating) -> None:
        super().__init__(f"This event is stored as {rating.id}, a rating of {rating.completion_id}.")
        self.rating = rating


class LinkTaken(StoreError):
    """A message that another key has linked."""

    def __init__(self, channel: str, message_id: str) -> None:
        super().__init__(f"The message {message_id} in {channel} was linked by another key.")


class EpisodeTaken(StoreError):
    def __init__(self, id: str, reason: str = "exists already, and says something else") -> None:
        super().__init__(f"The episode {id!r} {reason}; nothing was changed.")


class EpisodeEnded(StoreError):
    def __init__(self, id: str) -> None:
        super().__init__(f"The episode {id!r} has ended, since its reward was given; nothing was changed.")


class EpisodeUsed(StoreError):
    def __init__(self, id: str, reason: str) -> None:
        super().__init__(f"The reward of {id!r} stays as it is, since {reason}; a new attempt needs a new id.")


class NoReward(StoreError):
    def __init__(self, id: str) -> None:
        super().__init__(f"The episode {id!r} has no reward to end with: send `reward`, or `error` to leave it out.")


class UnknownEpisode(Unknown):
    def __init__(self, id: str) -> None:
        super().__init__(f"There is no episode {id!r}: no request of this key has named that session.")


class UnknownRun(Unknown):
    def __init__(self, id: int) -> None:
        super().__init__(f"There is no run {id}.")


class UnknownAdapter(Unknown):
    def __init__(self, version: int) -> None:
        super().__init__(f"There is no adapter version {version}.")


class UnknownKey(Unknown):
    pass


class UnknownLine(Unknown):
    pass


def translated(error: Exception) -> StoreError:
    """Translate an error of the database into one of this store."""
    # An error that Python itself raises has no code; the low byte is the primary one.
    is_full = (getattr(error, "sqlite_errorcode", None) or 0) & 0xFF == sqlite3.SQLITE_FULL
    if is_full or getattr(error, "sqlstate", None) == POSTGRES_FULL:
        return StoreFull("The disk is full, this was not stored; free some space and try again.")
    # PostgreSQL's own sentence has the values, too.
    reason = getattr(getattr(error, "diag", None), "message_primary", None) or error
    return StoreError(f"The database refused this, it was not stored: {reason}.")
