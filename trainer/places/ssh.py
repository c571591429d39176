"""A machine that is reached by the system's own ssh, with rlproxy installed there.

Owns the calls: which command, how long it may take, and what its failure means in words. Keys, users and ports of a
host are ssh's own configuration. No password is asked for, and no host key is accepted that is not known already. Not
here: what is done at the other end (host, depot).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shlex
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any, Final

from config.places import PlaceAddress
from trainer.places.depot import JobState
from trainer.places.host import MARK
from trainer.places.job import RunOrder
from trainer.places.place import PlaceError, PlaceSettings, PlaceUnreachable

ROOT: Final = "~/.rlproxy-jobs"  # on the host
CALL_S: Final = 60.0  # of a call that carries no archive
SILENT_S: Final = 15  # ssh gives a connection up after three times as long without a sign
BOUND: Final = (
    "-T", "-o", "BatchMode=yes", "-o", "StrictHostKeyChecking=yes", "-o", "ConnectTimeout=10",
    "-o", f"ServerAliveInterval={SILENT_S}", "-o", "ServerAliveCountMax=3", "-o", "ForwardAgent=no",
)  # fmt: skip
MOST_GREETING: Final = 1 << 16  # bytes that a shell may print first
SSH_FAILED, NOT_FOUND, NOT_EXECUTABLE = 255, 127, 126


class SSHPlace:
    def __init__(self, settings: PlaceSettings, address: PlaceAddress) -> None:
        self.takes_keys = True
        self._host = address.host
        self._python, self._root = settings.python, address.folder or ROOT
        target = f"{address.user}@{address.host}" if address.user else address.host
        port = ("-p", str(address.port)) if address.port else ()
        self._command = ("ssh", *BOUND, *settings.options, *port, "--", target)

    async def hello(self, weights: str) -> Mapping[str, Any]:
        answer: Mapping[str, Any] = await self._ask("hello", weights)
        return answer

    async def receive(self, id: str, archive: Path, weights: str) -> None:
        with await asyncio.to_thread(archive.open, "rb") as source:
            await self._call(("receive", id, weights), stdin=source)

    async def start(self, id: str, order: RunOrder) -> bool:
        words = (str(order.threads), str(order.nice), str(order.max_memory_gb), "sealed" if order.key else "clear")
        key = order.key.hex().encode() + b"\n" if order.key else b""
        return bool(await self._ask("start", id, *words, request=key))

    async def look(self, id: str, offset: int, wait_s: float) -> JobState:
        return JobState(**await self._ask("look", id, str(offset), str(wait_s)))

    async def stop(self, id: str) -> None:
        await self._ask("stop", id)

    async def send(self, id: str, archive: Path) -> None:
        with os.fdopen(os.open(archive, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600), "r+b") as sink:
            await self._call(("send", id), stdout=sink)
        await asyncio.to_thread(_without_mark, archive, self._host)

    async def remove(self, id: str) -> None:
        await self._ask("remove", id)

    async def _ask(self, *words: str, request: bytes = b"") -> Any:
        try:
            async with asyncio.timeout(CALL_S):
                output = await self._call(words, request=request)
        except TimeoutError:
            raise PlaceUnreachable(f"{self._host} did not answer within {CALL_S:.0f} s.") from None
        text = output.partition(MARK)[2]
        try:
            return json.loads(text)["answer"]
        except (ValueError, KeyError, TypeError):
            raise PlaceError(f"{self._host} answered something that rlproxy does not: {output[-100:]!r}.") from None

    async def _call(
        self,
        words: tuple[str, ...],
        *,
        request: bytes = b"",
        stdin: IO[bytes] | int = asyncio.subprocess.PIPE,
        stdout: IO[bytes] | int = asyncio.subprocess.PIPE,
    ) -> bytes:
        """Run a verb there; returns what it printed, nothing where that went to a file. Raises PlaceError."""
        remote = [*shlex.split(self._python), "-P", "-m", "trainer.places.host", self._root, *words]
        environment = {name: value for name, value in os.environ.items() if not name.startswith("RLPROXY_")}
        try:
            process = await asyncio.create_subprocess_exec(
                *self._command, shlex.join(remote), stdin=stdin, stdout=stdout, stderr=asyncio.subprocess.PIPE,
                env=environment, start_new_session=True,
            )  # fmt: skip
        except FileNotFoundError:
            raise PlaceError("there is no `ssh` on this machine: install OpenSSH's client.") from None
        try:
            output, errors = await process.communicate(request if stdin == asyncio.subprocess.PIPE else None)
        finally:
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
        if process.returncode:
            raise self._failure(process.returncode, errors.decode("utf-8", "replace"))
        return output or b""

    def _failure(self, status: int, text: str) -> PlaceError:
        """Explain ssh's or the host's last words."""
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        last = lines[-1] if lines else f"status {status}"
        if status == SSH_FAILED:
            return self._ssh_failure(text, last)
        if status in (NOT_FOUND, NOT_EXECUTABLE):
            return PlaceError(f"{self._host} has no {self._python}: train.where_python says which Python has rlproxy.")
        if "No module named" in text:
            return PlaceError(
                f"{self._python} on {self._host} has no rlproxy ({last}): install this version there, or name the "
                "Python that has it with train.where_python."
            )
        return PlaceError(f"{self._host}: {last.removeprefix('error: ').rstrip('.')}.")

    def _ssh_failure(self, text: str, last: str) -> PlaceError:
        if "host key" in text.lower() or "REMOTE HOST IDENTIFICATION" in text:
            return PlaceError(
                f"the host key of {self._host} is unknown or has changed: connect once with `ssh` and compare it; "
                "rlproxy accepts no key by itself."
            )
        if "Permission denied" in text or "Too many authentication failures" in text:
            return PlaceError(
                f"{self._host} lets nobody in without a password: put a key that needs none, or an agent's, into "
                f"ssh's configuration ({last})."
            )
        if "unknown option" in text or "Bad configuration option" in text or "usage: ssh" in text:
            return PlaceError(f"ssh does not take train.where_options ({last}).")
        return PlaceUnreachable(f"{self._host} does not answer ({last.rstrip('.')}).")


def _without_mark(archive: Path, host: str) -> None:
    """Cut what a shell printed before the archive, and the mark. Blocking."""
    cut = archive.with_name(f"{archive.name}.cut")
    with archive.open("rb") as source:
        greeting, mark, _ = source.read(MOST_GREETING).partition(MARK)
        if not mark:
            raise PlaceError(f"{host} sent something that is not an archive.")
        source.seek(len(greeting) + len(mark))
        with os.fdopen(os.open(cut, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as sink:
            shutil.copyfileobj(source, sink, 1 << 20)
    cut.replace(archive)
