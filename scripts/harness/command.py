"""The `rlproxy` command, and other Python of rlproxy, in a process of its own, as a person runs it.

Owns the process that each is forked from. That process has imported the command line once, and ends with the process
that asks it. A start of Python with these imports costs a quarter of a second or more, a fork some milliseconds. How
the command starts by itself is tested elsewhere (tests/proxy/cli/test_app.py, Newcomer, Terminal).
"""

from __future__ import annotations

import asyncio
import atexit
import functools
import gc
import importlib
import json
import os
import pkgutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
COMMAND: Final = "from proxy.cli import main\nmain()"
LONGEST: Final = 2**20  # bytes of code, arguments and environment


async def rlproxy(home: Path, *args: str, **env: str) -> tuple[int, str, str]:
    """Its exit status, and what it printed on both streams."""
    return await python(COMMAND, *args, "--home", str(home), COLUMNS="200", **env)


async def python(code: str, *args: str, **env: str) -> tuple[int, str, str]:
    """The same of any code that `python -c` would run; a signal's number is negative."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith("RLPROXY_")} | env
    pipes = [os.pipe() for _ in range(3)]
    theirs = [end for _, end in pipes]
    try:
        socket.send_fds(_server(), [json.dumps([code, args, clean]).encode()], theirs)
    finally:
        for end in theirs:
            os.close(end)
    out, err, status = await asyncio.gather(*(_read(end) for end, _ in pipes))
    assert status, f"the process that commands are forked from is gone: {args}"
    return int(status), out.decode(), err.decode()


async def _read(end: int) -> bytes:
    reader = asyncio.StreamReader()
    protocol = asyncio.StreamReaderProtocol(reader)
    with os.fdopen(end, "rb", buffering=0) as pipe:
        transport, _ = await asyncio.get_running_loop().connect_read_pipe(lambda: protocol, pipe)
        try:
            return await reader.read()
        finally:
            transport.close()


@functools.cache
def _server() -> socket.socket:
    """Each message is one command, with the pipes for what it prints on both streams and for its status."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        command = [sys.executable, "-m", "scripts.harness.command", str(theirs.fileno())]
        process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()])

    def end() -> None:
        ours.close()
        process.wait()

    atexit.register(end)
    return ours


# In the process that commands are forked from


def _serve(asking: socket.socket) -> str:
    """Returns the code in each command's process, with arguments and streams in place. It ends when nobody asks."""
    import proxy.cli

    for module in pkgutil.walk_packages(proxy.cli.__path__, "proxy.cli."):
        importlib.import_module(module.name)
    gc.freeze()  # the commands share these pages
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # who has waited for a command needs nobody that waits for it
    while True:
        order, pipes, _, _ = socket.recv_fds(asking, LONGEST, 3)
        if not order:
            sys.exit()
        if os.fork() == 0:
            break
        for end in pipes:
            os.close(end)
    asking.close()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    command = os.fork()
    for stream, end in enumerate(pipes[:2], 1):
        os.dup2(end, stream)
        os.close(end)
    if command:
        _, status = os.waitpid(command, 0)
        os.write(pipes[2], str(os.waitstatus_to_exitcode(status)).encode())
        os._exit(0)
    os.close(pipes[2])
    signal.signal(signal.SIGINT, signal.default_int_handler)
    code, args, env = json.loads(order)
    os.environ.clear()
    os.environ.update(env)
    time.tzset()
    sys.argv = ["-c", *args]
    return str(code)


if __name__ == "__main__":
    exec(_serve(socket.socket(fileno=int(sys.argv[1]))), {"__name__": "__main__"})
