"""People who chat, rate, change their minds and undo, without end; and what they were told, to hold against the disk.

A moment is a number that only grows (`now`): a clock, or how much a disk has been told. Everything is kept with the
moment at which it was sent and the one at which it was acknowledged. For any moment, these two tell apart what must be
on a disk and what may be.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import aiohttp

NEVER = math.inf
WAYS = ("chat", "chat stream", "messages stream", "responses stream")
ENDS = {
    "chat stream": b"data: [DONE]",
    "messages stream": b"event: message_stop",
    "responses stream": b"event: response.completed",
}
WORDS = ("disk", "power", "wal", "page", "sector", "é", "😀", 'quote"d', "back\\slash")


@dataclass
class Answer:
    """One that somebody had whole."""

    id: str
    text: str
    whole_at: float


@dataclass
class Step:
    """Something done to the rating of one completion by one rater."""

    event: str  # source_event_id of a rating; of an undo the id of the rating
    value: float | None  # of the live rating after it; None: there is none
    sent_at: float
    acknowledged_at: float = NEVER
    rating: str | None = None  # its id, once told


@dataclass
class Reward:
    """A program's reward for an episode."""

    episode: str
    agent: str
    value: float
    sent_at: float
    acknowledged_at: float = NEVER


@dataclass
class Ledger:
    """The record of all that people sent, and of what was acknowledged."""

    answers: list[Answer] = field(default_factory=list)
    steps: dict[tuple[str, str], list[Step]] = field(default_factory=dict)  # of (completion, rater), in order
    opened: dict[str, float] = field(default_factory=dict)  # episodes by a call of their own, and when it was answered
    rewards: dict[str, Reward] = field(default_factory=dict)  # of each episode
    request_count: int = 0
    cut: int = 0  # answers and ratings that a kill came before

    acknowledged: int = 0  # ratings, undos and rewards

    def confirmations(self) -> int:
        return len(self.answers) + self.acknowledged


class Person:
    """One client with one conversation after the other."""

    numbers = itertools.count()

    def __init__(self, ledger: Ledger, now: Callable[[], float], seed: int) -> None:
        self._ledger = ledger
        self._now = now
        self._dice = random.Random(seed)
        self.name = f"p{next(self.numbers)}"
        self.session = self.name
        self._request_count = 0

    async def live(self, http: aiohttp.ClientSession) -> None:
        """Until the proxy is gone."""
        try:
            while True:
                answer = await self.ask(http)
                if self._dice.random() < 0.6:
                    await self.judge(http, answer)
        except (aiohttp.ClientError, ConnectionError, TimeoutError):
            self._ledger.cut += 1

    async def resend(self, http: aiohttp.ClientSession) -> None:
        """Send once more, as a client would, what was under way when the proxy died: it must not count twice."""
        for (completion, rater), steps in self._ledger.steps.items():
            if rater == self.name and steps[-1].acknowledged_at == NEVER:
                await self._do(http, completion, steps[-1])

    async def ask(self, http: aiohttp.ClientSession) -> Answer:
        way = self._dice.choice(WAYS)
        self._request_count += 1
        question = (
            f"{self.name} {self._request_count} {' '.join(self._dice.choices(WORDS, k=self._dice.randint(1, 12)))}"
        )
        dialect = way.split()[0]
        body: dict[str, Any] = {"model": "fake", "stream": way in ENDS}
        body |= {"input": question} if dialect == "responses" else {"messages": [{"role": "user", "content": question}]}
        body |= {"max_tokens": 100} if dialect == "messages" else {}
        path = {"chat": "/v1/chat/completions"}.get(dialect, f"/v1/{dialect}")
        headers = {"x-rl-session": self.session}
        if self._dice.random() < 0.2:
            headers["x-rl-completion-id"] = f"{self.name}-{self._request_count}"
        self._ledger.request_count += 1
        async with http.post(path, json=body, headers=headers) as response:
            id = response.headers["x-rl-completion-id"]
            raw = await _whole(response, ENDS.get(way))
        assert response.status == 200, raw
        expected = f"You said: {question} "
        if dialect == "chat":
            assert _text(raw, way in ENDS) == expected
        answer = Answer(id, expected, self._now())
        self._ledger.answers.append(answer)
        return answer

    async def judge(self, http: aiohttp.ClientSession, answer: Answer) -> None:
        """Rated; then perhaps rated otherwise, or undone."""
        await self._rate(http, answer.id)
        if (then := self._dice.random()) < 0.2:
            await self._rate(http, answer.id)
        elif then < 0.4:
            await self._undo(http, answer.id)

    async def _rate(self, http: aiohttp.ClientSession, completion: str) -> None:
        steps = self._ledger.steps.setdefault((completion, self.name), [])
        value = self._dice.choice((-1.0, -0.5, 0.5, 1.0))
        steps.append(Step(f"{completion}/{len(steps)}", value, self._now()))
        await self._do(http, completion, steps[-1])

    async def _undo(self, http: aiohttp.ClientSession, completion: str) -> None:
        steps = self._ledger.steps[completion, self.name]
        assert steps[-1].rating is not None
        steps.append(Step(steps[-1].rating, None, self._now()))
        await self._do(http, completion, steps[-1])

    async def _do(self, http: aiohttp.ClientSession, completion: str, step: Step) -> None:
        if step.value is None:
            async with http.delete(f"/v1/feedback/{step.event}", params={"rater": self.name}) as response:
                assert response.status == 200, await response.text()
        else:
            body = {"completion_id": completion, "rating": step.value, "scale": "unit", "rater": self.name}
            body |= {"source": "chaos", "source_event_id": step.event}
            async with http.post("/v1/feedback", json=body) as response:
                reply = await response.json()
                assert response.status in (200, 201), reply
                step.rating = reply["id"]
        step.acknowledged_at = self._now()
        self._ledger.acknowledged += 1


async def _whole(response: aiohttp.ClientResponse, end: bytes | None) -> bytes:
    """All of it: for a stream up to its last event, whether or not the connection lives on."""
    raw = b""
    async for piece in response.content.iter_any():
        raw += piece
        if end is not None and end in raw and raw.endswith(b"\n\n"):
            return raw
    if end is not None:
        raise aiohttp.ClientPayloadError("the stream had no end")
    return raw


def _text(raw: bytes, stream: bool) -> str:
    if not stream:
        return str(json.loads(raw)["choices"][0]["message"]["content"])
    events = [json.loads(e[6:]) for e in raw.decode().split("\n\n") if e.startswith("data: {")]
    return "".join(c["delta"].get("content", "") for e in events for c in e["choices"])


@contextlib.asynccontextmanager
async def living(people: list[Person], http: aiohttp.ClientSession) -> Any:
    """All of them, from here until the proxy is gone; what any of them found wrong is raised at the end."""
    tasks = [asyncio.create_task(person.live(http)) for person in people]
    try:
        yield
    finally:
        async with asyncio.timeout(60):
            for outcome in await asyncio.gather(*tasks, return_exceptions=True):
                if isinstance(outcome, BaseException):
                    raise outcome
