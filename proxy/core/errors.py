"""Every error that a client of rlproxy can meet.

ProxyError
├── BadRequest 400        the request itself is wrong
│   ├── UnknownPrevious   it goes on from an answer that is not known here
│   └── Unreadable        a member is not what rlproxy reads there; a backend may take it all the same
│       └── NoPrompt      it has nothing for a model to answer
├── Unauthorized 401      no key, or an unknown one
├── Forbidden 403         a key that may not do this, or a foreign web page
├── NotFound 404
│   └── UnknownModel      the backend does not have it
├── Conflict 409          true, but not now, or not twice
├── Gone 410              it has ended
├── TooSlow 408           its body does not come
├── TooLarge 413
│   └── HeadTooLarge 431
├── AnotherHome 421       a command for a home that is not served here
├── UnknownExpectation 417
├── TooMany 429
├── Unsupported 501       this backend or installation cannot do that
├── BackendRefused        the backend's own error, with its status, in the client's dialect
├── BackendBroke 502      the backend answered nonsense
│   └── BrokeOff          or was cut off
├── BackendDown 503       the backend does not answer
├── Overloaded 503        too much is under way here
├── OutOfFiles 503        no file descriptor is left to reach it
└── StorageFailed 507     the disk did not take it
    └── DatabaseAway 503  the database that several relays share is away

Owns status codes and the one error shape. A dialect may wrap the shape in its own (`Dialect.error`).
Each message is one sentence: what happened, what was kept, what to do.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from aiohttp import web
from typing_extensions import TypedDict

from proxy.core.json_edit import dumps
from store.errors import StoreAway, StoreError

AWAY_S: Final = 5  # before a client tries again
_TYPES = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}


class ProblemBody(TypedDict):
    """The message says what happened, what was kept, and what to do."""

    message: str
    type: str
    param: str | None
    code: str


class Problem(TypedDict):
    error: ProblemBody


class ProxyError(Exception):
    status: int = 500
    type: str = "server_error"
    code: str = "internal_error"

    def __init__(self, message: str, *, param: str | None = None, retry_after: int | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.retry_after = retry_after

    def body(self) -> Problem:
        return {"error": {"message": self.message, "type": self.type, "param": self.param, "code": self.code}}

    def response(self, body: Mapping[str, Any] | None = None) -> web.Response:
        """`body` is the error in a dialect's own shape."""
        headers = {"retry-after": str(self.retry_after)} if self.retry_after is not None else None
        return web.Response(
            status=self.status,
            body=dumps(self.body() if body is None else body),
            content_type="application/json",
            headers=headers,
        )


class BadRequest(ProxyError):
    status, type, code = 400, "invalid_request_error", "bad_request"


class UnknownPrevious(BadRequest):
    code = "previous_response_not_found"


class Unreadable(BadRequest):
    pass


class NoPrompt(Unreadable):
    pass


class Unauthorized(ProxyError):
    status, type, code = 401, "authentication_error", "invalid_api_key"


class Forbidden(ProxyError):
    status, type, code = 403, "permission_error", "forbidden"


class NotFound(ProxyError):
    status, type, code = 404, "invalid_request_error", "not_found"


class UnknownModel(NotFound):
    code = "model_not_found"


class Conflict(ProxyError):
    status, type, code = 409, "invalid_request_error", "conflict"


class Gone(ProxyError):
    status, type, code = 410, "invalid_request_error", "gone"


class TooLarge(ProxyError):
    status, type, code = 413, "invalid_request_error", "body_too_large"


class HeadTooLarge(TooLarge):
    status, code = 431, "headers_too_large"


class AnotherHome(ProxyError):
    status, type, code = 421, "invalid_request_error", "another_home"


class TooSlow(ProxyError):
    status, type, code = 408, "invalid_request_error", "too_slow"


class UnknownExpectation(ProxyError):
    status, type, code = 417, "invalid_request_error", "unknown_expectation"


class TooMany(ProxyError):
    status, type, code = 429, "rate_limit_error", "too_many_requests"


class Unsupported(ProxyError):
    status, type, code = 501, "invalid_request_error", "unsupported"


class BackendRefused(ProxyError):
    def __init__(self, status: int, message: str, *, param: str | None = None) -> None:
        super().__init__(message or f"The backend answered {status} and gave no reason. Check its log.", param=param)
        self.status = status
        self.type = _TYPES.get(status, "backend_error" if status >= 500 else "invalid_request_error")
        self.code = "backend_refused"


class BackendBroke(ProxyError):
    status, type, code = 502, "backend_error", "backend_broke"


class BrokeOff(BackendBroke):
    """Its connection ended before its answer did; all that had come has been read."""


def as_broke_off(error: BaseException | None) -> BrokeOff:
    reason = f" ({error or type(error).__name__})" if error is not None else ""
    return BrokeOff(f"The backend broke off before its answer was whole{reason}; what came is kept. Ask again.")


class BackendDown(ProxyError):
    status, type, code = 503, "backend_error", "backend_down"


class Overloaded(ProxyError):
    status, type, code = 503, "server_error", "overloaded"


class OutOfFiles(ProxyError):
    status, type, code = 503, "server_error", "out_of_files"


class StorageFailed(ProxyError):
    status, type, code = 507, "server_error", "storage_failed"


class DatabaseAway(StorageFailed):
    status, code = 503, "database_away"

    def __init__(self, message: str) -> None:
        super().__init__(
            f"{message} Answers go on meanwhile, and are kept on this relay's disk; send this again in a few seconds.",
            retry_after=AWAY_S,
        )


def not_stored(message: str, error: StoreError) -> StorageFailed:
    """The error of something that the store did not take; `message` says what, without a full stop."""
    return (DatabaseAway if isinstance(error, StoreAway) else StorageFailed)(f"{message}: {error}")
