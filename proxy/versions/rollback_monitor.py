"""Watches a version after it went live: one that people like less than the one before is rolled back by itself.

Owns which ratings are compared, the rollback and its reason. A version that a person made live is theirs: it is not
watched. Not here: the test and its error rates (sequential_test), the swap.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any, Final

import structlog

from config.sections import Train
from proxy.core.errors import ProxyError
from proxy.core.events import Events
from proxy.core.version_names import version_in_words
from proxy.versions.live_version import Overtaken, Swap
from proxy.versions.sequential_test import NEW, Comparison, compare
from store.errors import StoreError
from store.learning.versions import RATED_BEFORE
from store.records import BASE, Pointer
from store.store import Store

log = structlog.get_logger()

ACTOR: Final = "rlproxy"
EVERY: Final = 2**62
RETRY_S: Final = 10.0  # where the rollback itself failed


class RollbackMonitor:
    def __init__(self, train: Train, store: Store, swap: Swap, events: Events) -> None:
        self._train = train
        self._store = store
        self._swap = swap
        self._events = events
        self._wake = asyncio.Event()
        self._wake.set()  # what a crash left half done is found at the start

    def wake(self) -> None:
        """A rating came or went."""
        self._wake.set()

    async def run(self) -> None:
        """For ever. In a task of its own: a training run may take hours, a bad version should not."""
        retry: float | None = None
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(retry):
                    await self._wake.wait()
            self._wake.clear()
            try:
                await self.look()
                retry = None
            except (ProxyError, StoreError) as error:
                log.error("a version that is rated worse could not be rolled back", error=str(error))
                retry = RETRY_S
            except Exception:  # whatever it is: the next rating is looked at again
                log.exception("watch")

    async def look(self) -> None:
        """Roll the live version back if it is rated worse than the one before. Raises ProxyError, StoreError."""
        pointer = self._swap.pointer
        live, before = pointer.live, pointer.previous
        found = await self.comparison(pointer)
        if found is None:
            return
        adapter = await self._store.versions.get(live)
        back_to = await self._swap.way_back()
        if self._swap.pointer is not pointer:  # by now another one is live: it is looked at by its own ratings
            self.wake()
            return
        reason = adapter.withdrawn if adapter else None
        if reason is None:
            if not found.worse:
                return
            reason = (
                f"{version_in_words(live)} was rated worse than {version_in_words(before)}, beyond chance: "
                f"{found.new}, {found.old} before (p = {found.p:.2g})"
            )
            await self._store.versions.withdraw(
                live, reason, ACTOR
            )  # first: a crash from here on ends in the rollback too
        try:
            await self._swap.to(back_to, f"rolled back by itself: {reason}", ACTOR, instead_of=live)
        except Overtaken:
            log.warning("withdrawn, and not live any more", version=live, reason=reason)
            return
        log.warning("rolled back", reason=reason)
        self._events.emit("watch", version=live, back_to=back_to, reason=reason)

    async def comparison(self, pointer: Pointer) -> Comparison | None:
        """The comparison of the live version with the one before; None where there is nothing to watch."""
        went_live_by_itself = pointer.actor == ACTOR and pointer.live > pointer.previous
        if not self._train.watch or pointer.live == BASE or not went_live_by_itself:
            return None
        before = await self._store.meta.get(RATED_BEFORE, EVERY)  # not known of a swap of before it was kept
        share, raters = self._train.max_rater_share, self._train.raters
        rated_old = await self._store.opinions.votes(pointer.previous, share, raters, alone=True)
        old = [vote.good for vote in rated_old if vote.seq <= before]
        return compare(old, [vote.good for vote in await self._store.opinions.votes(pointer.live, share, raters)])

    async def report(self) -> dict[str, Any] | None:
        """For `status`: what is watched and how it stands, or what was rolled back."""
        pointer = self._swap.pointer
        if (found := await self.comparison(pointer)) is not None:
            return {
                "version": pointer.live,
                "against": pointer.previous,
                "new": found.new._asdict(),
                "old": found.old._asdict(),
                "p": found.p,
                "state": "over" if found.over else "watching",
                "line": _line(pointer.live, pointer.previous, found),
            }
        before = await self._store.versions.get(pointer.previous)
        if pointer.actor == ACTOR and before is not None and before.withdrawn:
            return {"version": before.version, "against": pointer.live, "state": "rolled back", "line": pointer.reason}
        return None


def _line(live: int, before: int, found: Comparison) -> str:
    watched = "it is rolled back by itself if it is rated worse beyond chance"
    how = f"its first {NEW} ratings are over" if found.over else watched
    return f"{version_in_words(live)}: {found.new}; {version_in_words(before)}: {found.old}; {how}"
