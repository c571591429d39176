"""Why, for a completion: everything that is known of it.

Owns one view: the whole conversation, the request, ratings of all times, and which runs took them. For a version, the
same question is answered by `versions`.
"""

from __future__ import annotations

import orjson
from aiohttp import web

from proxy.errors import NotFound
from proxy.pages.view import VISITOR, View
from store.store import Store


class WhyPage:
    def __init__(self, view: View, store: Store) -> None:
        self._view = view
        self._store = store

    async def page(self, request: web.Request) -> web.Response:
        found = await self._store.completion(request.match_info["id"])
        row = await self._store.listed(request.match_info["id"])
        if found is None or row is None:
            raise NotFound("This completion is not here any more.", param="id")
        siblings = await self._store.siblings(row.prompt_hash) if row.prompt_hash else []
        asked = orjson.loads(found.new.request) if found.new.request else {}
        end = found.end
        numbers = end.logprobs if end and end.logprobs else None
        return self._view.page(
            request,
            "completion.html",
            row=row,
            me=request[VISITOR].name,
            new=found.new,
            end=end,
            history=await self._store.ratings_of(row.id),
            runs=await self._store.runs_of(row.id),
            siblings=[s for s in siblings if s.id != row.id],
            request_body=orjson.dumps(asked, option=orjson.OPT_INDENT_2).decode(),
            surprise=-sum(numbers) / len(numbers) if numbers else None,
        )
