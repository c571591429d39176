"""Several servers of one kind with the same model: requests are spread, and a version is in all of them or in none.

Owns who is asked, who is left out, and what one that comes, or comes back, is given before it is asked. A replica that
nobody reaches, or that keeps the others waiting, keeps no version from going live. It has no part in answers until it
holds what the others hold. One that its name does not have any more ends its answers and is gone. Not here: how one
server is spoken to (vllm), which replica a request gets (choice), which version is live (live_version).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import aiohttp
import structlog

from proxy.backends.base import (
    Address,
    Capabilities,
    Conversation,
    LeftoverVersions,
    ModelDescription,
    Prompt,
    RenderedPrompt,
    ServedModel,
)
from proxy.backends.openai_compatible import OpenAICompatible
from proxy.backends.replicas.addresses import NameUnknown, ServerName
from proxy.backends.replicas.choice import choose
from proxy.core.errors import BackendBroke, BackendDown, ProxyError
from trainer.launch import ServerFormat

log = structlog.get_logger()

LOOK_DOWN_S: Final = 1.0  # at one that is left out
LOOK_UP_S: Final = 5.0  # at one that answers: it may have been restarted without anybody noticing; at a name, too
GRACE_S: Final = 2.0  # that the others have when the first holds a version, or as long again as that one took
DEPARTURE: Final = "its name does not have it any more"


class Replica:
    def __init__(self, server: OpenAICompatible, name: ServerName | None = None) -> None:
        """`name`: that it was found under; None where its own address is in the settings."""
        self.server = server
        self.name = name
        self.url = server.url
        self.out_reason: str | None = "it has not answered yet"  # None: it gets requests
        self.looked_at = 0.0
        self.look: asyncio.Task[None] | None = None  # under way; one that hangs keeps nobody else from being looked at
        self.in_flight = 0
        self.turn = 0  # when it was last asked, as a number
        self.has_started = False

    def leave_out(self, reason: str) -> None:
        """Ask it nothing more. One that its name does not have stays out for that reason."""
        if self.out_reason == DEPARTURE:
            return
        if self.out_reason is None:
            log.warning("replica is left out", url=self.url, why=reason)
        self.out_reason = reason


class Replicas:
    def __init__(
        self, make: Callable[[str], OpenAICompatible], urls: Sequence[str], names: Sequence[ServerName] = ()
    ) -> None:
        """`make`: of one server's address. Some address or name there has to be."""
        self._make = make
        self._names = names
        self._all = [Replica(make(url)) for url in urls]
        # What holds for any of them, before one was met.
        self._any = self._all[0].server if self._all else make(names[0].plain)
        self.kind = self._any.kind
        self.capabilities: Capabilities = self._any.capabilities
        self._model: str | None = None  # that all have to serve; the first one that answered has said it
        self._adapters: dict[str, Path] = {}  # what every one that is asked holds
        self._unloaded: set[str] = set()  # what one that was away, or late, may still hold
        self._changing = asyncio.Lock()
        self._turn = 0
        self._names_asked_at = -LOOK_UP_S
        self._unknown: dict[str, str] = {}  # names that nobody knows now, with the reason
        self._http: aiohttp.ClientSession | None = None
        self._on_restart: Callable[[], Awaitable[None]] | None = None
        self._keeper: asyncio.Task[None] | None = None

    # What there is

    @property
    def url(self) -> str:
        return self._first.url

    @property
    def _first(self) -> OpenAICompatible:
        """The first that answers, else any."""
        return next((r.server for r in self._all if r.out_reason is None), self._any)

    @property
    def served(self) -> ServedModel:
        return next((r.server.served for r in self._all if r.server.served.model == self._model), self._first.served)

    @property
    def weights(self) -> str | None:
        return self._first.weights

    @property
    def weights_fingerprint(self) -> str | None:
        return None

    @property
    def server_format(self) -> ServerFormat:
        return self._first.server_format

    @property
    def max_models(self) -> int | None:
        return self._first.max_models

    @property
    def state(self) -> str:
        out = [f"{r.url} is left out: {r.out_reason}" for r in self._all if r.out_reason is not None]
        summary = f"{self.kind}, {len(self._all) - len(out)} of {len(self._all)} replicas answer"
        return "; ".join([summary, *out, *self._unknown.values()])

    @property
    def obstacle(self) -> str | None:
        return self._first.obstacle

    @property
    def growth(self) -> str | None:
        return self._first.growth

    @property
    def leftovers(self) -> LeftoverVersions | None:
        return self._first.leftovers

    def headers(self) -> Mapping[str, str]:
        return self._first.headers()

    def _up(self) -> list[Replica]:
        """Raises BackendDown where there is none."""
        if up := [r for r in self._all if r.out_reason is None]:
            return up
        reasons = "; ".join([*(f"{r.url}: {r.out_reason}" for r in self._all), *self._unknown.values()])
        raise BackendDown(f"No replica answers ({reasons}). Nothing stored was lost.", retry_after=5)

    # Their life

    async def start(self, http: aiohttp.ClientSession, on_restart: Callable[[], Awaitable[None]]) -> None:
        self._http, self._on_restart = http, on_restart
        for replica in self._all:
            await replica.server.start(http, on_restart)
            replica.has_started = True
        await self._ask_names()
        await self._look(self._all)
        self._keeper = asyncio.create_task(self._keep(), name="keep-replicas")

    async def stop(self) -> None:
        tasks = [task for task in (self._keeper, *(replica.look for replica in self._all)) if task is not None]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        for replica in self._all:
            await replica.server.stop()

    async def ready(self) -> None:
        if all(r.out_reason is not None for r in self._all):
            await self._ask_names()
            await self._look(self._all)
        self._up()

    async def _keep(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(LOOK_DOWN_S)
            late = loop.time() - LOOK_UP_S
            if self._names_asked_at < late or self._unknown:
                await self._ask_names()
            due = (r for r in self._all if r.out_reason is not None or r.looked_at < late)
            for replica in [r for r in due if r.look is None or r.look.done()]:
                replica.look = asyncio.create_task(self._look_at(replica), name=f"look-at-{replica.url}")

    async def _ask_names(self) -> None:
        """Take in the servers that names have now, and let go of those that they have no more."""
        self._names_asked_at = asyncio.get_running_loop().time()
        for name in self._names:
            try:
                urls = await name.urls()
            except NameUnknown as error:  # those that answer go on: the DNS may be ill, and they are well
                self._unknown[name.written] = str(error)
                continue
            self._unknown.pop(name.written, None)
            met = {replica.url for replica in self._all}
            self._all += [Replica(self._make(url), name) for url in urls if url not in met]
            for replica in [r for r in self._all if r.name is name]:
                if replica.url not in urls:
                    await self._let_go(replica)
                elif replica.out_reason == DEPARTURE:
                    replica.out_reason = "its name has it again"

    async def _let_go(self, replica: Replica) -> None:
        """No new request for it; it is forgotten when its answers have ended."""
        replica.leave_out(DEPARTURE)
        if not replica.in_flight and replica in self._all:
            self._all.remove(replica)
            if replica.look is not None:
                replica.look.cancel()
            await replica.server.stop()
            log.info("replica is gone", url=replica.url)

    async def _look(self, replicas: Sequence[Replica]) -> None:
        await asyncio.gather(*(self._look_at(replica) for replica in replicas))

    async def _look_at(self, replica: Replica) -> None:
        """Tell whether it answers and holds every version; one that lacks some gets them before anybody's request."""
        if replica.out_reason == DEPARTURE:
            return
        replica.looked_at = asyncio.get_running_loop().time()
        try:
            await self._start(replica)
            versions = await self._versions_at(replica)
            for name in versions & self._unloaded:
                with contextlib.suppress(BackendBroke):  # it takes memory there, and nobody asks for it
                    await replica.server.unload(name)
                versions.discard(name)
            while lacks := self._adapters.keys() - versions:
                name = min(lacks)
                replica.leave_out(f"it came back without {name}, which is being loaded")
                await replica.server.load(name, self._adapters[name])
                versions.add(name)
            if replica.out_reason not in (None, DEPARTURE):  # its name may have let go of it meanwhile
                replica.out_reason = None
                log.info("replica answers", url=replica.url, adapters=list(self._adapters))
        except ProxyError as error:
            replica.leave_out(error.message)

    async def _start(self, replica: Replica) -> None:
        if not replica.has_started:
            assert self._http is not None and self._on_restart is not None, "started before"
            await replica.server.start(self._http, self._on_restart)
            replica.has_started = True
            log.info("replica is new", url=replica.url)

    async def _versions_at(self, replica: Replica) -> set[str]:
        """Our versions that it has. Raises BackendBroke where it serves another model."""
        await replica.server.ready()
        ids = {str(model.get("id")) for model in await replica.server.models()}
        model = replica.server.served.model
        if model not in ids or model != (self._model or model):
            raise BackendBroke(f"it serves {', '.join(sorted(ids)) or 'nothing'}, and not {self._model or model}")
        self._model = model
        return {name for name in self._adapters.keys() | self._unloaded if replica.server.server_name(name) in ids}

    # Requests

    def address(self, model: str, conversation: Conversation | None = None) -> Address:
        replica = choose(self._up(), None if conversation is None else conversation())
        replica.in_flight += 1
        self._turn += 1
        replica.turn = self._turn
        return replica.server.address(model)

    def addresses(self, model: str) -> Sequence[Address]:
        return [replica.server.address(model) for replica in self._up()]

    def release(self, address: Address) -> None:
        for replica in self._replicas_at(address):
            replica.in_flight -= 1

    def fail_over(self, address: Address) -> bool:
        for replica in self._replicas_at(address):
            replica.leave_out("it did not answer a request")
        return any(r.out_reason is None for r in self._all)

    def _replicas_at(self, address: Address) -> list[Replica]:
        """The one at this address; none where its name let go of it while it was warmed up."""
        return [r for r in self._all if r.url == address.url]

    async def describe(self) -> ModelDescription:
        return await self._up()[0].server.describe()

    async def render(self, prompt: Prompt) -> RenderedPrompt | None:
        return await self._up()[0].server.render(prompt)

    async def models(self) -> list[dict[str, Any]]:
        for replica in self._up():
            try:
                return await replica.server.models()
            except BackendDown as error:
                replica.leave_out(error.message)
        self._up()
        raise BackendDown("No replica answers; they are asked again every second.", retry_after=5)

    # Versions

    async def load(self, name: str, path: Path) -> None:
        """Into all that are asked, or into none. One that is gone, or far slower, gets it when it comes back."""
        async with self._changing:
            self._unloaded.discard(name)
            try:
                holding = await self._load_into_all(name, path)
            except (ProxyError, asyncio.CancelledError):
                if name not in self._adapters:  # one that was late may have it in the end
                    self._unloaded.add(name)
                raise
            self._adapters[name] = path
            for replica in self._all:
                if replica.out_reason is None and replica not in holding:
                    replica.leave_out(f"it came back while {name} was being loaded")

    async def _load_into_all(self, name: str, path: Path) -> list[Replica]:
        """Those that hold it now; one at least answers."""
        results = await self._ask_all(self._up(), lambda server: server.load(name, path))
        holding = [replica for replica, error in results.items() if error is None]
        refused = [(replica, error) for replica, error in results.items() if error is not None]
        if refused and name not in self._adapters:
            await self._take_back(name, holding)
            replica, error = refused[0]
            raise type(error)(f"{error.message} (at {replica.url}; no replica keeps {name})")
        for replica, error in refused:  # the others answer with it: this one has to stay out
            replica.leave_out(error.message)
        self._up()
        return holding

    async def _ask_all(
        self, replicas: Sequence[Replica], request: Callable[[OpenAICompatible], Coroutine[Any, Any, None]]
    ) -> dict[Replica, ProxyError | None]:
        """Refusals of these, None of those that did it; `replicas`: one at least.

        Who is not reached is left out, and so is who keeps the others waiting. A network that swallows packets says
        nothing for a minute. Meanwhile the old version would answer here, and the new one at another relay.
        """
        loop = asyncio.get_running_loop()
        began = loop.time()
        tasks = {asyncio.create_task(request(replica.server)): replica for replica in replicas}
        try:
            pending = set(tasks)
            while pending and all(task.exception() for task in tasks.keys() - pending):
                _, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            _, late = await asyncio.wait(tasks, timeout=max(GRACE_S, loop.time() - began))
        finally:
            for task in tasks:
                task.cancel()
        results: dict[Replica, ProxyError | None] = {}
        for task, replica in tasks.items():
            error = BackendDown("it takes far longer than the others") if task in late else task.exception()
            if isinstance(error, BackendDown):
                replica.leave_out(error.message)
            elif error is None or isinstance(error, ProxyError):
                results[replica] = error
            else:
                raise error
        return results

    async def _take_back(self, name: str, holding: Sequence[Replica]) -> None:
        for replica in holding:
            with contextlib.suppress(ProxyError):  # then it is there and never asked for
                await replica.server.unload(name)

    async def read_ahead_limit(self, name: str) -> int:
        return min([await replica.server.read_ahead_limit(name) for replica in self._up()])

    async def unload(self, name: str) -> None:
        async with self._changing:
            path = self._adapters.pop(name, None)
            self._unloaded.add(name)
            if not (up := [replica for replica in self._all if replica.out_reason is None]):
                return
            for error in (await self._ask_all(up, lambda server: server.unload(name))).values():
                if error is not None:
                    if path is not None:
                        self._adapters[name] = path
                        self._unloaded.discard(name)
                    raise error

    async def check(self, rank: int, folder: Path) -> str | None:
        for replica in self._up():
            if (reason := await replica.server.check(rank, folder)) is not None:
                return reason
        return None

    async def lacks_room(self, lines: int) -> str | None:
        for replica in self._up():
            if (reason := await replica.server.lacks_room(lines)) is not None:
                return reason
        return None

    # The accelerators

    async def free(self) -> None:
        """All or none: one that keeps its memory keeps the run from starting."""
        freed: list[Replica] = []
        try:
            for replica in self._up():
                freed.append(replica)
                await replica.server.free()
        except ProxyError:
            for replica in freed:
                with contextlib.suppress(ProxyError):
                    await replica.server.reclaim()
            raise

    async def reclaim(self) -> None:
        failed: ProxyError | None = None
        for replica in list(self._all):  # its name may let go of one meanwhile
            try:
                await replica.server.reclaim()
            except BackendDown as error:
                replica.leave_out(error.message)
            except ProxyError as error:
                failed = failed or BackendBroke(error.message)
        if failed is not None:
            raise failed
        self._up()
