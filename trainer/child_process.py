"""Child processes: how one is started, what it prints, and how it ends.

Owns their limits (limits), their environment (no secret of rlproxy goes in), and their standard input. That is a pipe
which closes with rlproxy, so that no orphan outlives a killed proxy. Not here: what they are for (launch).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from trainer import low_priority
from trainer.idle_cores import openmp_environment
from trainer.limits import ProcessLimits, limited

_LOGIN = re.compile(r"://[^/\s:@]*:[^/\s@]+@")  # user:password@ in an address
ROOT = Path(__file__).resolve().parent.parent  # where `-m trainer` is found, installed or not
PYTHON = (sys.executable, "-P")  # nothing is imported from the folder that rlproxy was started in
AWAITED_NICE = 5  # of what a request or the next run waits for: it gets a quarter of a busy machine, not a tenth
PRIVATE = 0o077  # umask: a run folder and its log are for its owner only
UNBOUNDED = ProcessLimits(file_bytes=0)  # a fused model may be as large as models are
LINE = 2**20  # bytes of one event; asyncio's default of 64 KiB is short for an `end` with many samples
SECRETS = ("KEY", "TOKEN", "SECRET", "PASSWORD", "PASSWD", "PASSPHRASE", "CREDENTIAL", "AUTH", "COOKIE")
PROXIES = ("http_proxy", "https_proxy", "all_proxy", "ftp_proxy")  # how weights are downloaded; may hold a password


class LaunchError(Exception):
    """One sentence: what did not start, and where its log is."""


async def run_to_end(module: str, *arguments: str, request: bytes = b"") -> tuple[bytes, str | None]:
    """Run one of our short programs behind everything else on the machine, with `request` as its input. Returns what
    it printed, and why it failed (None: it did not)."""
    command = await _at_low_priority(AWAITED_NICE, [*PYTHON, "-m", module, *arguments])
    process = await asyncio.create_subprocess_exec(
        *limited(UNBOUNDED, command),
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        env=python_environment(1), start_new_session=True,
    )  # fmt: skip
    try:
        output, error_output = await process.communicate(request)
    finally:
        if process.returncode is None:
            process.kill()
    if not process.returncode:
        return output, None
    lines = error_output.decode("utf-8", "replace").strip().splitlines()
    return output, lines[-1] if lines else f"status {process.returncode}"


async def spawn(
    command: list[str],
    *,
    threads: int,
    log: Path,
    environment: Mapping[str, str] | None = None,
    limits: ProcessLimits = ProcessLimits(),  # noqa: B008  frozen
    nice: int | None = None,
) -> asyncio.subprocess.Process:
    """`nice`: how far it steps back; None: it serves, and does not."""
    full_command = [*PYTHON, *command]
    full_command = full_command if nice is None else await _at_low_priority(nice, full_command)
    errors: IO[bytes] | None = None
    try:
        errors = open_log(log)
        return await asyncio.create_subprocess_exec(
            *limited(limits, full_command),
            stdin=asyncio.subprocess.PIPE,  # kept open: it closes when we end, however we do
            stdout=asyncio.subprocess.PIPE,
            stderr=errors,
            env=python_environment(threads) | dict(environment or {}),
            limit=LINE,
            umask=PRIVATE,
            start_new_session=True,  # Ctrl-C in a terminal is for us: we end our children in order
        )
    except OSError as error:
        raise LaunchError(f"{' '.join(command[:2])} did not start: {error}.") from None
    finally:
        if errors is not None:
            errors.close()


def open_log(path: Path) -> IO[bytes]:
    """For its owner only, whatever the umask, and also one that is there: what people said may stand in it."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.fchmod(file, 0o600)
    return os.fdopen(file, "ab")


async def _at_low_priority(nice: int, command: Sequence[str]) -> list[str]:
    return low_priority.at_low_priority(nice, command, await asyncio.to_thread(low_priority.scope))


def _is_secret(name: str, value: str) -> bool:
    if name.upper().startswith("RLPROXY_") or any(word in name.upper() for word in SECRETS):
        return True
    return _LOGIN.search(value) is not None and name.lower() not in PROXIES


def python_environment(threads: int) -> dict[str, str]:
    """For children that are our own Python: they find rlproxy, and nothing in the folder that they run in."""
    environment = child_environment(threads)
    paths = [part for part in environment.get("PYTHONPATH", "").split(os.pathsep) if os.path.isabs(part)]
    return environment | {
        "PYTHONPATH": os.pathsep.join([str(ROOT), *paths]),
        "PYTHONSAFEPATH": "1",  # for what they start themselves
        "PYTHONUNBUFFERED": "1",
    }


def child_environment(threads: int) -> dict[str, str]:
    """Ours without secrets, with so many threads to begin with, which hardly wait by spinning."""
    environment = {name: value for name, value in os.environ.items() if not _is_secret(name, value)}
    return environment | openmp_environment(threads) | {"TOKENIZERS_PARALLELISM": "false"}


async def lines(process: asyncio.subprocess.Process) -> AsyncIterator[dict[str, Any]]:
    """The JSON objects among the lines it prints; a library that prints something else does no harm."""
    assert process.stdout is not None
    while True:
        try:
            line = await process.stdout.readline()
        except ValueError:  # longer than LINE; asyncio has dropped it
            continue
        if not line:
            return
        try:
            event = json.loads(line)
        except ValueError:
            continue
        if isinstance(event, dict):
            yield event


async def end(process: asyncio.subprocess.Process, *, grace: float) -> None:
    with contextlib.suppress(ProcessLookupError):
        process.terminate()
    if process.returncode is None:
        low_priority.stand_still(process.pid, paused=False)
    try:
        async with asyncio.timeout(grace):
            await process.wait()
    except TimeoutError:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
    close_stdin(process)


def close_stdin(process: asyncio.subprocess.Process) -> None:
    if process.stdin is not None:
        process.stdin.close()


def last_line(log: Path) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    return f"{lines[-1].strip()} (see {log})" if lines else f"see {log}"
