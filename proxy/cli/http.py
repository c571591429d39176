"""The CLI's side of HTTP: one request to the proxy of a home, with its address and its key.

A request has a time limit, except an act that waits for a model (`act`): it takes as long as the proxy works.

Not here: how a request is sent, and the errors (proxy.client).
"""

from __future__ import annotations

import http.client
import json
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from config.settings import Settings
from proxy.cli.failing import fail
from proxy.client import Refused, Unreachable, send, why_not

PIECE: Final = 65536
TIMEOUT_S: Final = 180.0
FIRST_LINE_S: Final = 3.0  # of an act: until it says why it waits
NEXT_LINE_S: Final = 10.0
INTERRUPTED: Final = 130  # as a shell reports Ctrl-C
NO_PROXY: Final = 3
ANOTHER_HOME: Final = 421  # a proxy is there, and it is not the one of this home


class HomeClient:
    def __init__(self, settings: Settings) -> None:
        from proxy.core.address_file import address, home_header, is_starting, local_key

        self.url = address(settings)
        self._home = settings.home
        self._is_starting: Callable[[], bool] = lambda: is_starting(settings)
        key = settings.server.admin_key or settings.server.api_key
        text = key.get_secret_value() if key else local_key(settings)
        self._headers = {"authorization": f"Bearer {text}"} if text else {}
        self._headers |= home_header(settings, self.url)

    def call(self, method: str, path: str, body: Any = None) -> Any:
        """The JSON answer; ends the command with one sentence where the proxy refuses or is not there."""
        with self._or_fail():
            return self.ask(method, path, body)

    def act(self, path: str, describe: Callable[[Any], str]) -> Any:
        """Do `call` with POST, for as long as it takes. `describe`: what the proxy is doing, by its `/rl/status`. Ends
        the command where the proxy is gone, or says nothing for TIMEOUT_S."""
        outcome: list[Any] = []
        request = threading.Thread(target=lambda: outcome.append(self._attempt(path)), daemon=True)
        request.start()
        start = last_status = time.monotonic()
        try:
            request.join(FIRST_LINE_S)
            while request.is_alive():
                try:
                    line = describe(self.ask("GET", "/rl/status"))
                    last_status = time.monotonic()
                except (Refused, Unreachable) as error:
                    if time.monotonic() - last_status > TIMEOUT_S:
                        fail(str(error), NO_PROXY)
                    line = "the proxy is busy"
                if request.is_alive():
                    seconds = time.monotonic() - start
                    print(f"still waiting, {seconds:.0f} s: {line}", file=sys.stderr, flush=True)
                request.join(NEXT_LINE_S)
        except KeyboardInterrupt:
            fail("the proxy goes on with it; `rlproxy status` shows what comes of it.", INTERRUPTED)
        with self._or_fail():
            if isinstance(outcome[0], Exception):
                raise outcome[0]
            return outcome[0]

    def _attempt(self, path: str) -> Any:
        try:
            return self._load(self._read(self._send("POST", path, None, has_timeout=False)))
        except (Refused, Unreachable) as error:
            return error

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        """The JSON answer. A body is JSON, or JSON lines as bytes. Raises Refused, Unreachable."""
        return self._load(self._read(self._send(method, path, body)))

    def answer(self, path: str, body: Any, headers: Mapping[str, str]) -> tuple[int, bytes]:
        """Status and body of a route of models, where errors have the backend's own shape. Raises Unreachable."""
        response = self._open("POST", path, body, headers)
        return response.status, self._read(response)

    def opens(self, key: str) -> bool:
        """Tell whether another key gets in. Raises Unreachable."""
        try:
            with self._send("GET", "/rl/status", None, {"authorization": f"Bearer {key}"}):
                return True
        except Refused:
            return False

    def lines(self, path: str) -> Iterator[str]:
        """Send the request now, before the first line is read: a caller creates its file only once there is an answer.

        Reading a line raises Unreachable where the connection breaks.
        """
        with self._or_fail():
            response = self._send("GET", path, None)
        return (line.decode() for line in self._lines(response))

    def events(
        self, path: str, body: Any, turn: str | None = None, session: str | None = None
    ) -> Generator[Any, None, None]:
        """The events of a stream, as JSON; closing it ends the connection. `turn`: as in `x-rl-turn`. `session`: a
        person's, never an episode. Raises Refused, Unreachable."""
        from proxy.core.sse import EventSplitter

        headers = {"x-rl-turn": turn, "session-id": session}
        with self._send("POST", path, body, {name: header for name, header in headers.items() if header}) as response:
            splitter = EventSplitter()
            for line in self._lines(response):
                for event in splitter.feed(line + b"\n"):
                    if event.data is not None and (data := event.data.strip()) not in (b"", b"[DONE]"):
                        yield self._load(data)

    @contextmanager
    def _or_fail(self) -> Iterator[None]:
        try:
            yield
        except Refused as refused:
            fail(str(refused))
        except Unreachable as error:
            fail(str(error), NO_PROXY)

    def _send(
        self,
        method: str,
        path: str,
        body: Any,
        extra_headers: Mapping[str, str] | None = None,
        *,
        has_timeout: bool = True,
    ) -> http.client.HTTPResponse:
        """Raises Refused, Unreachable."""
        response = self._open(method, path, body, extra_headers, has_timeout=has_timeout)
        if response.status >= 300:
            if (message := _message(self._read(response))) is None:
                raise self._somebody_else()
            raise Unreachable(message) if response.status == ANOTHER_HOME else Refused(message, response.status)
        return response

    def _open(
        self,
        method: str,
        path: str,
        body: Any,
        extra_headers: Mapping[str, str] | None = None,
        *,
        has_timeout: bool = True,
    ) -> http.client.HTTPResponse:
        """Raises Unreachable."""
        timeout_s = TIMEOUT_S if has_timeout else None
        if isinstance(body, dict):
            body = json.dumps({k: v for k, v in body.items() if v is not None}).encode()
        try:
            return send(self.url, method, path, body, {**self._headers, **(extra_headers or {})}, timeout_s)
        except TimeoutError as error:
            raise Unreachable(
                f"the rlproxy at {self.url} did not answer within {TIMEOUT_S:g} s: its machine is very busy, or it is "
                "stopped. It may still do what was asked; look with `rlproxy status`."
            ) from error
        except (OSError, http.client.HTTPException) as error:
            if self._is_starting():
                raise Unreachable(
                    f"no rlproxy answers at {self.url} ({why_not(error)}), and the process that holds {self._home} has "
                    "not said yet where it answers: it is starting, or another command is at work. Ask again in a "
                    "moment."
                ) from error
            raise Unreachable(
                f"no rlproxy answers at {self.url} ({why_not(error)}); start it with `rlproxy serve` (the first "
                "time: `rlproxy init`), or say with --home or RLPROXY_SERVER__PORT where it runs."
            ) from error

    def _read(self, response: http.client.HTTPResponse) -> bytes:
        with self._reading():
            return response.read()

    def _lines(self, response: http.client.HTTPResponse) -> Iterator[bytes]:
        """Whole ones. `for line in response` would take a connection that breaks between two chunks for the end."""
        parts: list[bytes] = []
        with self._reading():
            while piece := response.read1(PIECE):
                last, *further = piece.split(b"\n")
                for following in further:
                    yield b"".join((*parts, last))
                    parts, last = [], following
                parts.append(last)
            if response.length:
                raise http.client.IncompleteRead(b"", response.length)
        if remainder := b"".join(parts):
            yield remainder

    @contextmanager
    def _reading(self) -> Iterator[None]:
        try:
            yield
        except (OSError, http.client.HTTPException) as error:
            raise Unreachable(
                f"the rlproxy at {self.url} went away in the middle of its answer ({why_not(error)}); what it had done "
                "it keeps, so start it with `rlproxy serve` if it does not run, look with `rlproxy status`, and ask "
                "again."
            ) from error

    def _load(self, text: bytes) -> Any:
        try:
            return json.loads(text)
        except ValueError:
            raise self._somebody_else() from None

    def _somebody_else(self) -> Unreachable:
        return Unreachable(
            f"what answers at {self.url} is another program; say with --home or RLPROXY_SERVER__PORT where rlproxy "
            "runs, or start it on another port: `rlproxy serve --port 8485`."
        )


def _message(text: bytes) -> str | None:
    """The message of an error as rlproxy shapes it; None where it was somebody else's."""
    try:
        error = json.loads(text)["error"]
        return str(error["message"]) if {"type", "param", "code"} <= error.keys() else None
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
