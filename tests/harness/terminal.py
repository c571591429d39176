"""A program at a real terminal (a pty of its own): what it shows, what is typed, Ctrl-C as the kernel sends it."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import pty
import struct
import sys
import termios
from collections.abc import Mapping
from pathlib import Path
from typing import Self

ROOT = Path(__file__).resolve().parents[2]
SHOWN_S = 60.0
CTRL_C, CTRL_D = "\x03", "\x04"


class Terminal:
    def __init__(self, *args: str, env: Mapping[str, str], columns: int = 200) -> None:
        self._args, self._env, self._columns = args, dict(env), columns
        self.shown = ""
        self._read = 0  # what of it has been expected
        self._more = asyncio.Event()

    async def __aenter__(self) -> Self:
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 50, self._columns, 0, 0))
        self.before = termios.tcgetattr(slave)
        self._slave = slave
        self.process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "proxy.cli", *self._args, cwd=ROOT, env=self._env, stdin=slave, stdout=slave,
            stderr=slave, start_new_session=True, preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )  # fmt: skip
        asyncio.get_running_loop().add_reader(self._master, self._take)
        return self

    async def __aexit__(self, *_: object) -> None:
        if self.process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self.process.kill()
            await self.process.wait()
        asyncio.get_running_loop().remove_reader(self._master)
        os.close(self._master)
        os.close(self._slave)

    @property
    def after(self) -> list[object]:
        """The terminal's settings now."""
        return termios.tcgetattr(self._slave)

    def _take(self) -> None:
        with contextlib.suppress(OSError):
            self.shown += os.read(self._master, 65536).decode("utf-8", "replace")
        self._more.set()

    async def expect(self, text: str) -> str:
        """Wait until it shows this, after what was expected before; returns what came until then."""
        try:
            async with asyncio.timeout(SHOWN_S):
                while (found := self.shown.find(text, self._read)) < 0:
                    self._more.clear()
                    await self._more.wait()
        except TimeoutError:
            raise AssertionError(f"{text!r} was not shown; this was:\n{self.shown[self._read :]}") from None
        came = self.shown[self._read : found + len(text)]
        self._read = found + len(text)
        return came

    def type(self, text: str) -> None:
        os.write(self._master, text.encode())

    async def ended(self, again: str = "") -> int:
        """`again` is typed every two seconds until it has ended: a Ctrl-C between Python's prompt and its read is heard
        only with the next key."""
        async with asyncio.timeout(SHOWN_S):
            ending = asyncio.ensure_future(self.process.wait())
            while not (await asyncio.wait({ending}, timeout=2.0))[0]:
                self.type(again)
        status = ending.result()
        await asyncio.sleep(0.05)  # what it showed last
        return status
