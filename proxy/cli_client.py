"""The CLI's side of HTTP: one short request to the running proxy, on the standard library alone (it starts quickly)."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from typing import Any, Final
from urllib.parse import urlsplit

from config.settings import Settings

TIMEOUT_S: Final = 180.0  # a rollback may have to load an adapter
NO_PROXY: Final = 3


class Client:
    def __init__(self, settings: Settings) -> None:
        from proxy.cli import fail
        from proxy.server_address import address

        self._fail = fail
        self.url = address(settings)
        key = settings.server.admin_key or settings.server.api_key
        self._headers = {"authorization": f"Bearer {key.get_secret_value()}"} if key else {}

    def call(self, method: str, path: str, body: Any = None) -> Any:
        """The JSON answer; ends the command with one sentence where the proxy refuses or is not there."""
        response = self._send(method, path, body)
        text = response.read()
        if response.status >= 400:
            self._fail(_message(text, response.status))
        return json.loads(text)

    def lines(self, path: str) -> Iterator[str]:
        response = self._send("GET", path, None)
        if response.status >= 400:
            self._fail(_message(response.read(), response.status))
        for line in response:
            yield line.decode().rstrip("\n")

    def _send(self, method: str, path: str, body: Any) -> http.client.HTTPResponse:
        where = urlsplit(self.url)
        connection = http.client.HTTPConnection(where.hostname or "127.0.0.1", where.port, timeout=TIMEOUT_S)
        data = None if body is None else json.dumps({k: v for k, v in body.items() if v is not None}).encode()
        headers = {**self._headers, **({"content-type": "application/json"} if data else {})}
        try:
            connection.request(method, path, body=data, headers=headers)
            return connection.getresponse()
        except (OSError, http.client.HTTPException) as error:
            self._fail(f"no rlproxy answers at {self.url} ({error}); start it with `rlproxy serve`.", NO_PROXY)


def _message(text: bytes, status: int) -> str:
    try:
        return str(json.loads(text)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return f"the proxy answered {status}: {text[:200].decode('utf-8', 'replace')}"
