"""`rlproxy serve`: one process from settings to a clean stop.

Owns: logs, the store's lifetime, the listening socket, signals, and the address file by which the CLI finds us. The
order of a stop: not ready for `server.drain_s`, while all is answered. Then no new connections; the learner, whose run
stops at its next step; running answers, for `server.stop_s` at most. Then what they leave to be stored, everything that
runs beside, the backend, and the store.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import io
import json
import logging
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, Final, TextIO, cast

import structlog
from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from config.sections import Train
from config.settings import Settings
from proxy.access import security
from proxy.access.draining import DRAINING
from proxy.app import make_app
from proxy.backends import make_backend
from proxy.backends.base import Backend
from proxy.core import home, tasks
from proxy.core.address_file import ADDRESS_FILE
from proxy.core.sharing import fd_limits
from proxy.core.start_errors import Listening, make_home
from proxy.core.terminal import escape_controls, styled
from proxy.relay.exchange import CLIENT_ERRORS
from proxy.web import starting
from proxy.web.status import reachable
from store.errors import MissingExtra
from store.file.db_key import Secret, find
from store.store import Store
from trainer.launch import Launcher, LocalLauncher, PlaceSettings, sealing_lacks

AT_ONCE_S: Final = 2.0  # how long a second signal waits for the disk to take what was begun
LET_IN_S: Final = 0.05  # from the last connection to its first turn
KEEPALIVE_S: Final = 75.0  # for a head to come to its end, and between two requests
READ: Final = 1 << 16
YOUNG: Final = 5_000  # objects between two looks for garbage among the newest; Python has 700


class Unfailing(io.TextIOBase):
    """stderr, where a line that cannot be written stops nothing: it may be a file on the disk that is full."""

    def write(self, text: str) -> int:
        with contextlib.suppress(OSError, ValueError):  # ValueError: it has been closed
            styled(sys.stderr).write(text)
        return len(text)

    def flush(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            sys.stderr.flush()


def _plain(logger: object, method: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
    """A line of the log is one line, and of text only, whatever a client or a backend has brought into it. Only a
    traceback has several."""
    for key, value in event.items():
        if isinstance(value, str):
            event[key] = escape_controls(value if key == "exception" else value.replace("\n", "\\n"))
    return event


def configure_logs(level: str, as_json: bool) -> None:
    renderer = (
        structlog.processors.JSONRenderer()
        if as_json
        else structlog.dev.ConsoleRenderer(
            colors=sys.stderr.isatty(), exception_formatter=structlog.dev.plain_traceback
        )
    )
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=False),
            structlog.processors.format_exc_info,
            *([] if as_json else [_plain]),  # JSON spells them itself
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelNamesMapping()[level.upper()]),
        logger_factory=structlog.PrintLoggerFactory(cast(TextIO, Unfailing())),
    )
    server = logging.getLogger("aiohttp.server")
    if _is_ours not in server.filters:
        server.addFilter(_is_ours)


def _is_ours(record: logging.LogRecord) -> bool:
    """aiohttp logs the bytes of a request that is not HTTP, and there may be a key among them. It also logs, as a bug,
    that a client has left before it was told `100 Continue`."""
    return not (record.exc_info and isinstance(record.exc_info[1], (HttpProcessingError, *CLIENT_ERRORS)))


def key_of(settings: Settings) -> Secret | None:
    """The database's key. Before the loop runs: who is asked for it can still press Ctrl-C. Raises StoreError."""
    secret = find(settings.store.key_from, settings.home)
    if secret is not None and (reason := sealing_lacks()) is not None:
        raise MissingExtra(f"The database is encrypted, and {reason}.")
    return secret


@contextlib.asynccontextmanager
async def serving(
    settings: Settings,
    secret: Secret | None = None,
    opened: Callable[[Store], None] = lambda store: None,
    announce: Callable[[str], None] = lambda url: None,
    launcher: Launcher | None = None,
) -> AsyncIterator[str]:
    """A running proxy; yields its address, without `/v1`. `opened` is told of the store, `announce` of the address,
    before the backend starts. `launcher`: of runs; None is as the settings say.

    Raises ProxyError, StoreError, CannotStart.
    """
    make_home(settings.home)
    for notice in home.close(settings.home):
        structlog.get_logger().warning(notice)
    launcher = launcher or _launcher(settings.train)
    backend = make_backend(settings, launcher)
    store = await Store.open(settings.home, secret, structlog.get_logger().info, settings.store.address)
    opened(store)
    try:
        security.check_bind(settings.server, any(key.revoked_at is None for key in await store.keys.all()))
        with contextlib.closing(Listening(settings.server.host, settings.server.port)) as listening:
            app = make_app(settings, store, backend, launcher)
            runner = web.AppRunner(
                app,
                handler_cancellation=True,
                access_log=None,
                # aiohttp waits so long twice: for the answer, then for who gives it.
                shutdown_timeout=settings.server.stop_s / 2,
                keepalive_timeout=KEEPALIVE_S,
            )
            try:
                announce(url := listening.url)
                async with starting.answering(listening, lambda: backend.state):
                    await runner.setup()
                await listening.begin(runner)
                address = settings.home / ADDRESS_FILE
                _write_address(address, {"url": url, "pid": os.getpid(), "key": app[security.LOCAL]})
                assert runner.server is not None
                busy = app[security.BUSY]
                sweep = fd_limits.keep_some_free(runner.server, busy, 2 * settings.server.max_requests)
                background = [
                    asyncio.create_task(_say_unreachable(backend), name="look-at-backend"),
                    asyncio.create_task(sweep, name="keep-some-free"),
                ]
                try:
                    yield url
                finally:
                    app[tasks.TASKS].hurry()  # a second signal may come at any moment
                    app[DRAINING].begin()
                    if settings.server.drain_s:
                        await asyncio.sleep(settings.server.drain_s)
                        app[tasks.TASKS].hurry()  # of the answers since
                    for task in background:
                        task.cancel()
                    address.unlink(missing_ok=True)
                    for site in list(runner.sites):
                        await site.stop()
                    # Who was let in just before is heard: aiohttp would ignore what a connection that it closes before
                    # its first turn says, and wait for it as long as for an answer.
                    await asyncio.sleep(LET_IN_S)
            finally:
                await runner.cleanup()
    finally:
        await store.close()


def _launcher(train: Train) -> Launcher:
    return LocalLauncher(
        PlaceSettings(
            train.where,
            train.where_python,
            train.where_weights,
            train.where_options,
            bucket=train.bucket,
            takes_keys=train.where_takes_keys,
            takes_texts=train.where_takes_texts,
        )
    )


async def _say_unreachable(backend: Backend) -> None:
    """Once: whoever starts rlproxy before their server should not learn it from their agent."""
    if (reason := await reachable(backend)) is not None:
        print(f"rlproxy: {escape_controls(reason)}", file=Unfailing(), flush=True)


def _write_address(path: Path, members: dict[str, Any]) -> None:
    """Whoever finds it finds it whole; with the key in it, that is its owner only."""
    half = path.with_name(f".{path.name}")
    half.unlink(missing_ok=True)
    with os.fdopen(os.open(half, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        json.dump(members, file)
    half.replace(path)


def read_less_at_once() -> None:
    """Take at most READ bytes of a connection in one turn of the loop; asyncio takes four times as many. All of it is
    in memory before anybody looks at it, for each connection that has sent something."""
    transports = getattr(asyncio.selector_events, "_SelectorTransport", None)  # not with every loop
    if transports is not None:
        transports.max_size = READ


def _announce(url: str) -> None:
    print(f"rlproxy listens: its page is {url}/. It answers once its model is loaded.", file=Unfailing(), flush=True)


async def serve(settings: Settings, secret: Secret | None = None, launcher: Launcher | None = None) -> None:
    """Until SIGINT or SIGTERM; the second one ends at once, with what was begun on disk. `launcher`: as `serving`."""
    fd_limits.raise_limit()
    read_less_at_once()
    os.umask(home.UMASK)
    stop = asyncio.Event()
    stores: list[Store] = []  # once there is one
    loop = asyncio.get_running_loop()

    def handle_signal() -> None:
        if stop.is_set():
            for store in stores:
                store.close_at_once(AT_ONCE_S)
            os._exit(130)
        stop.set()
        print("rlproxy: stopping; once more to stop at once.", file=Unfailing(), flush=True)

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, handle_signal)
    stopping = asyncio.create_task(stop.wait(), name="stop")
    async with contextlib.AsyncExitStack() as stack:
        start = asyncio.create_task(
            stack.enter_async_context(serving(settings, secret, stores.append, _announce, launcher))
        )
        await asyncio.wait({start, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if not start.done():
            start.cancel()
            await asyncio.wait({start})
            print("rlproxy: stopped before it was ready.", file=Unfailing(), flush=True)
            return
        url = start.result()
        gc.freeze()  # what is there now stays: no collection need look at it again, nor one here, of 50 ms
        gc.set_threshold(YOUNG)  # a request leaves next to nothing to collect, and streams under way hold a lot
        gc.enable()  # the command turned it off
        print(f"rlproxy is ready. Point your agent's base URL here: {url}/v1", file=Unfailing(), flush=True)
        await stopping
    print("rlproxy: stopped.", file=Unfailing(), flush=True)
