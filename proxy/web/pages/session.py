"""Sessions of the page: the cookie of a signed-in browser, and the token that its forms carry.

Owns signing in, who somebody is by cookie, and CSRF. Off loopback a browser has no place for an API key, so it gives
the key once and gets a signed cookie (HttpOnly, SameSite=Strict). The cookie has the key's id, or the role of a fixed
key. A key that is revoked ends its visits, a fixed one that changes ends all. Such a cookie counts for reading, and for
acts under the page's own paths, which check the token; nowhere else. Not here: keys (keys), what a role may do
(security).
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

from config.sections import ServerSection
from proxy.access.keys import Keys, Principal, same
from proxy.access.security import GUEST, HEAD
from proxy.access.single_sign_on import SingleSignOn
from proxy.core.errors import Forbidden
from proxy.feedback.ratings import OWNER
from store.file.meta import PAGE_SECRET
from store.records import Role
from store.store import Store

COOKIE: Final = "rl_page"
TOKEN_HEADER: Final = "x-rl-token"  # noqa: S105  a header's name
TOKEN_FIELD: Final = "token"  # noqa: S105  a field's name
STAYS_S: Final = 30 * 86400
SIGNED_ON: Final = "sso-"  # in a cookie, before a key's id: it counts beside the word of a single sign-on proxy alone
OPEN: Final = "open"  # in a cookie: from before there were keys, and worth nothing once there are
# What a cookie has instead of a key's id: the role of a fixed key, or none.
_FIXED: Final = {"admin": Principal("admin"), "rate": Principal("rate"), GUEST: Principal(GUEST)}


class Visitor(NamedTuple):
    principal: Principal
    name: str  # whose ratings these are
    cookie: str  # the value, on which the token hangs

    @property
    def role(self) -> Role | Literal["guest"]:
        return self.principal.role

    @property
    def key(self) -> str | None:
        """The key by which they rate; None for an admin, who may speak for anybody."""
        return None if self.role == "admin" else self.principal.key


class Visits:
    def __init__(self, settings: ServerSection, keys: Keys) -> None:
        self._settings = settings
        self._keys = keys
        self._single_sign_on = SingleSignOn(settings, keys)
        self._secret = secrets.token_bytes(32)

    @property
    def keyed(self) -> bool:
        """Tell whether signing in makes a difference."""
        return self._keys.needed or self._settings.admin_key is not None

    async def start(self, store: Store) -> None:
        """The same secret after a restart: open pages stay signed in and go on. No backup has it."""
        stored_secret = await store.meta.get(PAGE_SECRET)
        if stored_secret is None:
            await store.meta.set(PAGE_SECRET, stored_secret := secrets.token_hex(32))
        keys = [k.get_secret_value() for k in (self._settings.api_key, self._settings.admin_key) if k]
        self._secret = hashlib.sha256(
            "\0".join([str(stored_secret), *keys]).encode()
        ).digest()  # a new key ends all visits

    def principal(self, request: web.Request) -> Principal | None:
        """For `security.Guard`: who it is by single sign-on or cookie; a guest on the page without; None: by key, as
        ever. Raises BadRequest, Forbidden."""
        if not self.keyed or "authorization" in request.headers or "x-api-key" in request.headers:
            return None
        is_page = request[HEAD].rule.kind == "page"
        if request.method in ("GET", "HEAD") or is_page:
            if (signed_on := self._single_sign_on.principal(request)) is not None:
                return signed_on
            visitor = self._read(request.cookies.get(COOKIE, ""))
            if visitor is not None and visitor.role != GUEST:
                return visitor.principal
        return Principal(GUEST) if is_page else None

    def of(self, request: web.Request, principal: Principal) -> Visitor:
        """Whoever this is, with a cookie to come where there is none yet."""
        signed_on = self._single_sign_on.principal(request)
        visitor = self._read(request.cookies.get(COOKIE, ""), signed_on)
        if visitor is None or (self.keyed and visitor.principal != principal):
            return self._make(principal, principal.name or OWNER, SIGNED_ON if principal == signed_on else "")
        return Visitor(principal, visitor.name, visitor.cookie)

    def sign_in(self, key: str, name: str) -> Visitor:
        """Raises Unauthorized; Forbidden where such a key reads nothing."""
        principal = self._keys.principal(key)
        if principal.role == "use":
            raise Forbidden("This key has the role use, which asks models and sees no page; rate or admin does.")
        return self._make(principal, principal.bound or name or principal.name or OWNER)

    def keep(self, request: web.Request, response: web.StreamResponse, visitor: Visitor) -> None:
        """Set the cookie where the browser has another."""
        if request.cookies.get(COOKIE) != visitor.cookie:
            response.set_cookie(
                COOKIE, visitor.cookie, max_age=STAYS_S, httponly=True, samesite="Strict", path="/",
                secure=request.secure or request.headers.get("x-forwarded-proto") == "https",
            )  # fmt: skip

    def token(self, visitor: Visitor) -> str:
        return self._sign(f"token:{visitor.cookie}")

    def check(self, request: web.Request, field: str | None) -> None:
        """The form was ours, shown to this very browser. Raises Forbidden."""
        cookie = request.cookies.get(COOKIE, "")
        sent = request.headers.get(TOKEN_HEADER) or field or ""
        if not cookie or not same(sent, self._sign(f"token:{cookie}")):
            raise Forbidden("This page is too old to act; nothing was done. Reload it and try again.")

    def _make(self, principal: Principal, name: str, mark: str = "") -> Visitor:
        packed = base64.urlsafe_b64encode(name.encode()).decode().rstrip("=")
        by = principal.id or (principal.role if self.keyed else OPEN)
        body = f"{mark}{by}.{packed}.{int(time.time()) + STAYS_S}.{secrets.token_urlsafe(12)}"
        return Visitor(principal, name, f"{body}.{self._sign(f'visit:{body}')}")

    def _read(self, cookie: str, signed_on: Principal | None = None) -> Visitor | None:
        """`signed_on`: whom a single sign-on proxy names in this request."""
        body, _, signature = cookie.rpartition(".")
        if not same(signature, self._sign(f"visit:{body}")):
            return None
        by, packed, until, _ = body.split(".")
        principal: Principal | None
        if by.startswith(SIGNED_ON):
            principal = signed_on if signed_on is not None and by == SIGNED_ON + signed_on.id else None
        else:
            principal = Principal("admin") if by == OPEN and not self.keyed else _FIXED.get(by) or self._keys.by_id(by)
        if int(until) < time.time() or principal is None or principal.role == "use":
            return None
        try:
            name = base64.urlsafe_b64decode(packed + "=" * (-len(packed) % 4)).decode()
        except (binascii.Error, UnicodeDecodeError):
            return None
        return Visitor(principal, name, cookie)

    def _sign(self, text: str) -> str:
        digest = hmac.new(self._secret, text.encode("utf-8", "surrogateescape"), hashlib.sha256).digest()
        return base64.urlsafe_b64encode(digest).decode().rstrip("=")
