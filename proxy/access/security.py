"""Permissions: each request's key, role, and name.

Owns no listening off loopback without a key, foreign web pages kept out, and which headers leave for the backend. It
reads the head of a request, once: agents send the same head with every request, but for the length of its body. Three
roles: `use` (models), `rate` (rate and read, too) and `admin` (everything). Not here: what each route needs (roles),
whose key it is (keys), how much and how fast (limits).
"""

from __future__ import annotations

import ipaddress
import re
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Final, get_args
from urllib.parse import unquote, urlsplit
from weakref import WeakKeyDictionary

from aiohttp import web
from multidict import CIMultiDict, CIMultiDictProxy

from config.sections import ServerSection
from proxy.access.bodies import HELD_BYTES, Bodies
from proxy.access.keys import FORM, Keys, Principal, key_in, same
from proxy.access.limits import HEAD_LIMIT, RESERVE, Limits, PlaceKind
from proxy.access.pace import PATIENCE, SOON, send_long
from proxy.access.roles import Rule, Rules, least, rule
from proxy.access.single_sign_on import is_identity
from proxy.core.address_file import HOME_HEADER, is_home
from proxy.core.errors import AnotherHome, BadRequest, Forbidden, HeadTooLarge, ProxyError
from proxy.core.server_url import HOSTS_CACHED, is_loopback
from proxy.core.sharing.shares import HOLDER, Holder
from proxy.core.upstream import target_of
from store.records import Role

PRINCIPAL: Final = web.RequestKey("who", Principal)
BUSY: Final = web.AppKey("busy", set[web.RequestHandler])  # connections with a request under way
KEYS: Final = web.AppKey("keys", Keys)
LOCAL: Final = web.AppKey("local", str)  # the key of this start, for commands of this machine
_SECRET: Final = re.compile("authorization|cookie|key|token|secret")  # in the name of a header
SHORTEST_KEY: Final = 6  # anything shorter would be found in many a word
SHORTEST_OFF_LOOPBACK: Final = 16
GUEST: Final = "guest"
_OF_ALL_LINES: Final = ("control", "events", "page")
_RANK: Final[Mapping[str, int]] = {role: rank for rank, role in enumerate(get_args(Role))}
# Models and rlproxy's own routes are shared out apart, so that no flood of the one kind keeps the other out.
_SHARED_BY: Final[Mapping[str, str]] = {"passed": "models", "page": "control", "control": "control"}
_OURS: Final = ("host", "content-length", "expect")
_COOKIE: Final = "rl_"  # how those of the page begin, which a backend has no business with

HEADS: Final = 256  # heads that are remembered
SHORT: Final = 4096  # bytes of a head that is
_SPLITS: Final = frozenset("/\\%")  # in a session's name: a second server could read another path
_DOTS: Final = re.compile(r"(^|[/\\]|%2f|%5c)(\.|%2e){1,2}($|[/\\?#]|%2f|%5c)", re.IGNORECASE)

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
ByCookie = Callable[[web.Request], Principal | None]
RefusalListener = Callable[[web.Request], None]
FreedListener = Callable[[int], None]


def check_bind(settings: ServerSection, handed_out: bool = False) -> None:
    """Raises Forbidden where it would listen off loopback without keys. `handed_out`: there are such that hold."""
    if is_loopback(settings.host):
        return
    fixed = [key.get_secret_value() for key in (settings.api_key, settings.admin_key) if key is not None]
    if not handed_out and len(fixed) < 2:
        raise Forbidden(
            f"Listening on {settings.host} needs keys: `rlproxy keys create --role admin --name YOU` makes one (or set "
            "RLPROXY_SERVER__API_KEY and RLPROXY_SERVER__ADMIN_KEY), or use --host 127.0.0.1."
        )
    if any(len(key) < SHORTEST_OFF_LOOPBACK for key in fixed):
        raise Forbidden(
            f"Listening on {settings.host} needs keys that nobody guesses: server.api_key and server.admin_key have at "
            f"least {SHORTEST_OFF_LOOPBACK} characters there, as `openssl rand -hex 16` makes them."
        )


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class RequestHead:
    method: str
    target: str  # the route at the backend, as it is sent there
    headers: CIMultiDictProxy[str]
    session: str | None  # in the path
    rule: Rule
    least: Role  # that a key needs
    key: str  # that it shows; empty where there is none
    by_page: bool  # a cookie of the page may say who asks


HEAD: Final = web.RequestKey("head", RequestHead)
# What a browser may do with an answer: show or save it. The web page has a policy of its own.
CONTAINED: Final = {
    "content-security-policy": "default-src 'none'; frame-ancestors 'none'; sandbox",
    "x-content-type-options": "nosniff",
}


class RequestHeads:
    """The heads that came lately."""

    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self._cache: OrderedDict[object, RequestHead] = OrderedDict()

    def of(self, request: web.Request) -> RequestHead:
        """Raises HeadTooLarge, BadRequest. One header too long, and too many, are refused by the parser."""
        pairs: list[tuple[bytes, bytes]] = []
        size = 0
        for pair in request.raw_headers:
            size += len(pair[0]) + len(pair[1])
            if len(pair[0]) != 14 or pair[0].lower() != b"content-length":
                pairs.append(pair)
        name = request.method, request.raw_path, *pairs
        head = self._cache.get(name)
        if head is None:
            if size > HEAD_LIMIT:
                raise HeadTooLarge(f"The headers are over {HEAD_LIMIT} bytes together; nothing was done.")
            head = read_head(request, self._rules)
            if size + len(request.raw_path) <= SHORT:
                self._cache[name] = head
                if len(self._cache) > HEADS:
                    self._cache.popitem(last=False)
        return head


def read_head(request: web.Request, rules: Rules) -> RequestHead:
    """Raises BadRequest."""
    _check_path(request)
    _check_own(request)
    route_rule, headers = rule(request, rules), request.headers
    has_key = "authorization" in headers or "x-api-key" in headers
    return RequestHead(
        request.method,
        target_of(request),
        headers,
        request.match_info.get("session"),
        route_rule,
        least(request, route_rule),
        key_in(headers),
        not has_key and (request.method in ("GET", "HEAD") or route_rule.kind == "page"),
    )


def _check_path(request: web.Request) -> None:
    """Raises BadRequest for a path that is cut or put together in more than one way."""
    path = request.raw_path
    if not path.startswith("/") or "#" in path or _DOTS.search(path.partition("?")[0]):
        raise BadRequest("A path starts with /, and has no # and no dots as a part; nothing was passed on.")
    if not _SPLITS.isdisjoint(request.match_info.get("session", "")):
        raise BadRequest("A session in the path has no slash, backslash or percent sign; x-rl-session takes any name.")


def _check_own(request: web.Request) -> None:
    """rlproxy's own headers are UTF-8, or they can be neither stored nor said again. Each says one thing, or a second
    one could take back that nothing is to be kept. Other headers only pass through."""
    values: dict[str, bytes] = {}
    for name, value in request.raw_headers:
        if name[:5].lower() != b"x-rl-":
            continue
        name_text = name.lower().decode("utf-8", "replace")
        try:
            value.decode()
        except UnicodeDecodeError:
            raise BadRequest(f"The header {name_text} is not UTF-8; nothing was done.", param=name_text) from None
        if values.setdefault(name_text, value) != value:
            raise BadRequest(
                f"The header {name_text} came twice and says two things; nothing was done.", param=name_text
            )


class Guard:
    """Asked before every handler."""

    def __init__(
        self,
        settings: ServerSection,
        keys: Keys,
        rules: Rules,
        by_cookie: ByCookie | None = None,
        refused: RefusalListener = lambda request: None,
        home: Path | None = None,
        freed: FreedListener = lambda amount: None,
    ) -> None:
        """`by_cookie` is a page's word on who asks; None where the key says it, as everywhere else. `refused` is told
        of what goes no further than here. `home` is the one that commands must mean. `freed` is told how many bytes a
        request has held, however it ended."""
        self._settings = settings
        self._keys = keys
        self._limits = Limits(settings)
        self._bodies = Bodies(settings)
        self.busy: set[web.RequestHandler] = set()  # connections with a request under way
        self._by_cookie = by_cookie
        self._on_refusal = refused
        self._on_freed = freed
        self._home = home
        self._heads = RequestHeads(rules)
        self._plain: WeakKeyDictionary[RequestHead, bool] = WeakKeyDictionary()
        self._origins = {origin.rstrip("/").lower() for origin in settings.origins}
        self._hosts = {host.lower() for host in (settings.host, *settings.hosts)}

    def principal(self, request: web.Request) -> Principal:
        """Raises Unauthorized."""
        visitor = self._by_cookie(request) if self._by_cookie is not None else None
        return visitor or self._keys.principal(key_in(request.headers))

    def is_still_allowed(self, request: web.Request) -> bool:
        """Tell whether it would be let in now as it was: its key may have been revoked since."""
        try:
            return self.principal(request) == request[PRINCIPAL]
        except ProxyError:
            return False

    @web.middleware
    async def middleware(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            request[HEAD] = head = self._heads.of(request)
            request[PATIENCE] = self._settings.slow_client_s
            kind = head.rule.kind
            if kind == "signed":  # it holds no place, or whoever has no key could hold them all
                await self._bodies.read_unproven(request)
                return await handler(request)
            if kind == "proven":
                return await handler(request)
            if kind == "open":
                self._for_this_home(request, "another home")
                return await self._in_place("probes", request.remote, request, handler)
            if not (self._plain.get(head) or self._is_plain(head)):
                self._no_foreign_page(request, head.rule)
                # Before any key: a command for another home has none of this one, and is to learn why it is refused.
                self._for_this_home(request, "another home" if self._keys.needed else str(self._home))
                if request.method == "OPTIONS" and "access-control-request-method" in request.headers:
                    return web.Response(status=204)  # an origin that may: what it may is set below
            visitor = self._by_cookie(request) if head.by_page and self._by_cookie is not None else None
            request[PRINCIPAL] = principal = visitor or self._keys.principal(head.key)
            if self._settings.requests_per_minute:
                self._limits.spend(principal)
            if _RANK.get(principal.role, -1) < _RANK[head.least] and not (principal.role == GUEST and kind == "page"):
                raise _role_error(request, head, principal)
            if principal.line is not None and kind in _OF_ALL_LINES and not head.rule.by_line:
                raise Forbidden(
                    f"This shows or does something of every line, and your key is of the line {principal.line}."
                )
            group = _SHARED_BY.get(kind, kind)
            holder = (principal.key if self._keys.needed else request.remote, group)
            return await self._in_place("events" if kind == "events" else "requests", holder, request, handler)
        except ProxyError:  # the data routes answer their own: what comes here got no further
            self._on_refusal(request)
            raise

    async def _in_place(
        self, kind: PlaceKind, holder: Holder, request: web.Request, handler: Handler
    ) -> web.StreamResponse:
        """Have it handled in a place of this holder, which it leaves once its answer is sent. Raises TooMany,
        Overloaded, and what a body may raise."""
        self._limits.enter(kind, holder, lambda: self._reserve(request))
        self.busy.add(request.protocol)
        HOLDER.set(holder)
        request[HELD_BYTES] = holding = self._bodies.hold_for(holder)
        try:
            group = request[HEAD].rule.kind
            await self._bodies.read(request, holding, stream=group == "passed", weigh=group not in ("models", "passed"))
            response = await handler(request)
            if isinstance(response, web.Response) and isinstance(response.body, bytes) and len(response.body) >= SOON:
                await send_long(response, request)
            return response
        finally:
            holding.end()
            if holding.most_held:
                self._on_freed(holding.most_held)
            self.busy.discard(request.protocol)
            self._limits.leave(kind, holder)

    def _reserve(self, request: web.Request) -> int:
        """How many of the places that are kept for admins it may have. Commands of this machine have some that no
        other key reaches: an admin's key may be in the hands of a program, too."""
        head = request[HEAD]
        if (
            _SHARED_BY.get(head.rule.kind) != "control"
            or PRINCIPAL not in request
            or request[PRINCIPAL].role != "admin"
        ):
            return 0
        return 2 * RESERVE if self._keys.is_local(head.key) else RESERVE

    def _is_plain(self, head: RequestHead) -> bool:
        """Tell whether nothing in it could have come from a web page, or be for another home."""
        headers, host = head.headers, head.headers.get("host")
        has_browser_mark = (
            "origin" in headers or "sec-fetch-site" in headers or HOME_HEADER in headers or head.method == "OPTIONS"
        )
        is_own_host = host is None or _host(host) in self._hosts or is_loopback(_host(host))
        self._plain[head] = plain = is_own_host and not has_browser_mark
        return plain

    def _for_this_home(self, request: web.Request, served: str) -> None:
        """A command of this machine acts on no other home than its own, whoever has its port now."""
        home = request.headers.get(HOME_HEADER)
        is_local = is_loopback((request.remote or "").removeprefix("::ffff:"))
        if home is None or self._home is None or not is_local or is_home(self._home, home):
            return
        raise AnotherHome(
            f"The rlproxy at {request.host} serves {served}, not {unquote(home)}, so nothing was done. Start the one "
            "meant with `rlproxy serve` (with another --port), or say this one's folder with --home."
        )

    def _no_foreign_page(self, request: web.Request, route_rule: Rule) -> None:
        """A page from elsewhere in the person's browser, or a name rebound to this address, gets nothing."""
        if route_rule.kind not in ("models", "passed") or not self._keys.needed:
            self._check_host(request)
        origin = request.headers.get("origin")
        if origin is not None:
            if _netloc(origin) == request.headers.get("host", "").lower() or self._may(origin):
                return
            raise Forbidden(f"A web page of {origin[:100]} may not do this; server.origins says which may.")
        # Browsers say it where they leave the origin out, as of pictures and scripts. A link that is followed may.
        if request.headers.get("sec-fetch-site") == "cross-site" and not _is_link(request):
            raise Forbidden("A web page of another site may not do this; server.origins says which may.")

    def _check_host(self, request: web.Request) -> None:
        header = request.headers.get("host")
        if header is None:  # of HTTP 1.0: no browser does that
            return
        host = _host(header)
        if is_loopback(host) or host in self._hosts:
            return
        if is_loopback(self._settings.host):
            raise Forbidden(
                f"The Host header names {host[:100]}, but this rlproxy answers on loopback only; server.hosts allows "
                "more."
            )
        if not _is_address(host):  # no name was asked for an address, so none can be rebound
            raise Forbidden(f"This rlproxy is not known as {host[:100]}; add that to server.hosts if it is.")

    def _may(self, origin: str) -> bool:
        return origin.rstrip("/").lower() in self._origins

    async def cors(self, request: web.Request, response: web.StreamResponse) -> None:
        """For `on_response_prepare`."""
        origin = request.headers.get("origin")
        if origin is None or not self._may(origin):
            return
        response.headers["access-control-allow-origin"] = origin
        response.headers["access-control-expose-headers"] = (
            "x-rl-completion-id, x-rl-adapter, x-rl-line, x-rl-lessons, x-rl-left-out, x-rl-overhead-ms"
        )
        response.headers.add("vary", "origin")
        if request.method == "OPTIONS":
            response.headers["access-control-allow-methods"] = "GET, POST, DELETE"
            requested_headers = request.headers.get("access-control-request-headers", "")
            response.headers["access-control-allow-headers"] = requested_headers
            response.headers["access-control-max-age"] = "600"


@lru_cache(maxsize=HOSTS_CACHED)
def _host(header: str) -> str:
    """The name in a Host header. Raises BadRequest."""
    try:
        return (urlsplit(f"//{header}").hostname or "").rstrip(".")
    except ValueError:
        raise BadRequest("The Host header is neither a name nor an address.") from None


def _role_error(request: web.Request, head: RequestHead, principal: Principal) -> Forbidden:
    text = f"This needs a key with the role {head.least}, and yours has {principal.role}."
    if head.rule.kind in ("models", "passed") and head.least == "admin":
        path = f"{request.method} {request.raw_path.partition('?')[0][:100]}"
        text += f" Nothing was passed on: docs/reference/http-api.md does not list {path} for such a key."
    return Forbidden(text)


async def contain(request: web.Request, response: web.StreamResponse) -> None:
    """For `on_response_prepare`. Keeps a browser from running what a backend sent as a page of rlproxy, which could do
    all that the person at the browser may."""
    if "content-security-policy" not in response.headers:
        response.headers.update(CONTAINED)


def require_admin(request: web.Request) -> None:
    if request[PRINCIPAL].role != "admin":
        raise Forbidden("This needs a key with the role admin (server.admin_key, or one of `rlproxy keys`).")


def principal_of(request: web.Request) -> Principal:
    return request[PRINCIPAL]


def actor_of(request: web.Request) -> str:
    """Name who acts, for the audit log."""
    return request.app[KEYS].actor(request[PRINCIPAL], request[HEAD].key)


def outgoing_headers(
    headers: CIMultiDict[str], *, settings: ServerSection, backend: Mapping[str, str], passes_keys: bool = True
) -> CIMultiDict[str]:
    """The client's headers as the backend may see them: no key of rlproxy's, no `x-rl-…`, the backend's own key.
    `passes_keys`: the client's keys may be for this server."""
    own_keys = [k.get_secret_value() for k in (settings.api_key, settings.admin_key) if k]
    outgoing: CIMultiDict[str] = CIMultiDict()
    for name, value in headers.items():
        low = name.lower()
        is_own = low in _OURS or low.startswith("x-rl-") or is_identity(low, settings)
        is_key = not passes_keys and _SECRET.search(low)
        if not (is_own or is_key or FORM.search(value)):
            outgoing.add(name, value)
    if backend or any(same(key_in(headers), key) for key in own_keys):
        outgoing.popall("authorization", None)
        outgoing.popall("x-api-key", None)
    if "cookie" in outgoing and (
        cookies := [cookie for header in outgoing.popall("cookie", ()) for cookie in _foreign(header)]
    ):
        outgoing["cookie"] = "; ".join(cookies)
    outgoing.update(backend)
    return outgoing


def _foreign(cookies: str) -> list[str]:
    """The cookies of a header that are not the page's."""
    return [
        stripped for cookie in cookies.split(";") if (stripped := cookie.strip()) and not stripped.startswith(_COOKIE)
    ]


def without_keys(text: str, headers: Mapping[str, str]) -> str:
    """An error may repeat the key that it refuses: what is kept or logged of it must not have it."""
    text = FORM.sub("[key]", text)
    for name, value in headers.items():
        if _SECRET.search(name.lower()):
            for key in (value, value.rpartition(" ")[2]):
                text = text.replace(key, "[key]") if len(key) >= SHORTEST_KEY else text
    return text


def _netloc(origin: str) -> str | None:
    """None where it is not an address; an empty one, as of `null`, names no host either."""
    try:
        return urlsplit(origin).netloc.lower() or None
    except ValueError:
        return None


def _is_link(request: web.Request) -> bool:
    return request.method == "GET" and request.headers.get("sec-fetch-mode") == "navigate"


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
