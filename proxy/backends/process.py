"""One server process that rlproxy starts, on a free port: kept alive, and ended with rlproxy.

Owns its port, its log, its restarts with a growing pause, and that it never outlives rlproxy. What it serves is its
command's.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import aiohttp
import structlog

from proxy.core.errors import BackendDown
from trainer.launch import child_environment, default_threads, open_log

log = structlog.get_logger()

START_S: Final = 600.0  # a large model from a slow disk
POLL_S: Final = 0.1
GRACE_S: Final = 10.0
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.5, 30.0
# The server does not watch its stdin, so a shell does: when the pipe closes, however we end, the server is told to.
_WATCHED: Final = """
exec 3<&0
"$@" </dev/null 3<&- &
server=$!
{ cat <&3 >/dev/null; kill "$server" 2>/dev/null; } &
watch=$!
wait "$server"
status=$?
kill "$watch" 2>/dev/null
exit "$status"
"""


class Process:
    def __init__(
        self, command: Sequence[str], log_file: Path, headers: Mapping[str, str], environment: Mapping[str, str]
    ) -> None:
        """`headers`: to be asked with; `environment`: for its environment, where `ps` does not show a key."""
        self._port = _free_port()  # kept over restarts, so that its address holds
        self._command = [*command, "--host", "127.0.0.1", "--port", str(self._port)]
        self._log, self._headers, self._environment = log_file, headers, environment
        self._child: asyncio.subprocess.Process | None = None
        self._keeper: asyncio.Task[None] | None = None
        self._up = asyncio.Event()
        self._hopeless = False
        self.down_reason = "it is starting"
        self.url = f"http://127.0.0.1:{self._port}"

    @property
    def pid(self) -> int:
        assert self._child is not None
        return self._child.pid

    async def start(self, http: aiohttp.ClientSession) -> None:
        """Returns when it answers. Raises BackendDown where it ends, or takes too long."""
        try:
            await self._launch(http)
        except BaseException:
            await self._end()
            raise
        self._keeper = asyncio.create_task(self._keep(http), name=f"keep-{self._log.stem}")

    async def stop(self) -> None:
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.wait({self._keeper})
        await self._end()

    @property
    def up(self) -> bool:
        return self._up.is_set()

    async def wait(self) -> None:
        """Until it answers. One that did not come back at its first restart is not waited for."""
        while not (self.up or self._hopeless):
            await asyncio.sleep(POLL_S)

    async def _launch(self, http: aiohttp.ClientSession) -> None:
        with open_log(self._log) as file:
            self._child = await asyncio.create_subprocess_exec(
                "sh", "-c", _WATCHED, "sh", *self._command,
                stdin=asyncio.subprocess.PIPE, stdout=file, stderr=file,
                env=child_environment(default_threads()[0]) | dict(self._environment), start_new_session=True,
            )  # fmt: skip
        try:
            async with asyncio.timeout(START_S):
                while not await self._healthy(http):
                    if self._child.returncode is not None:
                        raise BackendDown(
                            f"{self._command[0]} ended with status {self._child.returncode}, see {self._log}"
                        )
                    await asyncio.sleep(POLL_S)
        except TimeoutError:
            raise BackendDown(f"{self._command[0]} did not answer within {START_S:.0f} s, see {self._log}") from None
        self.down_reason, self._hopeless = "", False
        self._up.set()
        log.info("backend process up", url=self.url, log=str(self._log))

    async def _healthy(self, http: aiohttp.ClientSession) -> bool:
        timeout = aiohttp.ClientTimeout(total=5)
        try:
            async with http.get(f"{self.url}/health", headers=self._headers, timeout=timeout) as response:
                return response.status == 200
        except (TimeoutError, aiohttp.ClientError, OSError):
            return False

    async def _keep(self, http: aiohttp.ClientSession) -> None:
        pause = FIRST_PAUSE_S
        while True:
            assert self._child is not None
            status = await self._child.wait()
            self._up.clear()
            self.down_reason = f"its process ended with status {status} and is being restarted"
            log.error("backend process died", status=status, restart_in_s=pause, log=str(self._log))
            await self._end()
            await asyncio.sleep(pause)
            pause = min(pause * 2, LONGEST_PAUSE_S)
            try:
                await self._launch(http)
            except (BackendDown, OSError) as error:
                self.down_reason, self._hopeless = f"it did not come back ({error})", True
            else:
                pause = FIRST_PAUSE_S

    async def _end(self) -> None:
        """Closing its stdin ends it; what does not end is killed with all that it started."""
        if (child := self._child) is None:
            return
        self._up.clear()
        if child.stdin is not None:
            child.stdin.close()
        try:
            async with asyncio.timeout(GRACE_S):
                await child.wait()
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            await child.wait()


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])
