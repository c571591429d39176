"""`POST /v1/messages/count_tokens`: how long a prompt is, in the backend's own tokens.

A backend that has this route answers itself, byte for byte. For one that has not, the request is said as chat
completions, as its answer would be asked for. The backend's tokenizer counts what its chat template makes of it. Where
it has none and the model is one of OpenAI's, tiktoken counts. Owns which of these ways there is. Where there is none
the answer is an error that says so, since a guess would be taken for a count. What agents do with it (when to compact)
they do better with a guess of their own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from aiohttp import web
from multidict import CIMultiDict

from proxy.access.security import principal_of
from proxy.access.unknown_route import MISSING
from proxy.backends.ask import down_error
from proxy.backends.base import Address, place_for
from proxy.conversation.modalities import first_non_text
from proxy.core.agent_wrappers import agent_of
from proxy.core.errors import NotFound
from proxy.core.http_message import NoHttp
from proxy.core.json_edit import dumps, loads, rewrite
from proxy.core.offload import off_loop
from proxy.core.redirects import refuse
from proxy.core.upstream import MOST_SHORT, answer_headers, message_in, no_http, read_short, target_of
from proxy.dialects import MESSAGES, ParsedRequest
from proxy.dialects.identity import user_in
from proxy.relay import openai_tokens
from proxy.relay.model_servers import ModelServer, further_of
from proxy.relay.parts import RelayParts
from proxy.relay.request_body import coding_of, hold_parsed, parse_request, plain_body, room_for

# What a tokenizer needs of a chat request; the rest is for sampling.
_PROMPT_MEMBERS: Final = ("messages", "tools", "chat_template_kwargs")
TABLE: Final = "x-rl-tiktoken"  # the table that counted, where it was not the server


class CountingPlace(NamedTuple):
    """Where a prompt is counted."""

    server: ModelServer
    address: Address


class CountTokens:
    def __init__(self, parts: RelayParts) -> None:
        self._parts = parts

    async def post(self, request: web.Request) -> web.Response:
        """Raises Forbidden for another line than the key's, NotFound where nobody can count. Raises BackendDown,
        BackendBroke, and what `MESSAGES` raises for what cannot be translated."""
        raw = await plain_body(request, coding_of(request.headers), self._parts.settings.server.max_body_bytes)
        bodies = self._parts.recent.bodies
        prefix = bodies.find_prefix(raw)
        await hold_parsed(request, raw, prefix)
        heavy = prefix.weight
        content, parsed = await off_loop(heavy, parse_request, raw, bodies, prefix, MESSAGES)
        name = self._parts.live_version.parse_name(parsed.model)
        if (server := further_of(self._parts.further, name)) is not None:
            await server.backend.ready()
            place = CountingPlace(server, server.backend.address(server.backend.served.model))
            return await self._answer(request, content.raw, content.parsed, parsed, place, heavy)
        async with self._parts.admission.through():
            await self._parts.backend.ready()
            principal, headers = principal_of(request), request.headers
            user, agent = user_in(headers) or principal.name, agent_of(headers, parsed.messages)
            line = await self._parts.lines.of_request(name, principal, headers, user, agent)
            lease = await self._parts.live_version.acquire(name, line=line)
            try:
                with place_for(self._parts.backend, lease.model) as address:
                    place = CountingPlace(self._parts.own_server, address)
                    return await self._answer(request, content.raw, content.parsed, parsed, place, heavy)
            finally:
                lease.release()

    async def _answer(
        self, request: web.Request, raw: bytes, body: Any, parsed: ParsedRequest, place: CountingPlace, heavy: int
    ) -> web.Response:
        members = {k: v for k, v in place.address.members.items() if k == "model"}
        rewritten = await off_loop(heavy, rewrite, raw, {}, members)
        status, headers, answer = await self._ask(request, place, target_of(request), rewritten)
        if status not in MISSING:
            return web.Response(status=status, body=answer, headers=headers)
        if parsed.unreadable is not None:
            raise parsed.unreadable
        chat = await off_loop(heavy, MESSAGES.to_chat, body, parsed)
        if await off_loop(heavy, first_non_text, chat["messages"]) is not None:
            raise _cannot("of pictures, sounds or files", message_in(answer))
        if (count := await self._count_by_server(request, place, chat, heavy)) is not None:
            return web.json_response({"input_tokens": count})
        tokens = await openai_tokens.count(loads(members["model"]) if "model" in members else parsed.model, chat)
        if isinstance(tokens, str):
            raise _cannot("of a prompt", f"{message_in(answer)}; {tokens}")
        return web.json_response({"input_tokens": tokens.tokens}, headers={TABLE: tokens.table})

    async def _count_by_server(
        self, request: web.Request, place: CountingPlace, chat: Mapping[str, Any], heavy: int
    ) -> int | None:
        """Ask as vLLM and the built-in backend have it, then as llama.cpp has it; None where there is neither."""
        members = {k: v for k, v in place.address.members.items() if k == "model"}
        question = await off_loop(heavy, _prompt, chat, members)
        reply = await self._json(request, place, "/tokenize", question)
        if isinstance(count := reply.get("count"), int):
            return count
        prompt = (await self._json(request, place, "/apply-template", question)).get("prompt")
        if not isinstance(prompt, str):
            return None
        text = dumps({"content": prompt, "add_special": True, "parse_special": True})
        tokens = (await self._json(request, place, "/tokenize", rewrite(text, {}, members))).get("tokens")
        return len(tokens) if isinstance(tokens, list) else None

    async def _json(self, request: web.Request, place: CountingPlace, path: str, body: bytes) -> dict[str, Any]:
        """Its answer; nothing where it does not know the route or what was asked."""
        status, _, answer = await self._ask(request, place, path, body)
        try:
            reply = loads(answer) if status == 200 else {}
        except ValueError:
            return {}
        return reply if isinstance(reply, dict) else {}

    async def _ask(
        self, request: web.Request, place: CountingPlace, target: str, body: bytes
    ) -> tuple[int, CIMultiDict[str], bytes]:
        server, address = place
        headers = self._parts.request_headers(request, server)
        headers.popall("content-encoding", None)  # it was undone when we read the body
        headers["accept-encoding"], headers["content-type"] = "identity", "application/json"
        assert self._parts.connections is not None
        for last_try in (False, True):
            try:
                upstream = await self._parts.connections.ask("POST", address.url, target, headers, body)
                refuse(address.url, upstream)
                answer = answer_headers(upstream.headers)
                answer.popall("content-length", None)
                return upstream.status, answer, await read_short(upstream, room_for(request, MOST_SHORT))
            except NoHttp as error:
                raise no_http(error) from error
            except (TimeoutError, OSError) as error:
                if last_try or not isinstance(error, ConnectionError):
                    raise down_error(address.url, error, server.backend.kind, server.section) from error
        raise AssertionError("unreachable")


def _prompt(chat: Mapping[str, Any], members: Mapping[str, bytes]) -> bytes:
    return rewrite(dumps({key: chat[key] for key in _PROMPT_MEMBERS if key in chat}), {}, members)


def _cannot(action: str, reason: str) -> NotFound:
    """An error of a status that no SDK asks again for."""
    return NotFound(
        f"This backend cannot count the tokens {action}: it has no /v1/messages/count_tokens ({reason}) and nothing "
        "that rlproxy could count with. It does not guess; an answer's own `usage` is exact."
    )
