"""A judge: any OpenAI-compatible server that is asked what a follow-up says of the answer before it.

Owns one verdict: the votes on the first question, the second one that tries to refute their majority, and what all of
it cost. Everything about the server is finite: time, length of an answer, tokens. Not here: the words of the questions
(questions), which turns are asked about and when (judging).
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple, TypeVar

import aiohttp
import orjson

from proxy.core.redirects import Redirected
from proxy.core.server_url import route_url
from proxy.signals.questions import (
    LABEL_SHAPE,
    REFUTE_SHAPE,
    JudgedTurn,
    label_messages,
    read_label,
    read_refutation,
    refute_messages,
)

TOTAL_S: Final = 120.0  # for one answer of the judge
CONNECT_S: Final = 10.0
MOST_TOKENS: Final = 1024  # of one answer: room to think, and an end
MOST_BYTES: Final = 1 << 20  # of one answer as it comes
VARIED: Final = 0.6  # the temperature of several votes; one vote is greedy
A_TOKEN: Final = 3  # bytes, where a server does not count: rather too many tokens than too few
BUSY: Final = 429
REFUSED: Final = (400, 422, 501)  # what servers answer to a `response_format` that they do not know

Reading = TypeVar("Reading")


class JudgeDown(Exception):
    """The judge's server does not answer, or not now. The turn stays in the queue."""


class ShapeRefused(JudgeDown):
    """The judge's server knows no answers in the shape of a schema."""


class Endpoint(NamedTuple):
    """Where a judge answers."""

    url: str  # without /v1
    model: str
    headers: Mapping[str, str]


class JudgeVerdict(NamedTuple):
    """A judge's verdict on one turn."""

    label: str
    instruction: str  # the person's own words, cut out of the follow-up; empty where there are none
    reason: str
    tokens: int  # that it cost


class JudgeAnswer(NamedTuple):
    text: str
    tokens: int


class AnswerJudge:
    def __init__(self, http: aiohttp.ClientSession, endpoint: Endpoint, votes: int) -> None:
        self._http = http
        self._endpoint = endpoint
        self._votes = votes

    async def verdict(self, turn: JudgedTurn) -> JudgeVerdict:
        """Raises JudgeDown."""
        temperature = VARIED if self._votes > 1 else 0.0
        question, reader = label_messages(turn), partial(read_label, follow_up=turn.follow_up)
        calls = [self.read(question, temperature, LABEL_SHAPE, reader) for _ in range(self._votes)]
        answers = await _all(calls)
        tokens = sum(cost for _, cost in answers)
        readings = [reading for reading, _ in answers if reading is not None]
        if not readings:
            return JudgeVerdict("unclear", "", "the judge's answer cannot be read", tokens)
        votes = Counter(reading.label for reading in readings)
        (name, most), *lower_votes = votes.most_common()
        if name == "nothing":
            return JudgeVerdict("nothing", "", "the judge abstained", tokens)
        if 2 * most <= self._votes or (lower_votes and lower_votes[0][1] == most):
            return JudgeVerdict("unclear", "", f"no majority in {self._votes} votes", tokens)
        refutation, cost = await self.read(refute_messages(turn, name), 0.0, REFUTE_SHAPE, read_refutation)
        tokens += cost
        if refutation is None:
            return JudgeVerdict("unclear", "", "the judge's second answer cannot be read", tokens)
        if refutation[0]:
            return JudgeVerdict("nothing", "", f"refuted: {refutation[1] or 'another explanation'}", tokens)
        words = Counter(reading.instruction for reading in readings if reading.label == name and reading.instruction)
        instruction = words.most_common(1)[0][0] if words else ""
        return JudgeVerdict(name, instruction, f"{most} of {self._votes} votes, not refuted", tokens)

    async def read(
        self,
        messages: Sequence[Mapping[str, str]],
        temperature: float,
        shape: Mapping[str, Any],
        read: Callable[[str], Reading | None],
    ) -> tuple[Reading | None, int]:
        """An answer as it is read, and the tokens that it cost; None where it cannot be read. Raises JudgeDown.

        Small models make up labels. So what cannot be read is asked once more, in the shape of this JSON schema. It is
        not asked so from the start: a model that thinks first does so in free text alone.
        """
        answer = await self.ask(messages, temperature)
        reading = read(answer.text)
        if reading is not None:
            return reading, answer.tokens
        try:
            shaped = await self.ask(messages, temperature, shape)
        except ShapeRefused:
            return None, answer.tokens
        return read(shaped.text), answer.tokens + shaped.tokens

    async def ask(
        self, messages: Sequence[Mapping[str, str]], temperature: float, shape: Mapping[str, Any] | None = None
    ) -> JudgeAnswer:
        """One answer of its server. Raises JudgeDown, and ShapeRefused where it takes no JSON schema."""
        body: dict[str, Any] = {
            "model": self._endpoint.model,
            "messages": messages,
            "temperature": temperature,
            "max_tokens": MOST_TOKENS,
            "stream": False,
        }
        if shape is not None:
            schema = {"name": "answer", "strict": True, "schema": shape}
            body["response_format"] = {"type": "json_schema", "json_schema": schema}
        try:
            async with asyncio.timeout(TOTAL_S):
                async with self._http.post(
                    route_url(self._endpoint.url, "/v1/chat/completions"),
                    data=orjson.dumps(body),
                    headers={
                        **self._endpoint.headers,
                        "content-type": "application/json",
                        "accept-encoding": "identity",
                    },
                    timeout=aiohttp.ClientTimeout(total=TOTAL_S, sock_connect=CONNECT_S),
                ) as response:
                    raw = await _bounded(response)
        except Redirected as error:
            raise JudgeDown(f"{self._endpoint.url} {error}") from error
        except (TimeoutError, aiohttp.ClientError, OSError) as error:
            raise JudgeDown(f"{self._endpoint.url} does not answer ({type(error).__name__}: {error})") from error
        if shape is not None and response.status in REFUSED:
            raise ShapeRefused(f"{self._endpoint.url} answered {response.status} to a JSON schema")
        if response.status != 200:
            raise JudgeDown(f"{self._endpoint.url} answered {response.status}")
        return _read(raw, sum(len(message["content"].encode()) for message in messages))


async def _all(calls: Sequence[Coroutine[Any, Any, Reading]]) -> list[Reading]:
    """All of them, none left running where one fails."""
    tasks = [asyncio.ensure_future(call) for call in calls]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _bounded(response: aiohttp.ClientResponse) -> bytes:
    """The body, up to MOST_BYTES: a longer one is cut, and then is not JSON."""
    body = bytearray()
    async for piece in response.content.iter_chunked(1 << 16):
        body += piece
        if len(body) > MOST_BYTES:
            break
    return bytes(body[:MOST_BYTES])


def _read(raw: bytes, prompt_size: int) -> JudgeAnswer:
    """An answer that is not one has no text: it is dropped as a vote. It costs what it costs."""
    text = ""
    tokens = -(-(prompt_size + len(raw)) // A_TOKEN)
    try:
        body = orjson.loads(raw)
        usage = body.get("usage") or {}
        total = usage.get("total_tokens")
        if type(total) is int and 0 < total < 10**7:
            tokens = total
        content = body["choices"][0]["message"]["content"]
        text = content if isinstance(content, str) else ""
    except (orjson.JSONDecodeError, AttributeError, KeyError, IndexError, TypeError):
        pass
    return JudgeAnswer(text, tokens)
