"""Lines: which of them a request is of, and how one begins and ends.

Owns the rule of which line answers, and what a server needs before a home may have another one. A key that is bound to
a line uses no other. For any other key the model's name (`MODEL@LINE`) counts, then the header `x-rl-line`. After
those come the user and the agent that a line was made for. Else it is the common line. Not here: the pointer of each
(live_version), names (named_version), rows (store.learning.lines).
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Final

import structlog

from proxy.access.keys import Principal
from proxy.backends.base import Backend
from proxy.core.agent_wrappers import Agent
from proxy.core.errors import BadRequest, Conflict, Forbidden, Gone, NotFound, Unsupported
from proxy.core.events import Events
from proxy.core.version_names import version_in_words
from proxy.versions.live_version import PLACES, LiveVersion
from proxy.versions.named_version import AT_SERVER, NamedVersion, check_line_name, unknown_line
from store.errors import NameTaken, UnknownLine
from store.line_records import COMMON, StoredLine
from store.records import BASE
from store.store import Store

log = structlog.get_logger()

HEADER: Final = "x-rl-line"
MOST: Final = 1000  # lines of a home: each has its live and its previous version loaded
_MEMBER: Final = re.compile(r"[^\x00-\x1f\x7f]{1,200}")


class Lines:
    def __init__(self, store: Store, backend: Backend, live_version: LiveVersion, events: Events) -> None:
        self._store = store
        self._backend = backend
        self._live_version = live_version
        self._events = events
        self._lines: dict[str, StoredLine] = {}
        self._by_user: dict[str, str] = {}
        self._by_agent: dict[str, str] = {}
        self._changing = asyncio.Lock()  # two that begin at once may not both take the last place at the server

    async def refresh(self) -> None:
        """Read them again: at the start, and where another relay has changed one. Raises StoreError."""
        self._take({line.name: line for line in await self._store.lines.all()})

    def _take(self, lines: dict[str, StoredLine]) -> None:
        self._lines = lines
        live = [line for line in lines.values() if line.retired_at is None]
        self._by_user = {user: line.name for line in live for user in line.users}
        self._by_agent = {agent: line.name for line in live for agent in line.agents}

    @property
    def has_several(self) -> bool:
        return any(line.retired_at is None for line in self._lines.values())

    @property
    def all(self) -> list[StoredLine]:
        """Every line beside the common one, also retired ones."""
        return list(self._lines.values())

    def names(self, principal: Principal) -> list[str]:
        """Lines that this key may use, the common one first."""
        live = [COMMON, *(line.name for line in self._lines.values() if line.retired_at is None)]
        return live if principal.line is None else [name for name in live if name == principal.line]

    # Which line

    async def of_request(
        self,
        name: NamedVersion,
        principal: Principal,
        headers: Mapping[str, str],
        user: str | None = None,
        agent: Agent | None = None,
    ) -> str:
        """The line whose version answers, and whose ratings the answer's are. Raises Forbidden, NotFound, Gone."""
        if principal.line is not None and not name.is_ours and AT_SERVER.search(name.model):
            raise Forbidden(
                f"{name.model[:100]} is a version by its server's name, and a key of the line {principal.line} asks by "
                "ours (`GET /v1/models`); nothing was asked.",
                param="model",
            )
        wish = name.line or headers.get(HEADER)
        if not self._lines and wish is None and principal.line is None:
            return COMMON
        wish = wish or self._retired_in(name)
        line = self.permit(principal, wish)
        if name.pinned is not None and name.pinned != BASE:
            return await self._of_version(name.pinned, line if wish or principal.line else None, principal)
        if wish or principal.line:
            return line
        return self._by_user.get(user or "") or self._by_agent.get(agent.name if agent else "") or COMMON

    def _retired_in(self, name: NamedVersion) -> str | None:
        """The retired line that a model's name has: else the server would be asked for a model of that name."""
        model, _, line = name.model.rpartition("@")
        return line if not name.is_ours and model == name.ours and line in self._lines else None

    def permit(self, principal: Principal, wish: str | None) -> str:
        """The line of a key, or the one that a request names. Raises Forbidden, NotFound, Gone."""
        if principal.line is not None and wish not in (None, principal.line):
            raise Forbidden(
                f"This key is of the line {principal.line} and cannot use {wish}; nothing was asked.", param="line"
            )
        return self.existing(principal.line or wish or COMMON)

    def existing(self, name: str) -> str:
        """Raises NotFound, and Gone where it is retired."""
        line = self._lines.get(name)
        if name == COMMON or (line is not None and line.retired_at is None):
            return name
        if line is None:
            raise unknown_line(name)
        raise Gone(
            f"The line {name} is retired and answers nobody; `rlproxy line restore {name}` brings it back.",
            param="line",
        )

    async def _of_version(self, version: int, line: str | None, principal: Principal) -> str:
        """The line of a version that is asked for by its number. Raises Forbidden."""
        adapter = await self._store.versions.get(version)
        maker = COMMON if adapter is None else adapter.line  # one that is not there is refused as it is leased
        if line is None or maker == line or version == self._origin(line):
            return line or maker
        if principal.line is None:
            raise BadRequest(f"v{version} is of the line {maker}, and the request names {line}.", param="model")
        raise Forbidden(f"v{version} is of another line than this key; nothing was asked.", param="model")

    def _origin(self, name: str) -> int | None:
        line = self._lines.get(name)
        return None if line is None else line.origin

    # Begin and end

    async def create(
        self, name: str, origin: str, users: Collection[str], agents: Collection[str], actor: str
    ) -> StoredLine:
        """`origin`: `common`, `base`, `vN`, or another line. Raises BadRequest, Conflict, NotFound, Unsupported,
        BackendDown, BackendBroke."""
        check_line_name(name, self._live_version.model)
        _check_names(users, agents)
        async with self._changing:
            if name in self._lines:
                raise Conflict(f"There is a line named {name} already. Nothing was made.", param="name")
            await self._check_room()
            await self._check_model_name(name)
            start = await self._version_of(origin)
            line = StoredLine(name, start, time.time(), None, tuple(sorted(set(users))), tuple(sorted(set(agents))))
            await self._live_version.prepare(start)  # before it is stored: a line that cannot answer is not made
            try:
                await self._store.lines.create(line, actor)
            except NameTaken as error:
                raise Conflict(f"{error} Nothing was made.", param="name") from None
            await self._live_version.begin(name)
            self._take({**self._lines, name: line})
        log.info("line created", line=name, origin=start)
        self._events.emit("line", line=name, event="created", origin=start)
        return line

    async def change(
        self, name: str, users: Collection[str] | None, agents: Collection[str] | None, actor: str
    ) -> StoredLine:
        """Set whose requests a line answers; None leaves them as they are. Raises BadRequest, Conflict, NotFound,
        Gone."""
        self._beside_common(name)
        self.existing(name)
        _check_names(users or (), agents or ())
        try:
            await self._store.lines.change(name, users, agents, actor)
        except NameTaken as error:
            raise Conflict(f"{error} Nothing was changed.") from None
        await self.refresh()
        self._events.emit("line", line=name, event="changed")
        return self._lines[name]

    async def retire(self, name: str, actor: str) -> StoredLine:
        """It answers nobody from now on; its ratings and versions stay. Raises BadRequest, NotFound, Gone."""
        self._beside_common(name)
        async with self._changing:
            line = self._lines[self.existing(name)]
            await self._retire(name, True, actor)
            self._take({**self._lines, name: replace(line, retired_at=time.time())})
            await self._live_version.end(name)
        self._events.emit("line", line=name, event="retired")
        return self._lines[name]

    async def restore(self, name: str, actor: str) -> StoredLine:
        """Take `retire` back. Raises BadRequest, Conflict, NotFound, Unsupported, BackendDown, BackendBroke."""
        self._beside_common(name)
        async with self._changing:
            line = self._lines.get(name)
            if line is None:
                raise unknown_line(name)
            if line.retired_at is None:
                raise Conflict(f"The line {name} answers already.")
            await self._check_room()
            await self._live_version.prepare((await self._store.versions.pointer(name)).live)
            await self._retire(name, False, actor)
            await self._live_version.begin(name)
            self._take({**self._lines, name: replace(line, retired_at=None)})
        self._events.emit("line", line=name, event="restored")
        return self._lines[name]

    async def _retire(self, name: str, retired: bool, actor: str) -> None:
        try:
            await self._store.lines.retire(name, retired, actor)
        except UnknownLine as error:
            raise NotFound(str(error), param="line") from None
        except NameTaken as error:
            raise Conflict(f"{error} Nothing was changed.") from None

    def _beside_common(self, name: str) -> None:
        if name == COMMON:
            raise BadRequest("The common line always is, for whoever no other line is for. Nothing was changed.")

    async def _check_room(self) -> None:
        """Raises Unsupported where the server cannot answer by the versions of one more line."""
        capabilities, places = self._backend.capabilities, self._backend.max_models
        if capabilities.is_foreign:
            raise Unsupported("The model that answers is not one that rlproxy changes, so it has no lines.")
        if not capabilities.adapters:
            raise Unsupported(capabilities.limitation)
        if capabilities.single_version:
            raise Unsupported(
                "The backend holds one adapter at a time, so two lines cannot answer side by side. vLLM, SGLang and "
                "the built-in server hold several. Nothing was made."
            )
        lines = 1 + len(self._live_version.lines)
        if len(self._lines) >= MOST:
            raise Unsupported(f"A home has up to {MOST} lines, retired ones among them. Nothing was made.")
        if places is not None and places < lines + PLACES:
            raise Unsupported(
                f"The backend holds {places} models at once, and {lines} lines need {lines + PLACES}: the base, each "
                "line's live version, and one on its way. Raise that number there. Nothing was made."
            )
        if (lacks := await self._backend.lacks_room(lines)) is not None:
            raise Unsupported(f"{lacks} Nothing was made.")

    async def _check_model_name(self, name: str) -> None:
        """Raises Conflict where the server has a model of that name."""
        model = f"{self._live_version.model}@{name}"
        if any(entry.get("id") == model for entry in await self._backend.models()):
            raise Conflict(f"The backend has a model named {model}. Nothing was made.", param="name")

    async def _version_of(self, origin: str) -> int:
        """Raises BadRequest, NotFound, Gone."""
        if origin == "base":
            return BASE
        number = origin.removeprefix("v")
        if not (number.isdecimal() and len(number) < 10):
            return self._live_version.live_of(self.existing(origin))
        adapter = await self._store.versions.get(int(number))
        if adapter is None or adapter.is_deleted:
            raise NotFound(f"Version {origin} does not exist; `rlproxy adapters` lists all versions.", param="from")
        return adapter.version


def _check_names(users: Collection[str], agents: Collection[str]) -> None:
    """Raises BadRequest where one is not a name."""
    for kind, members in (("user", users), ("agent", agents)):
        if not all(_MEMBER.fullmatch(member) for member in members):
            raise BadRequest(f"A {kind}'s name has 1 to 200 printable characters. Nothing was changed.")


def describe_origin(line: StoredLine) -> str:
    return f"began with {version_in_words(line.origin)}"
