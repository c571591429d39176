"""Keys: who somebody is, by what they send.

Owns what a key looks like, the fixed keys of the settings, and those that were handed out. These are hashed in the
store, and all of them are in memory. The key of this start can be read by commands of this machine only. Others are
lent for a moment. Also owns which completions a request reaches by its key. Not here: what a role may do (security),
HTTP and commands for keys (key_routes, keys).

A key is 256 random bits, so its plain SHA-256 is kept: a slow hash protects secrets that people choose, of which there
are few. It is found by the id in it, which is not a secret, and compared in constant time.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import hmac
import re
import secrets
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Annotated, Final, Literal, NamedTuple, get_args

import structlog
from pydantic import Field
from typing_extensions import TypedDict

from config.sections import ServerSection
from proxy.core.agent_wrappers import UNKNOWN
from proxy.core.errors import BadRequest, Conflict, NotFound, StorageFailed, Unauthorized
from proxy.core.server_url import is_loopback
from store.errors import NameTaken, StoreError, UnknownKey
from store.learning.rater_quota import OWNER
from store.records import Key, NewCompletion, Requester, Role
from store.store import Store

log = structlog.get_logger()

PREFIX: Final = "rlp"
FORM: Final = re.compile(r"rlp_([0-9a-f]{8})_[A-Za-z0-9_-]{43}")
NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9@._+-]{0,99}")
# What completions are kept under that no key was handed out for: those of the admin, whether by `server.admin_key`, a
# command of this machine or without any key; and those by `server.api_key`, or without one where there is an admin's.
OWNERS: Final = "owner"
SHARED: Final = "server.api_key"
COMMAND_LINE: Final = "command line"  # of this machine
REMEMBER_S: Final = 60.0  # how old a last use on disk may be


class KeyBody(TypedDict):
    id: str
    name: str
    role: Role
    created_at: Annotated[float, Field(description="Unix seconds")]
    last_used: Annotated[float, Field(description="Unix seconds")] | None
    revoked_at: Annotated[float, Field(description="Unix seconds")] | None
    line: Annotated[str | None, Field(description="The line that it may use; null: every line.")]


class Principal(NamedTuple):
    """Somebody who may ask something."""

    role: Role | Literal["guest"]  # a guest has no key: pages only, which say how to sign in
    id: str = ""  # of a key that was handed out
    name: str | None = None  # its name
    line: str | None = None  # the one that it may use; None: every line

    @property
    def key(self) -> str:
        """The name under which its completions are kept. No id of a key reads like one of these words: those are
        hexadecimal."""
        return self.id or (OWNERS if self.role == "admin" else SHARED)

    @property
    def bound(self) -> str | None:
        """The one name that such a key rates by; None where the request says who speaks."""
        return None if self.role == "admin" else self.name


class Scope(NamedTuple):
    """Completions that a request may see: those of its key, and among them those of whom it names. A name in a request
    proves nothing, so it only narrows what the key opens."""

    principal: Principal
    user: str | None = None  # whom the request names, and its completion is kept for
    names: tuple[str, ...] = ()  # all whom it names, also by what no completion is kept for (`conversations.people`)

    @classmethod
    def of(cls, principal: Principal, user: str | None, names: tuple[str, ...]) -> Scope:
        """Scope of a request that names these. Whoever is named by what is not a name is somebody, and not the owner:
        all of them are one user. A key that is one person's is theirs, whatever the request says."""
        return cls(principal, user or (UNKNOWN if names and principal.bound is None else None), names)

    def covers(self, requester: NewCompletion | Requester) -> bool:
        """Tell whether it may be read, gone on from and deleted. An admin who names nobody may have all."""
        if self.principal.role == "admin" and not self.names:
            return True
        if requester.key is not None and requester.key not in self._keys:
            return False
        # A completion without a key is from before keys were kept: then the name of a key was all there was, and what
        # names nobody is the owner's.
        if requester.key is None and requester.user is None:
            return self.principal.role == "admin"
        users = (
            {self.principal.bound}
            if requester.key is None and self.principal.bound
            else {self.user, self.principal.bound}
        )
        return requester.user is None or requester.user in users

    def shows(self, requester: Requester) -> bool:
        """Tell if messages may be linked to it. A bot asks for many people by one key, and names nobody as it links."""
        return self.covers(requester) or (not self.names and requester.key in self._keys)

    def own_requesters(self, *, unnamed: bool = False) -> list[Requester]:
        """List those whose answers a request may mean that names none: never another user. `unnamed`: also answers of
        no user, which are the owner's."""
        users = {self.user or self.principal.name}
        if unnamed or (self.user is None and self.principal.role == "admin"):
            users.add(None)
        unkeyed_users = {self.principal.bound} if self.principal.bound else users
        return [
            *(Requester(key, user) for key in self._keys for user in users),
            *(Requester(None, user) for user in unkeyed_users),
        ]

    @property
    def keys(self) -> set[str] | None:
        """Completions of other keys are not covered; None: of any. Those without a key are for `covers` to tell."""
        return None if self.principal.role == "admin" and not self.names else self._keys

    @property
    def _keys(self) -> set[str]:
        """An admin goes on with what was asked before there were keys."""
        return {self.principal.key, OWNERS} if self.principal.role == "admin" else {self.principal.key}


_ADMIN: Final = Principal("admin")
_RATER: Final = Principal("rate")


class Keys:
    def __init__(self, settings: ServerSection) -> None:
        self._store: Store | None = None
        self._keys: dict[str, Key] = {}
        self._used: dict[str, float] = {}  # since they were last written
        self._unstored: dict[str, str] = {}  # keys whose end is in memory alone, and who revoked each
        self._admin, self._use = (
            b"" if key is None else key.get_secret_value().encode() for key in (settings.admin_key, settings.api_key)
        )
        # Whether everybody has to show a key. Revoking the last one does not open what it had closed, nor does an older
        # database: an admin does (`open`).
        self.needed = settings.api_key is not None or bool(settings.sso_proxies)
        self._settings = settings
        self._temporary: dict[bytes, Principal] = {}  # by the hash of their key
        self.local = _secret(secrets.token_hex(4))
        self._local = self.local.encode()

    async def start(self, store: Store) -> None:
        self._store = store
        self._keys = {key.id: key for key in await store.keys.all()}
        self.needed = self.needed or await store.keys.needed()

    async def refresh(self) -> None:
        """Take over what other relays have done. Raises StoreError."""
        assert self._store is not None
        stored = {key.id: key for key in await self._store.keys.all()}
        for id in self._unstored:  # revoked here, and on its way to the database
            stored[id] = self._keys[id]
        self._keys = stored
        self.needed = self.needed or any(key.revoked_at is None for key in stored.values())

    def principal(self, secret: str) -> Principal:
        """Find whose key this is. Without any (loopback only) everybody is admin. Raises Unauthorized."""
        encoded = secret.encode("utf-8", "surrogateescape")
        if hmac.compare_digest(encoded, self._local):
            return _ADMIN
        if self._temporary and (temporary := self._temporary.get(hash_key(secret))) is not None:
            return temporary
        if self._admin and hmac.compare_digest(encoded, self._admin):
            return _ADMIN
        if self._use and hmac.compare_digest(encoded, self._use):
            return _RATER
        match = FORM.fullmatch(secret)
        if match is not None and (principal := self.by_id(match[1], secret)) is not None:
            self._used[match[1]] = time.time()
            return principal
        if not self.needed and (match is None or match[1] in self._keys):  # also one that ended with `open`
            return _RATER if self._admin else _ADMIN
        raise Unauthorized(
            f"This rlproxy needs a key, and {'does not know this one' if secret else 'none came'}: send one as "
            "`Authorization: Bearer KEY` (an SDK's api_key) or `x-api-key: KEY`; `rlproxy keys create --role use "
            "--name NAME` makes one."
        )

    def actor(self, principal: Principal, secret: str) -> str:
        """Name who acts, for the audit log: the key that was handed out, else by what they are an admin. `secret` is
        empty for a browser that has signed in."""
        if principal.name is not None:
            return principal.name
        if self.is_local(secret):
            return COMMAND_LINE
        if self._admin and (not secret or hmac.compare_digest(secret.encode("utf-8", "surrogateescape"), self._admin)):
            return "server.admin_key"
        return COMMAND_LINE if self.needed else OWNER

    def is_local(self, secret: str) -> bool:
        """Tell whether this is the key of commands of this machine."""
        return hmac.compare_digest(secret.encode("utf-8", "surrogateescape"), self._local)

    @contextlib.contextmanager
    def temporary_key(self, principal: Principal) -> Iterator[str]:
        """A key that is theirs for as long as this lasts: for what rlproxy asks itself on somebody's behalf."""
        key = _secret(secrets.token_hex(4))
        self._temporary[hash_key(key)] = principal
        try:
            yield key
        finally:
            del self._temporary[hash_key(key)]

    def by_id(self, id: str, secret: str | None = None) -> Principal | None:
        """The principal of a key that holds; with `secret`, only if that is the key. For a page's cookie."""
        key = self._keys.get(id)
        stored_hash = key.hash if key is not None else b"\0" * 32  # an unknown id takes as long as a wrong secret
        right = secret is None or hmac.compare_digest(hash_key(secret), stored_hash)
        if key is None or not right or key.revoked_at is not None:
            return None
        return Principal(key.role, key.id, key.name, key.line)

    def by_name(self, name: str) -> Principal | None:
        """The principal of a key that holds, by its name; in other capitals, where one key alone has it so."""
        live_keys = [key for key in self._keys.values() if key.revoked_at is None]
        matches = [key for key in live_keys if key.name == name]
        matches = matches or [key for key in live_keys if key.name.lower() == name.lower()]
        return self.by_id(matches[0].id) if len(matches) == 1 else None

    async def create(self, name: str, role: str, actor: str, line: str | None = None) -> tuple[Key, str]:
        """The key and its text, which is not kept. `line`: the only one that it may use. Raises BadRequest, Conflict,
        StorageFailed."""
        assert self._store is not None
        key, text = new_key(name, role, line)
        try:
            await self._store.keys.add(key, actor)
        except NameTaken as error:
            raise Conflict(f"{error} Revoke it first, or choose another name.", param="name") from None
        except StoreError as error:
            raise StorageFailed(f"No key was made: {error}") from error
        self._keys[key.id], self.needed = key, True
        await self._note()
        return key, text

    async def revoke(self, id_or_name: str, actor: str) -> Key:
        """By id or name; nobody gets in by it from now on, also where the disk is full. Raises NotFound; StorageFailed
        where it holds for this start alone."""
        key = self._revocable(id_or_name)
        self._keys[key.id] = replace(key, revoked_at=key.revoked_at or time.time())
        self._unstored[key.id] = actor
        if (problem := await self._store_revocation(key.id)) is None:
            await self._note()
            return self._keys[key.id]
        assert self._store is not None
        try:
            await self._store.keys.note_revoked(key.id)  # the next start takes it from there
        except StoreError as error:
            raise StorageFailed(
                f"{key.name} opens nothing any more, and that is in memory only: the disk did not take it ({problem}). "
                "After a restart it would open again. Free some space; it is tried again each minute, and by the same "
                "command."
            ) from error
        return self._keys[key.id]

    async def open(self, actor: str) -> list[Key]:
        """Revoke every key and ask for none from now on. Raises Conflict where keys are needed all the same;
        StorageFailed where all stays as it was."""
        assert self._store is not None
        if not is_loopback(self._settings.host):
            raise Conflict(f"rlproxy listens on {self._settings.host}, where others reach it, so it needs keys.")
        if self._settings.sso_proxies:
            raise Conflict(
                "server.sso_proxies is set, so people are known by their keys' names: empty it and start rlproxy anew."
            )
        if self._settings.api_key is not None:
            raise Conflict(
                "server.api_key is set, so a key is asked for all the same: take it out of the settings or the "
                "environment (RLPROXY_SERVER__API_KEY) and start rlproxy anew."
            )
        try:
            revoked = await self._store.keys.open(actor)
        except StoreError as error:
            raise StorageFailed(f"Keys are asked for as before: {error}") from error
        for key in revoked:
            self._keys[key.id] = key
        self.needed = False
        return revoked

    @property
    def fixed(self) -> list[str]:
        """The settings that hold a key."""
        return [f"server.{name}" for name in ("api_key", "admin_key") if getattr(self._settings, name) is not None]

    def _revocable(self, id_or_name: str) -> Key:
        """A key that holds, or whose end is not on disk yet. Raises NotFound."""
        for key in self._keys.values():
            if id_or_name in (key.id, key.name) and (key.revoked_at is None or key.id in self._unstored):
                return key
        raise NotFound(f"There is no key {id_or_name} that still holds.", param="key")

    async def _store_revocation(self, id: str) -> str | None:
        """Why it is not in the database; None where it is."""
        assert self._store is not None
        try:
            self._keys[id] = await self._store.keys.revoke(id, self._unstored[id])
        except UnknownKey:  # it is revoked there already
            pass
        except StoreError as error:
            log.error("a revoked key is not in the database yet", key=id, error=str(error))
            return str(error)
        del self._unstored[id]
        return None

    async def _note(self) -> None:
        """It is in force whatever comes of this; the next start notes what could not be noted now."""
        assert self._store is not None
        try:
            await self._store.keys.note()
        except StoreError as error:
            log.error("do not restore a backup before rlproxy was started once more", error=str(error))

    def list(self) -> list[KeyBody]:
        return [as_json(key, self._used.get(key.id)) for key in self._keys.values()]

    async def remember_uses(self) -> None:
        """For ever, and a last time when it is cancelled."""
        try:
            while True:
                await asyncio.sleep(REMEMBER_S)
                for id in list(self._unstored):
                    await self._store_revocation(id)
                await self._write_uses()
        except asyncio.CancelledError:
            await self._write_uses()
            raise

    async def _write_uses(self) -> None:
        used, self._used = self._used, {}
        if not used or self._store is None:
            return
        try:
            await self._store.keys.used(used)
        except StoreError as error:
            self._used = used | self._used
            log.warning("the last use of keys is not on disk yet", error=str(error))
            return
        for id, used_at in used.items():
            self._keys[id] = _with_last_use(self._keys[id], used_at)


def new_key(name: str, role: str, line: str | None = None) -> tuple[Key, str]:
    """Raises BadRequest."""
    if not NAME.fullmatch(name):
        raise BadRequest("A key's name is 1 to 100 letters, digits or `@._+-`.", param="name")
    if name == OWNER:
        raise BadRequest(f"`{OWNER}` is whoever runs this rlproxy; choose another name.", param="name")
    if role not in (roles := get_args(Role)):
        raise BadRequest(f"`role` must be {', '.join(roles[:-1])} or {roles[-1]}.", param="role")
    if line is not None and role == "admin":
        raise BadRequest("An admin's key is of every line: leave the line out, or choose another role.", param="line")
    id = secrets.token_hex(4)
    text = _secret(id)
    return Key(id, name, role, hash_key(text), time.time(), line=line), text  # type: ignore[arg-type]  # it was just looked at


def as_json(key: Key, used: float | None = None) -> KeyBody:
    return {
        "id": key.id,
        "name": key.name,
        "role": key.role,
        "created_at": key.created_at,
        "last_used": used or key.last_used,
        "revoked_at": key.revoked_at,
        "line": key.line,
    }


def key_in(headers: Mapping[str, str]) -> str:
    scheme, _, token = headers.get("authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else headers.get("x-api-key", "")


def same(secret: str, key: str) -> bool:
    return hmac.compare_digest(secret.encode("utf-8", "surrogateescape"), key.encode())


def hash_key(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).digest()


def _secret(id: str) -> str:
    return f"{PREFIX}_{id}_{secrets.token_urlsafe(32)}"


def _with_last_use(key: Key, timestamp: float) -> Key:
    return replace(key, last_used=timestamp)
