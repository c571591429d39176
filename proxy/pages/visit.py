"""Who looks at the page: the cookie of a signed-in browser, and the token that its forms carry.

Owns signing in, roles by cookie, and CSRF. Off loopback a browser has no place for an API key, so it gives the key
once and gets a signed cookie (HttpOnly, SameSite=Strict) with the role that the key has. Such a cookie counts for
reading, and for acts under the page's own paths, which check the token; nowhere else. Not here: keys and roles
themselves (security).
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import secrets
import time
from typing import Final, Literal, NamedTuple

from aiohttp import web

from config.sections import Server
from proxy.errors import Forbidden
from proxy.feedback import OWNER
from proxy.security import GUEST, Role, role_of
from store.store import Store

COOKIE: Final = "rl_page"
TOKEN_HEADER: Final = "x-rl-token"  # noqa: S105  a header's name
TOKEN_FIELD: Final = "token"  # noqa: S105  a field's name
STAYS_S: Final = 30 * 86400
SECRET: Final = "page_secret"  # noqa: S105  the meta key
_PATHS: Final = ("/", "/progress", "/versions", "/compare", "/data", "/login", "/logout")
_FOLDERS: Final = ("/page/", "/static/", "/versions/", "/completions/")


class Visitor(NamedTuple):
    role: Role | Literal["guest"]
    name: str  # whose ratings these are
    cookie: str  # the value, on which the token hangs


class Visits:
    def __init__(self, settings: Server) -> None:
        self._settings = settings
        self._secret = secrets.token_bytes(32)
        self.keyed = settings.api_key is not None or settings.admin_key is not None

    async def start(self, store: Store) -> None:
        """The same secret after a restart: open pages stay signed in and go on."""
        kept = await store.get_meta(SECRET)
        if kept is None:
            await store.set_meta(SECRET, kept := secrets.token_hex(32))
        keys = [k.get_secret_value() for k in (self._settings.api_key, self._settings.admin_key) if k]
        self._secret = hashlib.sha256("\0".join([str(kept), *keys]).encode()).digest()  # a new key ends all visits

    def role(self, request: web.Request) -> str | None:
        """For `security.middleware`: the role by cookie; "guest" on the page without one; None: by key, as ever."""
        if not self.keyed or "authorization" in request.headers or "x-api-key" in request.headers:
            return None
        ours = is_page(request.path)
        if request.method in ("GET", "HEAD") or ours:
            found = self._read(request.cookies.get(COOKIE, ""))
            if found is not None and found.role != GUEST:
                return found.role
        return GUEST if ours else None

    def of(self, request: web.Request, role: str) -> Visitor:
        """Whoever this is, with a cookie to come where there is none yet."""
        found = self._read(request.cookies.get(COOKIE, ""))
        if found is None or (self.keyed and found.role != role):
            return self._make(GUEST if role == GUEST else "admin" if role == "admin" else "use", OWNER)
        return Visitor("admin" if role == "admin" else "use" if role == "use" else GUEST, found.name, found.cookie)

    def sign_in(self, key: str, name: str) -> Visitor:
        """Raises Unauthorized."""
        return self._make(role_of({"x-api-key": key}, self._settings), name or OWNER)

    def keep(self, request: web.Request, response: web.StreamResponse, visitor: Visitor) -> None:
        """Set the cookie where the browser has another."""
        if request.cookies.get(COOKIE) != visitor.cookie:
            response.set_cookie(
                COOKIE, visitor.cookie, max_age=STAYS_S, httponly=True, samesite="Strict", path="/",
                secure=request.secure or request.headers.get("x-forwarded-proto") == "https",
            )  # fmt: skip

    def token(self, visitor: Visitor) -> str:
        return self._sign(f"token:{visitor.cookie}")

    def check(self, request: web.Request, given: str | None) -> None:
        """The form was ours, shown to this very browser. Raises Forbidden."""
        cookie = request.cookies.get(COOKIE, "")
        sent = request.headers.get(TOKEN_HEADER) or given or ""
        if not cookie or not hmac.compare_digest(sent.encode(), self._sign(f"token:{cookie}").encode()):
            raise Forbidden("This page is too old to act; nothing was done. Reload it and try again.")

    def _make(self, role: Role | Literal["guest"], name: str) -> Visitor:
        packed = base64.urlsafe_b64encode(name.encode()).decode().rstrip("=")
        body = f"{role}.{packed}.{int(time.time()) + STAYS_S}.{secrets.token_urlsafe(12)}"
        return Visitor(role, name, f"{body}.{self._sign(f'visit:{body}')}")

    def _read(self, cookie: str) -> Visitor | None:
        body, _, signature = cookie.rpartition(".")
        if not hmac.compare_digest(signature.encode(), self._sign(f"visit:{body}").encode()):
            return None
        role, packed, until, _ = body.split(".")
        if int(until) < time.time():
            return None
        try:
            name = base64.urlsafe_b64decode(packed + "=" * (-len(packed) % 4)).decode()
        except (binascii.Error, UnicodeDecodeError):
            return None
        return Visitor("admin" if role == "admin" else "use" if role == "use" else GUEST, name, cookie)

    def _sign(self, text: str) -> str:
        digest = hmac.new(self._secret, text.encode(), hashlib.sha256).digest()
        return base64.urlsafe_b64encode(digest).decode().rstrip("=")


def is_page(path: str) -> bool:
    return path in _PATHS or path.startswith(_FOLDERS)
