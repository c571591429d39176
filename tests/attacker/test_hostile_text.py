"""A first message of the kinds of text that once made a search begin anew at each place, through the whole proxy.

While it is read, another client is answered. What is measured is the CPU time of all threads between two turns of the
loop: a search that holds the interpreter in a thread of its own stalls others as well. It is compared with that of a
harmless message of the same length, so how fast or busy the machine is does not count.
"""

from __future__ import annotations

import asyncio
import gc
import io
import time
from typing import Any, Final

import orjson
import pytest

from proxy.core.offload import LARGE
from scripts.fakes.backend import FakeBackend
from scripts.harness.in_process import Proxy

HARMLESS: Final = "The invoice of March is paid, and the next one comes in April. "
HOSTILE: Final = {
    "CR": "\r", "VT": "\v", "FF": "\f", "CR LF": "\r\n", "file separators": "\x1c\x1d\x1e", "NEL": "\x85",
    "line separators": "\u2028", "paragraph separators": "\u2029", "no space": "\u200b\r", "spinner": "⠋\r⠙\r",
    "bar": "\r█░ 1%", "labels": "\nuse", "quotation": '"text" ', "blocks": "<user_info", "keys": "sk-",
    "half keys": "-----BEGIN PRIVATE KEY-----", "cards": "4111 ", "card numbers": "4111111111111112 ",
    "addresses": "a@a.", "fences": "```\n", "brackets": '[[{"', "emoji": "👍🏽", "marks": "\u0301",
}  # fmt: skip
SIZES: Final = (40_000, 400_000, 4_000_000)
TIMES: Final = 25  # as long as the harmless one: a list of cards takes 15 times as long a character
LEAST_S: Final = 0.01  # of CPU, for its clock to be worth something


@pytest.fixture
def backend(backend_with_own_loop: FakeBackend) -> FakeBackend:
    return backend_with_own_loop


def body(text: str) -> bytes:
    messages = [{"role": "user", "content": text}]
    return orjson.dumps({"model": "fake", "messages": messages, "stream": False})


async def lag(proxy: Proxy, raw: bytes) -> float:
    """The most CPU seconds between two turns of the loop while this request and another client's are answered."""
    found = [0.0]
    sending = asyncio.create_task(answered(proxy, raw))
    other = asyncio.create_task(proxy.say("hello"))
    now = time.process_time()
    while not sending.done():
        await asyncio.sleep(0)
        before, now = now, time.process_time()
        found.append(now - before)
    assert await sending == 200
    assert other.done() or len(raw) < LARGE  # what is large is read in a thread, and the other one does not wait for it
    assert await other == "yes"
    return max(found)


async def answered(proxy: Proxy, raw: bytes) -> int:
    async with proxy.http.post("/v1/chat/completions", data=io.BytesIO(raw)) as answer:
        await answer.read()
        return answer.status


@pytest.mark.parametrize("kind", HOSTILE)
async def test_another_client_is_answered_meanwhile(proxy: Proxy, kind: str) -> None:
    proxy.backend.script = lambda request: "yes"  # it repeats what it was told, else
    unit: Any = HOSTILE[kind]
    gc.freeze()  # a collection is not of this request; nothing here looks through all that other tests have left
    try:
        for size in SIZES:
            raw, plain = (body(one * (size // (len(orjson.dumps(one)) - 2))) for one in (unit, HARMLESS))
            took, harmless = await lag(proxy, raw), await lag(proxy, plain)
            if took > TIMES * max(harmless, LEAST_S):  # once more: the first one loads modules
                took = await lag(proxy, raw)
            assert took <= TIMES * max(harmless, LEAST_S), (kind, size, took, harmless)
    finally:
        gc.unfreeze()
