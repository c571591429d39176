"""The CLI's side of HTTP: one short request to the running proxy, by the standard library (it starts quickly)."""

from __future__ import annotations

import http.client
import json
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import Any, Final
from urllib.parse import urlsplit

from config.settings import Settings
from proxy.cli_common import fail

TIMEOUT_S: Final = 180.0  # a rollback may have to load an adapter
NO_PROXY: Final = 3
ANOTHER_HOME: Final = 421  # a proxy is there, and it is not the one of this home


class Refused(Exception):
    """The proxy's own sentence."""


class NoProxyAnswers(Exception):
    pass


class Client:
    def __init__(self, settings: Settings) -> None:
        from proxy.server_address import address, home_header, local_key

        self.url = address(settings)
        key = settings.server.admin_key or settings.server.api_key
        text = key.get_secret_value() if key else local_key(settings)
        self._headers = {"authorization": f"Bearer {text}"} if text else {}
        self._headers |= home_header(settings, self.url)

    def call(self, method: str, path: str, body: Any = None) -> Any:
        """The JSON answer; ends the command with one sentence where the proxy refuses or is not there."""
        with self._or_fail():
            return self.ask(method, path, body)

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        """The JSON answer. Raises Refused, NoProxyAnswers."""
        return self._loaded(self._send(method, path, body).read())

    def post_lines(self, path: str, lines: bytes) -> Any:
        """As `call`, with JSON lines."""
        with self._or_fail():
            return self._loaded(self._send("POST", path, lines).read())

    def lines(self, path: str) -> Iterator[str]:
        """Asked now, not at the first line: who opens a file for them opens none where there are none."""
        with self._or_fail():
            response = self._send("GET", path, None)
        return (line.decode().rstrip("\n") for line in response)

    def events(self, path: str, body: Any) -> Generator[Any, None, None]:
        """The events of a stream, as JSON; closing it ends the connection. Raises Refused, NoProxyAnswers."""
        with self._send("POST", path, body) as response:
            for line in response:
                if line.startswith(b"data:") and (data := line[5:].strip()) != b"[DONE]":
                    yield json.loads(data)

    @contextmanager
    def _or_fail(self) -> Iterator[None]:
        try:
            yield
        except Refused as refused:
            fail(str(refused))
        except NoProxyAnswers as error:
            fail(str(error), NO_PROXY)

    def _send(self, method: str, path: str, body: Any) -> http.client.HTTPResponse:
        where = urlsplit(self.url)
        connection = http.client.HTTPConnection(where.hostname or "127.0.0.1", where.port, timeout=TIMEOUT_S)
        if isinstance(body, dict):
            body = json.dumps({k: v for k, v in body.items() if v is not None}).encode()
        data: bytes | None = body
        kind = {"content-type": "application/json"} if data else {}
        headers = {**self._headers, **kind, "connection": "close"}  # one request each: the answer, read, ends it
        try:
            connection.request(method, path, body=data, headers=headers)
            response = connection.getresponse()
        except (OSError, http.client.HTTPException) as error:
            why = (isinstance(error, OSError) and error.strerror) or str(error) or type(error).__name__
            raise NoProxyAnswers(
                f"no rlproxy answers at {self.url} ({why[:1].lower() + why[1:]}); start it with `rlproxy serve`, or "
                "say with --home or RLPROXY_SERVER__PORT where it runs."
            ) from error
        if response.status >= 400:
            if (message := _message(response.read())) is None:
                raise self._somebody_else()
            raise NoProxyAnswers(message) if response.status == ANOTHER_HOME else Refused(message)
        return response

    def _loaded(self, text: bytes) -> Any:
        try:
            return json.loads(text)
        except ValueError:
            raise self._somebody_else() from None

    def _somebody_else(self) -> NoProxyAnswers:
        return NoProxyAnswers(
            f"what answers at {self.url} is another program; say with --home or RLPROXY_SERVER__PORT where rlproxy "
            "runs, or start it on another port: `rlproxy serve --port 8485`."
        )


def _message(text: bytes) -> str | None:
    """Of an error as rlproxy shapes it; None where it was somebody else's."""
    try:
        error = json.loads(text)["error"]
        return str(error["message"]) if {"type", "param", "code"} <= error.keys() else None
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
