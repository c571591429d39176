"""Paths that lead nowhere: what is said instead of a server's bare "Not Found".

Owns two sentences: of a base URL with a part or a slash too many, and of a route that the backend lacks.
Whatever a backend says of its own accord is passed on as it is.
"""

from __future__ import annotations

import posixpath
import re
from typing import Final
from urllib.parse import unquote

from aiohttp import web

from proxy.core.errors import NotFound
from proxy.core.json_edit import loads
from proxy.core.upstream import upstream_path
from proxy.dialects import COUNT_TOKENS, DIALECTS, OLLAMA, dialect_at

MISSING: Final = (404, 405, 501)  # what a server answers where it has no such route
READ: Final = 4096  # bytes of a refusal that may be a bare one
_BARE: Final = frozenset(("not", "found", "file", "page", "method", "allowed", "implemented", "detail"))
_WORD: Final = re.compile(r"[a-z]+")


def _mistakes() -> frozenset[str]:
    """A client puts a route behind its base URL; here that had one already, or the beginning of one."""
    right = ("/v1/models", COUNT_TOKENS, *(path for dialect in DIALECTS for path in dialect.paths))
    added = {*right, *(path.removeprefix("/v1") for path in right)}
    doubled = {had + path for had in ("/v1", *right) for path in added}
    doubled |= {f"/api{path}" for path in added if path.startswith("/api/")}  # not /api/v1, which LM Studio has
    return frozenset(doubled.difference(right))


MISTAKES: Final = _mistakes()
RELAYED: Final = frozenset(path for dialect in DIALECTS for path in dialect.paths)


def mistaken(request: web.Request) -> NotFound | None:
    """Where the client's base URL has a part that the client adds by itself, or a slash too many.

    A server that forgives the slash would answer, and nothing would be captured."""
    path = upstream_path(request).partition("?")[0]
    path = path if path in MISTAKES else _forgiven(path)
    if path not in MISTAKES and (request.method != "POST" or path not in RELAYED):
        return None
    room = f"/s/{request.match_info['session']}" if "session" in request.match_info else ""
    base = f"{request.scheme}://{request.host}{room}"
    ollama = path.endswith(("/api/chat", "/api/generate"))
    right = base if ollama else f"{base}/v1, or {base} for a client that adds /v1 by itself"
    return NotFound(
        f"There is nothing at {request.method} {request.path}, and nothing was passed on: the client's base URL has a "
        f"part too many. It is {right}."
    )


def _forgiven(path: str) -> str:
    """The path as the most forgiving server reads it: no escapes, doubled slashes, dots, or slash at the end."""
    return posixpath.normpath(unquote(path).lower().replace("//", "/"))


def is_bare(status: int, answer: bytes) -> bool:
    """Tells a bare "not found" of a backend from one that gives a reason."""
    if status not in MISSING or len(answer) > READ:
        return False
    try:
        body = loads(answer)
    except ValueError:
        body = None
    if isinstance(body, dict):  # not its `type` and `code`
        inner = body.get("error", body)
        text = inner.get("message", inner.get("detail")) if isinstance(inner, dict) else inner
    else:
        text = answer.decode("utf-8", "replace")
    return isinstance(text, str) and _BARE.issuperset(_WORD.findall(text.lower()))


def lacking(request: web.Request, status: int, kind: str) -> web.Response:
    """In the shape of the route's own errors, with the backend's own status."""
    path = upstream_path(request).partition("?")[0]
    error = NotFound(
        f"The {kind} backend has no {request.method} {path}: it says {status}. rlproxy answers chat, completions, "
        "responses, messages and Ollama's own two, and passes everything else on as it is; nothing was stored. Send "
        "this to a server that has it, at that server's own address."
    )
    error.status = status
    dialect = dialect_at(path) or (OLLAMA if path.startswith("/api/") else None)
    return error.response(dialect.error(error) if dialect else None)
