"""Plays recorded clients (scripts.clients.record) back through a whole rlproxy, and says what each turn counts as.

Owns the clock and the scripted backend. Each request comes as long after the last answer as it did, and each answer is
what it was. What was recorded is in tests/clients/recorded.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

from scripts.clients.record import unpacked
from scripts.fakes.backend import FakeBackend
from scripts.fakes.launcher import FakeLauncher
from scripts.harness.circumstances import ROOT
from scripts.harness.in_process import Proxy

RECORDED: Final = ROOT / "tests/clients/recorded"


class Clock:
    """The time of day, which can be moved on."""

    def __init__(self) -> None:
        self.ahead = 0.0


@contextmanager
def moved_clock() -> Iterator[Clock]:
    clock, real = Clock(), time.time
    time.time = lambda: real() + clock.ahead
    try:
        yield clock
    finally:
        time.time = real


class Turn(NamedTuple):
    """The kind of turn that rlproxy took a request for."""

    step: int
    expected: str  # main, side
    turn: str
    rule: str
    words: str  # how its newest message begins
    id: str


@asynccontextmanager
async def proxy_for_replay() -> AsyncIterator[Proxy]:
    backend = FakeBackend()
    await backend.start()
    with tempfile.TemporaryDirectory() as home:
        proxy = Proxy(Path(home), backend, FakeLauncher())
        await proxy.start()
        try:
            yield proxy
        finally:
            await proxy.stop()
            await backend.stop()


async def ask(proxy: Proxy, body: dict[str, Any], headers: dict[str, str], reply: dict[str, Any]) -> str | None:
    """Have this answered so; the completion's id, or None for a command."""
    calls = [call["function"] for call in reply.get("tool_calls") or []]
    proxy.backend.letter = True
    proxy.backend.script = lambda _: str(reply.get("content") or "")
    proxy.backend.wants = lambda _: (calls[0]["name"], calls[0]["arguments"]) if calls else ("none", {})
    async with proxy.http.post("/v1/chat/completions", json=body, headers=headers) as response:
        await response.read()
        assert response.status == 200, await response.text()
        return response.headers.get("x-rl-completion-id")


async def replay(steps: list[dict[str, Any]]) -> list[Turn]:
    turns: list[Turn] = []
    with moved_clock() as clock:
        async with proxy_for_replay() as proxy:
            for number, step in enumerate(steps):
                clock.ahead += max(0.0, step["after_s"])
                id = await ask(proxy, step["body"], step["headers"], step.get("reply", {}))
                if id is None:
                    assert step["turn"] == "command", f"step {number} was taken for a command"
                    continue
                assert step["turn"] != "command", f"step {number} was not taken for a command"
                row = await proxy.store.completions.get(id)
                assert row is not None
                words = row.new.typed or ""
                turns.append(Turn(number, step["turn"], row.new.turn, row.new.turn_rule, words[:80], id))
    return turns


def recordings() -> dict[str, list[dict[str, Any]]]:
    return {file.stem: unpacked(file.read_text(encoding="utf-8")) for file in sorted(RECORDED.glob("*.json"))}
