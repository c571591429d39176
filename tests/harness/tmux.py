"""A person's terminal in tmux: a shell is typed into, and what stands on the screen is read.

Beside tests/harness/terminal.py, which sees the bytes of one program: here a whole terminal interprets them, so what
was drawn over, cleared or put on the other screen looks as a person sees it.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Self

from tests.harness.terminal import ROOT, SHOWN_S

PROMPT = "ready>"
MISSING = "tmux is not installed: scripts/test installs it with apt-get where it can, as root or by sudo"


def installed() -> bool:
    return shutil.which("tmux") is not None


class Tmux:
    def __init__(self, env: Mapping[str, str], columns: int = 100, lines: int = 50) -> None:
        self._env = {**env, "PS1": f"{PROMPT} ", "TERM": "xterm-256color", "LANG": "C.UTF-8", "HISTFILE": "/dev/null"}
        self._size = ("-x", str(columns), "-y", str(lines))

    async def __aenter__(self) -> Self:
        # Short, as a socket's path may have 107 bytes only; a server of its own, so nobody's settings or windows.
        self._folder = Path(tempfile.mkdtemp(prefix="rl-tmux-"))
        await self._tmux("-f", "/dev/null", "new-session", "-d", *self._size, "bash", "--norc", "--noprofile")
        await self.expect(PROMPT)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._tmux("kill-server")
        shutil.rmtree(self._folder)

    async def _tmux(self, *args: str) -> str:
        env = {k: v for k, v in self._env.items() if k != "TMUX"}  # else one that runs in tmux asks the outer one
        process = await asyncio.create_subprocess_exec(
            "tmux", "-u", "-S", str(self._folder / "s"), *args, cwd=ROOT, env=env,
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        out, err = await process.communicate()
        assert process.returncode == 0, f"tmux {args[0]}: {err.decode()}"
        return out.decode()

    async def panes(self) -> list[str]:
        """Their ids, from top to bottom."""
        return (await self._tmux("list-panes", "-F", "#{pane_id}")).split()

    async def screen(self, pane: str = "") -> str:
        """What is on it now, long lines whole, without blanks at the ends of lines and the empty lines at the end."""
        shown = await self._tmux("capture-pane", "-p", "-J", *_target(pane))
        return "\n".join(line.rstrip() for line in shown.splitlines()).rstrip()

    async def expect(self, *texts: str, pane: str = "", limit_s: float = SHOWN_S) -> str:
        """Wait until all of these are on the screen; returns it."""
        shown = ""
        try:
            async with asyncio.timeout(limit_s):
                while not all(text in shown for text in texts):
                    await asyncio.sleep(0.05)
                    shown = await self.screen(pane)
        except TimeoutError:
            raise AssertionError(f"{texts} did not stand on the screen, but:\n{shown}") from None
        return shown

    async def prompt(self) -> str:
        """Wait until the shell asks for the next command; returns the screen above that."""
        shown = ""
        try:
            async with asyncio.timeout(SHOWN_S):
                while not shown.endswith(f"\n{PROMPT}"):
                    await asyncio.sleep(0.05)
                    shown = await self.screen()
        except TimeoutError:
            raise AssertionError(f"the shell did not come back:\n{shown}") from None
        return shown

    async def keys(self, *names: str, pane: str = "") -> None:
        """By tmux's names: Enter, C-c, C-d; or a letter."""
        await self._tmux("send-keys", *_target(pane), *names)

    async def resize(self, columns: int, lines: int) -> None:
        await self._tmux("resize-window", "-x", str(columns), "-y", str(lines))

    async def split(self, command: str, rows: int) -> None:
        """A pane of so many rows below the others, that ends with its command. The keyboard stays where it was."""
        await self._tmux("split-window", "-d", "-v", "-l", str(rows), command)

    async def type(self, text: str, pane: str = "") -> None:
        """To the letter, without Enter."""
        await self._tmux("send-keys", *_target(pane), "-l", text)

    async def line(self, text: str, pane: str = "") -> None:
        await self.type(text, pane)
        await self.keys("Enter", pane=pane)

    async def clear(self) -> None:
        """An empty screen, so that what comes next is not mistaken for what was there."""
        await self.line("clear")
        async with asyncio.timeout(SHOWN_S):
            while await self.screen() != PROMPT:
                await asyncio.sleep(0.05)


def _target(pane: str) -> list[str]:
    """The pane that is meant; without a name the one that has the keyboard."""
    return ["-t", pane] if pane else []
