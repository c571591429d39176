"""The one place where the parts meet: `make_app` builds the proxy from its dependencies.

Owns which subsystem is made of which, and the order of start and stop. Nothing is decided here.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any, Final

import aiohttp
import structlog
from aiohttp import web

from config.settings import Settings
from proxy.access import security
from proxy.access.draining import DRAINING, Draining
from proxy.access.limits import HEAD_LIMIT, MOST_HEADERS
from proxy.access.roles import Rule
from proxy.backends.base import Backend
from proxy.core.backend_http import Connections
from proxy.core.events import Events
from proxy.core.redirects import refuse_all
from proxy.core.tasks import TASKS
from proxy.feedback.channels import Channels
from proxy.feedback.episodes import Episodes
from proxy.feedback.reward_function import RewardFunction
from proxy.relay.codecs import Formats
from proxy.relay.episode_queue import EpisodeQueue
from proxy.relay.lessons import PromptLessons
from proxy.relay.parts import RelayParts
from proxy.relay.rollouts.sampler import RolloutSampler
from proxy.training import relocation
from proxy.training.training import Training, any_of
from proxy.versions.services import Services
from proxy.web import error_middleware
from proxy.web.handlers import Handlers
from proxy.web.pages import INDEX_EVERY_S
from proxy.web.route_table import ROUTES
from proxy.web.status import AS_IT_IS, StatusReport
from store.captured.inbox import BATCH_SIZE
from store.errors import StoreError
from store.file.meta import UNCAPTURED
from store.store import Store
from trainer.launch import Launcher

if TYPE_CHECKING:
    from store.postgres.following import Following
    from store.postgres.sharing import Sharing

log = structlog.get_logger()

RETRY_S: Final = 5.0  # before this relay tries to learn once more
DRAIN_S: Final = 10.0  # for completions that still have to be stored when we stop
POOL_KEEPALIVE_S: Final = 4.0  # below uvicorn's 5 s, else a connection may be closed under a request


def make_app(settings: Settings, store: Store, backend: Backend, launcher: Launcher) -> web.Application:
    """The proxy, ready to be served; it starts and stops with its runner."""
    wiring = Wiring(settings, store, backend, launcher)
    app = web.Application(
        client_max_size=settings.server.max_body_bytes,
        middlewares=[error_middleware.shape_errors, wiring.guard.middleware],
        # What only passes through is not unpacked; the data routes do it themselves.
        handler_args={
            "max_line_size": HEAD_LIMIT,
            "max_field_size": HEAD_LIMIT,
            "max_headers": MOST_HEADERS,
            "auto_decompress": False,
        },
    )
    app[security.KEYS] = wiring.services.keys
    app[security.LOCAL] = wiring.services.keys.local
    app[security.BUSY] = wiring.guard.busy
    app[TASKS] = wiring.services.tasks
    app[DRAINING] = Draining()
    app.on_response_prepare.append(security.contain)
    app.on_response_prepare.append(app[DRAINING].close_connection)
    if settings.server.origins:
        app.on_response_prepare.append(wiring.guard.cors)
    wiring.add_routes(app)
    app.cleanup_ctx.append(wiring.running)
    app.on_shutdown.append(wiring.stop_learning)
    return app


class Wiring:
    """The subsystems of one proxy, each made of those above it."""

    def __init__(self, settings: Settings, store: Store, backend: Backend, launcher: Launcher) -> None:
        self.services = services = Services(settings, store, backend, launcher)
        rewarding = RewardFunction(settings.train, store, services.events)
        self.episodes = Episodes(store, services.events, services.redactor, rewarding)
        self.training = training = Training(services, self.episodes.versions)
        self.queue = EpisodeQueue(settings, backend.capabilities.slots * (1 + len(settings.backend.replicas)))
        formats = Formats(backend.capabilities, settings.backend.translate)
        self.parts = RelayParts(services, training, formats, self.episodes, self.queue)
        self.rollouts = RolloutSampler(self.parts, rewarding, training.supervisor.state)
        status = StatusReport(services, training, formats, self.episodes, self.queue, self.rollouts)
        self.channels = Channels(services, training.acts, status)
        self.handlers = Handlers(
            services,
            training,
            self.channels,
            self.parts,
            status,
            lambda request: self.guard.is_still_allowed(request),
            lambda request, handler: self.guard.middleware(request, handler),
        )
        self.rules: dict[web.AbstractRoute, Rule] = {}
        self.guard = security.Guard(
            settings.server,
            services.keys,
            self.rules,
            self.handlers.pages.visits.principal,
            services.retries.refused,
            settings.home,
            services.memory.used,
        )

    def add_routes(self, app: web.Application) -> None:
        for row in ROUTES:
            self.rules |= dict.fromkeys(app.add_routes(row.registered(self.handlers)), row.rule)

    async def running(self, app: web.Application) -> AsyncIterator[None]:
        """From the start to the stop, in their order."""
        services, training, store = self.services, self.training, self.services.store
        asyncio.get_running_loop().set_exception_handler(services.health.files.on_loop_error)
        await services.keys.start(store)
        await self.episodes.start()
        if store.sharing is None:
            await relocation.relocate(services.settings, store)
        async with self._towards_backend() as http:
            backend = services.settings.backend
            self.parts.connections = connections = Connections(backend.connect_timeout_s, backend.read_timeout_s)
            await self.parts.uncaptured.start()
            if (exporter := services.exporter) is not None:
                exporter.start()
                services.tasks.spawn("otel-runs", exporter.follow_runs(services.events.listen()))
            self.channels.webhooks.start(http)
            await training.load(http)
            if self.parts.lessons is not None:
                await self.parts.lessons.start()
                services.tasks.spawn("lessons", _refresh(services.events, self.parts.lessons))
            await self.handlers.pages.visits.start(store)
            services.tasks.spawn("version-copies", training.copies.run())
            services.tasks.spawn("cut-prompts", services.health.cut.start(store))
            await self.handlers.retention.start()
            services.tasks.spawn("damage", _tell_of_damage(store, services.events))
            if store.sharing is None:
                await self._start_learning()
            else:
                services.tasks.spawn("sharing", store.sharing.run())
                services.tasks.spawn("follow", self._follow(store.sharing.following))
                services.tasks.spawn("lead", self._learn_in_turn(store.sharing))
            services.tasks.spawn("search", _fill_search(store))
            services.tasks.spawn("key-uses", services.keys.remember_uses())
            yield
            await services.tasks.drain_named("finish-", DRAIN_S)
            await services.tasks.cancel()
            if services.exporter is not None:
                await services.exporter.stop()
            await training.judging.stop()
            await self.episodes.rewarding.stop()
            await services.backend.stop()
            await connections.close()

    async def _start_learning(self) -> list[asyncio.Task[Any]]:
        services = self.services
        return [
            *await self.training.start(),
            services.tasks.spawn("reward-function", self.episodes.rewarding.run()),
            services.tasks.spawn("rollouts", self.rollouts.run()),
            services.tasks.spawn("expire", self.handlers.retention.run()),
            services.tasks.spawn("images", services.images.run()),
        ]

    async def _learn_in_turn(self, sharing: Sharing) -> None:
        """Learn while no other relay of this database does."""
        while True:
            await sharing.following.leading()
            tasks: list[asyncio.Task[Any]] = []
            try:
                await sharing.end_abandoned()
                await self.training.copies.fetch_newest()
                await relocation.relocate(self.services.settings, self.services.store)
                tasks = await self._start_learning()
                await sharing.following.lost()
            except StoreError as error:
                log.error("this relay cannot learn now", error=str(error))
                await asyncio.sleep(RETRY_S)
            await self.training.supervisor.stop()
            for task in tasks:
                task.cancel()
            if tasks:
                await asyncio.wait(tasks)

    async def _follow(self, following: Following) -> None:
        """Take over what other relays of this database do, for ever."""
        async with contextlib.aclosing(following.changes()) as changes:
            async for topics in changes:
                try:
                    await self._take_over(topics)
                except StoreError as error:
                    log.warning("what other relays do is not known now", error=str(error))

    async def _take_over(self, topics: frozenset[str]) -> None:
        if any_of(topics, "keys"):
            await self.services.keys.refresh()
        if any_of(topics, f"meta {UNCAPTURED}"):
            await self.parts.uncaptured.refresh()
        if self.parts.lessons is not None and any_of(topics, "ratings"):
            self.parts.lessons.changed()
        await self.training.follow(topics)

    async def stop_learning(self, app: web.Application) -> None:
        self.queue.stopping()
        await self.training.stop()  # first, while running answers still have their time to end
        self.services.events.end()

    def _towards_backend(self) -> aiohttp.ClientSession:
        return aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=POOL_KEEPALIVE_S),
            timeout=aiohttp.ClientTimeout(
                total=None,
                sock_connect=self.services.settings.backend.connect_timeout_s,
                sock_read=self.services.settings.backend.read_timeout_s,
            ),
            auto_decompress=False,
            cookie_jar=aiohttp.DummyCookieJar(),  # a cookie is its client's own, and no other's
            middlewares=(refuse_all,),
            skip_auto_headers=("accept-encoding",),  # what passes through is packed only as the client wants it
        )


async def _tell_of_damage(store: Store, events: Events) -> None:
    damage = f"{await store.damage()} {AS_IT_IS}"
    log.error("the database is damaged", error=damage)
    events.emit("problem", message=damage)


async def _refresh(events: Events, lessons: PromptLessons) -> None:
    async for event in events.listen():
        if event.kind in ("rating", "retracted", "published", "swap"):
            lessons.changed()


async def _fill_search(store: Store) -> None:
    """The words of what was captured, behind the capture: many at once, since answers wait behind each commit."""
    while True:
        try:
            indexed_count = 0 if store.integrity.state == "damaged" else await store.inbox.index_words()
        except StoreError as error:
            log.error("the search does not know the newest completions yet", error=str(error))
            indexed_count = 0
        await asyncio.sleep(0.05 if indexed_count == BATCH_SIZE else INDEX_EVERY_S)
