"""`/rl/lessons`: comments that act at once, listed, edited, removed, brought back. All of it is an admin's.

Owns their HTTP and what may be said of a lesson, which the page says, too. Not here: which prompts they are in
(proxy.relay.lessons).
"""

from __future__ import annotations

from typing import Any, Final

from aiohttp import web

from proxy.access.security import actor_of, require_admin
from proxy.conversation.redaction import Redactor
from proxy.core.errors import BadRequest, NotFound
from proxy.core.json_response import json_object, json_response
from proxy.relay.lessons import PromptLessons
from proxy.web.openapi.lessons import LessonBody, LessonsBody
from store.errors import UnknownRating
from store.learning.lessons import LONGEST, CommentLesson
from store.store import Store

MEMBERS: Final = {"text": str, "always": bool, "active": bool}


class LessonRoutes:
    def __init__(self, store: Store, lessons: PromptLessons | None, redactor: Redactor) -> None:
        self._store = store
        self._lessons = lessons
        self._redactor = redactor

    @property
    def enabled(self) -> bool:
        return self._lessons is not None

    async def list(self, request: web.Request) -> web.Response:
        """Newest first; those that have ended, too."""
        require_admin(request)
        lessons = [as_json(lesson) for lesson in await self._store.lessons.all()]
        return json_response(LessonsBody(enabled=self.enabled, data=lessons))

    async def edit(self, request: web.Request) -> web.Response:
        """Other words, every question instead of its topic, or active again. What is not named, or null, stays."""
        require_admin(request)
        edits = await json_object(request)
        body = {name: value for name, value in edits.items() if value is not None}
        if not body or not edits.keys() <= MEMBERS.keys():
            raise BadRequest("The body must be a JSON object with `text`, `always` or `active`.")
        for name, value in body.items():
            if not isinstance(value, MEMBERS[name]):
                raise BadRequest(f"`{name}` must be a {MEMBERS[name].__name__}.", param=name)
        return json_response(as_json(await self.change(request.match_info["id"], body, actor_of(request))))

    async def remove(self, request: web.Request) -> web.Response:
        """It acts no more; its rating stays, and trains."""
        require_admin(request)
        return json_response(as_json(await self.change(request.match_info["id"], {"active": False}, actor_of(request))))

    async def change(self, id: str, edits: dict[str, Any], actor: str) -> CommentLesson:
        """Raises BadRequest, NotFound."""
        lesson = await self._find(id)
        text = lesson.text if lesson.edited else None
        if "text" in edits:
            text = self._redactor.text(edits["text"].strip())  # as a comment, before it is stored
            if not text or len(text) > LONGEST:
                raise BadRequest(f"`text` must have 1 to {LONGEST} characters.", param="text")
        active = edits.get("active", not lesson.has_ended)  # one that a run has retired has not
        end_state, reason = (None, None) if active else (lesson.state, lesson.end_reason)
        if not active and not lesson.has_ended:
            end_state, reason = "removed", f"by {actor}"
        always = edits.get("always", lesson.always)
        try:
            await self._store.lessons.say(id, text=text, always=always, ended=end_state, reason=reason, actor=actor)
        except UnknownRating:
            raise _none(id) from None
        if self._lessons is not None:
            self._lessons.changed()
        return await self._find(id)

    async def _find(self, id: str) -> CommentLesson:
        for lesson in await self._store.lessons.all():
            if lesson.rating == id:
                return lesson
        raise _none(id)


def as_json(lesson: CommentLesson) -> LessonBody:
    return {
        "id": lesson.rating, "completion": lesson.completion, "user": lesson.user, "question": lesson.question,
        "text": lesson.text, "edited": lesson.edited, "always": lesson.always, "state": lesson.state,
        "why": lesson.end_reason,
        "created_at": lesson.created_at, "learned": lesson.learned,
    }  # fmt: skip


def _none(id: str) -> NotFound:
    return NotFound(f"There is no lesson {id}; `rlproxy lessons` lists them.", param="id")
