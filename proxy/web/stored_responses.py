"""`GET` and `DELETE /v1/responses/{id}`, and `POST …/cancel`: answers that were captured, by the id their client has.

Owns these routes. An id that is not ours, or another's, goes to the backend, which may know it. So does one that the
backend works on in the background, under its own id.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import web

from proxy.access.keys import Scope
from proxy.access.security import principal_of
from proxy.conversation.conversations import as_chat
from proxy.core.errors import Conflict, NotFound, ProxyError
from proxy.core.json_edit import loads
from proxy.core.json_response import json_response
from proxy.core.wrapped_ids import unwrap_id
from proxy.dialects.identity import head_identity
from proxy.dialects.responses_object import incomplete_reason, reply_items, response
from proxy.dialects.responses_tools import tools_of
from proxy.relay.parts import RelayParts
from proxy.relay.previous_response import PreviousResponses, with_text_arguments
from proxy.relay.request_body import COPIES, hold
from proxy.web.background_responses import BackgroundResponses
from proxy.web.forgetting import Forgetter
from proxy.web.openapi.responses import DeletedResponse
from store.records import Completion

AsksBackend = Callable[[web.Request, Completion, str], Awaitable[web.StreamResponse | None]]


class StoredResponses:
    def __init__(
        self,
        parts: RelayParts,
        forgetter: Forgetter,
        passthrough: Callable[[web.Request], Awaitable[web.StreamResponse]],
    ) -> None:
        self._forgetter = forgetter
        self._previous_responses = PreviousResponses(parts.store, parts.redactor)
        self._passthrough = passthrough
        self._store = parts.store
        self._background = BackgroundResponses(parts)

    async def get(self, request: web.Request) -> web.StreamResponse:
        return await self._ask_backend(request, self._background.get)

    async def cancel(self, request: web.Request) -> web.StreamResponse:
        return await self._ask_backend(request, self._background.cancel)

    async def _ask_backend(self, request: web.Request, ask: AsksBackend) -> web.StreamResponse:
        """The backend's answer about a response in the background, else the stored one."""
        completion = await self._find(request)
        if completion is None:
            return await self._passthrough(request)
        if (id := await self._store.items.response_of(completion.new.id)) is not None:
            try:
                answer = await ask(request, completion, id)
            except ProxyError:
                if completion.end is None:
                    raise
                answer = None
            if answer is not None:
                return answer
            completion = await self._find(request) or completion  # it may have ended in this moment
        return json_response(to_response(completion))

    async def delete(self, request: web.Request) -> web.StreamResponse:
        completion = await self._find(request)
        if completion is None:
            return await self._passthrough(request)
        if completion.ratings:
            raise Conflict("This response has been rated and is kept for training; take the rating back first.")
        if (id := await self._store.items.response_of(completion.new.id)) is not None:
            await self._background.delete(request, completion, id)
        await self._forgetter.delete(completion.new.id)
        return json_response(DeletedResponse(id=completion.new.id, object="response", deleted=True))

    async def _find(self, request: web.Request) -> Completion | None:
        head = head_identity(request.headers)
        scope = Scope.of(principal_of(request), head.user or next(iter(head.users), None), head.people)
        id = request.match_info["id"]
        hold(request, COPIES * await self._store.sizes.whole([unwrap_id(id)], scope.keys))
        completion = await self._previous_responses.completion(id, scope)
        if completion is None and await self._previous_responses.is_anothers(id, scope):
            raise NotFound(f"Response with id '{id}' not found.")
        return completion if completion is not None and completion.new.dialect == "responses" else None


def to_response(completion: Completion) -> dict[str, Any]:
    """The answer as the client was told it, as far as the store has it: reasoning is not kept."""
    request, end = loads(completion.new.request), completion.end
    reason = incomplete_reason(end.finish_reason) if end else None
    failed = end is not None and end.status in ("error", "partial")
    status = "in_progress" if end is None else "failed" if failed else "incomplete" if reason else "completed"
    reply = None if end is None or end.reply is None else with_text_arguments(as_chat(end.reply))
    return response(
        request,
        id=completion.new.id,
        model=completion.new.model,
        created=int(completion.new.created_at),
        status=status,
        output=[] if reply is None else reply_items(completion.new.id, reply, tools_of(request)),
        previous=request.get("previous_response_id"),
        usage=end.usage if end else None,
        incomplete=reason,
        error={"code": "server_error", "message": end.error or "unknown"} if end and failed else None,
        completed=end.finished_at if end else None,
    )
