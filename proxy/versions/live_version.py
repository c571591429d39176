"""Which version answers: the live pointer of each line, and who still uses which version.

Owns loading, switching, draining and unloading of versions. A swap: load beside the old one, one warm-up request, and
read ahead what runs now. Then move the pointer (one row, one transaction), and unload what nobody uses. The previous
version stays loaded for rollback. Where any step fails, the pointer has not moved and nothing is lost. Not here: how a
version came to be (run_supervisor), how a server loads it (backends), what it is first asked (warm_up).
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import structlog

from proxy.backends.base import Misfit
from proxy.core.errors import BackendBroke, BackendDown, Conflict, NotFound, ProxyError, StorageFailed, Unsupported
from proxy.core.version_names import version_first, version_in_words
from proxy.versions.named_version import NamedVersion, parse_name, unknown_line
from proxy.versions.services import Services
from proxy.versions.version_copies import VersionCopies
from proxy.versions.warm_up import WarmUp
from store.errors import StoreError
from store.line_records import COMMON, Pointer
from store.records import BASE, Adapter
from trainer.launch import AdapterError, verify_adapter

log = structlog.get_logger()

ROLLED_BACK = "rollback from"  # how the reason of a rollback begins
PLACES = 2  # at a backend, beside one for each line: the base, and a version on its way
ROOM_S = 120.0  # that a swap waits for the last requests of a version whose place it needs


class Overtaken(Conflict):
    """Another version went live before this one could."""


@dataclass(slots=True)
class Lease:
    """One request's hold on a version: while it is held, the version stays loaded."""

    live_version: LiveVersion | None  # None: it was given back
    version: int | None
    model: str  # what to ask the backend for
    pinned: bool

    def release(self) -> None:
        live_version, self.live_version = self.live_version, None
        if live_version is not None and self.version is not None:
            live_version._release(self.version)


class LiveVersion:
    def __init__(
        self,
        services: Services,
        warm_up: WarmUp,
        copies: VersionCopies,
        pinned: Callable[[bool], set[int]] = lambda has_room: set(),
    ) -> None:
        """`pinned`: versions that will be asked for again and stay loaded. It is told whether the backend has room for
        any number."""
        self._store = services.store
        self._backend = services.backend
        self._tasks = services.tasks
        self._events = services.events
        self._admission = services.admission
        self._warm_up = warm_up
        self._copies = copies
        self._pinned_elsewhere = pinned
        self._loaded: set[int] = {BASE}
        self._in_use: Counter[int] = Counter()
        self._changing = asyncio.Lock()
        self._pointers = {COMMON: Pointer(BASE, BASE, 0.0, "start")}
        self.problem: str | None = None  # the last failed change, for `status`

    @property
    def live(self) -> int:
        """Version that answers in the common line."""
        return self._pointers[COMMON].live

    def live_of(self, line: str = COMMON) -> int:
        return self.pointer_of(line).live

    def pointer_of(self, line: str = COMMON) -> Pointer:
        """Raises NotFound."""
        if (pointer := self._pointers.get(line)) is None:
            raise unknown_line(line)
        return pointer

    @property
    def lines(self) -> list[str]:
        """Lines that answer, the common one first."""
        return list(self._pointers)

    @property
    def model(self) -> str:
        return self._backend.served.model

    def name(self, version: int) -> str:
        return self.model if version == BASE else f"{self.model}@v{version}"

    @property
    def foreign(self) -> bool:
        """The model that answers is not ours: it has no versions, and may be any that its server has."""
        return self._backend.capabilities.is_foreign

    @property
    def is_changing(self) -> bool:
        """Tell whether a version is being loaded, made live or unloaded."""
        return self._changing.locked()

    @property
    def loaded(self) -> list[int]:
        return sorted(self._loaded)

    # Start, and a backend that came back empty

    async def restore(self) -> None:
        """Bring the live and the previous version back into a backend that has none.

        A live version whose files are damaged cannot answer: then the previous one does, else the base, and
        `problem` says so. Raises BackendDown.
        """
        async with self._changing:
            self._loaded = {BASE}
            if not self._backend.capabilities.adapters:
                return  # what the store points at waits for a backend that can
            self._pointers = await self._stored_pointers()
            for line in self._pointers:
                await self._restore(line)

    async def _restore(self, line: str) -> None:
        live, previous = self.live_of(line), self._pointers[line].previous
        # The live one last: where a server has room for one, that is the one that stays in its memory.
        for version in dict.fromkeys((previous, live)):
            if version != live and await self._is_of_another_base(version, live):
                continue  # where the server has that base, the live one gives way to it below
            try:
                await self._load(version)
            except (AdapterError, BackendBroke, NotFound) as error:
                self._failed(f"Version {version} could not be loaded at start: {error}")
                if version == live:
                    await self._fall_back(error, line)

    async def _stored_pointers(self) -> dict[str, Pointer]:
        """Pointers of the lines that answer."""
        retired = {line.name for line in await self._store.lines.all() if line.retired_at is not None}
        pointers = await self._store.lines.pointers()
        return {line: pointer for line, pointer in pointers.items() if line not in retired}

    async def _fall_back(self, error: Exception, line: str) -> None:
        live = self.live_of(line)
        for version in dict.fromkeys((await self.way_back(line), BASE)):
            if version == live:
                continue
            try:
                await self._load(version)
            except (AdapterError, BackendBroke, NotFound):
                continue
            base = await self._other_base(live)
            is_misfit = isinstance(error, Misfit) or base
            broken = f"v{live} {'cannot answer' if is_misfit else 'is damaged'}{base}"
            self._pointers[line] = await self._store.versions.point(version, f"{broken}: {error}", "rlproxy", line)
            self._failed(f"{broken}, {version_in_words(version)} answers instead{_of(line)}: {error}")
            return

    # Lines

    async def begin(self, line: str) -> None:
        """A line answers from now on, by the pointer that is stored; its version was prepared."""
        self._pointers[line] = await self._store.versions.pointer(line)

    async def end(self, line: str) -> None:
        """It answers nobody from now on. A swap that is under way comes to its end first, or would bring it back."""
        async with self._changing:
            self._pointers.pop(line, None)
        await self._unload_unused()

    # Requests

    def parse_name(self, model: str) -> NamedVersion:
        return parse_name(model, self._backend.served.model, self._backend.capabilities, self._pointers)

    def version_of(self, name: NamedVersion, line: str = COMMON) -> int | None:
        """The version that answers in this line now; None where the model is not ours. Raises NotFound."""
        if not name.is_ours:
            return None
        return self.live_of(line) if name.pinned is None else name.pinned

    async def acquire(self, name: NamedVersion, promised: int | None = None, line: str = COMMON) -> Lease:
        """The version that a request of this line gets, or the one that it was promised. Raises NotFound,
        BackendDown."""
        if name.ours != self._backend.served.model:  # the server was reached since, or serves another one
            name = self.parse_name(name.model)
        version = self.version_of(name, line) if promised is None else promised
        if version is None:
            return Lease(self, None, name.model or self.model, pinned=False)
        self._in_use[version] += 1
        try:
            if version not in self._loaded:
                async with self._changing:
                    await self._give_back(version)
        except BaseException as error:
            self._release(version)
            if isinstance(error, Conflict) and name.pinned is None and version != self.live_of(line):
                return await self.acquire(name, line=line)  # it was damaged, and another one answers instead
            raise
        return Lease(self, version, self.name(version), pinned=name.pinned is not None)

    async def lost(self, version: int) -> None:
        """The backend says that it does not know this version: give it back. Raises Conflict where it is damaged."""
        async with self._changing:
            self._loaded.discard(version)
            await self._give_back(version)

    async def _give_back(self, version: int) -> None:
        """Needs the lock. A live version whose files are damaged gives way to the one before."""
        try:
            await self._load(version)
        except AdapterError as error:
            for line in [line for line, pointer in self._pointers.items() if pointer.live == version]:
                await self._fall_back(error, line)
            raise Conflict(f"v{version} cannot be loaded: {error}") from error

    def _release(self, version: int) -> None:
        self._in_use[version] -= 1
        if not self._in_use[version]:
            del self._in_use[version]
            if version in self._loaded - self._versions_to_keep():
                self._tasks.spawn(f"unload-v{version}", self._unload_unused())

    # Changes

    async def to(
        self, version: int, reason: str, actor: str, *, instead_of: int | None = None, line: str = COMMON
    ) -> Pointer:
        """Make `version` live in a line; where `instead_of` is given, only while that one is live (Overtaken).

        Raises NotFound, Conflict (already live), Unsupported, BackendDown, BackendBroke. Whoever asked may hang up. A
        change that has begun goes on to its end, so that the pointer on disk and the one that answers are never two.
        """
        swap = self._tasks.spawn(f"swap-v{version}", self._outcome(version, reason, actor, instead_of, line))
        outcome: Pointer | Exception = await asyncio.shield(swap)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    async def _outcome(
        self, version: int, reason: str, actor: str, instead_of: int | None, line: str
    ) -> Pointer | Exception:
        try:
            return await self._change(version, reason, actor, instead_of, line)
        except (ProxyError, StoreError) as error:  # for who asked; the task itself did what it should
            return error

    async def _change(self, version: int, reason: str, actor: str, instead_of: int | None, line: str) -> Pointer:
        async with self._admission.through(wait=False), self._changing:
            old_pointer = self.pointer_of(line)
            live = old_pointer.live
            if version == live:
                raise Conflict(f"{version_first(version)} is live already{_of(line)}.")
            if not self._backend.capabilities.adapters:
                raise Unsupported(self._backend.capabilities.limitation)
            if instead_of not in (None, live):  # changed while this one waited for its turn
                raise Overtaken(f"{version_first(instead_of)} is not live any more; {version_in_words(live)} stays.")
            if version != BASE:  # one that is loaded may be gone for good; a slip of whoever asks is not a problem here
                self._check_line(await self._adapter(version), line, old_pointer)
            began, at_once = time.perf_counter(), version == old_pointer.previous
            try:
                await self._load(version)
                loaded = time.perf_counter()
                with self._exclusive(version):
                    await self._warm(version)
                    if not at_once:  # what is being taken back is not to answer for a moment longer
                        await self._warm_up.read_ahead(self.name(version))
                    warm = time.perf_counter()
                    pointer = await self._store.versions.point(version, reason, actor, line)
                    self._pointers[line] = pointer
            except (ProxyError, AdapterError, StoreError) as error:
                base = await self._other_base(version)
                self._failed(
                    f"{version_first(version)} did not go live{base}: {error} {version_first(live)} still answers."
                )
                self._tasks.spawn("unload-failed", self._unload_unused())  # what cannot answer is in the way
                if isinstance(error, AdapterError) or base:
                    raise Conflict(str(self.problem)) from error
                if isinstance(error, StoreError):
                    raise StorageFailed(str(self.problem)) from error
                raise
            self.problem = None
        took = {"load_s": loaded - began, "warm_up_s": warm - loaded, "switch_s": time.perf_counter() - warm}
        took = {key: round(seconds, 3) for key, seconds in took.items()}
        of_line = {} if line == COMMON else {"line": line}
        log.info("swap", live=version, previous=pointer.previous, reason=reason, **of_line, **took)
        self._events.emit("swap", live=version, previous=pointer.previous, reason=reason, **of_line, **took)
        await self._unload_unused()
        return pointer

    def _check_line(self, adapter: Adapter, line: str, pointer: Pointer) -> None:
        """Raises Conflict where the version is another line's, and this one did not have it before."""
        if adapter.line != line and adapter.version != pointer.previous:
            raise Conflict(
                f"v{adapter.version} is of the line {adapter.line}, and nothing was changed; `rlproxy line create NAME "
                f"--from v{adapter.version}` makes a line that begins with it."
            )

    async def prepare(self, version: int) -> None:
        """Load a version beside the live one and have it answer once. Raises NotFound, Conflict, BackendDown,
        BackendBroke."""
        async with self._admission.through(wait=False), self._changing:
            try:
                await self._load(version)
            except AdapterError as error:
                raise Conflict(f"v{version} cannot be loaded: {error}") from error
            await self._warm(version)

    @contextlib.contextmanager
    def _exclusive(self, version: int) -> Iterator[None]:
        """Where a server has one version on at a time: nobody is let in until this one is on and live.

        A request for the old one would wait there all the same, and have it take the new one off again.
        """
        if not self._backend.capabilities.single_version:
            yield
            return
        with self._admission.shut(f"{version_first(version)} is being put on"):
            yield

    async def rollback(self, actor: str, line: str = COMMON) -> Pointer:
        """Back to the version that was live before. Raises Conflict where there is none, or where it is withdrawn."""
        pointer = self.pointer_of(line)
        live, version = pointer.live, pointer.previous
        if version == live:
            raise Conflict(f"{version_first(live)} is live{_of(line)}, and no other version was live before it.")
        if pointer.reason.startswith(ROLLED_BACK):
            raise Conflict(
                f"{version_first(live)} is live since a rollback. `rlproxy promote v{version}` takes that back, and "
                "`rlproxy adapters` lists the others."
            )
        if (reason := await self._withdrawn(version)) is not None:
            raise Conflict(
                f"{version_first(live)} stays live, since v{version} before it is withdrawn: {reason}; "
                f"`rlproxy promote v{version}` takes it back all the same."
            )
        return await self.to(version, f"{ROLLED_BACK} {version_in_words(live)}", actor, line=line)

    async def way_back(self, line: str = COMMON) -> int:
        """Where rlproxy goes back to by itself: the version before, or the base where that one is withdrawn."""
        previous = self.pointer_of(line).previous
        return previous if await self._withdrawn(previous) is None else BASE

    async def _withdrawn(self, version: int) -> str | None:
        """Why it goes live by name only; None where it may answer, or where it is gone and cannot."""
        adapter = await self._store.versions.get(version)
        return None if adapter is None or adapter.is_deleted else adapter.withdrawn

    async def reload(self) -> None:
        """Take over what the store has changed: the version that a rollback returns to may be gone for good."""
        async with self._changing:
            for line, pointer in (await self._stored_pointers()).items():
                if line in self._pointers and pointer.live == self._pointers[line].live:
                    self._pointers[line] = pointer
        await self._unload_unused()

    async def follow(self) -> None:
        """Take over the versions that another relay of this database has made live. Where one cannot be loaded here,
        the one before goes on to answer. Raises StoreError."""
        if not self._backend.capabilities.adapters:
            return
        pointers = await self._stored_pointers()
        for line in self._pointers.keys() - pointers.keys():
            await self.end(line)
        for line, pointer in pointers.items():
            if pointer != self._pointers.get(line):
                await self._follow(line, pointer)
        await self._unload_unused()

    async def _follow(self, line: str, pointer: Pointer) -> None:
        async with self._changing:
            try:
                await self._load(pointer.live)
            except (AdapterError, ProxyError) as error:
                answering = f" {version_first(self.live_of(line))} still answers;" if line in self._pointers else ""
                self._failed(
                    f"Another relay has made {version_in_words(pointer.live)} live, and it cannot be loaded here: "
                    f"{error}{answering} all relays need one train.adapters_dir, or a train.bucket."
                )
                return
            self._pointers[line], self.problem = pointer, None
        log.info("swap", live=pointer.live, previous=pointer.previous, reason=pointer.reason, by="another relay")
        self._events.emit("swap", live=pointer.live, previous=pointer.previous, reason=pointer.reason)

    def _failed(self, problem: str) -> None:
        self.problem = problem
        log.error("swap failed", problem=problem)
        self._events.emit("problem", message=problem)

    def _versions_to_keep(self) -> set[int]:
        versions = {BASE, *(v for pointer in self._pointers.values() for v in (pointer.live, pointer.previous))}
        return versions | self._pinned_elsewhere(self._backend.max_models is None)

    async def _load(self, version: int) -> None:
        """Needs the lock."""
        if version in self._loaded:
            return
        folder = await self._copies.fetch(await self._adapter(version))
        await asyncio.to_thread(verify_adapter, folder)
        await self._make_room()
        await self._backend.load(self.name(version), folder)
        self._loaded.add(version)

    async def _make_room(self) -> None:
        """Where the backend holds only so many models, the least needed one goes when its last request has ended.

        Needs the lock. Left to itself a full server drops any of them, in the middle of an answer.
        """
        places = self._backend.max_models
        if places is None or len(self._loaded) < places:
            return
        spare = self._loaded - {BASE, *(pointer.live for pointer in self._pointers.values())}
        if not spare:
            raise Unsupported(
                f"The backend holds {places} models at once and a swap needs {PLACES + len(self._pointers)}; "
                "raise that number there."
            )
        version = min(spare, key=lambda v: (v in self._versions_to_keep(), self._in_use[v]))
        try:
            async with asyncio.timeout(ROOM_S):
                while self._in_use[version]:
                    await asyncio.sleep(0.05)
        except TimeoutError:
            message = f"The backend holds {places} models at once, and {version_in_words(version)} is still in use."
            raise BackendDown(message, retry_after=30) from None
        await self._unload(version)

    async def _unload(self, version: int) -> None:
        self._loaded.discard(version)  # first, so that a request from now on loads it anew
        try:
            await self._backend.unload(self.name(version))
        except ProxyError:
            self._loaded.add(version)
            raise

    async def _adapter(self, version: int) -> Adapter:
        adapter = await self._store.versions.get(version)
        if adapter is None:
            raise NotFound(f"There is no version v{version}; `rlproxy adapters` lists them.", param="model")
        if adapter.is_deleted:
            raise NotFound(f"v{version} learned from what was forgotten, and is gone for good.", param="model")
        return adapter

    async def _is_of_another_base(self, version: int, other_version: int) -> bool:
        """Tell whether the two were trained on different models. The base is the server's own."""
        adapters = [await self._store.versions.get(number) for number in (version, other_version)]
        return len({self.model if adapter is None else adapter.model for adapter in adapters}) > 1

    async def _other_base(self, version: int) -> str:
        """A remark on a version of another base than the server has; empty for others."""
        adapter = await self._store.versions.get(version)
        if adapter is None or adapter.model == self.model:
            return ""
        return f", as it was trained on {adapter.model} and the server has {self.model}"

    async def _warm(self, version: int) -> None:
        """One short request wherever it will answer: a version that cannot fails here, not at the first person to ask.

        Needs the lock. A backend that was restarted beside us does not have what it had: it is given back.
        """
        for may_retry in (True, False):
            status, text = await self._warm_up.answers(self.name(version))
            if status == 200:
                return
            if not (may_retry and version != BASE and status in self._backend.capabilities.unknown_model_statuses):
                raise BackendBroke(f"The warm-up request was answered with {status}: {text[:200]}")
            self._loaded.discard(version)
            await self._load(version)

    async def _unload_unused(self) -> None:
        async with self._changing:
            for version in self._loaded - self._versions_to_keep():
                if self._in_use[version]:
                    continue
                try:
                    await self._unload(version)
                except ProxyError as error:  # it costs memory, not answers; the next release tries again
                    log.warning("unload failed", version=version, error=str(error))


def _of(line: str) -> str:
    """For a sentence, where it is not the common line."""
    return "" if line == COMMON else f" in the line {line}"
