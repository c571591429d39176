"""The life of a signal: found, labelled, and turned into a rating as far as whoever labels it is trusted.

Two tasks, off the byte path. One looks at what was captured a few seconds ago, the other asks the judge. So a judge
that thinks keeps no signal waiting. A label trains only in mode `on`, and only while the judge agrees with people. Else
everything it rated is taken back before the next run claims. Not here: the judge's queue, hours and budget
(judge_queue), what a verdict is (judge), how agreement is measured (trust).
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from typing import Any, Final, NamedTuple

import aiohttp
import structlog

from config.sections import Judge as Section
from proxy.backends.base import Backend
from proxy.conversation.redaction import Redactor
from proxy.core.errors import Conflict
from proxy.core.events import Events
from proxy.core.own_code.child import OwnCodeFailed
from proxy.signals import rules
from proxy.signals.answer_check import AnswerFlagger
from proxy.signals.bodies import JudgeBrief, JudgeReport, OneJudge, OwnReport, SharedTurn
from proxy.signals.follower import Follower
from proxy.signals.judge_queue import JudgeQueue
from proxy.signals.judge_server import JudgeServer
from proxy.signals.own import WEIGHT, OwnSignals
from proxy.signals.trust import WINDOW, Trust, trust
from store.copies import export
from store.errors import StoreError
from store.learning.labels import OWN_CODE, RULES_CONFIG, WENT_ON, TrustedJudge
from store.learning.signals import ASK, OwnScore
from store.records import SharedJudgement
from store.store import Store

log = structlog.get_logger()

LOOK_S: Final = 2.0  # between two looks at what was captured
REST_FACTOR: Final = 9.0  # times as long at rest as at work: a tenth of one core at most
REST_S: Final = 5.0  # at most
STATE: Final = "judge_state"  # whether it trained when it was last looked at, so that a change is said once
ASK_EVERY_S: Final = 6 * 3600.0  # between two questions to people about a judged turn
ACTOR: Final = "rlproxy"
BATCH_SIZE: Final = 20  # turns that the user's own code scores between two looks
SHOWN_DISAGREEMENTS: Final = 20  # disagreements in a report


class SignalSources(NamedTuple):
    """Finders of signals that need no judge."""

    follower: Follower
    own_signals: OwnSignals
    answer_check: AnswerFlagger


class JudgingLoop:
    def __init__(
        self,
        settings: Section,
        store: Store,
        backend: Backend,
        redactor: Redactor,
        events: Events,
        sources: SignalSources,
        now: Callable[[], datetime] = datetime.now,
    ) -> None:
        self._settings = settings
        self._store = store
        self.server = JudgeServer(settings, store, backend)
        self._redactor = redactor
        self._events = events
        self._follower, self._own_signals, self._answer_check = sources
        self._own_hash = ""  # of the user's own code as it last ran
        self.own_problem: str | None = None
        self._now = now
        self._judge_queue = JudgeQueue(settings, store, self.server, redactor, events, now)
        self._look_now, self._ask_now = asyncio.Event(), asyncio.Event()
        self._settling = asyncio.Lock()
        self._unsettled = True  # what a crash left half done

    # What it is

    @property
    def asks(self) -> bool:
        """Tell whether a model is asked at all."""
        return self._judge_queue.on

    @property
    def problem(self) -> str | None:
        """Why the judge does not answer."""
        return self._judge_queue.problem

    async def blocking_reason(self) -> str | None:
        """Why no turn is judged now."""
        return await self._judge_queue.blocking_reason()

    def statement(self) -> str:
        """The notice that a person should read before it is enabled."""
        return self.server.statement()

    async def accept(self, actor: str) -> None:
        await self.server.accept(actor)
        self.wake()

    # The work

    def wake(self) -> None:
        self._look_now.set()
        self._ask_now.set()

    def rated(self) -> None:
        """A person has rated something: what a judge is trusted in may have changed."""
        self._unsettled = True
        self.wake()

    async def start(self, http: aiohttp.ClientSession) -> None:
        self._judge_queue.start(http)
        await self.server.start()

    async def run(self) -> None:
        """For ever, in a task of its own, and one more for the judge."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._repeat(self.look, self._look_now, lambda: 0.0))
            tasks.create_task(self._repeat(self.ask, self._ask_now, lambda: self._judge_queue.waited_s))

    async def _repeat(
        self, step: Callable[[], Awaitable[bool]], wake: asyncio.Event, waited_s: Callable[[], float]
    ) -> None:
        """Do a step, rest, and wait for the next. `waited_s`: for others in all, which is not work."""
        while True:
            wake.clear()
            has_more, began = False, time.monotonic() - waited_s()
            try:
                has_more = await step()
            except StoreError as error:
                log.error("signals wait for the store", error=str(error))
            except Exception:  # whatever it is: relaying, capture and ratings need no signals
                log.exception("signals")
            worked = time.monotonic() - waited_s() - began
            await asyncio.sleep(min(REST_S, REST_FACTOR * worked))  # answers come first
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(0.05 if has_more else LOOK_S):
                    await wake.wait()

    async def look(self) -> bool:
        """Find what followed, and label it as far as no model is needed; whether there is more. Raises StoreError."""
        if self._store.integrity.state == "damaged":
            return False
        if self._own_signals.on:
            await self._store.signals.begin_scoring()  # before the step: what it finds is new
        followed_count = await self._follower.step()
        scored = await self._score_own()
        checked = await self._answer_check.step()
        await self._settle_if(scored or (bool(followed_count) and self._settings.mode == "on"))
        return bool(followed_count) or scored or checked

    async def ask(self) -> bool:
        """Ask the judge about one turn; whether it answered. Raises StoreError."""
        if self._store.integrity.state == "damaged":
            return False
        has_answered = await self._judge_queue.step()
        await self._settle_if(has_answered)
        return has_answered

    async def _settle_if(self, changed: bool) -> None:
        if not (changed or self._unsettled):
            return
        self._unsettled = False
        try:
            await self.settle()
        except BaseException:
            self._unsettled = True
            raise

    async def _score_own(self) -> bool:
        """The user's own code, a few turns at once; whether there are more."""
        if not self._own_signals.on:
            return False
        waiting = await self._store.signals.unscored(BATCH_SIZE)
        try:
            self._own_hash = await asyncio.to_thread(self._own_signals.hash)
        except OwnCodeFailed as error:  # the turns stay: the file may come back
            self.own_problem = str(error)
            return False
        for signal in waiting:
            completion = await self._store.completions.get(signal.completion_id)
            score = None
            if completion is not None and completion.new.turn == "main":
                try:
                    verdict = await self._own_signals.score(export.without_tokens(completion), export.signal(signal))
                    self.own_problem = None
                    score = verdict and OwnScore(verdict.value, verdict.comment or None)
                except OwnCodeFailed as error:
                    self.own_problem = f"{signal.completion_id} has no score of your own code: {error}"
                    log.warning("the user's own code gave no score", completion=signal.completion_id, why=str(error))
            await self._store.signals.score(signal, score, self._own_hash)
        return bool(waiting)

    async def stop(self) -> None:
        await self._own_signals.stop()
        await self._answer_check.stop()

    async def rescore(self, since: float) -> int:
        """Have the user's own code see what was found and answered since then; how many turns and answers. Raises
        Conflict."""
        if not (self._own_signals.on or self._answer_check.on):
            raise Conflict(
                "No code of yours is set, so nothing was scored: set signals.module or signals.check, and start again."
            )
        waiting_count = await self._store.signals.rescore(since) if self._own_signals.on else 0
        waiting_count += await self._store.flags.check_again(since) if self._answer_check.on else 0
        self.wake()
        return waiting_count

    async def choices(self) -> list[dict[str, Any]]:
        """For a run's manifest: which code of the user's own has scored."""
        if not self._own_signals.on or not self._own_hash:
            return []
        return [{"name": "signals.module", "value": self._own_hash, "why": "the sha256 of the user's own signals"}]

    # Trust

    @property
    def judges(self) -> list[tuple[str, str]]:
        """All whose labels may train, by name and configuration: the rules, the model, and the model as it ranks."""
        judges = [(rules.RULES, RULES_CONFIG)]
        return [*judges, (self.server.name, self.server.config), self.server.ranks_as] if self.asks else judges

    async def trust(self, judge: str, config: str) -> Trust:
        """In these labels, on the newest turns that people have rated, too."""
        shared, unseen = await self._shared(judge, config)
        return trust([(turn.person, turn.judge) for turn in shared], unseen)

    async def _shared(self, judge: str, config: str) -> tuple[Sequence[SharedJudgement], int]:
        """Turns, or pairs, that people have decided, too, the newest first; and how many labels have come since."""
        if (judge, config) == self.server.ranks_as:
            return await self._store.judged_pairs.decided(judge, config, 4 * WINDOW)
        shared = await self._store.signals.shared(judge, config, 4 * WINDOW)
        return shared, await self._store.signals.unseen_by_people(judge, config)

    async def settle(self) -> None:
        """Ratings as far as each judge is trusted at this moment: also right before a run claims. Raises StoreError."""
        async with self._settling:
            trust_by_judge = {judge: (config, await self.trust(judge, config)) for judge, config in self.judges}
            trusted = []
            for judge, (config, how) in trust_by_judge.items() if self._settings.mode == "on" else ():
                ranks = (judge, config) == self.server.ranks_as
                weights = _weights(how)
                if "bad" in weights and not ranks:
                    weights |= await self._went_on(judge, config, weights["bad"])
                trusted.append(TrustedJudge(judge, config, weights, pairs=ranks))
            if self._own_signals.on and self._own_hash:
                trusted.append(TrustedJudge(OWN_CODE, self._own_hash, {"bad": WEIGHT, "good": WEIGHT}))
            added, removed = await self._store.signals.apply(trusted)
            await self._say({judge: how for judge, (_, how) in trust_by_judge.items()}, trusted)
            if added:
                self._events.emit("judged", came=added, gone=removed)

    async def _went_on(self, judge: str, config: str, most: float) -> dict[str, float]:
        """The weight of answers that a person went on from. People measure it, with the thanks that no judge is asked
        about: thanks are said after bad answers, too."""
        shared = await self._store.signals.shared(judge, config, 4 * WINDOW, polite=True)
        bad = trust([(turn.person, turn.judge) for turn in shared]).bad
        return {WENT_ON: min(most, bad.weight)} if bad.trusted and bad.weight > 0 else {}

    async def _say(self, agreements: dict[str, Trust], trusted: list[TrustedJudge]) -> None:
        """A change between training and shadow, once."""
        now = sorted([trusted_judge.judge, side] for trusted_judge in trusted for side in trusted_judge.weights)
        if now == (previous := await self._store.meta.get(STATE, [])):
            return
        await self._store.meta.set(STATE, now)
        reason = {judge: {side.side: side.reason for side in how} for judge, how in agreements.items()}
        await self._store.meta.audit(ACTOR, "judge", {"trains": now, "before": previous, "why": reason})
        log.warning("what judges may train has changed", trains=now, why=reason)

    # JudgeQueue people

    async def question(self) -> str | None:
        """The completion that a person may be asked about now: a judged turn, drawn at random, every few hours. What
        people choose to rate themselves is not a fair sample of what the judge sees."""
        if not self.asks:
            return None
        last_question = await self._store.meta.get(ASK, {})
        if time.time() - last_question.get("at", 0.0) < ASK_EVERY_S:
            id = last_question.get("id")
            return id if id is not None and await self._open(id) else None
        id = await self._store.signals.draw(self.server.name, self.server.config)
        if id is not None:
            await self._store.meta.set(ASK, {"id": id, "at": time.time()})
        return id

    async def answered(self) -> None:
        """It was answered, or somebody would rather not: the next one comes in a few hours."""
        last_question = await self._store.meta.get(ASK, {})
        await self._store.meta.set(ASK, {"at": last_question.get("at", time.time())})

    async def _open(self, id: str) -> bool:
        summary = await self._store.inbox.get(id)
        return summary is not None and not any(rating.human for rating in summary.ratings)

    # For people

    async def report(self) -> JudgeReport:
        """Everything about it."""
        counts = await self._store.signals.counts()
        return {
            "mode": self._settings.mode,
            "model": self.server.name if self.asks else None,
            "url": self.server.url if self.asks else None,
            "votes": self._settings.votes,
            "leaves_this_machine": self.server.leaves and self.asks,
            "accepted": self.server.accepted,
            "statement": self.statement(),
            "waits_for": await self.blocking_reason(),
            "waiting": sum(row["count"] for row in counts if row["state"] == "waiting"),
            "cost": await self._judge_queue.cost(),
            "own": await self._own_report(),
            "check": await self._answer_check.report(),
            "judges": [await self._judge_report(judge, config) for judge, config in self.judges],
            "signals": counts,
            "by_version": await self._store.signals.by_version(),
        }

    async def _own_report(self) -> OwnReport | None:
        if not self._own_signals.on:
            return None
        remaining = await self._store.signals.count_unscored()
        return {"hash": self._own_hash or None, "left": remaining, "problem": self.own_problem}

    async def _judge_report(self, judge: str, config: str) -> OneJudge:
        agreement = await self.trust(judge, config)
        shared = (await self._shared(judge, config))[0][:WINDOW]
        return {
            "judge": judge,
            "state": self._state(agreement),
            "bad": agreement.bad.body(),
            "good": agreement.good.body(),
            "disagreements": [_turn(judgement) for judgement in shared if _differ(judgement)][:SHOWN_DISAGREEMENTS],
        }

    async def brief(self) -> JudgeBrief | None:
        """For the status; None where it is off."""
        if not self.asks:
            return None
        agreement, waits = await self.trust(self.server.name, self.server.config), await self.blocking_reason()
        cost = await self._judge_queue.cost()
        line = f"{self.server.name}: {self._state(agreement)}; {cost['today']} of {cost['daily']} tokens today"
        return {
            "mode": self._settings.mode,
            "model": self.server.name,
            "cost": cost,
            "waits_for": waits,
            "line": f"{line}; {waits}" if waits else line,
        }

    def _state(self, agreement: Trust) -> str:
        sides = [side.side for side in agreement if side.trusted]
        if not sides:
            return f"shadow: {agreement.bad.reason}"
        if self._settings.mode != "on":
            return f'shadow: trusted in what is {" and ".join(sides)}, and judge.mode is "{self._settings.mode}"'
        return f"trains on what it finds {' and '.join(sides)}"


def _weights(agreement: Trust) -> dict[str, float]:
    """The sides that may train."""
    return {side.side: side.weight for side in agreement if side.trusted and side.weight > 0}


def _turn(judgement: SharedJudgement) -> SharedTurn:
    return {"completion_id": judgement.completion_id, "person": judgement.person, "judge": judgement.judge}


def _differ(judgement: SharedJudgement) -> bool:
    """The judge found the contrary, or missed what a person found bad, or claimed what none did."""
    return judgement.person * judgement.judge < 0 or (judgement.judge == 0 and judgement.person < 0)
