"""Every route with every role, its path written in each way that some server reads as the same path.

`python -m scripts.fuzz.roles [--requests N] [--seed N] [--json FILE]`. Without N it takes every single change, and as
many of two and three at once. Paths go over a raw socket, so that no client puts them in order. Behind the proxy is a
backend that notes the exact path it was sent, and inside it a middleware that notes which handler was reached.

The judge has a list of its own: what a lesser role must not reach. It takes every reading of the path that a server may
have. The list shares nothing with `proxy.access.roles`, so a mistake there is not repeated here.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import random
import re
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, cast
from urllib.parse import unquote_to_bytes

from aiohttp import web

from config.settings import load
from proxy.app import make_app
from proxy.backends import make_backend
from proxy.server import configure_logs
from scripts.fakes.launcher import FakeLauncher
from scripts.fuzz.wire import Broken, Socket, joined
from scripts.harness.circumstances import commit, machine_name, now
from store.store import Store
from trainer.launch import Launcher

ROLES = ("none", "use", "rate", "admin")
KEYS = {"server.api_key": "rate-" + "k" * 27, "server.admin_key": "admin-" + "k" * 26}
WORKERS = 8
DEPTH = 4  # so many times a chain of servers may decode one path
MARK = "x-fuzz"
BODY = b'{"model":"fake","messages":[{"role":"user","content":"hi"}]}'

# Routes of real backends. What a client needs, and what changes the backend or shows what is not the client's.
ASKS = (
    "GET /v1/models/fake", "POST /v1/embeddings", "POST /v1/rerank", "POST /v1/score", "POST /v1/moderations",
    "POST /v1/audio/speech", "POST /v1/audio/transcriptions", "POST /v1/images/generations", "GET /api/tags",
    "GET /api/ps", "GET /api/version", "POST /api/show", "POST /api/embed", "POST /api/embeddings",
    "GET /api/v0/models", "GET /api/v1/models",
)  # fmt: skip
CHANGES = (
    "POST /v1/load_lora_adapter", "POST /v1/unload_lora_adapter", "POST /api/create", "POST /api/copy",
    "DELETE /api/delete", "POST /api/delete", "POST /api/pull", "POST /api/push", "POST /api/blobs/sha256:00",
    "HEAD /api/blobs/sha256:00", "POST /api/v1/models/load", "POST /api/v1/models/unload",
    "POST /api/v1/models/download", "POST /api/v2/models/load", "POST /v1/models/load", "POST /v1/files",
    "GET /v1/files", "DELETE /v1/files/file-1", "POST /v1/fine_tuning/jobs", "DELETE /v1/models/fake",
    "POST /v1/batches", "GET /v1/organization/users", "POST /api/me", "POST /api/signout", "PUT /v1/models/fake",
    "POST /v1/unknown", "GET /v1/unknown", "POST /api/unknown", "PATCH /api/tags",
)  # fmt: skip

# The judge's: a lower-case path without a session, as the most generous server reads it.
_ADMINS_BEHIND = re.compile(
    r"(GET|HEAD) /(v1/(files|organization|unknown|fine_tuning|batches)|api/blobs).*"
    r"|POST /(v1/(un)?load_lora_adapter|v1/(files|fine_tuning|batches|unknown)"
    r"|api/(create|copy|delete|pull|push|blobs|me|signout|unknown)|(api/)?v\d+/models\b).*"
    r"|(PUT|PATCH|FOO) .*"
    r"|DELETE /(?!v1/responses/).*"
)
_PLAIN = re.compile(rb"(/[A-Za-z0-9._~:@-]+)+")
_NOBODYS = re.compile(
    r"(GET|HEAD) /(healthz|readyz|login|static/.*|rl/webhooks/whatsapp)|POST /(login|rl/webhooks/.*)"
    r"|(GET|HEAD|PUT) /rl/webhooks/matrix/.*"  # a homeserver's token says who asks
)
_PAGES = re.compile(r"/(page/.*|completions/.*|versions.*|progress|compare|data|episodes(/.*)?|logout)?")
_USERS = re.compile(
    r"(GET|HEAD) /(rl/status|metrics|openapi.json|v1/models)"
    r"|POST /(v1/(chat/)?completions|v1/messages(/count_tokens)?|v1/responses(/compact)?|api/(chat|generate))"
    r"|(GET|HEAD) /v1/responses(/\{id\}/input_items)?"
    r"|(GET|HEAD|DELETE) /v1/responses/\{id\}|POST /v1/responses/\{id\}/cancel"
)
_RATERS = re.compile(
    r"POST /(v1/feedback(/open-webui)?|rl/links|rl/episodes(/rewards|/\{id\}/reward)?)|DELETE /v1/feedback/.*"
    r"|(GET|HEAD) /rl/(?!export|keys|audit).*"
)


class RoleRequest(NamedTuple):
    method: str
    path: bytes
    role: str
    how: str


@dataclass
class Reached:
    """The handler and the backend paths that one request has reached."""

    handler: str | None = None
    upstream: list[tuple[str, bytes]] = field(default_factory=list)


@dataclass
class House:
    port: int
    keys: dict[str, str]
    routes: list[str]  # METHOD path
    reached_by_mark: dict[str, Reached]


class NotingBackend:
    """A backend that answers everything and notes each request line as it came."""

    def __init__(self, reached_by_mark: dict[str, Reached]) -> None:
        self._reached_by_mark = reached_by_mark

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).split(b"\r\n")
                method, target, _ = head[0].split(b" ")
                headers = dict(line.lower().split(b": ", 1) for line in head[1:] if b": " in line)
                if b"chunked" in headers.get(b"transfer-encoding", b""):
                    await reader.readuntil(b"0\r\n\r\n")
                await reader.readexactly(int(headers.get(b"content-length", b"0")))
                mark = headers.get(MARK.encode(), b"").decode()
                if mark:
                    self._reached_by_mark.setdefault(mark, Reached()).upstream.append((method.decode(), target))
                writer.write(_answer(method))
                await writer.drain()
        except (asyncio.IncompleteReadError, OSError):
            return
        finally:
            writer.close()


def _answer(method: bytes) -> bytes:
    body = b'{"object":"list","data":[{"id":"fake","object":"model"}]}'
    status = b"200 OK" if method in (b"GET", b"HEAD") else b"400 Bad Request"
    head = b"HTTP/1.1 %s\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % (status, len(body))
    return head if method == b"HEAD" else head + body


@asynccontextmanager
async def house(home: Path) -> AsyncIterator[House]:
    """A proxy with a key of each role, before such a backend."""
    reached_by_mark: dict[str, Reached] = {}
    backend_server = await asyncio.start_server(NotingBackend(reached_by_mark).serve, "127.0.0.1", 0, limit=2**20)
    url = f"http://127.0.0.1:{backend_server.sockets[0].getsockname()[1]}"
    flags = {"home": home, "backend.kind": "vllm", "backend.url": url, "backend.model": "fake"}
    settings = load({**flags, **KEYS, "train.weights": "/nowhere"}, environ={}).settings
    store, launcher = await Store.open(home), cast(Launcher, FakeLauncher())  # no run starts a server here
    app = make_app(settings, store, make_backend(settings, launcher), launcher)

    @web.middleware
    async def noting(request: web.Request, handler: Any) -> Any:
        resource, mark = request.match_info.route.resource, request.headers.get(MARK)
        if resource is not None and mark is not None:
            reached_by_mark.setdefault(mark, Reached()).handler = f"{request.method} {resource.canonical}"
        return await handler(request)

    app.middlewares.append(noting)  # behind the guard, right before the handler
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    port = runner.addresses[0][1]
    try:
        keys = {"none": "", "use": await _use_key(port), "rate": KEYS["server.api_key"]}
        yield House(port, keys | {"admin": KEYS["server.admin_key"]}, _routes(app), reached_by_mark)
    finally:
        await runner.cleanup()
        await store.close()
        backend_server.close()


async def _use_key(port: int) -> str:
    socket = Socket(port)
    key, body = KEYS["server.admin_key"].encode(), b'{"name":"phone","role":"use"}'
    lines = [b"POST /rl/keys HTTP/1.1", b"host: localhost", b"x-api-key: " + key, b"content-length: %d" % len(body)]
    await socket.send([joined(lines, body)])
    answer = await socket.answer("POST")
    await socket.close()
    return str(json.loads(answer.body)["key"])


def _routes(app: web.Application) -> list[str]:
    """Every one, and what lies behind. Rooms (`/s/NAME`) are among the ways to write a path."""
    routes = set()
    for route in app.router.routes():
        path = route.resource.canonical if route.resource is not None else ""
        if "{rest}" not in path and not path.startswith("/s/"):
            path = path.replace("{version}", "v1").replace("{act}", "pause").replace("{name}", "style.css")
            routes.add(f"{route.method} {re.sub(r'[{}]', '', path)}")
    return [*sorted(routes), *ASKS, *CHANGES]


# --- ways to write a path


def single(path: bytes) -> Iterator[tuple[str, bytes]]:
    """Each path that is one change away, with the name of the change."""
    yield "as it is", path
    for position in range(1, len(path) + 1):
        for odd in (b"\xff", b"\t", b"%00", b"%09", b"%0a", b"%ff", b"%", b"%c0%af", b";x", b"\xc2\xad"):
            yield "inserted", path[:position] + odd + path[position:]
    for position, byte in enumerate(path):
        head, char, tail = path[:position], path[position : position + 1], path[position + 1 :]
        for code in (b"%%%02x" % byte, b"%%%02X" % byte, b"%%25%02x" % byte, b"%%2525%02x" % byte):
            yield "encoded", head + code + tail
        if char.isalpha():
            yield "letter case", head + char.swapcase() + tail
        if char == b"/":
            for way in (b"//", b"///", b"\\", b"/\\", b"%5c", b"/./", b"/x/../", b"/%2e/", b"/x/%2e%2e/", b"/;/"):
                yield "slashes and dots", head + way + tail
    yield "letter case", path.upper()
    yield "encoded", b"/" + b"".join(b"%%%02x" % byte for byte in path[1:])
    yield "encoded", b"/" + b"".join(b"%%25%02x" % byte for byte in path[1:])
    for end in (b"/", b"//", b".", b"%20", b"+", b"?x", b"?", b"#x", b"%3fx", b"%23x", b"/.", b"/..", b"%2f", b"&x"):
        yield "at its end", path + end
    for room in ROOMS:
        yield "in front of it", room + path


ROOMS = (
    b"/s/x", b"/s/x%2fy", b"/s/x%2Fy", b"/s/x%5cy", b"/s/x%252fy", b"/s/x%25252Fy", b"/s/x\\y", b"/s/", b"/", b"//h",
    b"/s/x;y", b"/S/x", b"/%73/x", b"/s/.", b"/s/..", b"/s/%2e%2e", b"/s/%20", b"/s/x/s/y", b"http://h", b"/v1/..",
    b"/v1/%2e%2e", b"/rl/webhooks/..", b"/rl/webhooks/%2e%2e", b"/rl/webhooks/slack/..", b"/rl/webhooks/slack%2f..",
    b"/healthz/..", b"/healthz%2f..", b"/healthz;", b"/static/..", b"/login/..%2f", b"/v1/models", b"/v1", b"/api",
    b"/s/x%2fv1%2fmodels%2f..", b"/s/v1/models",
)  # fmt: skip


def several(dice: random.Random, path: bytes) -> tuple[str, bytes]:
    names = []
    for _ in range(dice.choice((2, 2, 3))):
        name, path = dice.choice(list(single(path[:200])))
        names.append(name)
    return " + ".join(names), path


# --- the judge


def readings(raw: bytes) -> set[str]:
    """The paths that servers may make of it: decoded again and again, with each habit that one of them has."""
    paths, last = set(), raw.partition(b"?")[0]
    for _ in range(DEPTH):
        for variant in (last, last.partition(b"#")[0], last.partition(b"?")[0]):
            text = re.sub(rb"[\x00-\x20\x7f-\xff]", b"", variant.replace(b"\\", b"/")).decode().lower()
            for path in (text, re.sub(";[^/]*", "", text)):
                path = re.sub("/(\\./)*/*", "/", path)
                while re.search("/[^/]+/\\.\\./", path):
                    path = re.sub("/[^/]+/\\.\\./", "/", path, count=1)
                paths.add(path.rstrip("./ ") or "/")
        last = unquote_to_bytes(last)
    return paths | {re.sub("^/s/[^/]+", "", path) for path in paths}


def too_much(role: str, reached: Reached, status: int, location: str) -> str | None:
    """Why this role must not have reached that; None where it may."""
    if role == "admin":
        return None
    for method, raw in reached.upstream:
        if role == "none":
            return f"without a key, {method} {raw!r} was sent to the backend"
        if any(_ADMINS_BEHIND.fullmatch(f"{method} {reading}") for reading in readings(raw)):
            return f"{method} {raw!r} was sent to the backend"
        # The name of a model may hold a slash that is encoded.
        names_model = method in ("GET", "HEAD") and raw.startswith((b"/v1/models/", b"/api/v0/models/"))
        if not names_model and not _PLAIN.fullmatch(raw.partition(b"?")[0]):
            return f"{method} {raw!r} was sent to the backend: servers read it in different ways"
    handler = (reached.handler or "").replace("/s/{session}", "")
    if not handler or _NOBODYS.fullmatch(handler) or "{rest}" in handler:
        return None if role != "none" or "{rest}" not in handler else f"without a key, {handler} was reached"
    if _PAGES.fullmatch(handler.partition(" ")[2]):
        is_allowed = role == "rate" or (status == 303 and location.startswith("/login")) or status in (401, 403)
        return None if is_allowed else f"{handler} was reached and answered {status}"
    if role == "none" or not (_USERS.fullmatch(handler) or (role == "rate" and _RATERS.fullmatch(handler))):
        return f"{handler} was reached"
    return None


# --- the fuzz


def everything(routes: Sequence[str], dice: random.Random) -> list[RoleRequest]:
    requests = []
    for route in routes:
        method, _, path = route.partition(" ")
        changes = list(single(path.encode()))
        for how, changed in [*changes, *(several(dice, path.encode()) for _ in changes)]:
            requests += [RoleRequest(method, changed, role, how) for role in ROLES]
    return requests


def request_bytes(request: RoleRequest, key: str, mark: str) -> bytes:
    lines = [
        request.method.encode() + b" " + request.path + b" HTTP/1.1",
        b"host: localhost",
        f"{MARK}: {mark}".encode(),
    ]
    lines += [b"authorization: Bearer " + key.encode()] if key else []
    if request.method in ("GET", "HEAD"):
        return joined(lines)
    return joined([*lines, b"content-type: application/json", b"content-length: %d" % len(BODY)], BODY)


class Fuzz:
    def __init__(self, running: House) -> None:
        self._house = running
        self.statuses: dict[str, Counter[str]] = {role: Counter() for role in ROLES}
        self.hows: Counter[str] = Counter()
        self.reached: dict[str, Counter[str]] = {role: Counter() for role in ROLES}
        self.failures: list[str] = []

    async def worker(self, requests: Iterator[tuple[int, RoleRequest]]) -> None:
        socket = Socket(self._house.port)
        for number, request in requests:
            await self._send(socket, str(number), request)
        await socket.close()

    async def _send(self, socket: Socket, mark: str, request: RoleRequest) -> None:
        self.hows[request.how if " + " not in request.how else "two or three of them"] += 1
        sent = request_bytes(request, self._house.keys[request.role], mark)
        try:
            await socket.send([sent])
            answer = await socket.answer(request.method)
            if answer.status == 0:  # it closed the connection after the request before
                await socket.send([sent], fresh=True)
                answer = await socket.answer(request.method)
        except (Broken, TimeoutError) as error:
            await socket.close()
            return self._fails(request, f"no answer: {error!r}")
        reached = self._house.reached_by_mark.pop(mark, Reached())
        self.statuses[request.role][str(answer.status)] += 1
        self.reached[request.role]["a handler"] += reached.handler is not None
        self.reached[request.role]["the backend"] += bool(reached.upstream)
        if answer.status >= 500 and not answer.body.startswith(b'{"error":{"message":"There is no'):
            self._fails(request, f"{answer.status} {answer.body[:200]!r}")
        if (reason := too_much(request.role, reached, answer.status, answer.headers.get("location", ""))) is not None:
            self._fails(request, reason)
        return None

    def _fails(self, request: RoleRequest, reason: str) -> None:
        if len(self.failures) < 500:
            self.failures.append(f"{request.role}: {request.method} {request.path!r} ({request.how}): {reason}")


async def fuzzed(home: Path, count: int | None, seed: int) -> dict[str, Any]:
    """`count` of them chosen by `seed`, or all."""
    dice = random.Random(seed)
    async with house(home) as running:
        requests = everything(running.routes, dice)
        if count is not None:
            requests = dice.sample(requests, min(count, len(requests)))
        fuzz, numbered, started = Fuzz(running), enumerate(requests), time.perf_counter()
        async with asyncio.TaskGroup() as group:
            for _ in range(WORKERS):
                group.create_task(fuzz.worker(numbered))
    return {
        "requests": len(requests),
        "routes": len(running.routes),
        "seconds": round(time.perf_counter() - started, 1),
        "by_change": dict(fuzz.hows.most_common()),
        "by_role": {
            role: {**fuzz.reached[role], "statuses": dict(sorted(fuzz.statuses[role].items()))} for role in ROLES
        },
        "failures": fuzz.failures,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, help="so many of them, instead of all")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    configure_logs("critical", False)  # of each head that cannot be read there is a line
    logging.getLogger("aiohttp").setLevel(logging.CRITICAL)
    with tempfile.TemporaryDirectory() as home:
        report = asyncio.run(fuzzed(Path(home), arguments.requests, arguments.seed))
    result = {"date": now(), "commit": commit(), "machine": machine_name(), "seed": arguments.seed, **report}
    for failure in report["failures"]:
        print(failure, file=sys.stderr)
    if arguments.json:
        arguments.json.write_text(json.dumps(result, indent=1) + "\n")
    print(f"{report['requests']} requests to {report['routes']} routes, {len(report['failures'])} failures")
    return 1 if report["failures"] else 0


if __name__ == "__main__":
    sys.exit(main())
