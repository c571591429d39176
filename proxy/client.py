"""Rating from a program: `Client`, and `AsyncClient` for asyncio.

Owns what a program says to a running rlproxy beside asking the model: rate, undo, status, versions, wait. The answers
themselves come from the SDK that the program uses already, pointed at rlproxy; what it got, or its id, is rated here.
Needs nothing but Python (`AsyncClient`: aiohttp, which rlproxy brings). The CLI's side (proxy.cli.http) sends with it.

    RlproxyError
    ├── Unreachable     nobody answers there, or another program
    ├── Refused         rlproxy's own sentence, with its status and code
    └── NotTrained      the run that was waited for made no version, or none in time
"""

from __future__ import annotations

import asyncio
import http.client
import json
import time
from collections.abc import Generator, Mapping
from dataclasses import dataclass, fields
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, Protocol, Self, TypeVar
from urllib.parse import quote, urlencode, urlsplit

if TYPE_CHECKING:
    import aiohttp

__all__ = [
    "AsyncClient", "Client", "NotTrained", "Rating", "Refused", "RlproxyError", "Status", "Unreachable", "Version",
]  # fmt: skip

DEFAULT_URL: Final = "http://127.0.0.1:8484"
POLL_S: Final = 1.0


class RlproxyError(Exception):
    """One sentence."""


class Unreachable(RlproxyError):
    pass


class Refused(RlproxyError):
    def __init__(self, message: str, status: int = 0, code: str = "") -> None:
        super().__init__(message)
        self.status = status
        self.code = code


class NotTrained(RlproxyError):
    pass


class HasId(Protocol):
    """An SDK's answer: OpenAI's ChatCompletion, a chunk of one, Response; Anthropic's Message."""

    @property
    def id(self) -> str: ...


Judgement = Literal["good", "bad"] | bool | float | str  # also "4/5", or a number from -1 to 1


@dataclass(frozen=True)
class Rating:
    id: str
    completion_id: str
    rater: str
    value: float  # from -1 to 1
    comment: str | None
    correction: str | None
    replaced: str | None  # the rating whose place it took


@dataclass(frozen=True)
class Status:
    model: str
    live: int  # 0 is the base model
    fresh: int  # ratings that the next run trains on
    needed: int  # that start one
    training: str  # what it does, or waits for
    problem: str | None
    last_run: int  # 0: there was none
    ended: bool  # whether that run has
    trains_another: bool  # behind a cloud API a local model learns, and no version goes live
    raw: Mapping[str, Any]  # all of GET /rl/status


@dataclass(frozen=True)
class Version:
    version: int
    parent: int
    run: int | None
    live: bool
    created_at: float


class _ClientCall(NamedTuple):
    method: str
    path: str
    body: Mapping[str, Any] | None = None


_T = TypeVar("_T")
_Plan = Generator["_ClientCall | float", Any, _T]  # asks, and is sent the JSON; a number is a pause in seconds


def _rate(
    answer: str | HasId,
    rating: Judgement,
    comment: str | None,
    correction: str | None,
    rater: str | None,
    event_id: str | None,
) -> _Plan[Rating]:
    body = {
        "completion_id": _id(answer), "rating": rating, "comment": comment, "correction": correction, "rater": rater,
        "source": "client", "source_event_id": event_id,
    }  # fmt: skip
    if isinstance(rating, int | float) and not isinstance(rating, bool):
        body["scale"] = "unit"
    stored = yield _ClientCall("POST", "/v1/feedback", {key: value for key, value in body.items() if value is not None})
    return _rating(stored)


def _undo(rating: str | Rating, rater: str | None) -> _Plan[Rating]:
    id = rating if isinstance(rating, str) else rating.id
    query = f"?{urlencode({'rater': rater})}" if rater else ""
    return _rating((yield _ClientCall("DELETE", f"/v1/feedback/{quote(id, safe='')}{query}")))


def _status() -> _Plan[Status]:
    answer = yield _ClientCall("GET", "/rl/status")
    last = answer["last_run"] or {"id": 0, "ended_at": 0.0}
    return Status(
        answer["model"], answer["live"], answer["ratings"]["fresh"], answer["ratings"]["needed"],
        answer["training"]["line"], answer["problem"], last["id"], last["ended_at"] is not None,
        answer["trains"] is not None, answer,
    )  # fmt: skip


def _versions() -> _Plan[list[Version]]:
    return [_build(Version, version) for version in (yield _ClientCall("GET", "/rl/adapters"))["data"]]


def _wait(since: Status | None, timeout_s: float) -> _Plan[int]:
    """The run that `since` did not know, or that was under way then; its version, once that answers."""
    end = time.monotonic() + timeout_s
    baseline = since or (yield from _status())
    awaited_run = baseline.last_run + (1 if baseline.ended else 0)
    while True:
        status = yield from _status()
        if status.last_run >= awaited_run:
            last = status.raw["last_run"]
            runs = (yield _ClientCall("GET", "/rl/runs?limit=1000"))["data"]
            of_line = [run for run in runs if run["line"] == last["line"] and run["id"] >= awaited_run]
            run = min(of_line, key=itemgetter("id"), default=last)  # numbers go through all lines
            if run["status"] == "done" and (status.live >= run["version"] or status.trains_another):
                return int(run["version"])
            if run["ended_at"] is not None and run["status"] != "done":
                raise NotTrained(f"Run {run['id']} ended {run['status']}, so no version is new: {run['reason']}.")
        if time.monotonic() >= end:
            problem = f"; there is a problem: {status.problem}" if status.problem else ""
            raise NotTrained(f"No new version answers after {timeout_s:g} s: training {status.training}{problem}.")
        yield min(POLL_S, max(0.0, end - time.monotonic()))


def _id(answer: str | HasId) -> str:
    id = answer if isinstance(answer, str) else answer.id
    if not isinstance(id, str) or not id:
        raise ValueError("What is rated is an answer with an id, or its id (in Ollama's API: x-rl-completion-id).")
    return id


def _rating(answer: Mapping[str, Any]) -> Rating:
    return _build(Rating, {**answer, "value": float(answer["value"])})  # JSON has one kind of number


def _build(kind: type[_T], answer: Mapping[str, Any]) -> _T:
    """Keep, of what is there, what this version of the client knows."""
    return kind(**{field.name: answer[field.name] for field in fields(kind)})  # type: ignore[arg-type]


def send(
    url: str, method: str, path: str, body: bytes | None, headers: Mapping[str, str], timeout_s: float | None
) -> http.client.HTTPResponse:
    """One request over a connection of its own, closed once the answer is read; `timeout_s`: None waits for ever.
    Raises OSError, HTTPException."""
    address = urlsplit(url)
    kind = http.client.HTTPSConnection if address.scheme == "https" else http.client.HTTPConnection
    connection = kind(address.hostname or "", address.port, timeout=timeout_s)
    json_body = {"content-type": "application/json"} if body else {}
    try:
        connection.request(
            method, address.path + path, body=body, headers={**headers, **json_body, "connection": "close"}
        )
        return connection.getresponse()
    except BaseException:
        connection.close()
        raise


def why_not(error: Exception) -> str:
    """In a few words."""
    reason = (isinstance(error, OSError) and error.strerror) or str(error) or type(error).__name__
    return reason[:1].lower() + reason[1:]


class _Target:
    """The address, with or without `/v1`, and what every request says."""

    def __init__(self, base_url: str, api_key: str | None, timeout_s: float) -> None:
        self.url = base_url.rstrip("/").removesuffix("/v1")
        self.headers = {"authorization": f"Bearer {api_key}"} if api_key else {}
        self.timeout_s = timeout_s

    def unreachable(self, error: Exception) -> Unreachable:
        return Unreachable(f"No rlproxy answers at {self.url} ({why_not(error)}); start it with `rlproxy serve`.")

    def read(self, status: int, text: bytes) -> Any:
        try:
            answer = json.loads(text)
            if status < 300:
                return answer
            error = answer["error"]
            refused = Refused(str(error["message"]), status, str(error["code"]))
        except (ValueError, KeyError, TypeError):
            raise Unreachable(
                f"What answers at {self.url} is another program ({status}): is that rlproxy's port?"
            ) from None
        raise refused


class Client:
    """`base_url` as an SDK has it; `api_key` where rlproxy has keys: one whose role is `rate`."""

    def __init__(self, base_url: str = DEFAULT_URL, api_key: str | None = None, *, timeout_s: float = 60.0) -> None:
        self._target = _Target(base_url, api_key, timeout_s)

    def rate(
        self, answer: str | HasId, rating: Judgement, *, comment: str | None = None, correction: str | None = None,
        rater: str | None = None, event_id: str | None = None,
    ) -> Rating:  # fmt: skip
        """Rate an answer, or the id of one; `"last"` is the newest. On disk when this returns.

        The same `event_id` twice is stored once. Raises Refused, Unreachable.
        """
        return self._drive(_rate(answer, rating, comment, correction, rater, event_id))

    def undo(self, rating: str | Rating = "last", *, rater: str | None = None) -> Rating:
        """Take a rating back; without one the rater's newest. Raises Refused, Unreachable."""
        return self._drive(_undo(rating, rater))

    def status(self) -> Status:
        return self._drive(_status())

    def versions(self) -> list[Version]:
        return self._drive(_versions())

    def wait_until_trained(self, after: Status | None = None, *, timeout_s: float = 3600.0) -> int:
        """The version that the next run makes, once it answers; next after `after`, else after now.

        Raises NotTrained where that run makes none, or none in time.
        """
        return self._drive(_wait(after, timeout_s))

    def _drive(self, plan: _Plan[_T]) -> _T:
        answer: Any = None
        try:
            while True:
                step = plan.send(answer)
                if isinstance(step, _ClientCall):
                    answer = self._ask(step)
                else:
                    time.sleep(step)
        except StopIteration as end:
            result: _T = end.value
            return result

    def _ask(self, ask: _ClientCall) -> Any:
        body = None if ask.body is None else json.dumps(ask.body).encode()
        try:
            with send(
                self._target.url, ask.method, ask.path, body, self._target.headers, self._target.timeout_s
            ) as response:
                status, text = response.status, response.read()
        except (OSError, http.client.HTTPException) as error:
            raise self._target.unreachable(error) from error
        return self._target.read(status, text)


class AsyncClient:
    """The `Client` for asyncio: `async with AsyncClient() as rlproxy: await rlproxy.rate(…)`."""

    def __init__(self, base_url: str = DEFAULT_URL, api_key: str | None = None, *, timeout_s: float = 60.0) -> None:
        self._target = _Target(base_url, api_key, timeout_s)
        self._http: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        if self._http is not None:
            await self._http.close()
            self._http = None

    async def rate(
        self, answer: str | HasId, rating: Judgement, *, comment: str | None = None, correction: str | None = None,
        rater: str | None = None, event_id: str | None = None,
    ) -> Rating:  # fmt: skip
        return await self._drive(_rate(answer, rating, comment, correction, rater, event_id))

    async def undo(self, rating: str | Rating = "last", *, rater: str | None = None) -> Rating:
        return await self._drive(_undo(rating, rater))

    async def status(self) -> Status:
        return await self._drive(_status())

    async def versions(self) -> list[Version]:
        return await self._drive(_versions())

    async def wait_until_trained(self, after: Status | None = None, *, timeout_s: float = 3600.0) -> int:
        return await self._drive(_wait(after, timeout_s))

    async def _drive(self, plan: _Plan[_T]) -> _T:
        answer: Any = None
        try:
            while True:
                step = plan.send(answer)
                if isinstance(step, _ClientCall):
                    answer = await self._ask(step)
                else:
                    await asyncio.sleep(step)
        except StopIteration as end:
            result: _T = end.value
            return result

    async def _ask(self, ask: _ClientCall) -> Any:
        import aiohttp

        if self._http is None:
            timeout = aiohttp.ClientTimeout(total=self._target.timeout_s)
            self._http = aiohttp.ClientSession(timeout=timeout, headers=self._target.headers)
        try:
            async with self._http.request(
                ask.method, self._target.url + ask.path, json=ask.body, allow_redirects=False
            ) as response:
                status, text = response.status, await response.read()
        except (TimeoutError, aiohttp.ClientError, OSError) as error:
            raise self._target.unreachable(error) from error
        return self._target.read(status, text)
