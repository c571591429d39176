"""Rollouts: several answers to a captured prompt, sampled while nobody asks, and rewarded by the user's own code.

Owns when. No request is under way here, and none came for a while. No run trains. The hours, the minutes and the tokens
of the day allow it. A request or a run that comes breaks off what is being sampled. Answers that are stored stay, and
the next time the same prompt gets those that it lacks. Of several relays the one that learns samples. Not here: how a
prompt gets its answers (answers), which groups train (store.learning.episode_groups).
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import OrderedDict
from collections.abc import Coroutine
from datetime import datetime
from typing import Any, Final

import structlog

from config.hours import is_inside, opens
from proxy.core.errors import ProxyError
from proxy.core.own_code.child import OwnCodeFailed
from proxy.feedback.reward_function import RewardFunction
from proxy.relay.parts import RelayParts
from proxy.relay.rollouts.answers import RolloutAnswers, RolloutRefused
from proxy.relay.rollouts.bodies import RolloutsBody
from proxy.relay.rollouts.spending import Spending
from proxy.training.run_state import RunState
from store.errors import StoreError
from store.learning.rollouts import Spent

log = structlog.get_logger()

SILENCE_S: Final = 60.0  # without a request, before anything is sampled, where train.quiet_s names no time
LOOK_S: Final = 0.5  # between two looks at whether it may go on
REST_S: Final = 5.0  # before it is looked again whether it may begin
PAUSE_S: Final = 60.0  # after a server or a function that failed
REFUSALS: Final = 3  # in a row, after which it is the server and not the prompt
MOST_REFUSED: Final = 1000  # prompts that the server refused, which are asked again after the next start


class RolloutSampler:
    def __init__(self, parts: RelayParts, rewarding: RewardFunction, state: RunState) -> None:
        self._parts = parts
        self._settings = parts.settings.train
        self._store = parts.store
        self._rewarding = rewarding
        self._state = state
        self._spending = Spending(parts.store)
        self._answers = RolloutAnswers(parts, rewarding, self._spending)
        self._quiet_since = time.monotonic()  # who asked just before the start is not known
        self._silence_s = self._settings.quiet_s or SILENCE_S
        self._refused: OrderedDict[str, None] = OrderedDict()  # prompts, oldest first
        self._refusals = 0  # in a row
        self._postponed: set[str] = set()  # prompts that failed, until no other is left
        self._problem, self._retry_at = "", 0.0  # monotonic
        self._is_sampling = False
        self._blocking_reason: str | None = "nothing was looked at yet"

    @property
    def on(self) -> bool:
        return bool(self._settings.rollouts) and self._rewarding.on

    async def run(self) -> None:
        """For ever, in a task of its own."""
        while self.on:
            has_sampled = False
            try:
                has_sampled = await self.step()
            except StoreError as error:
                self._blocking_reason = f"the store failed: {error}"
                log.error("rollouts wait for the store", error=str(error))
            except Exception:  # relaying, capture, and other learning go on without it
                log.exception("rollouts")
                self._pause("sampling failed, and the log says why")
            await asyncio.sleep(0 if has_sampled else REST_S)

    async def report(self) -> RolloutsBody | None:
        """For `status`; None where they are off."""
        if not self.on:
            return None
        counts, spent = await self._store.rollouts.counts(), await self._spending.so_far()
        line = f"{counts.answers} answers to {counts.prompts} prompt{'s' * (counts.prompts != 1)} so far"
        if self._is_sampling:
            line = f"sampling {self._settings.rollouts} answers to each prompt while nobody asks; {line}"
        elif not self._store.is_learner:
            line = f"{line}; the relay that learns samples"
        elif self._blocking_reason is not None:
            line = f"{line}; waits: {self._blocking_reason}"
        return {
            "state": "sampling" if self._is_sampling else "waiting",
            "line": line,
            "problem": self._problem if time.monotonic() < self._retry_at else None,
            "answers": counts.answers,
            "prompts": counts.prompts,
            "tokens_today": spent.tokens,
            "minutes_today": round(spent.seconds / 60, 2),
        }

    async def step(self) -> bool:
        """Sample what one prompt lacks; whether it tried. Raises StoreError."""
        spent = await self._spending.settled()
        self._blocking_reason = self._busy() or self._over(spent) or await self._asked_elsewhere()
        if self._blocking_reason is not None:
            return False
        version = self._parts.live_version.live
        skipped = {*self._refused, *self._postponed}
        source = await self._store.rollouts.next_prompt(version, self._settings.rollouts, skipped)
        if source is None:
            self._blocking_reason = "no captured prompt lacks answers of this version"
            if self._postponed:
                self._blocking_reason = "all others have their answers, and prompts that failed come once more"
                self._postponed.clear()
            return False
        began = time.monotonic()
        try:
            until = began + 60 * self._settings.rollout_minutes - spent.seconds
            await self._while_free(self._answers.complete(source, version), version, until)
            self._refusals = 0
        except RolloutRefused as refusal:
            self._refuse(source.new.id, str(refusal))
        except OwnCodeFailed as error:
            self._pause(f"train.reward failed: {error}")
        except ProxyError as error:
            self._postpone(source.new.id, error.message)
        except StoreError as error:
            self._postpone(source.new.id, f"an answer was not stored: {error}")
        except Exception:  # one prompt that cannot be read must not keep the others from their answers
            log.exception("rollouts")
            self._postpone(source.new.id, "sampling failed, and the log says why")
        finally:
            self._spending.owe(seconds=time.monotonic() - began)
            with contextlib.suppress(StoreError):  # the next step stores it before it samples
                await asyncio.shield(self._spending.settled())
        return True

    def _busy(self) -> str | None:
        """The reason to wait that is known from memory alone; None where there is none."""
        train, now = self._settings, datetime.now()
        silent_s = time.monotonic() - max(self._parts.services.last_request, self._quiet_since)
        if not is_inside(train.hours, now):
            return f"outside the hours of training until {opens(train.hours, now):%a %H:%M} (train.hours)"
        if self._state.paused:
            return "paused; `rlproxy resume` goes on"
        if self._state.run is not None:
            return f"run {self._state.run.id} trains"
        if self._parts.throttle.is_answering:
            return "a request is answered"
        if silent_s < self._silence_s:
            return f"for {self._silence_s - silent_s:.0f} s more without a request"
        if self._parts.live_version.is_changing:  # it may wait for the place of what is being asked
            return "a version is loaded or unloaded"
        return self._parts.admission.closed

    def _over(self, spent: Spent) -> str | None:
        """The setting or the failure that keeps it from sampling; None where none does."""
        train = self._settings
        if self._parts.backend.capabilities.is_foreign:
            return "the model that answers is not one that trains here"
        if not train.enabled:
            return "training is off (train.enabled = false)"
        if time.monotonic() < self._retry_at:
            return self._problem
        if spent.tokens >= train.rollout_tokens:
            return f"{spent.tokens} tokens were sampled today (train.rollout_tokens)"
        if spent.seconds >= 60 * train.rollout_minutes:
            return f"{train.rollout_minutes:g} minutes were sampled today (train.rollout_minutes)"
        return None

    async def _asked_elsewhere(self) -> str | None:
        """Another relay of this database is asked, or was lately."""
        if self._store.sharing is None or time.time() - await self._store.rollouts.last_asked() >= self._silence_s:
            return None
        return "another relay was asked lately"

    async def _while_free(self, work: Coroutine[Any, Any, None], version: int, until: float) -> None:
        """Do this until somebody asks, a run begins, another version is live, or the minutes of the day are over.
        Raises what it raises."""
        task = asyncio.create_task(work, name="rollouts-of-a-prompt")

        def interrupt() -> None:
            self._quiet_since = time.monotonic()  # also for requests that pass through, which are not of a model
            task.cancel()

        self._is_sampling = True
        try:
            with self._parts.throttle.interrupting(interrupt):
                while not task.done():
                    is_over = time.monotonic() >= until or self._parts.live_version.live != version
                    if is_over or self._busy() or await self._asked_elsewhere():
                        task.cancel()
                    await asyncio.wait({task}, timeout=LOOK_S)
        finally:
            self._is_sampling = False
            task.cancel()
            await asyncio.wait({task})
        if not task.cancelled():
            task.result()

    def _refuse(self, prompt: str, reason: str) -> None:
        log.info("a prompt has no rollouts", completion=prompt, reason=reason)
        self._refused[prompt] = None
        if len(self._refused) > MOST_REFUSED:
            self._refused.popitem(last=False)
        self._refusals += 1
        if self._refusals >= REFUSALS:
            self._pause(reason)

    def _postpone(self, prompt: str, problem: str) -> None:
        self._postponed.add(prompt)
        self._pause(problem)

    def _pause(self, problem: str) -> None:
        self._problem, self._retry_at = problem, time.monotonic() + PAUSE_S
        log.warning("rollouts pause", reason=problem)
