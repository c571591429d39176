"""Requests that rlproxy cannot read, and those without a prompt: passed on as they are, and never captured.

Owns what their clients get: the backend's own answer. A backend that lacks the client's format is not asked. Ollama's
clients load a model without a prompt; then they get the answer that their format has for it.
"""

from __future__ import annotations

import time

import structlog
from aiohttp import web

from proxy.backends.base import Backend
from proxy.core.errors import NoPrompt
from proxy.core.version_names import label
from proxy.dialects.base import OutgoingRequest
from proxy.relay.context import RequestContext
from proxy.relay.exchange import Exchange
from proxy.relay.parts import RelayParts
from proxy.relay.unknown_model import unknown_model

log = structlog.get_logger()


async def unread_answer(
    parts: RelayParts, context: RequestContext, outgoing: OutgoingRequest, exchange: Exchange
) -> web.StreamResponse:
    """Raises Unreadable where the request would have to be translated, UnknownModel."""
    reason, lease = outgoing.parsed.unreadable, context.lease
    if not isinstance(reason, NoPrompt):
        log.warning("a request is passed on uncaptured", dialect=context.dialect.name, reason=str(reason))
    try:
        return await exchange.run()
    except NoPrompt:
        model = outgoing.parsed.model or lease.model
        body = context.dialect.without_prompt(outgoing.body, model=model, created=int(time.time()))
        if body is None:
            raise
        if lease.version is None:
            await _check_model(context.server.backend, lease.model)
        headers = {"x-rl-adapter": label(lease.version)}
        return web.Response(body=body, headers=headers, content_type="application/json", charset="utf-8")


async def _check_model(backend: Backend, model: str) -> None:
    """Raises UnknownModel."""
    unknown = await unknown_model(backend, backend.url, model, f"model '{model}' not found")
    if unknown is not None:
        raise unknown
