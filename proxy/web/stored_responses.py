"""`GET` and `DELETE /v1/responses/{id}`, `…/input_items`, `…/cancel`: captured answers, by the id their client has.

Owns these routes. An id that is not ours, or another's, goes to the backend, which may know it. So does one that the
backend works on in the background, under its own id.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

from aiohttp import web

from proxy.access.keys import Scope
from proxy.access.security import principal_of
from proxy.conversation.conversations import as_chat
from proxy.core.errors import BadRequest, Conflict, NotFound, ProxyError
from proxy.core.json_edit import dumps, loads
from proxy.core.json_response import json_response
from proxy.core.offload import off_loop
from proxy.core.wrapped_ids import unwrap_id
from proxy.dialects import RESPONSES
from proxy.dialects.chat import as_chunk
from proxy.dialects.identity import head_identity
from proxy.dialects.responses_history import listed_items
from proxy.dialects.responses_object import reply_items, response
from proxy.dialects.responses_renderer import ResponsesRenderer
from proxy.dialects.responses_tools import tools_of
from proxy.relay.parts import RelayParts
from proxy.relay.previous_response import PreviousResponses, with_text_arguments
from proxy.relay.request_body import COPIES, hold
from proxy.web.background_responses import BackgroundResponses
from proxy.web.forgetting import Forgetter
from proxy.web.openapi.responses import DeletedResponse
from proxy.web.query import flag, number
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

    async def cancel(self, request: web.Request) -> web.StreamResponse:
        """Raises BadRequest where there is nothing to cancel, as OpenAI does."""
        completion = await self._find(request)
        if completion is None:
            return await self._passthrough(request)
        answer = await self._of_backend(request, completion, self._background.cancel)
        if answer is not None:
            return answer
        if loads(completion.new.request).get("background") is not True:
            raise BadRequest("Only a response that was asked for with `background` can be cancelled; nothing changed.")
        return await self._stored(request, await self._find(request) or completion)

    async def get(self, request: web.Request) -> web.StreamResponse:
        """The backend's answer about a response in the background, else the stored one."""
        completion = await self._find(request)
        if completion is None:
            return await self._passthrough(request)
        answer = await self._of_backend(request, completion, self._background.get)
        if answer is not None:
            return answer
        completion = await self._find(request) or completion  # it may have ended in this moment
        return await (self._streamed if flag(request, "stream") else self._stored)(request, completion)

    async def input_items(self, request: web.Request) -> web.StreamResponse:
        """The prompt, as a page of items."""
        completion = await self._find(request)
        if completion is None:
            return await self._passthrough(request)
        messages = [with_text_arguments(as_chat(message)) for message in completion.new.prompt]
        body = loads(completion.new.request)
        if body.get("instructions") and messages and messages[0].get("role") == "system":
            messages = messages[1:]
        items = listed_items(completion.new.id, messages, tools_of(body))
        return json_response(_page(items, request))

    async def _of_backend(
        self, request: web.Request, completion: Completion, ask: AsksBackend
    ) -> web.StreamResponse | None:
        """Ask where the response was made in the background; None where it was not, or is final and gone there."""
        if (id := await self._store.items.response_of(completion.new.id)) is None:
            return None
        try:
            return await ask(request, completion, id)
        except ProxyError:
            if completion.end is None:
                raise
            return None

    async def _stored(self, request: web.Request, completion: Completion) -> web.Response:
        body = await off_loop(_size(completion), _whole, completion)
        return web.Response(body=body, content_type="application/json")

    async def _streamed(self, request: web.Request, completion: Completion) -> web.Response:
        """Its events again, or those after `starting_after`. Raises Conflict where it has not ended."""
        if completion.end is None:
            raise Conflict("This response is still being made, and its stream is its first client's. Ask again later.")
        newest_number = number(request, "starting_after", -1, 0, 2**31)
        events = await off_loop(_size(completion), _events, completion)
        return web.Response(
            body=b"".join(events[newest_number + 1 :]), content_type="text/event-stream", charset="utf-8"
        )

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


def _size(completion: Completion) -> int:
    """Bytes to work on, about."""
    return len(completion.new.request) + len(completion.end.text or "" if completion.end else "")


def _renderer(completion: Completion) -> ResponsesRenderer:
    """Says the stored answer as its client was told it."""
    request, end = loads(completion.new.request), completion.end
    parsed = RESPONSES.parse({**request, "input": "x"})
    parsed = replace(parsed, model=completion.new.model, previous=request.get("previous_response_id"))
    finished = end.finished_at if end else None
    return ResponsesRenderer(completion.new.id, parsed, int(completion.new.created_at), finished)


def _chat(completion: Completion) -> dict[str, Any]:
    """The answer as a chat completion, as far as the store has it: reasoning and log-probs are not told again."""
    end = completion.end
    message = {} if end is None or end.reply is None else with_text_arguments(as_chat(end.reply))
    if end is not None and isinstance(message.get("content"), str):
        message["content"] = end.text or message["content"]  # the tree has it without the white space at its ends
    choice = {"index": 0, "message": message, "finish_reason": end.finish_reason if end else None}
    return {"choices": [choice], "usage": end.usage if end else None}


def _whole(completion: Completion) -> bytes:
    error = _failure(completion)
    if completion.end is None or error is not None:
        return _unfinished(completion, error)
    return _renderer(completion).whole(_chat(completion))


def _events(completion: Completion) -> list[bytes]:
    renderer, error = _renderer(completion), _failure(completion)
    pieces = renderer.chunk(as_chunk(_chat(completion)))
    if error is not None:
        return [*pieces, renderer.failed(error)]
    output, last = renderer.end()
    return [*pieces, *output, last]


def _failure(completion: Completion) -> ProxyError | None:
    end = completion.end
    return ProxyError(end.error or "unknown") if end is not None and end.status in ("error", "partial") else None


def _unfinished(completion: Completion, error: ProxyError | None) -> bytes:
    """A response that is not there yet, or that failed."""
    request, end = loads(completion.new.request), completion.end
    reply = None if end is None or end.reply is None else with_text_arguments(as_chat(end.reply))
    return dumps(
        response(
            request,
            id=completion.new.id,
            model=completion.new.model,
            created=int(completion.new.created_at),
            status="in_progress" if error is None else "failed",
            output=[] if reply is None else reply_items(completion.new.id, reply, tools_of(request)),
            previous=request.get("previous_response_id"),
            usage=end.usage if end else None,
            error=None if error is None else {"code": "server_error", "message": error.message},
        )
    )


def _page(items: list[dict[str, Any]], request: web.Request) -> dict[str, Any]:
    """Newest first unless `order=asc`, from the item `after` on, `limit` of them. Raises BadRequest."""
    if request.query.get("order", "desc") != "asc":
        items = items[::-1]
    if (id := request.query.get("after")) is not None:
        place = next((n for n, item in enumerate(items) if item["id"] == id), None)
        if place is None:
            raise BadRequest(f"This response has no item {id!r}.", param="after")
        items = items[place + 1 :]
    limit = number(request, "limit", 20, 1, 100)
    page = items[:limit]
    first, last = (page[0]["id"], page[-1]["id"]) if page else ("", "")
    return {"object": "list", "data": page, "first_id": first, "last_id": last, "has_more": len(items) > limit}
