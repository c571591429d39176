"""Somebody who sends a long text with `/rl good`: what it is compared with must not cost all others their turn.

What was possible: 40 KB of accents on one letter kept the event loop for 44 s, and a message of 10 MB a thread for
minutes, a second at a time in which nobody else got one.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from proxy.conversation.same_text import LONGEST, Forms, Similarity, letters_of, similarity
from scripts.fakes.backend import FakeBackend
from scripts.harness.in_process import Proxy
from tests.attacker.test_stalls import MOST_S, turns

WORDS = "some words and more, " * 20_000
MARKS = "a" + "\u0301" * 10_000 + "\u0316" * 10_000
# A letter that takes no place among marks, and becomes two of them.
HIDDEN = "a" + "\u0f73" * 10_000


@pytest.fixture
def backend(backend_with_own_loop: FakeBackend) -> FakeBackend:
    return backend_with_own_loop


@pytest.mark.parametrize("text", [WORDS, MARKS, HIDDEN], ids=["words", "marks", "hidden marks"])
@pytest.mark.parametrize("role", ["user", "assistant"])
async def test_a_long_text_above_a_command_stalls_nobody(proxy: Proxy, text: str, role: str) -> None:
    for n in range(20):
        await proxy.say(f"question {n}")
    said = [("user", "x"), (role, text), ("user", "/rl good")]
    body = {"model": "fake", "messages": [{"role": role, "content": text} for role, text in said]}
    async with turns() as found, proxy.http.post("/v1/chat/completions", json=body) as response:
        assert "nothing was rated" in await response.text()
    assert max(found) < MOST_S, sorted(found)[-3:]


def cost(work: Callable[[], Any]) -> float:
    began = time.process_time()
    work()
    return time.process_time() - began


@pytest.mark.parametrize("make", [lambda n: "\u0301" * n + "\u0316" * n, lambda n: "\u0f73" * n])
def test_the_marks_of_one_letter_take_time_by_their_number(make: Callable[[int], str]) -> None:
    letters_of("é")  # what is a mark is found once
    assert cost(lambda: letters_of("a" + make(200_000))) < 1.0  # with the square of their number: half an hour


def test_many_marks_are_compared_all_the_same() -> None:
    marks = "a" + "\u0301" * 100 + "\u0316" * 100
    assert similarity(f"{marks} b", f"{marks}\nb") is Similarity.SPACES
    assert similarity("cafe\u0301 b", "caf\u00e9  b") is Similarity.SPACES
    assert similarity(marks, marks + "b") is Similarity.NOT


def test_one_text_is_made_ready_once_for_all_that_it_is_compared_with() -> None:
    few, many = (cost(lambda count=count: _compared(count)) for count in (2, 200))
    assert many < 20 * few  # made ready each time it is 100 times


def _compared(count: int) -> None:
    forms = Forms()
    for n in range(count):
        similarity(WORDS, f"answer {n}", forms)


def test_what_is_longer_than_any_answer_is_the_same_to_the_letter_or_not_at_all() -> None:
    text = "a b" * LONGEST
    assert similarity(text, f"{text}\n") is Similarity.EXACT
    assert similarity(text, text.replace(" ", "  ")) is Similarity.NOT
