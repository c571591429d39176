"""Why, for a completion: everything that is known of it.

Owns one view: the whole conversation, the request, ratings of all times, and which runs took them. For a version, the
same question is answered by `versions`.
"""

from __future__ import annotations

from typing import Final

import orjson
from aiohttp import web

from proxy.conversation.cut_prompts import CutPrompts, cut_reason
from proxy.core.errors import NotFound
from proxy.web.explanation import Explanations
from proxy.web.pages.pictures import Pictures
from proxy.web.pages.view import VISITOR, View
from store.learning.lessons import CommentLesson
from store.store import Store

CHANGED: Final = "changed or forgotten since"  # of words that stood in a prompt


def state(lesson: CommentLesson) -> str:
    """State of a lesson now, in words."""
    learned = f", v{lesson.learned} has learned it" if lesson.learned else ""
    if lesson.state == "active":
        return f"still in prompts{learned}"
    return f"{lesson.state}{f': {lesson.end_reason}' if lesson.end_reason else ''}{learned}"


class CompletionPage:
    def __init__(
        self, view: View, store: Store, cut: CutPrompts, explanations: Explanations, pictures: Pictures
    ) -> None:
        self._view = view
        self._store = store
        self._cut = cut
        self._explanations = explanations
        self._pictures = pictures

    async def page(self, request: web.Request) -> web.Response:
        completion = await self._store.completions.get(request.match_info["id"])
        row = await self._store.inbox.get(request.match_info["id"])
        if completion is None or row is None:
            await self._explanations.explain(request.match_info["id"])  # one that was forgotten is told apart
            raise NotFound("This completion is not here any more.", param="id")
        siblings = await self._store.inbox.siblings(row.prompt_hash) if row.prompt_hash else []
        request_json = orjson.loads(completion.new.request) if completion.new.request else {}
        end = completion.end
        numbers = end.logprobs if end and end.logprobs else None
        inexact = end is not None and end.prompt_token_ids is None
        cut = cut_reason(completion.new.prompt, end.usage) if end is not None and inexact else None
        return self._view.page(
            request,
            "completion.html",
            cut=cut,
            longer=self._cut.setting,
            row=row,
            me=request[VISITOR].name,
            new=completion.new,
            talk=list(zip(completion.new.prompt, await self._pictures.talk(completion.new.prompt), strict=True)),
            end=end,
            history=await self._store.ratings.history(row.id),
            signals=await self._store.signals.of(row.id),
            explanation=await self._explanations.explain(row.id),
            siblings=[s for s in siblings if s.id != row.id],
            request_body=orjson.dumps(request_json, option=orjson.OPT_INDENT_2).decode(),
            lessons=await self._lessons(row.id),
            surprise=-sum(numbers) / len(numbers) if numbers else None,
        )

    async def _lessons(self, id: str) -> list[tuple[str, str]]:
        """Each lesson that stood in the prompt, with what has become of it."""
        in_prompt = (await self._store.lessons.in_prompts([id])).get(id, [])
        current = {lesson.rating: lesson for lesson in await self._store.lessons.all()} if in_prompt else {}
        return [
            (text, state(current[rating]) if rating in current and current[rating].text == text else CHANGED)
            for rating, text in ((lesson.rating, lesson.text) for lesson in in_prompt)
        ]
