"""Open WebUI as our event function sees it: its models, its socket, and the events of a person's clicks.

Faithful to 0.12.4, run for real: `models/feedbacks.py`, `models/chats.py`, `routers/evaluations.py`, `events.py`, and
`ResponseMessage.svelte` for what a click sends. `make test-openwebui` runs the function in Open WebUI itself.
"""

from __future__ import annotations

import copy
import importlib.util
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, Final

from pydantic import BaseModel

FUNCTION: Final = Path(__file__).parents[3] / "integrations/open-webui/rlproxy_thumbs.py"
USER: Final = {"id": "u-1", "email": "ann@example.org", "name": "Ann", "role": "user"}


class FeedbackModel(BaseModel):
    id: str
    user_id: str
    version: int
    type: str
    data: dict[str, Any] | None = None
    meta: dict[str, Any] | None = None
    snapshot: dict[str, Any] | None = None
    created_at: int
    updated_at: int


class FakeOpenWebUI:
    def __init__(self, function: Any) -> None:
        self.function = function
        self.chats: dict[str, dict[str, Any]] = {}
        self.feedbacks: dict[str, FeedbackModel] = {}
        self.users = {USER["id"]: USER}
        self.notices: list[tuple[str, str]] = []  # in the chat: kind and text
        self.clock = 1_700_000_000

    # A person

    def says(self, chat: str, text: str, *, parent: str | None = None) -> str:
        """The id of the person's message; by itself below the newest one."""
        return self._add(chat, {"role": "user", "content": text}, parent)

    def answered(self, chat: str, text: str, *, parent: str | None = None, **fields: Any) -> str:
        output = [{"type": "message", "status": "completed", "content": [{"type": "output_text", "text": text}]}]
        message = {"role": "assistant", "content": text, "output": output, "done": True, "model": "fake", **fields}
        return self._add(chat, {key: value for key, value in message.items() if value is not None}, parent)

    async def thumb(self, chat: str, message_id: str, rating: int) -> str:
        """Send what one click sends: the feedback, then its tags. Returns the feedback's id."""
        message = self.chats[chat]["history"]["messages"][message_id]
        note = message.setdefault("annotation", {})
        if note.get("rating") != rating:
            note |= {"rating": rating, "reason": None, "details": None}
        id = await self._save(chat, message_id)
        note["tags"] = ["cats"]
        await self._save(chat, message_id)
        return id

    async def comment(self, chat: str, message_id: str, **details: Any) -> None:
        """Saves the form below a thumb: `reason`, `comment`, `details`."""
        self.chats[chat]["history"]["messages"][message_id]["annotation"] |= details
        await self._save(chat, message_id)

    async def edit(self, chat: str, message_id: str, text: str) -> None:
        message = self.chats[chat]["history"]["messages"][message_id]
        if "output" in message:  # then nothing keeps what it was
            message["output"][-1]["content"] = [{"type": "output_text", "text": text}]
        else:
            message["originalContent"] = message["content"]
        message["content"] = text
        await self._event("chat.updated", chat, "chat", {"title": "A chat"})

    async def delete(self, feedback_id: str) -> None:
        del self.feedbacks[feedback_id]
        await self._event("feedback.deleted", feedback_id, "feedback")

    async def delete_all(self, *, user: bool) -> None:
        self.feedbacks.clear()
        await self._event("feedback.deleted_all", USER["id"] if user else "all", "user" if user else "feedback")

    def export(self) -> list[dict[str, Any]]:
        """`GET /api/v1/evaluations/feedbacks/all/export`, newest first."""
        feedbacks = sorted(self.feedbacks.values(), key=lambda feedback: feedback.updated_at, reverse=True)
        return [feedback.model_dump() for feedback in feedbacks]

    # Its server

    def _add(self, chat: str, message: dict[str, Any], parent: str | None) -> str:
        history = self.chats.setdefault(chat, {"history": {"messages": {}, "currentId": None}})["history"]
        id, parent = str(uuid.uuid4()), parent or history["currentId"]
        history["messages"][id] = {**message, "id": id, "parentId": parent, "childrenIds": []}
        if parent is not None:
            history["messages"][parent]["childrenIds"].append(id)
        history["currentId"] = id
        return id

    async def _save(self, chat: str, message_id: str) -> str:
        message = self.chats[chat]["history"]["messages"][message_id]
        self.clock += 1
        id, new = message.get("feedbackId"), "feedbackId" not in message
        id = id or str(uuid.uuid4())
        self.feedbacks[id] = FeedbackModel(
            id=id, user_id=USER["id"], version=0, type="rating",
            data={**copy.deepcopy(message["annotation"]), "model_id": "fake", "sibling_model_ids": None},
            meta={"arena": None, "model_id": "fake", "message_id": message_id, "message_index": 2, "chat_id": chat},
            snapshot={"chat": {"id": chat, "title": "A chat", "chat": copy.deepcopy(self.chats[chat])}},
            created_at=self.clock if new else self.feedbacks[id].created_at, updated_at=self.clock,
        )  # fmt: skip
        message["feedbackId"] = id
        data = {"rating": message["annotation"]["rating"]}
        await self._event("feedback.created" if new else "feedback.updated", id, "feedback", data)
        return str(id)

    async def _event(self, name: str, id: str, kind: str, data: dict[str, Any] | None = None) -> None:
        event = {
            "schema": "0.12.4", "id": str(uuid.uuid4()), "event": name, "resource": name.rpartition(".")[0],
            "operation": name.rpartition(".")[2], "created_at": self.clock, "instance_id": None, "version": "0.12.4",
            "source": "api", "actor": {**USER, "type": "user"}, "subject": {"type": kind, "id": id},
            "data": data or {}, "message": None,
        }  # fmt: skip
        await self.function.event(event=event, __event_name__=name)

    # What the function imports

    async def get_feedback_by_id(self, id: str) -> FeedbackModel | None:
        return self.feedbacks.get(id)

    async def get_feedbacks_by_chat_id(self, chat_id: str) -> list[FeedbackModel]:
        return [
            feedback for feedback in self.feedbacks.values() if feedback.meta and feedback.meta["chat_id"] == chat_id
        ]

    async def get_chat_by_id(self, id: str) -> Any:
        return SimpleNamespace(id=id, chat=copy.deepcopy(self.chats[id])) if id in self.chats else None

    async def get_user_by_id(self, id: str) -> Any:
        return SimpleNamespace(**self.users[id]) if id in self.users else None

    async def get_event_emitter(self, info: dict[str, Any], update_db: bool = True) -> Any:
        async def emit(event: dict[str, Any]) -> None:
            is_shown = (
                info["message_id"]
                in self.chats.get(info["chat_id"], {"history": {"messages": {}}})["history"]["messages"]
            )
            if is_shown and info["user_id"] == USER["id"] and event["type"] == "notification":
                self.notices.append((event["data"]["type"], event["data"]["content"]))

        assert not update_db
        return emit


@contextmanager
def running(url: str, api_key: str = "") -> Iterator[FakeOpenWebUI]:
    """With our function in it, as it is pasted."""
    spec = importlib.util.spec_from_file_location("rlproxy_thumbs", FUNCTION)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["rlproxy_thumbs"] = module
    spec.loader.exec_module(module)
    function = module.Event()
    function.valves = module.Event.Valves(url=url, api_key=api_key)
    fake = FakeOpenWebUI(function)
    names: dict[str, dict[str, Any]] = {
        "open_webui": {}, "open_webui.models": {}, "open_webui.models.feedbacks": {"Feedbacks": fake},
        "open_webui.models.chats": {"Chats": fake}, "open_webui.models.users": {"Users": fake},
        "open_webui.socket": {}, "open_webui.socket.main": {"get_event_emitter": fake.get_event_emitter},
    }  # fmt: skip
    for name, members in names.items():
        sys.modules[name] = ModuleType(name)
        sys.modules[name].__dict__.update(members)
    try:
        yield fake
    finally:
        for name in names:
            del sys.modules[name]
