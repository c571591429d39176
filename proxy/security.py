"""Who may do what.

Owns: no listening off loopback without a key, roles by key, foreign web pages kept out, and which headers leave
for the backend. Two roles: `use` (chat, rate, read) and `admin` (train, swap, pause).
"""

from __future__ import annotations

import hmac
import ipaddress
import re
from collections.abc import Awaitable, Callable, Mapping
from typing import Final, Literal
from urllib.parse import urlsplit

from aiohttp import web
from multidict import CIMultiDict

from config.sections import Server
from proxy.errors import Forbidden, Unauthorized

Role = Literal["use", "admin"]
ROLE: Final = web.RequestKey("role", str)
_SECRET: Final = re.compile("authorization|cookie|key|token|secret")  # in the name of a header
SHORTEST_KEY: Final = 6  # anything shorter would be found in many a word
GUEST: Final = "guest"  # somebody without a key, on the page: may see how to sign in
_OPEN: Final = ("/healthz", "/readyz")
_SIGNED: Final = "/rl/webhooks/"  # come from outside and prove by a signature who they are (proxy.webhooks)
_OURS: Final = ("host", "content-length", "expect")
_LOCAL_NAMES: Final = ("localhost", "ip6-localhost")


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host.lower() in _LOCAL_NAMES


def check_bind(settings: Server) -> None:
    """Raises Forbidden where the proxy would listen off loopback without keys."""
    if not is_loopback(settings.host) and not (settings.api_key and settings.admin_key):
        raise Forbidden(
            f"Listening on {settings.host} needs keys: set RLPROXY_SERVER__API_KEY and RLPROXY_SERVER__ADMIN_KEY, "
            "or use --host 127.0.0.1."
        )


def middleware(
    settings: Server, by_cookie: Callable[[web.Request], str | None]
) -> Callable[..., Awaitable[web.StreamResponse]]:
    """`by_cookie` is the page's word on who asks; None where the key says it, as everywhere else."""

    @web.middleware
    async def guard(
        request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        if request.path.startswith(_SIGNED):
            return await handler(request)
        _no_foreign_page(request, settings)
        if request.path not in _OPEN:
            request[ROLE] = by_cookie(request) or role_of(request.headers, settings)
        return await handler(request)

    return guard


def role_of(headers: Mapping[str, str], settings: Server) -> Role:
    """Without keys (loopback only) everybody is admin. Raises Unauthorized."""
    if settings.api_key is None and settings.admin_key is None:
        return "admin"
    given = _given_key(headers)
    if settings.admin_key and _same(given, settings.admin_key.get_secret_value()):
        return "admin"
    if settings.api_key is None or _same(given, settings.api_key.get_secret_value()):
        return "use"
    raise Unauthorized("This rlproxy needs a key: send `Authorization: Bearer KEY` or `x-api-key: KEY`.")


def require_admin(request: web.Request) -> None:
    if request[ROLE] != "admin":
        raise Forbidden("This needs the admin key (server.admin_key).")


def outgoing_headers(headers: CIMultiDict[str], *, settings: Server, backend: Mapping[str, str]) -> CIMultiDict[str]:
    """The client's headers as the backend may see them: no key of ours, no `x-rl-…`, the backend's own key."""
    own = [k.get_secret_value() for k in (settings.api_key, settings.admin_key) if k]
    kept = CIMultiDict(
        (name, value)
        for name, value in headers.items()
        if name.lower() not in _OURS and not name.lower().startswith("x-rl-")
    )
    if backend or any(_same(_given_key(headers), key) for key in own):
        kept.popall("authorization", None)
        kept.popall("x-api-key", None)
    kept.update(backend)
    return kept


def without_keys(text: str, headers: Mapping[str, str]) -> str:
    """An error may repeat the key that it refuses: what is kept or logged of it must not have it."""
    for name, value in headers.items():
        if _SECRET.search(name.lower()):
            for key in (value, value.rpartition(" ")[2]):
                text = text.replace(key, "[key]") if len(key) >= SHORTEST_KEY else text
    return text


def _given_key(headers: Mapping[str, str]) -> str:
    scheme, _, token = headers.get("authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else headers.get("x-api-key", "")


def _same(given: str, key: str) -> bool:
    return hmac.compare_digest(given.encode(), key.encode())


def _no_foreign_page(request: web.Request, settings: Server) -> None:
    """A page from elsewhere in the person's browser, or a name rebound to loopback, gets nothing."""
    if settings.api_key is None and is_loopback(settings.host):
        host = urlsplit(f"//{request.host}").hostname or ""
        if not is_loopback(host):
            raise Forbidden(f"The Host header names {host}, but this rlproxy answers on loopback only.")
    origin = request.headers.get("origin")
    if origin and request.method not in ("GET", "HEAD", "OPTIONS") and urlsplit(origin).netloc != request.host:
        raise Forbidden(f"A web page of {origin} may not do this.")
