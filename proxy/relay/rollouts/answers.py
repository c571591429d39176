"""The answers that a captured prompt lacks: sampled, stored and rewarded.

Owns their order, and what a server's answer has to be. An answer goes into the store in one operation, with its episode
and its tokens; its reward is a second one. A stop in between leaves an open episode, which is rewarded later. Not here:
when this is done (sampler), what is asked (question).
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from proxy.backends.ask import ask
from proxy.backends.base import place_for
from proxy.backends.refused_wishes import BREAKS, REFUSES
from proxy.core.errors import BackendDown
from proxy.core.json_edit import WholeAnswer
from proxy.dialects import CHAT
from proxy.feedback.reward_function import RewardFunction
from proxy.relay.framing import OK
from proxy.relay.parts import RelayParts
from proxy.relay.rollouts.question import RolloutQuestion, make_question
from proxy.relay.rollouts.spending import Spending, prompt_tokens, today, tokens_of
from store.errors import StoreError
from store.learning.episodes import Episode
from store.learning.rollouts import NewRollout, Spent
from store.records import Completion, FinishedCompletion, NewCompletion

ABOUT_PROMPT: Final = (400, 413, 422)  # statuses


class RolloutRefused(Exception):
    """The server does not answer this prompt; says why."""


@dataclass(frozen=True, slots=True)
class RolloutGroup:
    """The answers that are compared with each other."""

    name: str
    prompt: str  # the completion that they go with
    version: int
    task: str | None  # of the episode that this completion is of, where it is of one
    meta: Any


class RolloutAnswers:
    def __init__(self, parts: RelayParts, rewarding: RewardFunction, spending: Spending) -> None:
        self._parts = parts
        self._store = parts.store
        self._backend = parts.backend
        self._size = parts.settings.train.rollouts
        self._rewarding = rewarding
        self._spending = spending

    async def complete(self, source: Completion, version: int) -> None:
        """Have the prompt's answers of this version, as many as it lacks. The first one alone: where the user's code
        has no reward for it, the prompt is not of its kind.

        Raises RolloutRefused, ProxyError, OwnCodeFailed, StoreError.
        """
        assert source.prompt_hash is not None
        stored = await self._store.rollouts.of_prompt(source.prompt_hash, version)
        for episode in stored:
            if episode.state == "open" and await self._rewarding.rate(episode) is None:
                return
        live_version, question = self._parts.live_version, make_question(source)
        group = await self._group_of(source, version, stored)
        lease = await live_version.acquire(live_version.parse_name(live_version.name(version)))
        try:
            async with self._parts.admission.through(wait=False):
                if not stored and not await self._sample(question, lease.model, group):
                    return
                lacking = self._size - max(1, len(stored))
                samples = [self._sample(question, lease.model, group) for _ in range(lacking)]
                results = await asyncio.gather(*samples, return_exceptions=True)
        finally:
            lease.release()
        for result in results:  # each had its chance
            if isinstance(result, BaseException):
                raise result

    async def _group_of(self, source: Completion, version: int, stored: Sequence[Episode]) -> RolloutGroup:
        """The group that still forms, also where its prompt was asked again since, or a new one."""
        for episode in stored:
            assert episode.group is not None and episode.prompt is not None
            if episode.run is None and episode.left_out is None:
                return RolloutGroup(episode.group, episode.prompt, version, episode.task, episode.meta)
        new = source.new
        asked_in = await self._store.episodes.find(new.session, new.key or "") if new.session is not None else None
        task, meta = (None, None) if asked_in is None else (asked_in.task, asked_in.meta)  # for the user's code
        return RolloutGroup(f"rollouts-{new.id}-v{version}", new.id, version, task, meta)

    async def _sample(self, question: RolloutQuestion, model: str, group: RolloutGroup) -> bool:
        """One answer, stored and rewarded; whether it has a reward. Raises as `complete`."""
        row = question.row(self._backend, served_model=model, version=group.version)
        async with self._parts.queue.turn(1):
            try:
                end = await self._ask(question, row)
            except asyncio.CancelledError:  # a request came; the server has read the prompt
                self._spending.owe(prompt_tokens(row))
                raise
        rollout = NewRollout(
            prompt=group.prompt,
            new=row,
            end=end,
            group=group.name,
            group_size=self._size,
            task=group.task,
            meta=group.meta,
            spent=Spent(today(), tokens_of(row, end)),
        )
        try:
            episode = await asyncio.shield(self._store.rollouts.keep(rollout))
        except StoreError:
            self._spending.owe(rollout.spent.tokens)
            raise
        return episode is not None and await self._rewarding.rate(episode) is not None

    async def _ask(self, question: RolloutQuestion, row: NewCompletion) -> FinishedCompletion:
        """Raises RolloutRefused, BackendDown."""
        timeout_s = self._parts.settings.backend.read_timeout_s
        with place_for(self._backend, row.served_model) as address:
            for body in (question.exact_body(self._backend), question.body):
                status, content = await ask(self._backend, address, body, timeout_s, "a rollout")
                if status not in REFUSES and status != BREAKS:  # else it may be about our wishes beside the answer
                    break
        if status not in OK:
            reason = f"the backend answered a rollout with {status}; its own log may say why"  # and may quote a prompt
            raise RolloutRefused(reason) if status in ABOUT_PROMPT else BackendDown(reason, retry_after=5)
        capture = self._parts.capture(row.id, question.parsed, CHAT, str, self._backend)
        capture.reader.take_whole(WholeAnswer(content))
        end = capture.end_of(row)
        if end.status != "done":
            self._spending.owe(tokens_of(row, end))
            raise BackendDown("the backend's answer to a rollout could not be read", retry_after=5)
        return end
