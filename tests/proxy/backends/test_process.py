"""A server process of ours: it comes back, it says why not, and it never outlives us."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import aiohttp
import psutil
import pytest

from proxy.backends.process import _WATCHED, Process
from proxy.core.errors import BackendDown

SLEEP = [sys.executable, "-c", "import time; time.sleep(300)"]


def runs(pid: int) -> bool:
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


async def test_the_server_ends_with_its_pipe() -> None:
    """As it does when rlproxy is killed: nobody is left to send a signal."""
    shell = await asyncio.create_subprocess_exec("sh", "-c", _WATCHED, "sh", *SLEEP, stdin=asyncio.subprocess.PIPE)
    assert shell.stdin is not None
    server: list[int] = []
    while not server:
        children = psutil.Process(shell.pid).children(recursive=True)
        server = [c.pid for c in children if c.name().startswith("python")]
        await asyncio.sleep(0.02)
    shell.stdin.close()
    assert await shell.wait() == 128 + 15
    assert not runs(server[0])


async def test_the_servers_own_status_and_log_are_told(tmp_path: Path) -> None:
    process = Process([sys.executable, "-c", "print('no such model'); exit(3)"], tmp_path / "logs" / "x.log", {}, {})
    async with aiohttp.ClientSession() as http:
        with pytest.raises(BackendDown, match=r"status 3, see .*x\.log"):
            await process.start(http)
    assert not process.up and "no such model" in (tmp_path / "logs" / "x.log").read_text()
