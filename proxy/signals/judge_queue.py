"""The judge's queue: which turn it is asked about next, within its hours and its budget, and what it answered.

One question at a time. The queue is in the store, so a restart goes on with it, and a judge that does not answer finds
it whole. Nothing is sent to another machine before an admin has accepted it. Not here: what a verdict is (judge), what
its labels become (judging).
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import Final, TypeVar

import aiohttp
import structlog

from config.hours import is_inside, opens
from config.sections import Judge as Section
from proxy.conversation.modalities import FURTHER
from proxy.conversation.redaction import Redactor
from proxy.core.events import Events
from proxy.signals.bodies import JudgeCost
from proxy.signals.judge import AnswerJudge, JudgeDown
from proxy.signals.judge_server import JudgeServer
from proxy.signals.questions import JudgedTurn
from proxy.signals.ranking import rank
from proxy.signals.rules import VALUES
from store.records import Signal
from store.store import Store

log = structlog.get_logger()

PAUSES_S: Final = (5.0, 15.0, 60.0, 300.0)  # after a judge that does not answer, in turn
NO_PICTURES_SEEN: Final = "it did not see the pictures"
UNJUDGED: Final = "its answer is a side turn by now, gone, or a further model's, which never trains"

Answer = TypeVar("Answer")


class JudgeQueue:
    def __init__(
        self,
        settings: Section,
        store: Store,
        server: JudgeServer,
        redactor: Redactor,
        events: Events,
        now: Callable[[], datetime],
    ) -> None:
        self._settings = settings
        self._store = store
        self._server = server
        self._redactor = redactor
        self._events = events
        self._now = now
        self._http: aiohttp.ClientSession | None = None
        self._failures = 0
        self._retry_at = 0.0  # monotonic: when a judge that did not answer is asked again
        self.problem: str | None = None  # why the judge does not answer
        self.waited_s = 0.0  # for its answers, in all

    @property
    def on(self) -> bool:
        """Tell whether a model is asked at all."""
        return self._settings.mode in ("shadow", "on")

    def start(self, http: aiohttp.ClientSession) -> None:
        self._http = http

    async def step(self) -> bool:
        """Ask about one turn and one group of answers; whether it answered. Raises StoreError."""
        judged = await self._judge_one()
        return await self._rank_one() or judged

    async def blocking_reason(self) -> str | None:
        """Why no turn is judged now."""
        if not self.on:
            return "the judge is off (judge.mode)"
        if not self._server.accepted:
            return f"what leaves this machine has not been accepted: `rlproxy judge --accept` ({self._server.url})"
        if self._settings.hours and not is_inside(self._settings.hours, self._now()):
            return f"outside its hours until {opens(self._settings.hours, self._now()):%a %H:%M} (judge.hours)"
        spent = (await self.cost())["today"]
        if spent >= self._settings.daily_tokens:
            return f"{spent} tokens of today's {self._settings.daily_tokens} are spent (judge.daily_tokens)"
        if time.monotonic() < self._retry_at:
            return self.problem
        return None

    async def cost(self) -> JudgeCost:
        """Its tokens: today, in all, and the most of a day."""
        today, all = await self._store.signals.cost(day_of(self._now()))
        return {"today": today, "all": all, "daily": self._settings.daily_tokens}

    async def _judge_one(self) -> bool:
        if self._http is None or not self.on:
            return False
        waiting = await self._store.signals.waiting(1)
        if not waiting or await self.blocking_reason() is not None:
            return False
        (signal,) = waiting
        if (turn := await turn_of(self._store, self._redactor, signal)) is None:
            await self._store.signals.drop(signal.seq, UNJUDGED)
            return True
        judge = AnswerJudge(self._http, self._server.endpoint(), self._settings.votes)
        if (verdict := await self._answer(judge.verdict(turn))) is None:
            return False
        await self._store.signals.label(
            signal.seq,
            judge=self._server.name,
            config=self._server.config,
            name=verdict.label,
            value=VALUES[verdict.label],
            hint=verdict.instruction or None,
            reason=f"{verdict.reason}; {NO_PICTURES_SEEN}" if turn.images else verdict.reason,
            tokens=verdict.tokens,
            day=day_of(self._now()),
        )
        self._events.emit("signal", completion=signal.completion_id, label=verdict.label)
        return True

    async def _rank_one(self) -> bool:
        """Several answers to one question, put in order by the judge."""
        if self._http is None or not self.on or await self.blocking_reason() is not None:
            return False
        until, group = await self._store.judged_pairs.waiting()
        if group is None:
            return False
        judge = AnswerJudge(self._http, self._server.endpoint(), 1)
        if (ranking := await self._answer(rank(judge, group, self._redactor.text))) is None:
            return False
        await self._store.judged_pairs.keep(ranking.pairs, *self._server.ranks_as, until)
        await self._store.signals.spend(ranking.tokens, day_of(self._now()))
        return True

    async def _answer(self, call: Awaitable[Answer]) -> Answer | None:
        """None where it does not answer now: the turn stays in the queue, and there is a pause."""
        began = time.monotonic()
        try:
            answer = await call
        except JudgeDown as error:
            pause = PAUSES_S[min(self._failures, len(PAUSES_S) - 1)]
            self._failures += 1
            self._retry_at = time.monotonic() + pause
            self.problem = f"the judge waits: {error}; the queue is kept"
            log.warning("the judge does not answer", why=str(error), again_in_s=pause)
            return None
        finally:
            self.waited_s += time.monotonic() - began
        self._failures, self.problem = 0, None
        return answer


async def turn_of(store: Store, redactor: Redactor, signal: Signal) -> JudgedTurn | None:
    """The turn as a judge sees it; None where it is a side turn by now, gone, or of a further model."""
    completion = await store.completions.get(signal.completion_id)
    if completion is None or completion.new.turn != "main" or completion.end is None or not signal.said:
        return None
    if completion.new.untrainable == FURTHER:  # tokens of a judge would be spent on what never trains
        return None
    keep = redactor.text  # it is stored without secrets; settings may find more by now
    request = keep(completion.new.typed or completion.new.asked)
    return JudgedTurn(request, keep(completion.end.text), keep(signal.said), completion.new.images)


def day_of(now: datetime) -> str:
    return f"{now:%Y-%m-%d}"
