"""`POST /v1/responses/compact` where the server has no such route: the model sums the conversation up.

Owns that request and its answer. It is asked for as a response, in the way of every other, and counts as a side turn.
The summary is plain text, in the member that OpenAI encrypts; a later request may send the item back.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, Final

from aiohttp import web
from multidict import CIMultiDict

from proxy.access.bodies import BODY, HELD_BYTES
from proxy.core.errors import BadRequest
from proxy.core.json_edit import dumps
from proxy.core.json_response import as_object, json_response, parse_json
from proxy.core.offload import off_loop
from proxy.dialects.responses_items import SUMMARY, plain
from proxy.relay.framing import OK
from proxy.relay.models import is_missing
from proxy.relay.parts import RelayParts
from proxy.relay.request_body import room_for
from proxy.web.error_middleware import Handler
from proxy.web.event_writer import EventWriter, answered_body, response_in
from proxy.web.response_socket import Admits

ASK: Final = (
    "Sum up the conversation above for whoever continues it: what was asked, what was decided, names, numbers, and "
    "what is still open. Write the summary alone."
)
_PASSED_ON: Final = ("model", "instructions", "previous_response_id", "prompt_cache_key", "user", "metadata")
_ROUTE: Final = "/compact"


class Compaction:
    def __init__(self, parts: RelayParts, admits: Admits, relay: Handler, passthrough: Handler) -> None:
        """`relay` answers a request of the Responses API."""
        self._parts, self._admits = parts, admits
        self._relay, self._passthrough = relay, passthrough

    async def post(self, request: web.Request) -> web.StreamResponse:
        """Raises BadRequest."""
        raw = request.get(BODY, b"")
        body = as_object(await off_loop(len(raw), parse_json, raw))
        if self._parts.backend.capabilities.is_foreign and str(body.get("model")) not in self._parts.further:
            response = await self._passthrough(request)
            if not is_missing(response):
                return response
        if not isinstance(body.get("model"), str):
            raise BadRequest("`model` must be named.", param="model")
        content = _question(body)

        async def ask(question: web.Request) -> web.StreamResponse:
            question[BODY] = content
            question[HELD_BYTES].take_up_to(len(content))
            writer.room = room_for(question, self._parts.settings.server.max_body_bytes)
            return await self._relay(question)

        writer = EventWriter(None)
        answer = await self._admits(_request(request, writer), ask)
        text = answered_body(answer, writer)
        if writer.failure is not None:
            raise writer.failure
        if answer.status not in OK:
            return web.Response(status=answer.status, body=text, content_type="application/json")
        return json_response(_compacted(body, await off_loop(len(text), response_in, text)))


def _request(request: web.Request, writer: EventWriter) -> web.Request:
    """A request to the route of responses, by the same client."""
    headers = CIMultiDict(request.headers)
    headers["x-rl-turn"] = "side"
    request._read_bytes = None  # else it cannot be copied; the guard has it
    path = request.rel_url.with_path(request.path.removesuffix(_ROUTE))
    question = request.clone(rel_url=path, headers=headers)
    question._payload_writer = writer
    return question


def _question(body: Mapping[str, Any]) -> bytes:
    """Raises BadRequest."""
    items = body.get("input")
    history = [{"role": "user", "content": items}] if isinstance(items, str) else items
    if not isinstance(history, list | None):
        raise BadRequest("`input` must be a string or a list of items.", param="input")
    members = {name: body[name] for name in _PASSED_ON if body.get(name) is not None}
    return dumps({**members, "input": [*(history or ()), {"role": "user", "content": ASK}]})


def _compacted(body: Mapping[str, Any], response: Mapping[str, Any]) -> dict[str, Any]:
    """The system's messages as they were, and the summary."""
    id = str(response.get("id"))
    items = [item for item in response["output"] if isinstance(item, Mapping) and item.get("type") == "message"]
    summary = {
        "type": "compaction",
        "id": f"cmp_{id}",
        "encrypted_content": SUMMARY + "".join(plain(item.get("content")) for item in items),
    }
    return {
        "id": id,
        "object": "response.compaction",
        "created_at": response.get("created_at") or int(time.time()),
        "output": [*_system_items(body.get("input"), id), summary],
        "usage": response.get("usage"),
    }


def _system_items(items: Any, id: str) -> list[dict[str, Any]]:
    messages = (
        [item for item in items if isinstance(item, Mapping) and item.get("role") in ("system", "developer")]
        if isinstance(items, list)
        else []
    )
    return [
        {
            "type": "message",
            "id": f"msg_{id}_in{number}",
            "status": "completed",
            "role": item["role"],
            "content": [{"type": "input_text", "text": item["content"]}]
            if isinstance(item.get("content"), str)
            else item.get("content") or [],
        }
        for number, item in enumerate(messages)
    ]
