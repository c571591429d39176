"""The one place where the parts meet: `make_app` builds the proxy from its dependencies.

Owns wiring, routes, and the order of start and stop. Nothing is decided here.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from functools import partial
from typing import Final

import aiohttp
import structlog
from aiohttp import web

from config.settings import Settings
from proxy.access import security
from proxy.access.bodies import Bodies
from proxy.access.keys import Keys
from proxy.access.limits import HEAD_LIMIT, MOST_HEADERS, Limits
from proxy.access.roles import ROOM
from proxy.backends.base import Backend
from proxy.conversation.active_conversations import ActiveConversations
from proxy.conversation.answer_on_screen import AnswerOnScreen
from proxy.conversation.capture_health import Health
from proxy.conversation.history_cache import History
from proxy.conversation.redaction import Redactor
from proxy.conversation.retries import Retries
from proxy.conversation.underway import AnswersInProgress
from proxy.core.backend_http import Connections
from proxy.core.errors import ProxyError
from proxy.core.events import Events
from proxy.core.heap_trim import Memory
from proxy.core.metrics import Metrics
from proxy.core.redirects import refuse_all
from proxy.core.tasks import TASKS, Tasks
from proxy.dialects import COUNT_TOKENS, DIALECTS
from proxy.feedback.chat_command import ChatCommands
from proxy.feedback.episodes import Episodes
from proxy.feedback.open_webui import OpenWebUI
from proxy.feedback.ratings import Feedback
from proxy.feedback.reward_function import RewardFunction
from proxy.feedback.unconfirmed_fixes import UnconfirmedFixes
from proxy.feedback.webhooks.routes import Webhooks
from proxy.relay.capture.optout import CaptureOptout
from proxy.relay.codecs import Formats
from proxy.relay.count_tokens import CountTokens
from proxy.relay.episode_queue import EpisodeQueue
from proxy.relay.lessons import PromptLessons
from proxy.relay.models import Models
from proxy.relay.ollama_routes import OllamaRoutes
from proxy.relay.parts import RelayParts
from proxy.relay.passthrough import Passthrough
from proxy.relay.relay import Relay
from proxy.signals.follower import Follower
from proxy.signals.hindsight import Hindsight
from proxy.signals.judging import JudgingLoop
from proxy.signals.own import OwnSignals
from proxy.training import relocation
from proxy.training.admin_acts import AdminActs
from proxy.training.claim import Claims
from proxy.training.cloud_student import CloudStudent
from proxy.training.gpu_sharing import GpuSharing
from proxy.training.preconditions import Preconditions
from proxy.training.publish import Publisher
from proxy.training.rehearsal import Rehearsal
from proxy.training.run_files import RunFiles
from proxy.training.run_state import RunState
from proxy.training.run_supervisor import RunSupervisor
from proxy.training.system_load import Machine
from proxy.training.throttle import BackgroundThrottle, longest
from proxy.training.unlearning import Unlearning
from proxy.training.weights_check import WeightsCheck
from proxy.versions.admission import Admission
from proxy.versions.live_version import LiveVersion
from proxy.versions.rollback_monitor import RollbackMonitor
from proxy.versions.warm_up import WarmUp
from proxy.web import error_middleware, openapi
from proxy.web.control import Control
from proxy.web.episode_routes import EpisodeRoutes
from proxy.web.forgetting import Forgetter
from proxy.web.importing import ImportRoutes
from proxy.web.judge_routes import JudgeRoutes
from proxy.web.key_routes import KeyRoutes
from proxy.web.lesson_routes import LessonRoutes
from proxy.web.pages import INDEX_EVERY_S, Pages
from proxy.web.retention import Retention
from proxy.web.status import AS_IT_IS, StatusReport
from proxy.web.stored_responses import StoredResponses
from store.captured.inbox import BATCH_SIZE
from store.errors import StoreError
from store.store import Store
from trainer.launch import Launcher

log = structlog.get_logger()

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
    app[security.LOCAL] = wiring.keys.local
    app[security.BUSY] = wiring.guard.busy
    app[TASKS] = wiring.tasks
    app.on_response_prepare.append(security.contain)
    if settings.server.origins:
        app.on_response_prepare.append(wiring.guard.cors)
    app.add_routes(wiring.routes())
    app.cleanup_ctx.append(wiring.running)
    app.on_shutdown.append(wiring.stop_learning)
    return app


class Wiring:
    """All parts of one proxy, each made of those above it."""

    def __init__(self, settings: Settings, store: Store, backend: Backend, launcher: Launcher) -> None:
        self.settings, self.store, self.backend = settings, store, backend
        self.health = health = Health(backend.capabilities.longer_context)
        events, metrics, admission = Events(), Metrics(), Admission(settings.server)
        self.events, self.tasks = events, (tasks := Tasks())
        self.keys = Keys(settings.server)
        redactor = Redactor(settings.redaction)
        recent = ActiveConversations(History(redactor))
        underway = AnswersInProgress()
        self.screen = screen = AnswerOnScreen(store, redactor, underway)
        self.feedback = feedback = Feedback(store, events, metrics, redactor, screen)
        self.open_webui = OpenWebUI(store, feedback, screen, redactor)

        # one version answers, and another takes its place
        self.rewarding = rewarding = RewardFunction(settings.train, store, events)
        self.episodes = episodes = Episodes(store, events, redactor, rewarding)
        self.live_version = live_version = LiveVersion(
            store, backend, tasks, events, admission, WarmUp(backend, recent), episodes.versions
        )
        self.gpu_sharing = gpu_sharing = GpuSharing(settings, store, backend, live_version, admission, events, tasks)

        # ratings become versions
        train = settings.train
        machine = Machine(cpu=train.max_cpu_percent < 100, gpu=train.max_gpu_percent < 100 or train.min_free_gpu_gb > 0)
        match = WeightsCheck(settings, store, backend, launcher, events)
        foreign = CloudStudent(settings, store, events) if backend.capabilities.is_foreign else None
        state = RunState()
        preconditions = Preconditions(
            settings, store, backend, live_version, launcher, machine, gpu_sharing, match, foreign,
            lambda: self.relay.last_request, state,
        )  # fmt: skip
        self.rehearsal = rehearsal = Rehearsal(
            settings, store, backend, launcher, events, match, preconditions, health, admission
        )
        outcome = Publisher(store, live_version, gpu_sharing, events, metrics, foreign)
        self.rebuilding = rebuilding = Unlearning(
            settings, store, live_version, backend, preconditions, foreign, events
        )
        self.run_files = run_files = RunFiles(store, settings.home)
        claims = Claims(settings, store, backend, live_version, foreign, run_files)
        self.learner = learner = RunSupervisor(
            settings,
            store,
            live_version,
            launcher,
            events,
            tasks,
            gpu_sharing,
            foreign,
            state,
            preconditions,
            claims,
            outcome,
            rebuilding,
        )
        self.watch = watch = RollbackMonitor(train, store, live_version, events)

        # answers pass through, and are kept
        formats = Formats(backend.capabilities, settings.backend.translate)
        retries = Retries(store, tasks)
        self.uncaptured = CaptureOptout(store, recent, retries)
        # what people say next
        self.judging = judging = JudgingLoop(
            settings.judge,
            store,
            backend,
            redactor,
            events,
            Follower(store, screen),
            OwnSignals(settings.signals),
            Hindsight(settings.judge, preconditions.weights),
        )
        claims.prepare, claims.extra_choices = judging.settle, judging.choices
        self.queue = queue = EpisodeQueue(settings, backend.capabilities.slots * (1 + len(settings.backend.replicas)))
        self.status = status = StatusReport(
            store, backend, live_version, learner, preconditions, match, rehearsal, watch, health, formats, admission,
            gpu_sharing, rebuilding, judging, episodes, queue,
        )  # fmt: skip
        acts = AdminActs(learner, live_version)
        unconfirmed = UnconfirmedFixes()
        self.commands = ChatCommands(store, feedback, status.text, acts, screen, unconfirmed)
        throttle = BackgroundThrottle(launcher.stand_still, longest(settings.backend, train.stand_still_s))
        self.lessons = lessons = PromptLessons(store) if settings.lessons.enabled else None
        parts = RelayParts(
            settings, store, backend, live_version, metrics, tasks, health, formats, admission, events, redactor,
            self.uncaptured, recent, Memory(tasks), throttle, underway, episodes, queue, lessons,
        )  # fmt: skip
        self.relay = Relay(parts, self.commands, retries)
        self.counts = CountTokens(parts)
        self.forgetter = Forgetter(store, settings.home, run_files, rebuilding, recent, retries, unconfirmed, lessons)
        untouched = Passthrough(parts).relay
        self.stored = StoredResponses(parts, self.forgetter, untouched)
        self.models = models = Models(parts, untouched)
        self.passed = OllamaRoutes(parts, models, untouched).passed
        if backend.kind == "ollama":  # imported where it is used, as the backends are
            from proxy.relay.ollama_lists import OllamaLists

            self.passed = OllamaLists(store, backend, live_version, admission, models.passed, untouched).passed

        # people look, rate and decide
        self.control = Control(
            store,
            backend,
            live_version,
            acts,
            status,
            events,
            metrics,
            admission,
            lambda request: self.guard.is_still_allowed(request),
        )
        self.lesson_routes = LessonRoutes(store, lessons)
        self.importing = ImportRoutes(store, redactor)
        self.webhooks = Webhooks(settings.webhooks, store, feedback, self.commands, metrics, tasks, screen)
        self.retention = Retention(store, settings)
        self.pages = Pages(
            settings,
            store,
            self.keys,
            live_version,
            learner,
            acts,
            preconditions,
            feedback,
            status,
            self.forgetter,
            self.retention,
            health.cut,
            judging,
            self.lesson_routes,
        )
        self.guard = security.Guard(
            settings.server,
            self.keys,
            Limits(settings.server),
            Bodies(settings.server),
            self.pages.visits.principal,
            retries.refused,
            settings.home,
        )

    def routes(self) -> list[web.RouteDef]:
        rooms = ("", ROOM)
        return [
            *(
                web.post(p + path, partial(self.relay.data, dialect=d))
                for d in DIALECTS
                for path in d.paths
                for p in rooms
            ),
            *(web.post(p + COUNT_TOKENS, self.counts.post) for p in rooms),
            *(web.get(p + "/v1/models", self.models.list) for p in rooms),
            *(web.get(p + "/v1/responses/{id}", self.stored.get) for p in rooms),
            *(web.delete(p + "/v1/responses/{id}", self.stored.delete) for p in rooms),
            *(web.post(p + "/v1/responses/{id}/cancel", self.stored.cancel) for p in rooms),
            web.post("/v1/feedback", self.feedback.post),
            web.post("/v1/feedback/open-webui", self.open_webui.post),
            web.delete("/v1/feedback/{id}", self.feedback.delete),
            *self.control.routes(),
            *KeyRoutes(self.keys).routes(),
            *JudgeRoutes(self.judging, self.rewarding).routes(),
            *self.lesson_routes.routes(),
            *EpisodeRoutes(self.store, self.episodes, self.live_version).routes(),
            openapi.route(),
            *self.uncaptured.routes(),
            web.post("/rl/import", self.importing.post),
            *self.webhooks.routes(),
            web.post("/rl/forget", self.forgetter.post),
            *self.pages.routes(),
            *(
                web.route("*", p + pattern, self.passed)
                for p in rooms
                for pattern in ("/v1/{rest:(?!feedback(?:/|$)).*}", "/api/{rest:.*}")  # ratings are no backend's affair
            ),
        ]

    async def running(self, app: web.Application) -> AsyncIterator[None]:
        """From the start to the stop, in their order."""
        asyncio.get_running_loop().set_exception_handler(self.health.files.on_loop_error)
        await self.keys.start(self.store)
        await self.episodes.start()
        await relocation.relocate(self.settings, self.store)
        async with self._towards_backend() as http:
            self.relay.parts.connections = connections = Connections(
                self.settings.backend.connect_timeout_s, self.settings.backend.read_timeout_s
            )
            await self.uncaptured.start()
            self.webhooks.start(http)
            await self.rebuilding.start()
            await self.backend.start(http, self.live_version.restore)
            if not await self.gpu_sharing.recover():
                await _restore(self.live_version)
            await self.judging.start(http)
            if self.lessons is not None:
                await self.lessons.start()
                self.tasks.spawn("lessons", _refresh(self.events, self.lessons))
            await self.pages.start()
            self.tasks.spawn("cut-prompts", self.health.cut.start(self.store))
            await self.retention.start()
            self.tasks.spawn("damage", _tell_of_damage(self.store, self.events))
            settling = self.tasks.spawn("forgotten", self.run_files.start())
            if self.store.integrity.doubt is None:
                await settling
            self.tasks.spawn("gaps", self.run_files.keep_overwriting())
            await self.learner.start()
            self.tasks.spawn("watch", self.watch.run())
            self.tasks.spawn("rehearsal", self.rehearsal.run())
            self.tasks.spawn("signals", self.judging.run())
            self.tasks.spawn("reward-function", self.rewarding.run())
            self.tasks.spawn("wake-on-ratings", _wake_on_ratings(self.events, self.learner, self.watch, self.judging))
            self.tasks.spawn("expire", self.retention.run())
            self.tasks.spawn("search", _fill_search(self.store))
            self.tasks.spawn("key-uses", self.keys.remember_uses())
            yield
            await self.tasks.drain_named("finish-", DRAIN_S)
            await self.tasks.cancel()
            await self.judging.stop()
            await self.rewarding.stop()
            await self.backend.stop()
            await connections.close()

    async def stop_learning(self, app: web.Application) -> None:
        self.queue.stopping()
        self.gpu_sharing.stopping()
        await self.learner.stop()  # first, while running answers still have their time to end
        await self.gpu_sharing.leave_awake()
        self.events.end()

    def _towards_backend(self) -> aiohttp.ClientSession:
        return aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=POOL_KEEPALIVE_S),
            timeout=aiohttp.ClientTimeout(
                total=None,
                sock_connect=self.settings.backend.connect_timeout_s,
                sock_read=self.settings.backend.read_timeout_s,
            ),
            auto_decompress=False,
            cookie_jar=aiohttp.DummyCookieJar(),  # a cookie is its client's own, and no other's
            middlewares=(refuse_all,),
            skip_auto_headers=("accept-encoding",),  # what passes through is packed only as the client wants it
        )


async def _restore(live_version: LiveVersion) -> None:
    """A backend that is not there yet does not keep the proxy from starting; versions load when first asked for."""
    try:
        await live_version.restore()
    except ProxyError as error:
        log.warning("adapters are not loaded yet", error=str(error))


async def _tell_of_damage(store: Store, events: Events) -> None:
    damage = f"{await store.damage()} {AS_IT_IS}"
    log.error("the database is damaged", error=damage)
    events.emit("problem", message=damage)


async def _wake_on_ratings(
    events: Events, learner: RunSupervisor, watch: RollbackMonitor, judging: JudgingLoop
) -> None:
    async for event in events.listen():
        if event.kind in ("rating", "rebuild", "episode", "judged"):
            learner.wake()
        if event.kind in ("rating", "retracted", "episode"):
            watch.wake()
        if event.kind in ("rating", "retracted"):
            judging.rated()


async def _refresh(events: Events, lessons: PromptLessons) -> None:
    async for event in events.listen():
        if event.kind in ("rating", "retracted", "published", "swap", "lesson"):
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
