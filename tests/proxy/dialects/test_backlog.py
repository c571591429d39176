"""What a renderer holds to the end of a stream is in its backlog, which is bounded, whatever the pieces say."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import pytest

from proxy.core.offload import memory_of
from proxy.dialects import DIALECTS

LENGTH: Final = 100_000
PIECES: Final = 40
UNCOUNTED: Final = 1 << 19  # bytes that a renderer may hold beside that
BY_NAME: Final = {dialect.name: dialect for dialect in DIALECTS if dialect.name != "chat"}
REQUEST: Final = {"model": "m", "input": "x", "messages": [{"role": "user", "content": "x"}], "prompt": "x"}


def long(n: int) -> str:
    """A text of its own."""
    return f"{n}".rjust(LENGTH, "x")


def call(index: int = 0, id: str = "c", **function: str) -> dict[str, Any]:
    return {"delta": {"tool_calls": [{"index": index, "id": id, "function": function}]}}


DELTAS: Final[dict[str, Callable[[int], dict[str, Any]]]] = {
    "text": lambda n: {"delta": {"content": long(n)}},
    "thinking": lambda n: {"delta": {"reasoning_content": long(n)}},
    "an unknown text": lambda n: {"delta": {"other": long(n)}},
    "unknown texts": lambda n: {"delta": {f"other {n}": long(n)}},
    "a name": lambda n: call(name=long(n)),
    "arguments": lambda n: call(name="f", arguments='{"a":"' + long(n)),
    "arguments without a name": lambda n: call(arguments='{"a":"' + long(n)),
    "ids": lambda n: call(id=long(n), arguments="x"),
    "calls": lambda n: call(index=n, id=f"{n}", name="f", arguments=long(n)),
    "token ids": lambda n: {"delta": {"content": "x"}, "token_ids": [1] * 100_000},
    "log-probs": lambda n: {"delta": {"content": "x"}, "logprobs": {"content": [{"token": long(n), "logprob": -1.0}]}},
    "another choice": lambda n: {"index": n + 1, "delta": {"content": long(n)}},
    "sound": lambda n: {"delta": {"audio": {f"other {n}": long(n)}}},
}


@pytest.mark.parametrize("make", DELTAS.values(), ids=DELTAS)
@pytest.mark.parametrize("name", BY_NAME)
def test_long_pieces_are_counted(name: str, make: Callable[[int], dict[str, Any]]) -> None:
    dialect = BY_NAME[name]
    say = dialect.renderer(id="rl-1", parsed=dialect.parse({**REQUEST, "max_tokens": 1}), created=0)
    for n in range(PIECES):
        say.chunk({"choices": [{"index": 0, **make(n)}]})
    assert memory_of(say, 1 << 30) <= say.backlog + UNCOUNTED


@pytest.mark.parametrize("name", BY_NAME)
def test_small_pieces_are_counted(name: str) -> None:
    dialect = BY_NAME[name]
    say = dialect.renderer(id="rl-1", parsed=dialect.parse({**REQUEST, "max_tokens": 1}), created=0)
    for n in range(4_000):
        say.chunk({"choices": [{"index": 0, "delta": {"reasoning_content": "a"} if n % 2 else {"content": "b"}}]})
    assert memory_of(say, 1 << 30) <= say.backlog + UNCOUNTED
