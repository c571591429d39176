"""A run as a child process of this machine.

Owns the child while it runs: its events, its memory, its end. Not here: how a child starts (child_process), which other
children there are (launch).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any, Final

from trainer.child_process import LaunchError, close_stdin, end, lines, spawn
from trainer.limits import GB, default_threads, in_use
from trainer.places.job import GRACE_S, RunOrder
from trainer.places.parcel import weights_of
from trainer.places.tinker_service import TinkerService

MOST_EVENTS: Final = 256  # of a run that wait to be read; the oldest go first
MEASURE_S: Final = 0.5  # between two looks at a run's memory, where that is bounded


async def start_local(
    order: RunOrder, stoppable: set[asyncio.subprocess.Process] | None = None, tinker: TinkerService | None = None
) -> LocalJob:
    """Start the trainer on this folder. `stoppable`: gets its process, which may stand still. `tinker`: takes its
    steps. Raises LaunchError."""
    command = ["-m", "trainer", str(order.folder), "--watch-stdin", *(["--key-on-stdin"] if order.key else [])]
    try:
        command += tinker.arguments(weights_of(order.folder)) if tinker is not None else []
    except (OSError, ValueError, KeyError) as error:
        raise LaunchError(f"run {order.folder.name} cannot be started: {error}.") from None
    process = await spawn(
        command,
        environment=tinker.environment() if tinker is not None else None,
        threads=order.threads or default_threads()[1],
        log=order.folder / "trainer.log",
        nice=order.nice,
    )
    if stoppable is not None:
        stoppable.add(process)
    if order.key:  # through the pipe that is there anyway: arguments and environments can be looked at
        assert process.stdin is not None
        process.stdin.write(order.key.hex().encode() + b"\n")
    return LocalJob(process, int(order.max_memory_gb * GB), stoppable)


class LocalJob:
    def __init__(
        self,
        process: asyncio.subprocess.Process,
        memory_bytes: int = 0,
        stoppable: set[asyncio.subprocess.Process] | None = None,
    ) -> None:
        """`memory_bytes`: what it may use; 0 means no limit. `stoppable`: those that may be told to stand still."""
        self._process = process
        self._stoppable = stoppable if stoppable is not None else set()
        self.pid: int | None = process.pid
        self.exceeded: str | None = None
        self.was_under_way = False
        # Read whether or not anybody asks for events: a full pipe would stop the trainer.
        self._queue: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue()
        self._reader = asyncio.create_task(self._read(), name=f"trainer-{process.pid}")
        self._measuring = asyncio.create_task(self._measure(memory_bytes)) if memory_bytes else None

    async def events(self) -> AsyncIterator[dict[str, Any]]:
        while (event := await self._queue.get()) is not None:
            yield event
        self._queue.put_nowait(None)  # for whoever asks again

    async def wait(self) -> int:
        status = await self._process.wait()
        await self._reader
        close_stdin(self._process)
        return status

    async def terminate(self) -> None:
        self._stoppable.discard(self._process)  # it needs its time to get to a checkpoint
        await end(self._process, grace=GRACE_S)
        await self._reader

    async def leave(self) -> None:
        await self.terminate()

    async def _measure(self, most: int) -> None:
        """Kill it at once where it uses more: whoever waits for the end of a step may wait for the machine."""
        while self._process.returncode is None:
            used = await asyncio.to_thread(in_use, self._process.pid)
            if used > most:
                self.exceeded = f"it used {used / GB:.1f} GB of memory, {most / GB:g} GB are allowed"
                with contextlib.suppress(ProcessLookupError):
                    self._process.kill()
                return
            await asyncio.sleep(MEASURE_S)

    async def _read(self) -> None:
        try:
            async for event in lines(self._process):
                if self._queue.qsize() >= MOST_EVENTS:  # own code of a run can print without an end
                    self._queue.get_nowait()
                self._queue.put_nowait(event)
        finally:
            self._queue.put_nowait(None)
            if self._measuring is not None:
                self._measuring.cancel()
