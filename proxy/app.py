"""The one place where the parts meet: `make_app` builds the proxy from its dependencies.

Owns wiring, routes, and the order of start and stop. Nothing is decided here.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Final

import aiohttp
import structlog
from aiohttp import web

from config.settings import Settings
from proxy import openapi, security
from proxy.backends.base import Backend
from proxy.capture import Health
from proxy.chat_command import ChatCommands
from proxy.control import Control
from proxy.count_tokens import CountTokens
from proxy.dialects import COUNT_TOKENS, DIALECTS, Dialect, dialect_at
from proxy.door import Door
from proxy.errors import NotFound, ProxyError, StorageFailed
from proxy.events import Events
from proxy.exchange import GONE, Parts
from proxy.feedback import Feedback
from proxy.foreign import Foreign
from proxy.forgetting import Forgetter
from proxy.formats import Formats
from proxy.importing import Importing
from proxy.key_routes import KeyRoutes
from proxy.keys import Keys
from proxy.learner import Learner
from proxy.lending import Lending
from proxy.lifecycle import Tasks
from proxy.limits import HEAD_LIMIT, MOST_HEADERS, Limits
from proxy.machine import Machine
from proxy.match import Match
from proxy.metrics import Metrics
from proxy.models import Models
from proxy.outcome import Outcome
from proxy.pages import INDEX_EVERY_S, Pages
from proxy.rebuild import Rebuilding
from proxy.recent import Recent
from proxy.redaction import Redactor
from proxy.relay import Relay
from proxy.retention import Retention
from proxy.status import StatusReport
from proxy.stored_responses import StoredResponses
from proxy.swap import Swap
from proxy.uncaptured import Uncaptured
from proxy.warm_up import WarmUp
from proxy.watch import Watch
from proxy.webhooks.routes import Webhooks
from proxy.when import When
from store.errors import StoreError
from store.store import Store
from trainer.launch import Launcher

log = structlog.get_logger()

DRAIN_S: Final = 10.0  # for completions that still have to be stored when we stop
POOL_KEEPALIVE_S: Final = 4.0  # below uvicorn's 5 s, else a connection may be closed under a request

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def make_app(settings: Settings, store: Store, backend: Backend, launcher: Launcher) -> web.Application:
    events, metrics, tasks, health = Events(), Metrics(), Tasks(), Health()
    door, keys, limits = Door(settings.server), Keys(settings.server), Limits(settings.server)
    recent = Recent()
    swap = Swap(store, backend, tasks, events, door, WarmUp(backend, recent))
    lending = Lending(settings, store, backend, swap, door, events, tasks)
    formats = Formats(backend.capabilities, settings.backend.translate)
    uncaptured = Uncaptured(store, recent)
    redactor = Redactor(settings.redaction)
    feedback = Feedback(store, events, metrics, redactor)
    train = settings.train
    machine = Machine(cpu=train.max_cpu_percent < 100, gpu=train.max_gpu_percent < 100 or train.min_free_gpu_gb > 0)
    match = Match(settings, store, backend, launcher, events)
    foreign = Foreign(settings, store, events) if backend.capabilities.foreign else None
    when = When(settings, store, backend, swap, launcher, machine, lending, match, foreign, lambda: relay.last_request)
    outcome = Outcome(store, swap, lending, events, metrics, foreign)
    rebuilding = Rebuilding(settings, store, swap, backend, when, foreign, events)
    learner = Learner(
        settings, store, swap, launcher, events, tasks, lending, match, foreign, when, outcome, rebuilding
    )
    watch = Watch(train.watch, store, swap, events)
    status = StatusReport(store, backend, swap, learner, when, match, watch, health, formats, door, lending, rebuilding)
    commands = ChatCommands(store, feedback, status.text, _acts(learner, swap), redactor)
    parts = Parts(
        settings, store, backend, swap, metrics, tasks, health, formats, door, limits, events, redactor, uncaptured,
        recent,
    )  # fmt: skip
    relay = Relay(parts, commands)
    counts = CountTokens(relay.parts)
    stored = StoredResponses(store, relay)
    # A list of somebody else's models is theirs alone, and a client's own key opens it.
    models = relay.passthrough if backend.capabilities.foreign else Models(store, backend, swap, door).list
    control = Control(store, backend, swap, learner, status, events, metrics, door)
    webhooks = Webhooks(settings.webhooks, store, feedback, commands, metrics, tasks)
    forgetter = Forgetter(store, settings.home, rebuilding, recent)
    retention = Retention(store, settings)
    pages = Pages(settings, store, keys, swap, learner, when, feedback, status, forgetter, retention)
    guard = security.Guard(settings.server, keys, limits, pages.visits.who)

    app = web.Application(
        client_max_size=settings.server.max_body_bytes,
        middlewares=[_errors, guard.middleware],
        # What only passes through is not unpacked; the data routes do it themselves.
        handler_args={
            "max_line_size": HEAD_LIMIT,
            "max_field_size": HEAD_LIMIT,
            "max_headers": MOST_HEADERS,
            "auto_decompress": False,
        },
    )
    app[security.LOCAL] = keys.local
    app.on_response_prepare.append(guard.cors)
    app.add_routes(
        [
            *(web.post(p + path, _data(relay, d)) for d in DIALECTS for path in d.paths for p in ("", "/s/{session}")),
            *(web.post(p + COUNT_TOKENS, counts.post) for p in ("", "/s/{session}")),
            *(web.get(p + "/v1/models", models) for p in ("", "/s/{session}")),
            *(web.get(p + "/v1/responses/{id}", stored.get) for p in ("", "/s/{session}")),
            *(web.delete(p + "/v1/responses/{id}", stored.delete) for p in ("", "/s/{session}")),
            web.post("/v1/feedback", feedback.post),
            web.delete("/v1/feedback/{id}", feedback.delete),
            *control.routes(),
            *KeyRoutes(keys).routes(),
            openapi.route(),
            *uncaptured.routes(),
            web.post("/rl/import", Importing(store, redactor).post),
            *webhooks.routes(),
            web.post("/rl/forget", forgetter.post),
            *pages.routes(),
            *(
                web.route("*", p + room, relay.passthrough)
                for p in ("", "/s/{session}")
                for room in ("/v1/{rest:(?!feedback(?:/|$)).*}", "/api/{rest:.*}")  # ratings are no backend's affair
            ),
        ]
    )

    async def running(app: web.Application) -> AsyncIterator[None]:
        asyncio.get_running_loop().set_exception_handler(health.files.heard)
        await keys.start(store)
        connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=POOL_KEEPALIVE_S)
        timeout = aiohttp.ClientTimeout(
            total=None,
            sock_connect=settings.backend.connect_timeout_s,
            sock_read=settings.backend.read_timeout_s,
        )
        async with aiohttp.ClientSession(
            connector=connector,
            timeout=timeout,
            auto_decompress=False,
            skip_auto_headers=("accept-encoding",),  # what passes through is packed only as the client wants it
        ) as http:
            relay.parts.http = http
            await uncaptured.start()
            webhooks.start(http)
            await rebuilding.start()
            await backend.start(http, swap.restore)
            if not await lending.recover():
                await _restored(swap)
            await pages.start()
            await retention.start()
            await forgetter.settle_at_start()
            await learner.start()
            tasks.spawn("watch", watch.run())
            tasks.spawn("wake-on-ratings", _wake_on_ratings(events, learner, watch))
            tasks.spawn("expire", retention.run())
            tasks.spawn("search", _fill_search(store))
            tasks.spawn("key-uses", keys.remember_uses())
            yield
            await tasks.drain_named("finish-", DRAIN_S)
            await tasks.cancel()
            await backend.stop()

    async def stop_learning(app: web.Application) -> None:
        lending.stopping()
        await learner.stop()  # first, while running answers still have their time to end
        await lending.leave_awake()

    app.cleanup_ctx.append(running)
    app.on_shutdown.append(stop_learning)
    return app


def _acts(learner: Learner, swap: Swap) -> dict[str, Callable[[], Awaitable[str]]]:
    """What an admin may do from the chat."""

    async def train() -> str:
        return f"a run starts: {(await learner.train()).why}."

    async def pause() -> str:
        await learner.pause()
        return "training is paused; `/rl resume` goes on."

    async def resume() -> str:
        await learner.resume()
        return "training goes on."

    async def rollback() -> str:
        live = (await swap.rollback("chat")).live
        return f"v{live} is live again." if live else "the base model is live again."

    async def reset() -> str:
        await learner.reset("chat")
        return "the base model answers, and the next run starts from it; nothing is deleted."

    return {"train": train, "pause": pause, "resume": resume, "rollback": rollback, "reset": reset}


def _data(relay: Relay, dialect: Dialect) -> Handler:
    async def handle(request: web.Request) -> web.StreamResponse:
        return await relay.data(request, dialect)

    return handle


async def _restored(swap: Swap) -> None:
    """A backend that is not there yet does not keep the proxy from starting; versions load when first asked for."""
    try:
        await swap.restore()
    except ProxyError as error:
        log.warning("adapters are not loaded yet", error=str(error))


async def _wake_on_ratings(events: Events, learner: Learner, watch: Watch) -> None:
    async for happened in events.listen():
        if happened.kind in ("rating", "rebuild"):
            learner.wake()
        if happened.kind in ("rating", "retracted"):
            watch.wake()


async def _fill_search(store: Store) -> None:
    """The words of what was captured, behind the capture."""
    while True:
        try:
            more = await store.index_words()
        except StoreError as error:
            log.error("the search does not know the newest completions yet", error=str(error))
            more = 0
        await asyncio.sleep(0.05 if more else INDEX_EVERY_S)


@web.middleware
async def _errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    """One shape for everything that goes wrong before an answer has begun; on data routes the dialect's own."""
    try:
        return await handler(request)
    except ProxyError as error:
        return _shaped(request, error)
    except StoreError as error:
        return StorageFailed(f"The store did not take it: {error}").response()
    except web.HTTPNotFound:
        return NotFound(
            f"There is nothing at {request.method} {request.path}: an agent's base URL is {request.scheme}://{request.host}/v1."
        ).response()
    except web.HTTPMethodNotAllowed as error:
        allowed = ", ".join(sorted(error.allowed_methods))
        response = NotFound(f"{request.path} takes {allowed} only.").response()
        response.set_status(405)
        response.headers["allow"] = allowed
        return response
    except web.HTTPException:
        raise
    except Exception as error:
        if isinstance(error, GONE) and (request.transport is None or request.transport.is_closing()):
            return web.Response(status=499)  # nobody is there to read it
        if request.writer.output_size:
            raise  # the answer has begun: it can only be broken off
        log.exception("a bug of rlproxy's own", path=request.path)
        what = f"{type(error).__name__}: {error}"[:300]
        return _shaped(
            request,
            ProxyError(f"rlproxy itself failed at this request ({what}), which is a bug; its log has more. Ask again."),
        )


def _shaped(request: web.Request, error: ProxyError) -> web.Response:
    dialect = dialect_at(request.path) if request.method == "POST" else None
    return error.response(dialect.error(error) if dialect else None)
