"""Every error that a client of rlproxy can meet.

ProxyError
├── BadRequest 400        the request itself is wrong
├── Unauthorized 401      no key, or an unknown one
├── Forbidden 403         a key that may not do this, or a foreign web page
├── NotFound 404
├── Conflict 409          true, but not now, or not twice
├── TooLarge 413
├── Unsupported 501       this backend or installation cannot do that
├── BackendBroke 502      the backend answered nonsense or was cut off
├── BackendDown 503       the backend does not answer
└── StorageFailed 507     the disk did not take it

Owns status codes and the one error shape. A dialect may wrap the shape in its own (`Dialect.error`).
Each message is one sentence: what happened, what was kept, what to do.
"""

from __future__ import annotations

from typing import Any, ClassVar

import orjson
from aiohttp import web


class ProxyError(Exception):
    status: ClassVar[int] = 500
    type: ClassVar[str] = "server_error"
    code: ClassVar[str] = "internal_error"

    def __init__(self, message: str, *, param: str | None = None, retry_after: int | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.retry_after = retry_after

    def body(self) -> dict[str, Any]:
        error = {"message": self.message, "type": self.type, "param": self.param, "code": self.code}
        return {"error": error}

    def response(self) -> web.Response:
        headers = {"retry-after": str(self.retry_after)} if self.retry_after is not None else None
        return web.Response(
            status=self.status,
            body=orjson.dumps(self.body()),
            content_type="application/json",
            headers=headers,
        )


class BadRequest(ProxyError):
    status, type, code = 400, "invalid_request_error", "bad_request"


class Unauthorized(ProxyError):
    status, type, code = 401, "authentication_error", "invalid_api_key"


class Forbidden(ProxyError):
    status, type, code = 403, "permission_error", "forbidden"


class NotFound(ProxyError):
    status, type, code = 404, "invalid_request_error", "not_found"


class Conflict(ProxyError):
    status, type, code = 409, "invalid_request_error", "conflict"


class TooLarge(ProxyError):
    status, type, code = 413, "invalid_request_error", "body_too_large"


class Unsupported(ProxyError):
    status, type, code = 501, "invalid_request_error", "unsupported"


class BackendBroke(ProxyError):
    status, type, code = 502, "backend_error", "backend_broke"


class BackendDown(ProxyError):
    status, type, code = 503, "backend_error", "backend_down"


class StorageFailed(ProxyError):
    status, type, code = 507, "server_error", "storage_failed"
