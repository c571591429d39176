"""A store with the proxy's own judging in it, for a scripted person who only follows up.

The product's code alone turns what that person says next into what a run trains on.
Owns what is captured of each turn. Not here: what the person says, the model, the run (follow_ups).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp
import orjson

from config.sections import BackendSection, Judge, Redaction, Signals, Train
from proxy.backends.openai_compatible import OpenAICompatible
from proxy.conversation.answer_on_screen import AnswerOnScreen
from proxy.conversation.redaction import Redactor
from proxy.conversation.underway import AnswersInProgress
from proxy.core.events import Events
from proxy.signals import rules
from proxy.signals.answer_check import AnswerFlagger
from proxy.signals.follower import Follower
from proxy.signals.judging import JudgingLoop, SignalSources
from proxy.signals.own import OwnSignals
from proxy.signals.trust import MOST_WEIGHT, Agreement, Trust
from proxy.training import run_folder
from scripts.harness.records import claim, end, new, rating
from store.learning.opinion import Moments
from store.records import Message, NewSignal
from store.store import Store

NAME = "rule"


class Turn(NamedTuple):
    """An answer, and what the person said next; None: nothing at all."""

    id: str
    line: dict[str, Any]  # of samples.jsonl, with its messages and its exact tokens
    follow_up: str | None


class Home:
    """`forced`: train on the judge's labels in any case, to show why that is not done."""

    def __init__(self, store: Store, http: aiohttp.ClientSession, judge_url: str, *, forced: bool = False) -> None:
        self._store = store
        settings = Judge(mode="on", url=judge_url, model=NAME, votes=1, daily_tokens=10**9)
        redactor = Redactor(Redaction())
        self.judging = (_Forced if forced else JudgingLoop)(
            settings,
            store,
            OpenAICompatible(BackendSection(url=judge_url, model=NAME)),
            redactor,
            Events(),
            SignalSources(
                Follower(store, AnswerOnScreen(store, redactor, AnswersInProgress())),
                OwnSignals(Signals()),
                AnswerFlagger(Signals(), store),
            ),
            now=datetime.now,
        )
        self._http = http

    async def start(self) -> None:
        await self.judging.start(self._http)

    async def followed(self, turns: Sequence[Turn]) -> None:
        """Capture them, and have what was said labelled."""
        for turn in turns:
            await self._store.completions.record([_new(turn)], [_end(turn)])
        for turn in turns:
            if turn.follow_up is not None:
                signal = NewSignal(turn.id, "message", turn.follow_up)
                if ruled := rules.of_message(turn.follow_up, [turn.line["messages"][-1]["content"]]):
                    signal = replace(signal, label=ruled.name, value=ruled.value, why=ruled.reason)
                await self._store.signals.add(signal)
        while await self.judging.look() | await self.judging.ask():
            pass

    async def rated(self, turns: Sequence[Turn]) -> None:
        """A person has rated these, too, and a run has taken them."""
        for turn in turns:
            await self._store.ratings.rate(rating(turn.id, turn.line["reward"]))
        run, _ = await claim(self._store, limit=10_000)
        await self._end(run.id)

    async def trust(self) -> Trust:
        return await self.judging.trust(NAME, self.judging.server.config)

    async def labels(self) -> list[str]:
        """Labels of all turns, in order; an empty text where a turn has no label yet."""
        return [signal.label or "" for signal in await self._store.signals.everything()]

    async def claimed(self, version: int) -> tuple[int, list[dict[str, Any]]] | None:
        """The lines of a run of all that waits, and its number; None where nothing does."""
        await self.judging.settle()
        claimed_run = await claim(self._store, limit=10_000, live=version, version=version + 1)
        if claimed_run is None:
            return None
        run, samples = claimed_run
        return run.id, run_folder.lines(samples, [], Train(), Moments(0, 0.0, 0.0))

    async def ended(self, run: int, status: str, reason: str) -> None:
        """End a run; a run that did not pass gives its samples back."""
        if status == "passed":
            await self._end(run)
        else:
            await self._store.runs.end(run, "rejected", reason, None)

    async def _end(self, run: int) -> None:
        """It keeps its samples; its version is nobody's but the caller's."""
        await self._store.runs.end(run, "done", "", None)  # type: ignore[arg-type]

    async def stop(self) -> None:
        await self.judging.stop()


class _Forced(JudgingLoop):
    async def trust(self, judge: str, config: str) -> Trust:
        measured = await super().trust(judge, config)
        return Trust(*(_forced(side) for side in measured)) if judge == NAME else measured


def _forced(side: Agreement) -> Agreement:
    return side._replace(reason=None, kappa=max(side.kappa, MOST_WEIGHT))


async def opened(folder: Path) -> Store:
    return await Store.open(folder)


def _new(turn: Turn) -> Any:
    messages, line = turn.line["messages"], turn.line
    prompt = tuple(Message(message["role"], orjson.dumps({"content": message["content"]})) for message in messages)
    question = messages[-1]["content"]
    return new(
        turn.id, prompt=prompt, asked=question, typed=question, version=line["version"], sampling=line["sampling"],
    )  # fmt: skip


def _end(turn: Turn) -> Any:
    line = turn.line
    return end(
        turn.id,
        reply=Message("assistant", orjson.dumps({"content": line["text"]})),
        text=line["text"],
        finish_reason=line["finish_reason"],
        usage={"prompt_tokens": len(line["prompt_token_ids"]), "completion_tokens": len(line["token_ids"])},
        **{name: line[name] for name in ("prompt_token_ids", "token_ids", "logprobs", "exact")},
    )
