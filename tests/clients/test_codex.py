"""Codex itself, run through the proxy: a command run, answers captured and rated, its compaction aside."""

from __future__ import annotations

import asyncio
import tomllib
from collections.abc import AsyncIterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from scripts.fakes.backend import FakeBackend
from scripts.harness.agent import CODEX_QUIET, Agent, connected, over, program
from scripts.harness.serving import Serving

pytestmark = [pytest.mark.agents, pytest.mark.timeout(560)]

SUM = {"cmd": "echo 40 + 2 | tr 4 5 > sum; cat sum"}


@pytest.fixture
async def codex(backend: FakeBackend, tmp_path: Path) -> AsyncIterator[Agent]:
    found = program("@openai/codex", "codex")
    async with connected(Agent(found, tmp_path, over(backend, tmp_path)), "codex") as agent:
        yield agent


async def test_a_tool_is_run_and_the_answer_rated(codex: Agent, backend: FakeBackend) -> None:
    backend.wants = "exec_command", SUM
    said = await codex.run("exec", *CODEX_QUIET, "Add up.")
    assert said.startswith("It is ") and said.endswith("50 + 2\n\n") and (codex.work / "sum").read_text() == "50 + 2\n"
    asking, answering = await codex.rows()
    for row in (asking, answering):
        assert (row["dialect"], row["translated"], row["status"]) == ("responses", True, "done")
        assert (row["turn"], row["model"]) == ("main", "fake") and row["session"]
    assert (asking["finish_reason"], answering["finish_reason"]) == ("tool_calls", "stop")

    said = await codex.run("exec", "resume", "--last", *CODEX_QUIET, " /rl good very clear")
    assert "rated good, because “very clear”" in said
    asking, answering = await codex.rows()  # a command is no completion
    (rating,) = answering["ratings"]
    assert asking["ratings"] == [] and (rating["value"], rating["comment"]) == (1.0, "very clear")

    backend.wants = "none", {}
    assert await codex.run("exec", "resume", "--last", *CODEX_QUIET, "And now?") == "You said: And now? \n"
    talk = [m for m in backend.requests[-1]["messages"] if m["role"] != "system"]
    assert [m["role"] for m in talk[-5:]] == ["user", "assistant", "tool", "assistant", "user"]
    assert not any("/rl" in str(m["content"]) or "rated good" in str(m["content"]) for m in talk)
    assert "rated bad" in await codex.run("exec", "resume", "--last", *CODEX_QUIET, "/rl bad")
    (*before, last) = await codex.rows()
    assert last["ratings"][0]["value"] == -1.0 and len(before) == 2


async def test_what_it_asks_on_the_side(codex: Agent, backend: FakeBackend) -> None:
    """A conversation that has grown too long is summarised before the next turn."""
    backend.wants, backend.prompt_tokens = ("none", {}), 50_000
    await codex.run("exec", *CODEX_QUIET, "Add up.")
    backend.prompt_tokens = 3
    await codex.run("exec", "resume", "--last", *CODEX_QUIET, "-c", "model_auto_compact_token_limit=40000", "And now?")
    rows = await codex.rows()
    turns = [(row["turn"], row["turn_rule"]) for row in rows]
    assert turns == [("main", "default"), ("side", "summary"), ("main", "default")]
    assert "rated 4 of 5" in await codex.run("exec", "resume", "--last", *CODEX_QUIET, " /rl 4")
    assert [row["id"] for row in await codex.rows() if row["ratings"]] == [rows[-1]["id"]]


KNOWN = "gpt-6-sol"  # Codex knows this name: its tools come between the messages, and run what code the model writes
SCRIPT = "const r = await tools.exec_command({cmd: 'echo 40 + 2 | tr 4 5 > sum; cat sum'}); text(r.output);"


@pytest.mark.parametrize(
    ("model", "calls"),
    [
        ("fake", [("exec_command", SUM), ("get_goal", {}), ("multi_agent_v1__spawn_agent", {"message": "Wait."})]),
        (
            KNOWN,
            [
                ("functions__exec", {"input": SCRIPT}),
                ("clock__sleep", {"duration_ms": 1}),
                ("collaboration__spawn_agent", {"task_name": "waiter", "message": "Wait for me."}),
            ],
        ),
    ],
)
async def test_several_tools_in_turn(
    backend: FakeBackend, tmp_path: Path, model: str, calls: list[tuple[str, dict[str, Any]]]
) -> None:
    """Every call comes back to Codex as the kind that it takes, whether or not it knows the model's name."""
    backend.model = model
    backend.wants = lambda body: _next(calls, body)
    serving = over(backend, tmp_path, model)
    async with connected(Agent(program("@openai/codex", "codex"), tmp_path, serving), "codex") as codex:
        await codex.run("exec", *CODEX_QUIET, "Add up.")
        assert (codex.work / "sum").read_text() == "50 + 2\n"
        talk = max((body["messages"] for body in backend.requests), key=len)
        assert sum(m["role"] == "tool" for m in talk) == len(calls) and "50 + 2" in str(talk)
        roles = [message["role"] for message in talk]
        assert "system" not in roles[1:] and ("user", "user") not in pairwise(roles)
        assert any("Wait" in str(body["messages"][-1]["content"]) for body in backend.requests)  # the other agent


def _next(calls: list[tuple[str, dict[str, Any]]], body: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """The call that has no result yet; an agent that another one started just answers."""
    asked = str([m["content"] for m in body["messages"] if m["role"] == "user"])
    done = sum(m["role"] == "tool" for m in body["messages"])
    return calls[done] if "Add up." in asked and "Wait" not in asked and done < len(calls) else ("none", {})


@pytest.mark.model
async def test_over_the_built_in_backend(weights: Path, tmp_path: Path) -> None:
    """A small model's nonsense, but its own: token ids and log-probs are those of the model that trains."""
    found = program("@openai/codex", "codex")
    serving = Serving(tmp_path / "home", weights)
    async with connected(Agent(found, tmp_path, serving), "codex") as codex:
        brief = codex.home / "brief.md"
        brief.write_text("Answer in one short sentence.")
        flags = (*CODEX_QUIET, "-c", f"model_instructions_file={brief}")
        answer = await codex.patiently("exec", *flags, "What is the capital of France?")
        row = (await codex.rows())[-1]
        assert row["text"].strip() == answer.strip() != "" and row["exact"], row["inexact_reason"]
        assert (row["turn"], row["dialect"], row["model"]) == ("main", "responses", "small")
        said = await codex.run("exec", "resume", "--last", *flags, " /rl bad too long")
        assert "rated bad, because “too long”" in said
        assert (await codex.rows())[-1]["ratings"][0]["comment"] == "too long"


async def test_the_panel_is_opened_after_a_reply(codex: Agent, backend: FakeBackend, tmp_path: Path) -> None:
    """`connect --panel` has Codex notify a program, which is one of ours in its place."""
    await codex.connect("codex", "--panel")
    settings = codex.home / ".codex/config.toml"
    text = settings.read_text()
    command = tomllib.loads(text)["notify"]
    assert command[:2] == ["sh", "-c"] and command[2].endswith(f"watch --open --home {codex.serving.home}")
    settings.write_text(text.replace(command[2], f"echo run >> {tmp_path}/opened"))
    backend.wants = "none", {}
    await codex.run("exec", *CODEX_QUIET, "Hello?")
    async with asyncio.timeout(30):  # it does not wait for that program
        while not (tmp_path / "opened").exists():
            await asyncio.sleep(0.1)
    assert (tmp_path / "opened").read_text() == "run\n"
