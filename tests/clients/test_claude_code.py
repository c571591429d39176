"""Claude Code itself, run through the proxy: a tool used, answers captured and rated, side turns aside."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from scripts.fakes.backend import FakeBackend
from scripts.harness.agent import CLAUDE_CODE_QUIET, Agent, connected, over, program
from scripts.harness.serving import Serving

pytestmark = [pytest.mark.agents, pytest.mark.timeout(560)]

SUM = {"command": "echo 40 + 2 | tr 4 5 > sum; cat sum", "description": "adds"}
ERRAND = {"description": "adds", "prompt": "Reckon.", "subagent_type": "general-purpose", "run_in_background": False}


@pytest.fixture
async def claude(backend: FakeBackend, tmp_path: Path) -> AsyncIterator[Agent]:
    found = program("@anthropic-ai/claude-code", "claude")
    async with connected(Agent(found, tmp_path, over(backend, tmp_path), **CLAUDE_CODE_QUIET), "claude-code") as agent:
        yield agent


def seen(request: dict[str, Any]) -> list[tuple[str, str]]:
    """Who spoke in a chat request, and how each ended, but for the system."""
    said = [(m["role"], m["content"]) for m in request["messages"] if m["role"] != "system"]
    return [(role, text if isinstance(text, str) else text[-1]["text"]) for role, text in said]


async def test_a_tool_is_run_and_the_answer_rated(claude: Agent, backend: FakeBackend) -> None:
    backend.wants = "Bash", SUM
    result = json.loads(await claude.run("-p", "Add up.", "--allowedTools", "Bash", "--output-format", "json"))
    assert result["result"] == "It is 50 + 2" and (claude.work / "sum").read_text() == "50 + 2\n"
    asking, answering = await claude.rows()
    for row in (asking, answering):
        assert (row["dialect"], row["translated"], row["status"]) == ("messages", True, "done")
        assert (row["turn"], row["session"], row["model"]) == ("main", result["session_id"], "fake")
    assert (asking["finish_reason"], answering["finish_reason"]) == ("tool_calls", "stop")

    said = await claude.run("-p", "/rl good very clear", "--continue")
    assert "rated good, because “very clear”" in said
    asking, answering = await claude.rows()  # a command is no completion
    (rating,) = answering["ratings"]
    assert asking["ratings"] == [] and (rating["value"], rating["comment"]) == (1.0, "very clear")

    backend.wants = "none", {}
    assert await claude.run("-p", "And now?", "--continue") == "You said: And now? \n"
    talk = seen(backend.requests[-1])
    assert [role for role, _ in talk] == ["user", "assistant", "tool", "assistant", "user"]
    assert [text for _, text in talk[2:]] == ["50 + 2", "It is 50 + 2", "And now?"]  # without `/rl` and its answer
    assert "rated bad" in await claude.run("-p", "/rl bad", "--continue")
    (*before, last) = await claude.rows()
    assert last["ratings"][0]["value"] == -1.0 and len(before) == 2


async def test_what_it_asks_on_the_side(claude: Agent, backend: FakeBackend) -> None:
    backend.wants = "Agent", ERRAND
    await claude.run("-p", "Let somebody reckon.", "--allowedTools", "Agent")
    rows = await claude.rows()
    turns = {(row["turn"], row["turn_rule"]) for row in rows}
    assert turns == {("main", "default"), ("side", "subagent")} and len({row["session"] for row in rows}) == 1
    last = [row for row in rows if row["turn"] == "main"][-1]
    assert "rated 4 of 5" in await claude.run("-p", "/rl 4", "--continue")
    assert [row["id"] for row in await claude.rows() if row["ratings"]] == [last["id"]]

    backend.wants = "none", {}
    await claude.run("-p", "/compact", "--continue")
    summary = (await claude.rows())[-1]
    assert (summary["turn"], summary["turn_rule"]) == ("side", "summary")


async def test_the_model_runs_no_command_by_itself(claude: Agent, backend: FakeBackend) -> None:
    """Because of a page that it has read."""
    backend.wants = "Skill", {"skill": "rl", "args": "pause"}
    await claude.tried("-p", "Read the page.", "--max-turns", "2")
    result = next(m for m in backend.requests[-1]["messages"] if m["role"] == "tool")
    assert "Launching" not in result["content"]
    async with claude.serving.http.get("/rl/status") as response:
        assert (await response.json())["training"]["paused"] is False
    assert "paused" in await claude.run("-p", "/rl pause", "--continue")  # what is typed is one


@pytest.mark.model
async def test_over_the_built_in_backend(weights: Path, tmp_path: Path) -> None:
    """A small model's nonsense, but its own: token ids and log-probs are those of the model that trains."""
    found = program("@anthropic-ai/claude-code", "claude")
    serving = Serving(tmp_path / "home", weights)
    async with connected(Agent(found, tmp_path, serving, **CLAUDE_CODE_QUIET), "claude-code") as claude:
        flags = ("--tools", "", "--system-prompt", "Answer in one short sentence.")
        answer = await claude.patiently("-p", "What is the capital of France?", *flags)
        row = (await claude.rows())[-1]
        assert row["text"].strip() == answer.strip() != "" and row["exact"], row["inexact_reason"]
        assert (row["turn"], row["dialect"], row["model"]) == ("main", "messages", "small")
        assert "rated bad, because “too long”" in await claude.run("-p", "/rl bad too long", "--continue", *flags)
        assert (await claude.rows())[-1]["ratings"][0]["comment"] == "too long"


async def test_the_panel_is_opened_after_a_reply(claude: Agent, backend: FakeBackend, tmp_path: Path) -> None:
    """`connect --panel` writes a hook; a program in its place notes that Claude Code runs it."""
    settings = claude.home / ".claude/settings.json"
    await claude.connect("claude-code", "--panel")
    written = settings.read_text()
    (hook,) = [hook for entry in json.loads(written)["hooks"]["Stop"] for hook in entry["hooks"]]
    assert "watch --open" in hook["command"]
    settings.write_text(written.replace(json.dumps(hook["command"]), json.dumps(f"echo run >> {tmp_path}/opened")))
    backend.wants = "none", {}
    await claude.run("-p", "Hello?")
    assert (tmp_path / "opened").read_text() == "run\n"
