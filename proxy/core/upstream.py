"""Messages between a client and the backend: paths, headers, whole bodies and the errors in them.

Owns which headers of an answer go on. A browser must not act on what a backend sends as on a page of rlproxy. So
headers that act are left out, and a kind of document that a browser runs becomes one that it shows or saves. The policy
that goes with it is security's. Not here: what the bytes mean.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Set
from typing import Any, Final
from urllib.parse import quote

import aiohttp
from aiohttp import web
from multidict import CIMultiDict, MultiMapping

from proxy.core import ndjson, sse
from proxy.core.backend_answer import READ_AHEAD, Answer
from proxy.core.errors import BackendBroke, BrokeOff
from proxy.core.http_message import NoHttp
from proxy.core.json_edit import dumps, loads, loads_server_json
from proxy.core.offload import memory_of
from proxy.core.sharing.shares import Room

# RFC 9110, 7.6.1, and what older clients say to a proxy; lengths and encodings are ours to set anew.
HOP: Final = frozenset({
    "connection", "proxy-connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "te", "trailer",
    "transfer-encoding", "upgrade",
})  # fmt: skip
# Headers of an answer that a client of a model server reads. All others act on browsers (cookies, redirects, policies),
# on a web server before rlproxy (x-accel-redirect), or tell of rlproxy itself (x-rl-…).
RELAYED: Final = frozenset({
    "content-type", "content-length", "content-encoding", "content-language", "content-range", "content-disposition",
    "accept-ranges", "etag", "last-modified", "cache-control", "expires", "age", "vary", "date", "server", "allow",
    "deprecation", "sunset", "warning", "retry-after", "retry-after-ms", "x-should-retry", "x-accel-buffering",
    "x-request-id", "request-id", "x-correlation-id", "x-trace-id", "traceparent", "cf-ray", "apim-request-id",
    "x-generation-id", "x-models-etag", "x-reasoning-included",
})  # fmt: skip
# Vendors name theirs so: request ids, limits, times, prices.
FAMILIES: Final = (
    "openai-", "x-openai-", "x-oai-", "anthropic-", "x-ratelimit-", "ratelimit", "x-codex-", "azureml-", "x-ms-",
    "x-amzn-", "x-groq-", "x-openrouter-", "x-litellm-", "llm_provider-", "mistral-", "fireworks-", "x-together-",
    "x-ds-", "x-envoy-", "x-vllm-", "x-compute-", "x-inference-", "x-prompt-", "x-generated-",
)  # fmt: skip
# Kinds of content that no browser runs. Of two kinds in one header a browser takes the last, so there is no comma.
_INERT: Final = re.compile(
    r"(?:application/(?:json|[\w.-]+\+json|x-ndjson|ndjson|jsonl|x-jsonlines|json-seq|octet-stream|zip|gzip|yaml)"
    r"|text/(?:event-stream|plain|csv|vtt|markdown)|(?:audio|video)/[\w.+-]+|image/(?!svg)[\w.-]+)"
    r"(?:[ \t]*;[^,]*)?",
    re.ASCII | re.IGNORECASE,
)
MOST_SHORT: Final = 1 << 23  # bytes of an error (some servers repeat the request in it) or a count
MOST_MESSAGE: Final = 1 << 16  # characters of an error's message
_CONTROL: Final = re.compile(r"[\x00-\x08\n-\x1f\x7f]")
_is_plain: Final = re.compile(r"[!-~]+").fullmatch
_ASCII: Final = "".join(map(chr, range(0x21, 0x7F)))  # only what is not a character of a path is encoded
_STREAMS: Final[Mapping[str, type[sse.EventSplitter]]] = {
    "text/event-stream": sse.EventSplitter,
    "application/x-ndjson": ndjson.NdjsonSplitter,
}


def upstream_path(request: web.Request) -> str:
    """The path at the backend: without `/s/<session>`, with the query as it came."""
    path = request.raw_path
    if "session" in request.match_info:
        path = "/" + path.split("/", 3)[3]
    return path


def target_of(request: web.Request) -> str:
    """The route at the backend, sent as it is, since the guard has decided on these bytes (roles)."""
    path = upstream_path(request)
    return path if _is_plain(path) else quote(path, safe=_ASCII, errors="surrogateescape")


def end_to_end(headers: MultiMapping[str]) -> CIMultiDict[str]:
    """All but what belongs to one connection only."""
    dropped = _of_the_connection(headers)
    return CIMultiDict([(name, value) for name, value in headers.items() if name.lower() not in dropped])


def answer_headers(headers: MultiMapping[str], leave_out: Set[str] = frozenset()) -> CIMultiDict[str]:
    """The headers of an answer that its client gets."""
    of_connection = _of_the_connection(headers)
    relayed: CIMultiDict[str] = CIMultiDict()
    for name, value in headers.items():
        low = name.lower()
        if not (low in RELAYED or low.startswith(FAMILIES)) or low in leave_out or low in of_connection:
            continue
        if low == "content-type":
            if low not in relayed:
                relayed[low] = inert_type(value)
        elif value.isprintable() or not _CONTROL.search(value):  # else nobody may send it on
            relayed.add(name, value)
    return relayed


def inert_type(content_type: str) -> str:
    """This kind of content, or for one that a browser could run, one that it only shows or saves."""
    if _INERT.fullmatch(content_type) is not None and content_type.isprintable():
        return content_type
    return "text/plain" if content_type[:5].lower() == "text/" else "application/octet-stream"


def _of_the_connection(headers: MultiMapping[str]) -> Set[str]:
    """There may be several `Connection` headers, each with a list."""
    if "connection" not in headers and "proxy-connection" not in headers:
        return HOP
    lists = (*headers.getall("connection", ()), *headers.getall("proxy-connection", ()))
    return HOP.union(name.strip().lower() for listed in lists for name in listed.split(","))


def splitter_for(upstream: Answer) -> sse.EventSplitter | None:
    """The cutter of this body into events; None for a plain body."""
    kind = _STREAMS.get(upstream.headers.get("content-type", "").partition(";")[0].strip().lower())
    return None if kind is None else kind()


class BodyTooLong(Exception):
    """A body for which there is no room. What has come of it can be read again: the answer has it back."""

    def __init__(self, size: int) -> None:
        super().__init__(f"a body of more than {size:,} bytes")
        self.size = size


async def read_whole(answer: Answer, room: Room | None = None) -> bytes:
    """All of it. Raises BodyTooLong where there is no room for it (without `room`: for MOST_SHORT bytes). Raises
    BrokeOff, but not where only the end of the HTTP around a whole JSON object is missing."""
    if answer.is_here:  # it came with its head, as most
        return answer.drain()
    room, size = room or Room(MOST_SHORT), 0
    pieces: list[bytes] = []
    try:
        async for piece in answer.pieces():
            pieces.append(piece)
            size += len(piece)
            if not room.fits(size):
                answer.give_back(b"".join(pieces))
                raise BodyTooLong(size)
    except BrokeOff:
        if not _is_closed(body := b"".join(pieces)):
            raise
        return body
    except BaseException as error:
        if not isinstance(error, BodyTooLong):
            answer.close()  # who is cancelled here must stop costing the backend
        raise
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


async def read_short(answer: Answer, room: Room) -> bytes:
    """All of an error's body, or of another short one. Raises BrokeOff; BackendBroke where there is no room for it."""
    try:
        return await read_whole(answer, room)
    except BodyTooLong as error:
        answer.close()
        raise BackendBroke(
            f"The backend answered {answer.status} with more than {error.size:,} bytes; the rest was not read. "
            "Check its log."
        ) from error


async def let_go(answer: Answer) -> None:
    """Nobody wants this body. A short one is read, so that its connection can be used again."""
    size = 0
    try:
        async for piece in answer.pieces():
            if (size := size + len(piece)) > READ_AHEAD:
                break
    except BrokeOff:
        pass
    finally:
        answer.close()


async def body_of(response: aiohttp.ClientResponse, most: int) -> bytes:
    """All of a body that aiohttp reads. Raises BackendBroke where it is longer than `most`."""
    pieces, size = [], 0
    async for piece in response.content.iter_any():
        pieces.append(piece)
        size += len(piece)
        if size > most:
            response.close()
            raise BackendBroke(
                f"{response.url.origin()} answered {response.method} {response.url.path} with more than {most:,} "
                "bytes; the rest was not read. Check what answers there."
            )
    return b"".join(pieces)


def _is_closed(body: bytes) -> bool:
    """Tell whether this is JSON that nothing but blanks can follow. A number, for one, could have gone on."""
    try:
        return isinstance(loads(body), dict | list)
    except ValueError:
        return False


def no_http(error: NoHttp) -> BackendBroke:
    return BackendBroke(f"The backend did not answer in HTTP ({error}).")


def message_in(answer: bytes) -> str:
    """The message of a backend's error, in whichever of the usual shapes."""
    try:
        body = loads_server_json(answer).value
        message = None if not isinstance(body, dict) else error_in(body) or body.get("message") or body.get("detail")
    except ValueError:
        message = None
    return answer[:200].decode("utf-8", "replace") if not message else _text_of(message)


def error_in(body: Mapping[str, Any]) -> str | None:
    """The message of an error that a server sent in place of an answer, or of a piece of one; None where it did not."""
    error = body.get("error")
    if error and error is not True:
        return error_message(error)
    is_error = error or body.get("object") == "error" or body.get("type") == "error"
    return error_message({key: value for key, value in body.items() if key != "error"}) if is_error else None


def error_named_in(event: sse.Event) -> str | None:
    """The message of an event that is named an error, as JSON or in plain words. None for any other event.

    llama.cpp of before July 2025 had a field of that name.
    """
    if not event.is_error:
        return None
    text = event.raw.partition(b":")[2] if event.data is None else event.data
    return message_in(text.strip()) or "it did not say why"


def error_message(error: Any) -> str:
    """The message of an error: an object that has one, or just text."""
    return _text_of(error.get("message") or error.get("detail") or error if isinstance(error, dict) else error)


def _text_of(message: Any) -> str:
    """A message as text; of a very long one, the beginning."""
    is_short = isinstance(message, str) or memory_of(message, MOST_MESSAGE) <= MOST_MESSAGE
    text = str(message) if is_short else dumps(message)[:MOST_MESSAGE].decode("utf-8", "replace")
    return text[:MOST_MESSAGE]
