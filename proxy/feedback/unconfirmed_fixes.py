"""Corrections of several lines, which count once the person has said `/rl fix` alone.

A correction trains, and a page that somebody pastes above a question of theirs may begin with `/rl fix:`. What follows
is then the page and the question. Nobody can tell that from a correction of several lines by looking at it, so the
person is asked. Owns what waits for that: in memory only, for a while. Not here: what is said to the person.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Final

KEPT_S: Final = 900.0
MOST: Final = 64  # of 20,000 characters at most

FixKey = tuple[str, str]  # completion and rater


class UnconfirmedFixes:
    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._texts: OrderedDict[FixKey, tuple[float, str]] = OrderedDict()

    def keep(self, key: FixKey, text: str) -> None:
        """In place of what waits there."""
        self._let_go()
        self._texts.pop(key, None)
        self._texts[key] = (self._clock(), text)
        if len(self._texts) > MOST:
            self._texts.popitem(last=False)

    def of(self, key: FixKey) -> str | None:
        """It stays: a chat platform may send the confirmation twice."""
        self._let_go()
        entry = self._texts.get(key)
        return None if entry is None else entry[1]

    def clear(self) -> None:
        """Something is forgotten: it may be in one of these."""
        self._texts.clear()

    def _let_go(self) -> None:
        oldest = self._clock() - KEPT_S
        while self._texts and next(iter(self._texts.values()))[0] < oldest:
            self._texts.popitem(last=False)
