"""The routes `/rl/webhooks/…`.

Owns HTTP around the platforms: the raw body, which of them are configured, and an answer in time. What is not stored
within two seconds is answered 503 and goes on. The platform sends the event again and finds it done, never half done.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

import aiohttp
import structlog
from aiohttp import web

from config import webhooks as config
from config.webhooks import secret
from proxy.access.bodies import BODY
from proxy.conversation.answer_on_screen import AnswerOnScreen
from proxy.core.errors import BackendDown, NotFound, ProxyError, TooLarge, TooSlow
from proxy.core.metrics import Metrics
from proxy.core.tasks import Tasks
from proxy.feedback.chat_command import ChatCommands
from proxy.feedback.ratings import Feedback
from proxy.feedback.webhooks.base import EventDone, Platform, PlatformEvent
from proxy.feedback.webhooks.buttons import BY_PLATFORM, Buttons
from proxy.feedback.webhooks.dispatch import Dispatch
from proxy.feedback.webhooks.fetch_text import TextOf
from store.errors import StoreError
from store.records import Link
from store.store import Store

if TYPE_CHECKING:
    from proxy.feedback.webhooks.matrix import Matrix

log = structlog.get_logger()

BUDGET_S: Final = 2.0  # Slack and Discord wait three seconds
HOMESERVER_S: Final = 30.0  # in which a transaction's body has to come, and its answer; Synapse waits for a minute
TRANSACTION_BYTES: Final = 1 << 24  # a hundred events of 64 KiB, and what a homeserver adds to them
SAME_FORM: Final = {"openclaw": "signed"}  # another platform's module reads its events


class Busy(BackendDown):
    type, code = "server_error", "not_yet_stored"


class Webhooks:
    def __init__(
        self,
        settings: config.WebhooksSection,
        store: Store,
        feedback: Feedback,
        commands: ChatCommands,
        metrics: Metrics,
        tasks: Tasks,
        screen: AnswerOnScreen,
    ) -> None:
        """Raises SettingsError, Unsupported where a platform cannot be set up."""
        self._settings = settings
        self._store = store
        self._metrics = metrics
        self._tasks = tasks
        self._dispatch = Dispatch(settings, store, feedback, commands, metrics, screen)
        self._platforms = _platforms(settings)
        self._at_once = asyncio.Semaphore(8)  # reactions from the Gateway that are being looked up
        self._running: dict[tuple[str, ...], asyncio.Task[list[EventDone]]] = {}
        self._buttons: dict[str, Buttons] = {}  # by platform

    def start(self, http: aiohttp.ClientSession) -> None:
        """Parts that need a session to ask with: the texts of messages, and Discord's Gateway."""
        texts, discord = _text_sources(self._settings, http), self._settings.discord
        if discord.gateway and (token := _secret(self._settings, "discord", "bot_token")):
            from proxy.feedback.webhooks.discord_gateway import Gateway

            self._tasks.spawn("discord-gateway", Gateway(http, discord.api, token, self._listened).run())
        if token := _secret(self._settings, "matrix", "as_token"):
            from proxy.feedback.webhooks.matrix_rooms import MatrixRooms

            rooms = self._buttons["matrix"] = MatrixRooms(http, self._settings.matrix, token)
            texts["matrix"] = rooms.text_of
        for name, make in BY_PLATFORM.items():
            section = getattr(self._settings, name)
            if section.buttons and (token := _secret(self._settings, name, "bot_token")):
                self._buttons[name] = make(http, section.api, token)
        self._dispatch.finder.texts = texts

    def answer_shown(self, link: Link) -> None:
        """Put buttons under an answer when its first link arrives, if its platform has them on."""
        if (buttons := self._buttons.get(link.platform)) is not None:
            self._tasks.spawn("buttons", buttons.add(link.channel, link.message_id))

    # A platform's route

    def handler(self, name: str) -> Callable[[web.Request], Awaitable[web.Response]]:
        async def handle(request: web.Request) -> web.Response:
            platform = self._configured(name)
            body = request.get(BODY, b"")
            headers = {key.lower(): value for key, value in request.headers.items()}
            try:
                events = platform.verify(headers, body, time.time())
            except ProxyError as error:
                self._metrics.webhooks.labels(name, error.code).inc()
                raise
            return platform.answer(body, await self._outcomes(name, events))

        return handle

    # Matrix, whose homeserver proves itself in the head, before the body

    async def transaction(self, request: web.Request) -> web.Response:
        """`PUT /_matrix/app/v1/transactions/{id}`. The id is not looked at: each event is taken once by its own."""
        matrix, headers = self._homeserver(request)
        body = await _transaction_body(request)
        events = matrix.verify(headers, body, time.time())
        outcomes = await self._outcomes("matrix", events, HOMESERVER_S)
        return matrix.answer(body, outcomes)

    async def ping(self, request: web.Request) -> web.Response:
        self._homeserver(request)
        return web.json_response({})

    async def no_such_name(self, request: web.Request) -> web.Response:
        """A homeserver asks whether a user or a room of our names exists; there are none but its own."""
        self._homeserver(request)
        return web.json_response({"errcode": "M_NOT_FOUND", "error": "rlproxy makes no users and rooms"}, status=404)

    def _homeserver(self, request: web.Request) -> tuple[Matrix, dict[str, str]]:
        """Raises NotFound, Forged."""
        from proxy.feedback.webhooks.matrix import Matrix

        matrix = self._configured("matrix")
        assert isinstance(matrix, Matrix)
        headers = {key.lower(): value for key, value in request.headers.items()}
        try:
            matrix.check(headers)
        except ProxyError as error:
            self._metrics.webhooks.labels("matrix", error.code).inc()
            raise
        return matrix, headers

    def _follow(self, name: str, outcomes: list[EventDone]) -> None:
        """Show people what became of their events, after the platform has its answer."""
        if (buttons := self._buttons.get(name)) is not None:
            self._tasks.spawn("buttons", _follow_each(buttons, outcomes))

    async def subscribe(self, request: web.Request) -> web.Response:
        from proxy.feedback.webhooks.whatsapp import WhatsApp

        platform = self._configured("whatsapp")
        assert isinstance(platform, WhatsApp)
        return web.Response(text=platform.subscribe(request.query))

    def _configured(self, name: str) -> Platform:
        platform = self._platforms.get(name)
        if platform is None:
            key = getattr(self._settings, name).turned_on_by
            raise NotFound(f"The {name} webhook is not configured: set webhooks.{name}.{key}, or its _file.")
        return platform

    async def _outcomes(
        self, name: str, events: tuple[PlatformEvent, ...], budget_s: float | None = None
    ) -> list[EventDone]:
        """All of them, in order. An event that comes again while it is being taken waits for the same end."""
        if not events:
            return []
        key = (name, *(word for event in events for word in (event.platform, event.person, event.event_id)))
        task = self._running.get(key)
        if task is None:
            task = self._running[key] = self._tasks.spawn(f"finish-webhook-{name}", self._take(name, events))
            task.add_done_callback(lambda _: self._running.pop(key, None))
        ended, _ = await asyncio.wait({task}, timeout=budget_s or BUDGET_S)
        if not ended:
            raise Busy("This is still being stored; send it again.", retry_after=1)
        return task.result()

    async def _take(self, name: str, events: tuple[PlatformEvent, ...]) -> list[EventDone]:
        outcomes = [await self._dispatch.take(name, event) for event in events]
        self._follow(name, outcomes)
        return outcomes

    def _listened(self, event: PlatformEvent) -> None:
        """An event from Discord's Gateway, which waits for no answer and sends nothing twice."""
        self._tasks.spawn("finish-webhook-gateway", self._listened_to(event))

    async def _listened_to(self, event: PlatformEvent) -> None:
        async with self._at_once:
            try:
                self._follow("discord", [await self._dispatch.take("discord", event)])
            except (ProxyError, StoreError) as error:
                log.error("a reaction on Discord was not stored", error=str(error), message=event.message_id)


async def _follow_each(buttons: Buttons, outcomes: list[EventDone]) -> None:
    for outcome in outcomes:
        await buttons.follow(outcome)


def _platforms(settings: config.WebhooksSection) -> dict[str, Platform]:
    """Those that are configured; the others' modules are not even loaded."""
    return {name: _platform(settings, name) for name in config.PLATFORMS if getattr(settings, name).is_on}


def _platform(settings: config.WebhooksSection, name: str) -> Platform:
    """By the `make` of its module."""
    section, secrets = getattr(settings, name), partial(_secret, settings, name)
    key = getattr(section, section.turned_on_by)
    proof = key if isinstance(key, str) else secrets(section.turned_on_by)
    platform: Platform = _module(name).make(name, proof, secrets, section)
    return platform


def _text_sources(settings: config.WebhooksSection, http: aiohttp.ClientSession) -> dict[str, TextOf]:
    """By the `text_source` of its module, where it has one (Telegram gives no texts) and a `bot_token` is set."""
    sections = {name: getattr(settings, name) for name in config.PLATFORMS}
    return {
        name: source(http, section.api, token)
        for name, section in sections.items()
        if "bot_token" in type(section).model_fields
        and (token := _secret(settings, name, "bot_token"))
        and (source := getattr(_module(name), "text_source", None)) is not None
    }


def _module(name: str) -> Any:
    return import_module(f"proxy.feedback.webhooks.{SAME_FORM.get(name, name)}")


async def _transaction_body(request: web.Request) -> bytes:
    """Raises TooLarge, TooSlow."""
    body = bytearray()
    try:
        async with asyncio.timeout(HOMESERVER_S):
            async for piece in request.content.iter_any():
                body += piece
                if len(body) > TRANSACTION_BYTES:
                    raise TooLarge(f"A transaction is at most {TRANSACTION_BYTES} bytes; nothing of it was taken.")
    except TimeoutError:
        raise TooSlow(f"A transaction has {HOMESERVER_S:g} s to come; nothing was taken, send it again.") from None
    return bytes(body)


def _secret(settings: config.WebhooksSection, platform: str, key: str) -> str | None:
    return secret(getattr(settings, platform), key, f"webhooks.{platform}.{key}")
