"""Which arm of an experiment a conversation gets, and that it keeps it.

Owns the draw: a hash of the experiment's salt and of the conversation. A conversation that was under way when the
experiment began is not drawn. It stays with the version that it had, and counts for nothing. Not here: when an
experiment begins and ends (experiments).
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Final, NamedTuple

from store.learning.experiments import Experiment
from store.records import ExperimentTurn

KEY_BYTES: Final = 16
_WHOLE: Final = 2.0 ** (8 * KEY_BYTES)


class Assignment(NamedTuple):
    version: int
    turn: ExperimentTurn


class Arms:
    """The running experiment, if there is one, and the conversations that it has drawn."""

    def __init__(self) -> None:
        self.experiment: Experiment | None = None
        self._drawn: dict[bytes, bool] = {}

    def begin(self, experiment: Experiment, drawn: Mapping[bytes, bool]) -> None:
        """`drawn`: those of before a restart."""
        self.experiment, self._drawn = experiment, dict(drawn)

    def end(self) -> None:
        self.experiment, self._drawn = None, {}

    def versions(self) -> set[int]:
        """Those that have to stay loaded."""
        return set() if self.experiment is None else {self.experiment.version, self.experiment.against}

    @property
    def conversations(self) -> tuple[int, int]:
        """Conversations of the candidate, and of the parent."""
        of_candidate = sum(self._drawn.values())
        return of_candidate, len(self._drawn) - of_candidate

    def assign(self, name: bytes, *, has_history: bool) -> Assignment | None:
        """The arm of the conversation with this name; None where it has none. `has_history`: the model has answered in
        it before."""
        experiment = self.experiment
        if experiment is None:
            return None
        key = hashlib.blake2b(name, key=experiment.salt, digest_size=KEY_BYTES).digest()
        if key not in self._drawn:
            if has_history:
                return None
            self._drawn[key] = int.from_bytes(key, "big") / _WHOLE < experiment.share
        is_candidate = self._drawn[key]
        version = experiment.version if is_candidate else experiment.against
        return Assignment(version, ExperimentTurn(experiment.id, key, is_candidate))
