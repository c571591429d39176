"""One shape for everything that goes wrong before an answer has begun.

Owns the middleware that makes answers of exceptions; on data routes they have the dialect's own shape. Not here: the
exceptions (errors), what goes wrong in the middle of an answer (exchange).
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Awaitable, Callable
from typing import Final

import structlog
from aiohttp import HttpVersion11, web

from proxy.core.errors import NotFound, ProxyError, UnknownExpectation, not_stored
from proxy.dialects import MESSAGES, dialect_at
from proxy.relay.anthropic_models import ANTHROPIC
from proxy.relay.exchange import CLIENT_ERRORS
from store.errors import StoreError

log = structlog.get_logger()

RESET: Final = struct.pack("ii", 1, 0)  # to linger no second
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@web.middleware
async def shape_errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    try:
        return await handler(request)
    except (ProxyError, StoreError) as error:
        if request.writer.output_size:
            return _broken_off(request, error)
        if isinstance(error, StoreError):
            return not_stored("The store did not take it", error).response()
        return _shape_error(request, error)
    except web.HTTPNotFound:
        return NotFound(
            f"There is nothing at {request.method} {request.path}: an agent's base URL is "
            f"{request.scheme}://{request.host}/v1."
        ).response()
    except web.HTTPMethodNotAllowed as error:
        methods = ", ".join(sorted(error.allowed_methods))
        response = NotFound(f"{request.path} takes {methods} only.").response()
        response.set_status(405)
        response.headers["allow"] = methods
        return response
    except web.HTTPException:
        raise
    except Exception as error:
        if isinstance(error, CLIENT_ERRORS) and (request.transport is None or request.transport.is_closing()):
            return web.Response(status=499)  # nobody is there to read it
        if request.writer.output_size:
            raise  # the answer has begun: it can only be broken off
        log.exception("a bug of rlproxy's own", path=request.path)
        description = f"{type(error).__name__}: {error}"[:300]
        return _shape_error(
            request,
            ProxyError(
                f"rlproxy itself failed at this request ({description}), which is a bug; its log has more. Ask again."
            ),
        )


async def meet_expectation(request: web.Request) -> web.StreamResponse | None:
    """`100 Continue` for a client that announces its body; 417 for any other `Expect` (RFC 9110, 10.1.1).

    aiohttp's own handler repeats the header in its answer, and fails at bytes that are not UTF-8."""
    if request.version < HttpVersion11:
        return None
    if request.headers["expect"].lower() != "100-continue":
        return _shape_error(request, UnknownExpectation("`Expect` can be `100-continue` only; nothing was passed on."))
    await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
    request.writer.output_size = 0  # the answer has not begun
    return None


def _broken_off(request: web.Request, error: Exception) -> web.Response:
    """End an answer that has begun, so that its client sees that it is not whole."""
    log.error("an answer was broken off", path=request.path, error=str(error))
    if (transport := request.transport) is not None:
        if request.version >= HttpVersion11:
            transport.close()  # what was written still goes; the last chunk is missing
        else:  # a quiet end would be that of a whole answer, so the connection is reset
            if (its := transport.get_extra_info("socket")) is not None:
                its.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
            transport.abort()
    return web.Response(status=499)  # nobody can be told more


def _shape_error(request: web.Request, error: ProxyError) -> web.Response:
    dialect = dialect_at(request.path) if request.method == "POST" else None
    if dialect is None and ANTHROPIC in request.headers:
        dialect = MESSAGES
    return error.response(dialect.error(error) if dialect else None)
