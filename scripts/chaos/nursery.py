"""Lives of a real `rlproxy serve`, one after the other, each a process of its own that has its imports already.

Run as `python -m scripts.chaos.nursery SETTINGS` (JSON, as flags): a line on stdin forks a proxy, its pid is printed,
and its exit status when it has ended. What a start costs otherwise, a second of imports, would be most of each life.
The rest of a start is real: settings, lock, migration, recovery, socket.
"""

from __future__ import annotations

import asyncio
import json
import os
import select
import signal
import sys
import threading
from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path
from typing import Any

import aiohttp

from proxy.core.address_file import ADDRESS_FILE

ROOT = Path(__file__).resolve().parents[2]
START_S = 120.0


class StartEnded(Exception):
    """The proxy ended before it answered; the end of its log."""


class Nursery:
    """The parent of the proxies, and the one that lives now."""

    def __init__(
        self,
        home: Path,
        flags: dict[str, Any],
        module: str = "scripts.chaos.nursery",
        command: tuple[str, ...] = (),
        env: Mapping[str, str] | None = None,
    ) -> None:
        """`module`: that calls `main`; `command`: that starts Python somewhere else."""
        self._module = module
        self._command = command
        self.home = home
        self.log = home.parent / f"{home.name}.log"
        self._flags = {"home": str(home), "server.port": 0, "log.level": "warning", **flags}
        self._env = {k: v for k, v in os.environ.items() if not k.startswith("RLPROXY_")} | dict(env or {})
        self.pid = 0

    async def open(self) -> None:
        with self.log.open("ab") as log:
            self._parent = await asyncio.create_subprocess_exec(
                *self._command, sys.executable, "-m", self._module, json.dumps(self._flags), cwd=ROOT, env=self._env,
                stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=log,
            )  # fmt: skip

    async def close(self) -> None:
        """Whoever still lives is killed first."""
        if self.pid:
            await self.kill()
        assert self._parent.stdin is not None
        self._parent.stdin.close()
        await self._parent.wait()

    async def born(self) -> None:
        """A process that has begun to start."""
        (self.home / ADDRESS_FILE).unlink(missing_ok=True)
        assert self._parent.stdin is not None
        self._parent.stdin.write(b"\n")
        async with asyncio.timeout(START_S):
            self.pid = int(await self._line())

    async def answers(self) -> str:
        """Its address, when it has one. Raises StartEnded."""
        address = self.home / ADDRESS_FILE
        async with asyncio.timeout(START_S):
            while not address.exists():
                if not self._alive():
                    await self.ended()
                    raise StartEnded(self.log.read_text()[-2000:])
                await asyncio.sleep(0.01)
        return str(json.loads(address.read_text())["url"])

    async def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        assert await self.ended() == -signal.SIGKILL

    async def ended(self) -> int:
        """Its status, as `Popen.returncode` has it."""
        status = int(await self._line())
        self.pid = 0
        return status

    async def stop(self) -> int:
        os.kill(self.pid, signal.SIGTERM)
        return await self.ended()

    def client(self, url: str) -> aiohttp.ClientSession:
        return aiohttp.ClientSession(url, timeout=aiohttp.ClientTimeout(total=60))

    def _alive(self) -> bool:
        try:
            return Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
        except OSError:
            return False

    async def _line(self) -> bytes:
        assert self._parent.stdout is not None
        line = await self._parent.stdout.readline()
        assert line, self.log.read_text()[-2000:]
        return line


def main(flags: dict[str, Any], serve: Callable[..., Coroutine[Any, Any, None]] | None = None) -> None:
    """`serve`: takes the settings; None is rlproxy's own."""
    from config.settings import load
    from proxy import server

    settings = load(flags).settings
    while sys.stdin.readline():
        if (child := os.fork()) == 0:
            threading.Thread(target=_end_with_whoever_asked, args=(os.dup(0),), daemon=True).start()
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            os.dup2(2, 1)
            server.configure_logs(settings.log.level, False)
            asyncio.run((serve or server.serve)(settings))
            os._exit(0)
        print(child, flush=True)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


def _end_with_whoever_asked(pipe: int) -> None:
    """Where the tests themselves are killed, no proxy of theirs goes on."""
    looking = select.poll()
    looking.register(pipe, 0)  # nothing but the end of the other side
    looking.poll()
    os._exit(1)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
