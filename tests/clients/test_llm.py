"""llm itself, run through the proxy: whole and streamed, a tool run, answers rated, the conversation going on."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from scripts.fakes.backend import FakeBackend
from scripts.harness.agent import CACHE, Agent, connected, over

pytestmark = [pytest.mark.agents]

PROGRAM = CACHE / "rlproxy/venvs/llm/bin/llm"


@pytest.fixture
async def llm(backend: FakeBackend, tmp_path: Path) -> AsyncIterator[Agent]:
    if not PROGRAM.exists():
        pytest.skip("llm is not installed; `make test-agents` does that and runs this test")
    async with connected(Agent(PROGRAM, tmp_path, over(backend, tmp_path)), "llm") as agent:
        yield agent


@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
async def test_asked_and_rated(llm: Agent, backend: FakeBackend, stream: bool) -> None:
    flags = () if stream else ("--no-stream",)
    assert await llm.run("-m", "rlproxy", *flags, "hi there") == "You said: hi there \n"
    (row,) = await llm.rows()
    assert (row["dialect"], row["turn"], row["status"], row["model"]) == ("chat", "main", "done", "fake")
    assert bool(backend.requests[-1].get("stream")) == stream
    assert "rated 4 of 5, because “nice”" in await llm.run("-c", *flags, "/rl 4 nice")
    (row,) = await llm.rows()
    assert [(r["value"], r["comment"]) for r in row["ratings"]] == [(0.5, "nice")]

    assert await llm.run("-c", *flags, "and now?") == "You said: and now? \n"
    talk = [(m["role"], m["content"]) for m in backend.requests[-1]["messages"]]
    assert talk == [("user", "hi there"), ("assistant", "You said: hi there "), ("user", "and now?")]


async def test_a_tool_is_run_and_the_answer_rated(llm: Agent, backend: FakeBackend) -> None:
    backend.wants = "llm_version", {}
    assert (await llm.run("-m", "rlproxy", "-T", "llm_version", "Which?")).strip().endswith("It is 0.36")
    asking, answering = await llm.rows()
    assert (asking["finish_reason"], answering["finish_reason"]) == ("tool_calls", "stop")
    assert "rated bad" in await llm.run("-c", "/rl bad")
    asking, answering = await llm.rows()
    assert asking["ratings"] == [] and answering["ratings"][0]["value"] == -1.0
