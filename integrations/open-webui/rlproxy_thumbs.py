"""
title: rlproxy thumbs
description: Open WebUI's own 👍 and 👎, with scale, reason, comment and edited answer, rate in rlproxy.
version: 0.2.0
required_open_webui_version: 0.12.4
license: MIT
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import aiohttp
from pydantic import BaseModel, Field

log = logging.getLogger("rlproxy")

TRIES_S = (0, 2, 5)  # rlproxy may be starting again
MESSAGE = ("role", "content", "originalContent", "output")  # all that rlproxy needs of one


class Event:
    """Called by Open WebUI for each of its events; it runs in the background, so nobody waits for it."""

    class Valves(BaseModel):
        url: str = Field("http://127.0.0.1:8484", description="Where rlproxy is; in a container the host's name.")
        api_key: str = Field("", description="The key by which Open WebUI asks rlproxy, if there is one.")

    def __init__(self) -> None:
        self.valves = self.Valves()
        self._turn = asyncio.Lock()  # what is read last is sent last
        self._edited: set[str] = set()  # feedback whose answer was edited after it
        self._later: list[dict[str, Any]] = []  # deletions that rlproxy has not heard of

    async def event(self, event: dict[str, Any], __event_name__: str) -> None:
        subject = event.get("subject") or {}
        async with self._turn:
            if __event_name__ in ("feedback.created", "feedback.updated"):
                await self._given(subject["id"])
            elif __event_name__ == "feedback.deleted":
                await self._deleted({"deleted": subject["id"]})
            elif __event_name__ == "feedback.deleted_all":
                whose = {"rater": event["actor"]["email"]} if subject.get("type") == "user" else {}
                await self._deleted({"deleted": "all", **whose})
            elif __event_name__ == "chat.updated":
                await self._edits(subject["id"])

    async def _given(self, id: str) -> None:
        from open_webui.models.feedbacks import Feedbacks

        feedback = await Feedbacks.get_feedback_by_id(id)
        if feedback is not None:
            await self._rate(feedback, messages_of(feedback.snapshot, feedback.meta), "given")

    async def _edits(self, chat_id: str) -> None:
        """The answer of a feedback was edited: what it reads like now is a correction."""
        from open_webui.models.chats import Chats
        from open_webui.models.feedbacks import Feedbacks

        feedbacks = await Feedbacks.get_feedbacks_by_chat_id(chat_id)
        chat = await Chats.get_chat_by_id(chat_id) if feedbacks else None
        for feedback in feedbacks if chat is not None else ():
            now = messages_of({"chat": {"chat": chat.chat}}, feedback.meta)
            if now and (now[-1:] != messages_of(feedback.snapshot, feedback.meta)[-1:] or feedback.id in self._edited):
                self._edited.add(feedback.id)
                await self._rate(feedback, now, "edited")

    async def _rate(self, feedback: Any, messages: list[dict[str, Any]], how: str) -> None:
        from open_webui.models.users import Users

        user = await Users.get_user_by_id(feedback.user_id)
        body = {
            "feedback": feedback.model_dump(exclude={"snapshot"}), "messages": messages, "how": how,
            "rater": user.email if user is not None else None,
        }  # fmt: skip
        try:
            answer = await self._send(body)
        except (aiohttp.ClientError, LookupError, TimeoutError) as error:
            if how == "given":
                log.error("rlproxy has not taken feedback %s: %s", feedback.id, error)
                await self._tell(feedback, "error", f"Not rated in rlproxy: {error}")
        else:
            if answer["result"] == "rated":
                await self._tell(feedback, "success", answer["line"])

    async def _deleted(self, body: dict[str, Any]) -> None:
        self._later.append(body)
        while self._later:
            try:
                await self._send(self._later[0])
            except LookupError as error:
                log.error("rlproxy has not taken back %s: %s", self._later[0]["deleted"], error)
            except (aiohttp.ClientError, TimeoutError) as error:
                log.error("rlproxy will hear of %d deleted feedbacks with the next one: %s", len(self._later), error)
                return
            self._later.pop(0)

    async def _send(self, body: dict[str, Any]) -> dict[str, Any]:
        """What rlproxy answers. Raises LookupError with its sentence, ClientError, TimeoutError."""
        for wait_s in TRIES_S:
            await asyncio.sleep(wait_s)
            try:
                return await self._post(body)
            except (aiohttp.ClientConnectionError, TimeoutError) as error:
                last = error
        raise last

    async def _post(self, body: dict[str, Any]) -> dict[str, Any]:
        headers = {"authorization": f"Bearer {self.valves.api_key}"} if self.valves.api_key else {}
        url = f"{self.valves.url.rstrip('/')}/v1/feedback/open-webui"
        timeout = aiohttp.ClientTimeout(total=30)
        async with (
            aiohttp.ClientSession(headers=headers, timeout=timeout) as http,
            http.post(url, json=body, allow_redirects=False) as response,
        ):
            try:
                answer = await response.json(content_type=None)
                if response.status in (200, 201):
                    return dict(answer)
                said = answer["error"]["message"]
            except (ValueError, KeyError, TypeError):
                said = f"{url} answered {response.status}, and not as rlproxy does. Is the function's valve right?"
            raise LookupError(said)

    async def _tell(self, feedback: Any, kind: str, said: str) -> None:
        """In the chat, where the thumb was pressed."""
        from open_webui.socket.main import get_event_emitter

        meta = feedback.meta or {}
        where = {"user_id": feedback.user_id, "chat_id": meta.get("chat_id"), "message_id": meta.get("message_id")}
        emit = await get_event_emitter(where, update_db=False)
        await emit({"type": "notification", "data": {"type": kind, "content": said}})


def messages_of(snapshot: dict[str, Any] | None, meta: dict[str, Any] | None) -> list[dict[str, Any]]:
    """The chat up to the rated message."""
    chat = ((snapshot or {}).get("chat") or {}).get("chat") or {}
    every = (chat.get("history") or {}).get("messages") or {}
    path: list[dict[str, Any]] = []
    at = (meta or {}).get("message_id")
    while at in every and len(path) < len(every):
        path.append({key: every[at][key] for key in MESSAGE if every[at].get(key)})
        at = every[at].get("parentId")
    return path[::-1]
