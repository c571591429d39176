"""Clients that ask and rate meanwhile, and the answers that they got.

A client holds one conversation after the other, each of several turns. It asks one relay as long as that is there, and
rates at the other one. A rating that got no answer, or a 503, is sent again with its event's id. Not here: what the
database says of it (stored).
"""

from __future__ import annotations

import asyncio
import json
import random
import re
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Final

import aiohttp

from scripts.chaos.cluster.machines import Relay
from scripts.fakes.backend import MODEL

RATED: Final = 0.6  # share of answers that somebody rates
TURNS: Final = (2, 6)  # of a conversation
READS_S: Final = (0.0, 1.0)  # that a client takes from an answer to the next question
TRIES: Final = 8  # of a rating
AGAIN_S: Final = 1.0
BROKEN: Final = (aiohttp.ClientError, TimeoutError, OSError, RuntimeError)  # the last: its session was closed
VALUES: Final = {"good": 1.0, "bad": -1.0}
_VERSION: Final = re.compile(r"@v(\d+)")


@dataclass
class Answer:
    """One that came to its end."""

    id: str
    conversation: str
    version: int  # that its header names
    served: int  # whose weights its words name
    began: float  # epoch seconds
    relay: int  # its number


@dataclass
class Ledger:
    """Requests of the clients, and the answers that they got."""

    requests: int = 0
    cut: int = 0  # answers that broke off, or never began
    answers: list[Answer] = field(default_factory=list)
    ratings: dict[str, str] = field(default_factory=dict)  # by answer, the acknowledged one
    unsure: set[str] = field(default_factory=set)  # answers of which a rating was sent, with an unknown outcome
    refused: Counter[str] = field(default_factory=Counter)  # tries of ratings by status
    statuses: Counter[int] = field(default_factory=Counter)
    conversations: int = 0
    longest_s: float = 0.0


class Client:
    def __init__(self, number: int, relays: list[Relay], ledger: Ledger, seed: int) -> None:
        self._number = number
        self._relays = relays
        self._ledger = ledger
        self._dice = random.Random(seed)

    async def live(self) -> None:
        """Hold conversations, for ever."""
        while True:
            self._ledger.conversations += 1
            conversation = f"{self._number}/{self._ledger.conversations}"
            messages: list[dict[str, str]] = []
            relay = await self._relay()
            for turn in range(self._dice.randint(*TURNS)):
                relay = relay if relay.http is not None else await self._relay()
                messages.append({"role": "user", "content": f"conversation {conversation}, question {turn}"})
                answer, text = await self._ask(relay, conversation, messages)
                if answer is None:
                    messages.pop()
                    continue
                messages.append({"role": "assistant", "content": text})
                if self._dice.random() < RATED:
                    await self._rate(answer, await self._relay(instead_of=relay))
                await asyncio.sleep(self._dice.uniform(*READS_S))

    async def _relay(self, instead_of: Relay | None = None) -> Relay:
        """One that is there; another one where there is one."""
        while True:
            if up := [relay for relay in self._relays if relay.http is not None]:
                return self._dice.choice([relay for relay in up if relay is not instead_of] or up)
            await asyncio.sleep(0.01)

    async def _ask(self, relay: Relay, conversation: str, messages: list[dict[str, str]]) -> tuple[Answer | None, str]:
        """An answer that came to its end, and its text."""
        ledger, http, began = self._ledger, relay.http, time.time()
        ledger.requests += 1
        body = {"model": MODEL, "stream": True, "messages": messages}
        try:
            assert http is not None  # nothing was awaited since it was looked at
            async with http.post("/v1/chat/completions", json=body) as response:
                content = await response.read()
                ledger.statuses[response.status] += 1
                if response.status == 200 and content.rstrip().endswith(b"data: [DONE]"):
                    ledger.longest_s = max(ledger.longest_s, time.time() - began)
                    text = _text(content)
                    label = response.headers["x-rl-adapter"]
                    answer = Answer(
                        response.headers["x-rl-completion-id"],
                        conversation,
                        int(label[1:]) if label.startswith("v") else 0,
                        int(match[1]) if (match := _VERSION.search(text)) else 0,
                        began,
                        1 + self._relays.index(relay),
                    )
                    ledger.answers.append(answer)
                    return answer, text
        except BROKEN:
            await asyncio.sleep(0.05)
        ledger.cut += 1
        return None, ""

    async def _rate(self, answer: Answer, relay: Relay) -> None:
        """Until it is acknowledged, or TRIES times."""
        ledger = self._ledger
        rating = self._dice.choice(list(VALUES))
        body: dict[str, Any] = {"completion_id": answer.id, "rating": rating}
        body |= {"source": "cluster", "source_event_id": f"{answer.id}/rating"}
        ledger.unsure.add(answer.id)  # until somebody says what became of it
        was_unsure = False
        for _ in range(TRIES):
            relay = relay if relay.http is not None else await self._relay()
            status = await self._send(relay, body)
            if status in (200, 201):
                ledger.ratings[answer.id] = rating
                ledger.unsure.discard(answer.id)
                return
            ledger.refused[str(status or "no answer")] += 1
            was_unsure = was_unsure or status == 0 or status >= 500
            await asyncio.sleep(AGAIN_S)
        if not was_unsure:
            ledger.unsure.discard(answer.id)

    async def _send(self, relay: Relay, body: dict[str, Any]) -> int:
        """The status; 0 without an answer."""
        try:
            assert relay.http is not None
            async with relay.http.post("/v1/feedback", json=body) as response:
                await response.read()
                return response.status
        except BROKEN:
            return 0


def _text(stream: bytes) -> str:
    text = ""
    for line in stream.splitlines():
        if line.startswith(b"data: {"):
            choices = json.loads(line[6:]).get("choices") or [{}]
            text += choices[0].get("delta", {}).get("content") or ""
    return text
