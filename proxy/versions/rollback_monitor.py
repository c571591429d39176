"""Watches a version after it went live. One that people like less than the one before, or that succeeds in fewer
evaluation episodes, is rolled back by itself.

Owns which ratings and episodes are compared, the rollback and its reason. A version that a person made live is theirs:
it is not watched. Not here: the test and its error rates (sequential_test), the swap.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from typing import Annotated, Final, Literal, NamedTuple, NotRequired

import structlog
from pydantic import Field
from typing_extensions import TypedDict

from config.sections import Train
from proxy.core.errors import ProxyError
from proxy.core.events import Events
from proxy.core.version_names import version_in_words
from proxy.versions.live_version import LiveVersion, Overtaken
from proxy.versions.sequential_test import NEW, Comparison, compare
from store.errors import StoreError
from store.file.meta import of_line
from store.learning.versions import RATED_BEFORE
from store.line_records import COMMON, Pointer
from store.records import BASE
from store.store import Store

log = structlog.get_logger()

ACTOR: Final = "rlproxy"
EVERY: Final = 2**62
RETRY_S: Final = 10.0  # where the rollback itself failed


class ShareBody(TypedDict):
    good: int
    rated: int


class ComparisonBody(TypedDict):
    new: ShareBody
    old: ShareBody
    p: float


class WatchBody(TypedDict):
    version: Annotated[int, Field(ge=0)]
    against: Annotated[int, Field(ge=0)]
    new: NotRequired[ShareBody | None]
    old: NotRequired[ShareBody | None]
    p: NotRequired[float | None]
    episodes: NotRequired[Annotated[ComparisonBody | None, Field(description="Of successes in evaluation episodes.")]]
    state: Literal["watching", "over", "rolled back"]
    line: str


class WatchedComparison(NamedTuple):
    """A comparison of the live version with the one before, and what it counts."""

    of: Literal["ratings", "episodes"]
    comparison: Comparison

    def reason(self, live: int, previous: int) -> str:
        new, old, names = self.comparison.new, self.comparison.old, (version_in_words(live), version_in_words(previous))
        if self.of == "ratings":
            return (
                f"{names[0]} was rated worse than {names[1]}, beyond chance: {new}, {old} before "
                f"(p = {self.comparison.p:.2g})"
            )
        return (
            f"{names[0]} succeeded in fewer evaluation episodes than {names[1]}, beyond chance: {new.good} of "
            f"{new.rated}, {old.good} of {old.rated} before (p = {self.comparison.p:.2g})"
        )

    def line(self, live: int, previous: int) -> str:
        new, old, names = self.comparison.new, self.comparison.old, (version_in_words(live), version_in_words(previous))
        if self.of == "ratings":
            summary, worse = f"{names[0]}: {new}; {names[1]}: {old}", "it is rated worse"
        else:
            summary = (
                f"evaluation episodes: {names[0]}: {new.good} of {new.rated}; {names[1]}: {old.good} of {old.rated}"
            )
            worse = "it succeeds less often"
        over = f"its first {NEW} {self.of} are over"
        return f"{summary}; {over if self.comparison.over else f'it is rolled back by itself if {worse} beyond chance'}"


class RollbackMonitor:
    def __init__(self, train: Train, store: Store, live_version: LiveVersion, events: Events) -> None:
        self._train = train
        self._store = store
        self._live_version = live_version
        self._events = events
        self._wake = asyncio.Event()
        self._wake.set()  # what a crash left half done is found at the start

    def wake(self) -> None:
        """A rating or an episode's reward came or went."""
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
        """Roll the live version of each line back if it is rated worse than the one before. Raises ProxyError,
        StoreError."""
        for line in self._live_version.lines:
            await self._look_at(line)

    async def _look_at(self, line: str) -> None:
        pointer = self._live_version.pointer_of(line)
        live, previous = pointer.live, pointer.previous
        watched = await self.comparisons(pointer, line)
        if not watched:
            return
        adapter = await self._store.versions.get(live)
        back_to = await self._live_version.way_back(line)
        if self._live_version.pointer_of(line) is not pointer:  # another one is: its own ratings are looked at
            self.wake()
            return
        reason = adapter.withdrawn if adapter else None
        if reason is None:
            worse = next((watch for watch in watched if watch.comparison.worse), None)
            if worse is None:
                return
            reason = worse.reason(live, previous)
            await self._store.versions.withdraw(
                live, reason, ACTOR
            )  # first: a crash from here on ends in the rollback too
        try:
            because = f"rolled back by itself: {reason}"
            await self._live_version.to(back_to, because, ACTOR, instead_of=live, line=line)
        except Overtaken:
            log.warning("withdrawn, and not live any more", version=live, reason=reason)
            return
        log.warning("rolled back", reason=reason)
        self._events.emit("watch", version=live, back_to=back_to, reason=reason)

    async def comparisons(self, pointer: Pointer, line: str = COMMON) -> list[WatchedComparison]:
        """The comparisons of a line's live version with the one before: by ratings and, where both have some, by
        evaluation episodes. Empty where there is nothing to watch."""
        went_live_by_itself = pointer.actor == ACTOR and pointer.live > pointer.previous
        if not self._train.watch or pointer.live == BASE or not went_live_by_itself:
            return []
        # Not known of a swap of before it was kept.
        last_rating = await self._store.meta.get(of_line(RATED_BEFORE, line), EVERY)
        share, raters = self._train.max_rater_share, self._train.raters
        rated_old = await self._store.opinions.votes(pointer.previous, share, raters, version_only=True, line=line)
        old = [vote.good for vote in rated_old if vote.seq <= last_rating]
        rated_new = [vote.good for vote in await self._store.opinions.votes(pointer.live, share, raters, line=line)]
        watched = [WatchedComparison("ratings", compare(old, rated_new))]
        # What is still evaluated on the version before does not move what the new one is compared with.
        tried_old = await self._store.episodes.evaluated(pointer.previous, until=pointer.changed_at)
        tried_new = await self._store.episodes.evaluated(pointer.live)
        if tried_old and tried_new:
            watched.append(WatchedComparison("episodes", compare(tried_old, tried_new)))
        return watched

    async def report(self, line: str = COMMON) -> WatchBody | None:
        """For `status`: what is watched and how it stands, or what was rolled back."""
        pointer = self._live_version.pointer_of(line)
        if watched := await self.comparisons(pointer, line):
            bodies = {watch.of: _comparison_body(watch.comparison) for watch in watched}
            return {
                "version": pointer.live,
                "against": pointer.previous,
                "new": bodies["ratings"]["new"],
                "old": bodies["ratings"]["old"],
                "p": bodies["ratings"]["p"],
                "episodes": bodies.get("episodes"),
                "state": "over" if all(watch.comparison.over for watch in watched) else "watching",
                "line": "; ".join(watch.line(pointer.live, pointer.previous) for watch in _spoken(watched)),
            }
        previous = await self._store.versions.get(pointer.previous)
        if pointer.actor == ACTOR and previous is not None and previous.withdrawn:
            return {
                "version": previous.version,
                "against": pointer.live,
                "state": "rolled back",
                "line": pointer.reason,
            }
        return None


def _spoken(watched: Sequence[WatchedComparison]) -> Sequence[WatchedComparison]:
    """Those that have something to tell; all where none has."""
    return [watch for watch in watched if watch.comparison.old.rated or watch.comparison.new.rated] or watched


def _comparison_body(comparison: Comparison) -> ComparisonBody:
    new, old = comparison.new, comparison.old
    return {
        "new": {"good": new.good, "rated": new.rated}, "old": {"good": old.good, "rated": old.rated}, "p": comparison.p,
    }  # fmt: skip
