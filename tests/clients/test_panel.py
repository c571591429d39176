"""`rlproxy watch` below Claude Code and Codex themselves, in tmux: what a person has before them is what is rated.

The agents' own hooks open the panel. Each answer of the scripted backend has a number of its own, so the test knows
which answer each key meant. RLPROXY_PANEL_JSON names a file for what was counted (`scripts/test_agents` does).
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import re
import shlex
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Final

import psutil
import pytest

from proxy.cli.watch import SETTLE_S
from scripts.fakes.backend import FakeBackend
from scripts.fakes.native import flat
from scripts.harness.agent import CLAUDE_CODE_QUIET, CODEX_QUIET, PINNED, Agent, connected, over, program
from scripts.harness.circumstances import circumstances
from tests.harness.sshd import Sshd, lacks
from tests.harness.terminal import ROOT, SHOWN_S
from tests.harness.tmux import MISSING, Tmux, installed

pytestmark = [
    pytest.mark.agents,
    pytest.mark.timeout(1200),
    pytest.mark.skipif(not installed(), reason=MISSING),
    pytest.mark.skipif(lacks() is not None, reason=str(lacks())),
]

GROUPS: Final = (1, 1, 3, 1, 2, 1, 3, 1, 2, 3, 1, 2, 1, 3, 1, 3, 1)  # asked before the next key is pressed
KINDS: Final = ("plainly", "plainly", "with a tool", "plainly", "with an errand")
TITLE: Final = re.compile(r"^(?:1 waits|\d+ of \d+) · ")
NEVER_SHOWN: Final = ("Errand", "On the side", "Looking")
NUMBER: Final = re.compile(r"\b([12]\d{3})\.")
assert sum(GROUPS) == 30


class Model:
    """The script of the backend: the main answers, and those to questions that an agent asks on the side."""

    def __init__(self, backend: FakeBackend, tool: tuple[str, str], errands: bool) -> None:
        """`tool`: its name, and that of the argument with the command."""
        self._tool, self._errands = tool, errands
        backend.script, backend.wants = self.reply, self.call

    def reply(self, body: dict[str, Any]) -> str:
        task, number = self._task(body)
        if self.call(body)[0] != "none":  # an agent takes what is typed meanwhile into this turn
            return "Looking it up."
        if task == "question":
            return f"Answer {number}." + "".join(f"\nLine {line} of {number}." for line in range(int(number) % 7))
        return {"errand": f"Errand done {number}.", "notice": f"Noted {number}."}.get(task, "On the side.")

    def call(self, body: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        task, number = self._task(body)
        if task != "question" or body["messages"][-1]["role"] == "tool":
            return "none", {}
        text = self._texts(body)[-1]
        if "with a tool" in text:
            return self._tool[0], {self._tool[1]: f"echo looked up {number}", "description": "says"}
        if "with an errand" in text and self._errands:
            prompt = f"Errand {number} please."
            return "Agent", {
                "description": "runs", "prompt": prompt, "subagent_type": "general-purpose", "run_in_background": False,
            }  # fmt: skip
        return "none", {}

    def _task(self, body: dict[str, Any]) -> tuple[str, str]:
        for text in reversed(self._texts(body)):
            if "notification" in text and (errands := re.findall(r"Errand done 1(\d{3})\.", text)):
                return "notice", f"2{errands[-1]}"
            if errands := re.findall(r"Errand (\d+) please", text):
                return "errand", errands[-1]
            if questions := re.findall(r"question (\d+)", text):
                return ("question" if body.get("tools") else "title"), questions[-1]
            if "summary" in text.lower():
                return "summary", ""
        return "other", ""

    @staticmethod
    def _texts(body: dict[str, Any]) -> list[str]:
        return [flat(message["content"]) for message in body["messages"] if message["role"] == "user"]


class Person:
    """One who asks in the upper pane and presses keys in the lower one. It remembers which answer each key meant."""

    def __init__(self, agent: Agent, terminal: Tmux, upper: str, *, errands: bool) -> None:
        self._agent, self._terminal, self._upper, self._errands = agent, terminal, upper, errands
        self._choice = random.Random(49)
        self._next = 1001
        self._shown: str | None = None  # the number of the answer that the last key meant
        self.ratings: dict[str, str] = {}
        self.steps: list[str] = []

    async def ask(self) -> list[str]:
        """Returns the numbers of the answers, once the agent shows them. An errand brings a second one: that it has
        ended is told to the model."""
        number, kind = str(self._next), KINDS[self._next % len(KINDS)]
        self._next += 1
        await self.type(f"question {number} {kind}")
        if kind != "with an errand" or not self._errands:
            await self._answered(f" {number}.")
            return [number]
        notice = f"2{number[1:]}"  # it may have moved the first one off the screen
        await self._answered(f"Noted {notice}.")
        return [number, notice]

    async def _answered(self, text: str) -> None:
        """Until the agent shows this. A busy agent may have taken the Enter for a part of a paste: a person presses it
        again."""
        for _ in range(4):
            with suppress(AssertionError):
                await self._terminal.expect(text, pane=self._upper, limit_s=20)
                return
            await self._terminal.keys("Enter", pane=self._upper)
        await self._terminal.expect(text, pane=self._upper)

    async def type(self, text: str) -> None:
        """The Enter comes apart: an agent takes what comes in one piece for a paste."""
        await self._terminal.type(text, pane=self._upper)
        await asyncio.sleep(0.5)
        await self._terminal.keys("Enter", pane=self._upper)

    async def panel(self) -> str:
        """The panel's pane, once it is there."""
        async with asyncio.timeout(SHOWN_S):
            while len(panes := await self._terminal.panes()) < 2:
                await asyncio.sleep(0.1)
        return panes[1]

    async def rate(self, expected: str) -> None:
        word = self._choice.choice(("good", "bad"))
        number = await self._shown_number()
        assert number == expected, f"the panel shows {number}, and {expected} is the oldest that nobody rated"
        await self._press({"good": "1", "bad": "2"}[word])
        await self._terminal.expect(f"rated {word}: “", f"{number}.", pane=await self.panel())
        self._shown, self.ratings[number] = number, word

    async def change_mind(self) -> None:
        """`u`, and the other key."""
        assert self._shown is not None
        number, word = self._shown, {"good": "bad", "bad": "good"}[self.ratings[self._shown]]
        await self._press("u")
        self._shown = None
        assert await self._shown_number() == number
        await self._press({"good": "1", "bad": "2"}[word])
        await self._terminal.expect(f"rated {word}: “", f"{number}.", pane=await self.panel())
        self._shown, self.ratings[number] = number, word

    async def _press(self, key: str) -> None:
        await asyncio.sleep(SETTLE_S + 0.1)
        await self._terminal.keys(key, pane=await self.panel())

    async def _shown_number(self) -> str:
        """The number of the answer on the panel, once it differs from the last one that was rated."""
        screen = ""
        with suppress(TimeoutError):
            async with asyncio.timeout(SHOWN_S):
                while True:
                    screen = await self._terminal.screen(await self.panel())
                    lines = screen.splitlines()
                    title = next((index for index, line in enumerate(lines) if TITLE.match(line)), None)
                    if title is not None:
                        text = lines[title + 1]
                        assert not text.startswith(NEVER_SHOWN), f"a side turn, or a call of tools:\n{screen}"
                        if (number := NUMBER.search(text)) and number[1] != self._shown:
                            return number[1]
                    await asyncio.sleep(0.05)
        upper = await self._terminal.screen(self._upper)
        raise AssertionError(f"the panel stayed at {self._shown}:\n{screen}\nAbove it:\n{upper}")


async def hooks_ended(home: Path) -> None:
    """On a busy machine a hook takes seconds to see whether a panel is open; it would open one beside ssh's."""

    def running() -> bool:
        commands = [" ".join(process.info["cmdline"] or []) for process in psutil.process_iter(["cmdline"])]
        return any("--open" in command and str(home) in command for command in commands)

    async with asyncio.timeout(SHOWN_S):
        while running():
            await asyncio.sleep(0.1)


def end_panel(home: Path) -> None:
    """Kill every process of the panel, as a power cut would, also one that ssh runs."""
    for process in psutil.process_iter(["cmdline"]):
        command = process.info["cmdline"] or []
        if "watch" in command and str(home) in command:
            process.send_signal(signal.SIGKILL)


async def act(step: str, person: Person, terminal: Tmux, agent: Agent, sshd: Sshd) -> None:
    """One of the things that happen between two questions."""
    person.steps.append(step)
    home = agent.serving.home
    if step.startswith("size "):
        columns, lines = step.removeprefix("size ").split(" × ")
        await terminal.resize(int(columns), int(lines))
    elif step == "change of mind":
        await person.change_mind()
    elif step == "compact":
        sides = sum(row["turn"] == "side" for row in await agent.rows())
        await person.type("/compact")
        async with asyncio.timeout(SHOWN_S):
            while sum(row["turn"] == "side" and row["status"] == "done" for row in await agent.rows()) == sides:
                await asyncio.sleep(0.2)
    elif step == "kill -9":
        pane = await person.panel()
        end_panel(home)
        await gone(terminal, pane)
    elif step == "over ssh":
        await hooks_ended(home)
        pane = await person.panel()
        await terminal.keys("q", pane=pane)
        await gone(terminal, pane)
        remote = shlex.join([str(sshd.python), "-m", "proxy.cli", "watch", "--home", str(home)])
        ssh = ["ssh", "-tt", *sshd.options(), "-p", str(sshd.port), f"{sshd.user}@127.0.0.1", remote]
        await terminal.split(shlex.join(ssh), rows=10)
        await terminal.expect("q quit", pane=await person.panel())
        assert len(await terminal.panes()) == 2
    elif step == "ssh cut":
        pane = await person.panel()
        sshd.stop()
        await gone(terminal, pane)
        sshd.start()


async def gone(terminal: Tmux, pane: str) -> None:
    """A hook that is still under way may have opened another one by then."""
    async with asyncio.timeout(SHOWN_S):
        while pane in await terminal.panes():
            await asyncio.sleep(0.1)


STEPS: Final = {
    1: "size 80 × 24", 2: "change of mind", 3: "compact", 4: "kill -9", 5: "size 120 × 50", 6: "size 80 × 30",
    8: "over ssh", 10: "size 100 × 36", 12: "ssh cut", 14: "size 60 × 24",
}  # fmt: skip
KILLED_IN: Final = 13  # this group: with two answers that wait


@asynccontextmanager
async def running(agent: Agent, *flags: str) -> AsyncIterator[tuple[Tmux, str]]:
    """The agent in tmux, as its person starts it; gives its pane, too."""
    environment = {**agent.environment, "PYTHONPATH": str(ROOT)}  # the panel's program is that of this tree
    async with Tmux(environment, columns=80, lines=40) as terminal:
        (upper,) = await terminal.panes()
        await terminal.line(f"cd {agent.work} && clear && {shlex.join([str(agent.program), *flags])}", pane=upper)
        yield terminal, upper


async def thirty_answers(name: str, agent: Agent, terminal: Tmux, upper: str, sshd: Sshd) -> None:
    person = Person(agent, terminal, upper, errands="claude" in name)
    try:
        for group, count in enumerate(GROUPS):
            if step := STEPS.get(group):
                await act(step, person, terminal, agent, sshd)
            waiting = [number for _ in range(count) for number in await person.ask()]
            for index, number in enumerate(waiting):
                await person.rate(number)
                if group == KILLED_IN and index == 0:
                    await act("kill -9", person, terminal, agent, sshd)
                    waiting += await person.ask()
    finally:
        await keep(name, agent, person)
    report = await counted(agent, person)
    assert report["twice"] == report["on_side_turns"] == report["wrong"] == 0, report
    assert report["right"] == len(person.ratings) >= 30 and report["side_turns"] > 0, report


async def counted(agent: Agent, person: Person) -> dict[str, Any]:
    rows = await agent.rows()
    rated = [row for row in rows if row["ratings"]]
    meant = {
        row["id"]: person.ratings.get(number[1] if (number := NUMBER.search(row["text"] or "")) else "")
        for row in rated
        if row["turn"] == "main"
    }
    words = {row["id"]: "good" if row["ratings"][0]["value"] > 0 else "bad" for row in rated}
    right = [id for id, word in words.items() if meant.get(id) == word]
    return {
        "keys": len(person.ratings), "right": len(right), "wrong": len(rated) - len(right),
        "twice": sum(len(row["ratings"]) > 1 for row in rated),
        "on_side_turns": sum(row["turn"] == "side" for row in rated),
        "main_turns": sum(row["turn"] == "main" for row in rows),
        "side_turns": sum(row["turn"] == "side" for row in rows),
        "steps": person.steps,
        "asked_elsewhere": sorted({line.partition(" HTTP")[0] for line in agent.dead_end.requests}),
    }  # fmt: skip


async def keep(name: str, agent: Agent, person: Person) -> None:
    if not (place := os.environ.get("RLPROXY_PANEL_JSON")):
        return
    file = Path(place)
    stored = json.loads(file.read_text()) if file.exists() else {}
    version = json.loads(PINNED.read_text())["dependencies"]
    stored[name] = {**circumstances(), "agent": version[name], **await counted(agent, person)}
    file.write_text(json.dumps(stored, indent=1) + "\n")


@pytest.fixture
def sshd(tmp_path: Path) -> Any:
    server = Sshd(tmp_path / "sshd")
    server.start()
    yield server
    server.stop()


async def test_below_claude_code(backend: FakeBackend, tmp_path: Path, sshd: Sshd) -> None:
    name = "@anthropic-ai/claude-code"
    Model(backend, ("Bash", "command"), errands=True)
    claude = Agent(program(name, "claude"), tmp_path, over(backend, tmp_path), **CLAUDE_CODE_QUIET)
    trusted = {str(claude.work): {"hasTrustDialogAccepted": True}}
    (claude.home / ".claude.json").write_text(json.dumps({"hasCompletedOnboarding": True, "projects": trusted}))
    async with connected(claude, "claude-code", asks_home=True):
        await claude.connect("claude-code", "--panel")
        async with running(claude, "--permission-mode", "default", "--allowedTools", "Bash", "Agent") as (
            terminal,
            upper,
        ):
            await terminal.expect("❯", pane=upper)
            await thirty_answers(name, claude, terminal, upper, sshd)


async def test_below_codex(backend: FakeBackend, tmp_path: Path, sshd: Sshd) -> None:
    name = "@openai/codex"
    Model(backend, ("exec_command", "cmd"), errands=False)
    codex = Agent(program(name, "codex"), tmp_path, over(backend, tmp_path))
    async with connected(codex, "codex", asks_home=True):
        await codex.connect("codex", "--panel")
        config = codex.home / ".codex/config.toml"
        config.write_text(f'{config.read_text()}\n[projects."{codex.work}"]\ntrust_level = "trusted"\n')
        flags = [flag for flag in CODEX_QUIET if flag != "--skip-git-repo-check"]
        async with running(codex, *flags) as (terminal, upper):
            await terminal.expect("›", pane=upper)
            await thirty_answers(name, codex, terminal, upper, sshd)
