"""The user's own reward of an episode: `reward(episode)` of `train.reward`, asked where no program gives one.

Owns when it is asked, and what it sees. An open episode was quiet for a while, or its harness has ended it without a
reward. What it returns is stored as a program's reward, with the hash of the code. One that fails or returns None costs
that reward alone. The same code is not asked about that episode again, until `rlproxy rescore --episodes`. Not here:
the process that it runs in (proxy.core.own_code), what is stored (store.learning.episode_scores).
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

import structlog

from config.sections import Train, own_function
from proxy.core.errors import BadRequest, Conflict
from proxy.core.events import Events
from proxy.core.own_code.child import OwnCode, OwnCodeFailed
from proxy.core.own_code.reward import OwnReward, reward_of
from proxy.training.segments import segments
from store.copies import export
from store.errors import StoreError
from store.learning.episodes import Episode, NewReward, RewardResult
from store.store import Store

log = structlog.get_logger()

LOOK_S: Final = 2.0  # between two looks at episodes that have become quiet
AT_ONCE: Final = 20  # episodes between two looks
REST_RATIO: Final = 4.0  # times as long at rest as at work: answers come first
REST_S: Final = 5.0  # at most


class RewardFunction:
    def __init__(self, settings: Train, store: Store, events: Events) -> None:
        self._settings = settings
        self._store = store
        self._events = events
        function = own_function(settings.reward)
        self._code = function and OwnCode(
            *function,
            timeout_s=settings.reward_timeout_s,
            memory_mb=settings.reward_memory_mb,
            settings="train.reward_",
        )
        self._wake = asyncio.Event()
        self.on_end: Callable[[Episode], None] = lambda episode: None  # told of each episode that it has ended
        self.problem: str | None = None

    @property
    def on(self) -> bool:
        return self._code is not None

    async def run(self) -> None:
        """For ever, in a task of its own."""
        while self.on:
            self._wake.clear()
            has_more, began = False, time.monotonic()
            try:
                has_more = await self.step()
            except StoreError as error:
                log.error("rewards of your own code wait for the store", error=str(error))
            except Exception:  # relaying, capture, and other rewards go on without it
                log.exception("rewards of your own code")
            await asyncio.sleep(min(REST_S, REST_RATIO * (time.monotonic() - began)))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(0.05 if has_more else LOOK_S):
                    await self._wake.wait()

    async def step(self) -> bool:
        """Some of the episodes that wait; whether there may be more. Raises StoreError."""
        if self._code is None or self._store.integrity.state == "damaged":
            return False
        try:
            hash = await asyncio.to_thread(self._code.hash)
        except OwnCodeFailed as error:  # the episodes wait: the file may come back
            self.problem = str(error)
            return False
        quiet_s = self._settings.reward_quiet_s
        waiting = await self._store.episode_scores.waiting(hash, quiet_s=quiet_s, limit=AT_ONCE)
        for episode in waiting:
            with contextlib.suppress(OwnCodeFailed):  # said and kept already
                await self._ask(episode, NewReward(episode.id, episode.key), hash)
        return len(waiting) == AT_ONCE

    async def end(self, new: NewReward) -> RewardResult:
        """The harness has ended the episode, and leaves its reward to the function. Raises BadRequest, StoreError."""
        assert self._code is not None
        episode = await self._store.episode_scores.adopt(new.episode, new.key)
        try:
            rewarded = await self._ask(episode, new, await asyncio.to_thread(self._code.hash))
        except OwnCodeFailed as error:
            raise BadRequest(
                f"`train.reward` failed for {episode.id!r}, which has no reward yet: {error}.", param="reward"
            ) from None
        if rewarded is None:
            raise BadRequest(
                f"`train.reward` has no reward for {episode.id!r}, and a missing reward is not 0.", param="reward"
            )
        return rewarded

    async def rate(self, episode: Episode) -> RewardResult | None:
        """Ask for the reward of an open episode now; None where the code gives none. Raises OwnCodeFailed, which is
        kept, too."""
        assert self._code is not None
        return await self._ask(episode, NewReward(episode.id, episode.key), await asyncio.to_thread(self._code.hash))

    async def _ask(self, episode: Episode, new: NewReward, hash: str) -> RewardResult | None:
        """Ask the function, and store what it says. Raises OwnCodeFailed, which is kept, too."""
        assert self._code is not None
        reward: OwnReward | None = None
        failed: OwnCodeFailed | None = None
        try:
            value, hash = await self._code.call(await self._exported(episode))
            reward, self.problem = reward_of(value), None
        except OwnCodeFailed as error:
            failed, self.problem = error, f"{episode.id} has no reward of your own code: {error}"
            log.warning("the user's own code gave no reward", episode=episode.id, why=str(error))
        stored = reward and replace(new, value=reward.value, comment=reward.comment or None)
        rewarded = await self._store.episode_scores.keep(episode, stored, hash)
        if rewarded is not None:
            self.on_end(rewarded.episode)
            self._events.note("episode")
        if failed is not None:
            raise failed
        return rewarded

    async def _exported(self, episode: Episode) -> dict[str, Any]:
        """The episode with its main turns, as exported and without tokens."""
        rows = await self._store.episodes.turns(episode)
        turns = await self._store.completions.many([turn.completion_id for turn in rows])
        return {
            "id": episode.id,
            "task": episode.task,
            "group": episode.group,
            "split": episode.split,
            "meta": episode.meta,
            "version": episode.version,
            "opened_at": episode.opened_at,
            "turns": [
                {**export.without_tokens(turn), "segment": segment}
                for turn, segment in zip(turns, segments(turns), strict=True)
            ],
        }

    async def rescore(self, since: float) -> int:
        """Have the function see episodes opened since then once more; how many. Raises Conflict."""
        if not self.on:
            raise Conflict("No reward function is set. Set train.reward to one, and start rlproxy again.")
        waiting = await self._store.episode_scores.reset_scores(since)
        self._wake.set()
        return waiting

    async def stop(self) -> None:
        if self._code is not None:
            await self._code.stop()
