"""Sessions of which nothing is kept, until a person says otherwise: `x-rl-capture: off` for agents without headers.

Owns which they are, `GET` and `POST /rl/capture`. What was captured of a session before stays: it is forgotten, or it
expires, as all else.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Final, Literal

from aiohttp import web
from pydantic import Field
from typing_extensions import TypedDict

from proxy.access.security import actor_of
from proxy.conversation.active_conversations import ActiveConversations
from proxy.conversation.retries import Retries
from proxy.core.errors import BadRequest
from proxy.core.json_edit import loads
from proxy.core.json_response import json_response
from proxy.core.offload import off_loop
from store.file.meta import UNCAPTURED
from store.store import Store

MOST: Final = 10_000
LONGEST: Final = 200


def says_off(headers: Mapping[str, str]) -> bool:
    """The header `x-rl-capture`, in any case. Raises BadRequest where it says neither on nor off: a person who asks
    for privacy in other words must not be captured."""
    setting = headers.get("x-rl-capture")
    if setting is not None and (setting := setting.strip().lower()) not in ("on", "off"):
        raise BadRequest(
            "The header `x-rl-capture` must be `off` or `on`; nothing was kept, and the model was not asked.",
            param="x-rl-capture",
        )
    return setting == "off"


class CaptureOptouts(TypedDict):
    off: Annotated[list[str], Field(description="Sessions of which nothing is kept.")]


class Captured(TypedDict):
    session: str
    capture: Literal["on", "off"]


class CaptureOptout:
    def __init__(self, store: Store, recent: ActiveConversations, retries: Retries) -> None:
        self._store, self._recent, self._retries = store, recent, retries
        self.sessions: set[str] = set()

    async def start(self) -> None:
        self.sessions = set(await self._store.meta.get(UNCAPTURED, []))

    async def refresh(self) -> None:
        """Take over what other relays were told. Raises StoreError."""
        sessions = set(await self._store.meta.get(UNCAPTURED, []))
        if sessions != self.sessions:
            self._recent.clear()
            self.sessions = sessions

    async def get(self, request: web.Request) -> web.Response:
        return json_response(CaptureOptouts(off=sorted(self.sessions)))

    async def post(self, request: web.Request) -> web.Response:
        """Answers when it is on disk and in force."""
        try:
            raw = await request.read()
            body = await off_loop(len(raw), loads, raw)
        except ValueError:
            body = None
        session, capture = (body.get(key) for key in ("session", "capture")) if isinstance(body, dict) else (None, None)
        if not isinstance(session, str) or not 0 < len(session) <= LONGEST:
            raise BadRequest(f"`session` must be the name of one, of at most {LONGEST} characters.", param="session")
        capture = capture.strip().lower() if isinstance(capture, str) else None
        if capture not in ("on", "off"):
            raise BadRequest("`capture` must be on or off.", param="capture")
        sessions = self.sessions | {session} if capture == "off" else self.sessions - {session}
        if len(sessions) > MOST:
            raise BadRequest(f"{MOST} sessions are off already; turn some on again.", param="session")
        self._recent.clear()  # what it said a moment ago, too
        self.sessions |= sessions  # before it is stored: of a request that comes meanwhile nothing is kept
        self._retries.forget_session(session)
        await self._store.meta.set(UNCAPTURED, sorted(sessions))
        self.sessions = sessions
        await self._store.meta.audit(actor_of(request), "capture", {"session": session, "capture": capture})
        return json_response(Captured(session=session, capture="on" if capture == "on" else "off"))
