"""Routes that no dialect knows: byte for byte in both directions, compressed bodies as they are.

Owns that a wrong base URL is told of, and that an answer which breaks off does so for its client, too. Not here: the
captured routes (relay).
"""

from __future__ import annotations

import structlog
from aiohttp import web

from proxy.access.bodies import BODY
from proxy.access.pace import PacedStream, passing, send_pieces
from proxy.access.unknown_route import MISSING, READ, is_bare, lacking, mistaken
from proxy.backends.ask import down_error
from proxy.core.backend_answer import Answer
from proxy.core.errors import BackendBroke
from proxy.core.http_message import NoHttp
from proxy.core.redirects import refuse
from proxy.core.sharing.shares import Room
from proxy.core.upstream import BodyTooLong, answer_headers, no_http, read_whole, target_of
from proxy.relay.parts import RelayParts

log = structlog.get_logger()


class Passthrough:
    def __init__(self, parts: RelayParts) -> None:
        self.parts = parts

    async def relay(self, request: web.Request) -> web.StreamResponse:
        """Raises NotFound for a wrong base URL."""
        if (wrong := mistaken(request)) is not None:
            raise wrong
        async with self.parts.admission.through():
            with self.parts.throttle.answering():
                await self.parts.backend.ready()
                return await self._relayed(request)

    async def _relayed(self, request: web.Request) -> web.StreamResponse:
        parts, upstream, response = self.parts, None, None
        body = request.get(BODY) or (passing(request) if request.can_read_body else None)
        assert parts.connections is not None
        try:
            upstream = await parts.connections.ask(
                request.method, parts.backend.url, target_of(request), parts.request_headers(request), body
            )
            refuse(parts.backend.url, upstream)
            may_be_bare = request.method != "HEAD" and upstream.status in MISSING
            refusal = await _short_body(upstream) if may_be_bare else None
            if refusal is not None and is_bare(upstream.status, refusal):
                return lacking(request, upstream.status, parts.backend.kind)
            response = PacedStream(status=upstream.status, headers=answer_headers(upstream.headers))
            upstream.give_back(refusal or b"")
            await send_pieces(response, request, upstream.pieces())
            return response
        except BackendBroke as error:
            if response is None:
                raise
            log.warning("an answer that passes through broke off", path=request.path, error=str(error.__cause__))
            if request.transport is not None:
                request.transport.close()  # as the backend did: there is no place in these bytes for words of ours
            return response
        except NoHttp as error:
            raise no_http(error) from error
        except (TimeoutError, OSError) as error:
            if response is not None:
                raise  # the answer had begun, and its client is gone
            raise down_error(parts.backend.url, error, parts.backend.kind) from error
        finally:
            if upstream is not None:
                upstream.close()


async def _short_body(upstream: Answer) -> bytes | None:
    """The body of a refusal that may be a bare one; None where it is too long for that, and still to be read."""
    try:
        return await read_whole(upstream, Room(READ))
    except BodyTooLong:
        return None
