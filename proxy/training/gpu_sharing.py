"""One GPU for two: the backend gives its memory back while a run trains, and takes it again afterwards.

Owns the order of it: close the door, let the running answers end, free, train, reclaim, load the adapters, open the
door. However a run ends (passed, paused, crashed, told to wait), the backend is woken. One that does not wake is tried
again with growing pauses. One that a killed rlproxy left asleep is woken at the next start. No answer is cut for a run:
where answers do not end in time, the run waits. Not here: requests that wait (admission), the run (run_supervisor), how
a server frees its memory (backends).
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable
from typing import Final

import structlog

from config.settings import Settings
from proxy.backends.base import Backend
from proxy.core.errors import BackendDown, ProxyError, Unsupported
from proxy.core.events import Events
from proxy.core.tasks import Tasks
from proxy.versions.admission import Admission
from proxy.versions.live_version import ROOM_S, LiveVersion
from store.errors import StoreError
from store.store import Store

log = structlog.get_logger()

DRAIN_S: Final = ROOM_S  # for the last answers
RETRY_S: Final = 60.0  # before a run that could not have the GPU asks for it once more
RESTARTED_S: Final = 600.0  # and where the server has to be started otherwise first: each try lets requests wait
FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 60.0  # between tries to wake a backend
LEAVE_S: Final = 15.0  # to wake somebody else's server when rlproxy stops
LENT_FLAG: Final = "lent"  # in the store: whether the backend has been told to sleep and not yet to wake


class NotLent(ProxyError):
    """The run cannot have the GPU now; it will be tried again."""


class GpuSharing:
    def __init__(
        self,
        settings: Settings,
        store: Store,
        backend: Backend,
        live_version: LiveVersion,
        admission: Admission,
        events: Events,
        tasks: Tasks,
    ) -> None:
        self.on = settings.train.share_gpu and settings.train.where == "local"
        # One of ours ends with us; somebody else's, which may be at its usual port, must not be left asleep.
        self._theirs = settings.backend.kind != "builtin" and not settings.backend.command
        self._store, self._backend, self._live_version, self._admission = store, backend, live_version, admission
        self._events, self._tasks = events, tasks
        self._is_lent = False
        self._backend_lock = asyncio.Lock()  # a stop in the middle of falling asleep wakes it after that
        self._awake = asyncio.Event()
        self._awake.set()
        self._stopping = False
        self._postponed: tuple[float, str] = (0.0, "")  # until when (monotonic), and why
        self.problem: str | None = None

    def blocking_reason(self) -> str | None:
        """Reason why a run cannot get the GPU at this moment; None where nothing does."""
        if not self.on:
            return None
        if not self._backend.capabilities.can_free:
            return f"a backend of the kind {self._backend.kind} cannot rest while a run trains (train.share_gpu)"
        if self._is_lent:
            return "the backend is being woken"
        until, reason = self._postponed
        remaining_s = until - time.monotonic()
        return f"{reason}; tried again in {remaining_s:.0f} s" if remaining_s > 0 else None

    def postpone(self, reason: str, seconds: float | None = None) -> None:
        self._postponed = time.monotonic() + (RETRY_S if seconds is None else seconds), reason

    @contextlib.asynccontextmanager
    async def lend(self, run: int, unless: Callable[[], bool]) -> AsyncIterator[None]:
        """The GPU is the run's inside this block, where that is wanted; `unless` calls it off. Raises NotLent."""
        if not self.on:
            yield
            return
        try:
            await self._free_backend(run, unless)
            yield
        finally:
            if self._is_lent:
                self._wake()
            elif not self._stopping:
                self._admission.open()

    async def _free_backend(self, run: int, unless: Callable[[], bool]) -> None:
        self._admission.close(f"The model rests while run {run} trains")
        try:
            emptied = await self._admission.emptied(DRAIN_S, unless)
            if unless():
                raise NotLent("it was told to stop")
            if not emptied:
                raise BackendDown(f"an answer was still under way after {DRAIN_S:.0f} s")
            await self._store.meta.set(LENT_FLAG, True)
            self._is_lent = True
            self._awake.clear()
            async with self._backend_lock:
                await self._backend.free()
        except NotLent:
            raise
        except (ProxyError, StoreError) as error:
            reason = f"the backend did not give its memory back: {error}"
            self.postpone(reason, RESTARTED_S if isinstance(error, Unsupported) else None)
            raise NotLent(reason) from error
        log.info("lent", run=run)
        self._events.emit("lent", run=run)

    # And back

    async def recover(self) -> bool:
        """At start: whether a backend was left asleep. It is being woken then, adapters and all."""
        self._is_lent = bool(await self._store.meta.get(LENT_FLAG, False))
        if self._is_lent:
            self._awake.clear()
            self._wake()
        return self._is_lent

    async def awake(self) -> None:
        """Returns when the backend answers again, for what a run does after its training."""
        await self._awake.wait()

    def _wake(self) -> None:
        """In a task of its own: a trainer that is gone must be on record now, and a stop must not wait."""
        if not self._stopping:
            self._admission.close("The model is waking up")
            self._tasks.spawn("wake-backend", self._give_back())

    async def _give_back(self) -> None:
        pause = FIRST_PAUSE_S
        while not self._stopping:
            try:
                async with self._backend_lock:
                    await self._backend.reclaim()
                with contextlib.suppress(Unsupported):  # then versions are loaded when they are first asked for
                    await self._live_version.restore()
                await self._store.meta.set(LENT_FLAG, False)
            except Exception as error:  # whatever it is: requests wait for this
                self.problem = f"The backend did not wake after a run: {error} It is tried again."
                log.error("the backend did not wake", error=str(error), again_in_s=pause)
                self._events.emit("problem", message=self.problem)
                self._admission.close("The backend did not wake after a training run")
                await asyncio.sleep(pause)
                pause = min(pause * 2, LONGEST_PAUSE_S)
                continue
            self._is_lent, self.problem = False, None
            log.info("woken", waiting=self._admission.waiting)
            self._events.emit("woken", waiting=self._admission.waiting)
            self._admission.open()
            self._awake.set()
            return

    # A stop of rlproxy

    def stopping(self) -> None:
        """Nobody waits for a run that is not going to end."""
        self._stopping = True
        if self._is_lent or self._admission.closed is not None:
            self._admission.turn_away("rlproxy is stopping")

    async def leave_awake(self) -> None:
        """After the trainer has ended. What fails here is done at the next start."""
        if not (self._is_lent and self._theirs):
            return
        try:
            async with asyncio.timeout(LEAVE_S), self._backend_lock:
                await self._backend.reclaim()
                await self._store.meta.set(LENT_FLAG, False)
        except (TimeoutError, ProxyError, StoreError) as error:
            log.error("the backend was left asleep; it is woken at the next start", error=str(error))
