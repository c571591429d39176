"""A model server for scripts/bench/relay that costs next to nothing: raw asyncio, no model, always the same bytes.

    python -m scripts.bench.relay.upstream [--port N]

Prints its address. It answers chat completions in vLLM's shapes, with token ids and log-probs for those who ask. How
long a stream is stands in the prompt, which every gateway passes on: `[[50 chunks 10 ms]]`. One event is one TCP write.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
from typing import Any

MARK = re.compile(rb"\[\[(\d+) chunks (\d+) ms\]\]")
WORDS = 100  # of a plain answer
MODELS = json.dumps({"object": "list", "data": [{"id": "m", "object": "model", "created": 1, "owned_by": "bench"}]})
_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
_STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ncache-control: no-cache\r\n"
    b"transfer-encoding: chunked\r\n\r\n"
)
_NOT_FOUND = b"HTTP/1.1 404 Not Found\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}"


def plain(exact: bool, prompt_ids: list[int], tokens: int) -> bytes:
    choice: dict[str, Any] = {
        "index": 0, "message": {"role": "assistant", "content": "word " * WORDS}, "logprobs": None,
        "finish_reason": "stop",
    }  # fmt: skip
    body: dict[str, Any] = {"id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": "m"}
    if exact:
        choice |= {"logprobs": {"content": [_token()] * WORDS}, "token_ids": [1234] * WORDS}
        body["prompt_token_ids"] = prompt_ids
    usage = {"prompt_tokens": tokens, "completion_tokens": WORDS, "total_tokens": tokens + WORDS}
    return json.dumps(body | {"choices": [choice], "usage": usage}, separators=(",", ":")).encode()


def event(exact: bool, *, last: bool = False, prompt_ids: list[int] | None = None) -> bytes:
    """One event of a stream, as one piece of a chunked body."""
    delta = {} if last else {"content": "word "}
    if prompt_ids is not None:
        delta["role"] = "assistant"
    choice: dict[str, Any] = {
        "index": 0, "delta": delta, "logprobs": None, "finish_reason": "stop" if last else None,
    }  # fmt: skip
    if exact:
        choice |= {"logprobs": None if last else {"content": [_token()]}, "token_ids": [] if last else [1234]}
    body: dict[str, Any] = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "m"}
    if exact and prompt_ids is not None:
        body["prompt_token_ids"] = prompt_ids
    return _piece(b"data: " + json.dumps(body | {"choices": [choice]}, separators=(",", ":")).encode() + b"\n\n")


def _token() -> dict[str, Any]:
    return {"token": "word ", "logprob": -0.12345678, "bytes": [119, 111, 114, 100, 32], "top_logprobs": []}


def _piece(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


# Made once: what is measured is the proxies. By whether token ids were asked for.
_MIDDLE = {exact: event(exact) for exact in (False, True)}
_LAST = {exact: event(exact, last=True) for exact in (False, True)}
_END = _piece(b"data: [DONE]\n\n") + b"0\r\n\r\n"
_FIRST: dict[tuple[bool, int], bytes] = {}
_PLAIN: dict[tuple[bool, int], bytes] = {}


def first(exact: bool, size: int) -> bytes:
    tokens = size // 4096 * 1024 if exact else 0
    if (exact, tokens) not in _FIRST:
        _FIRST[exact, tokens] = event(exact, prompt_ids=[1234] * tokens)
    return _FIRST[exact, tokens]


def whole(exact: bool, size: int) -> bytes:
    """It counts what it was asked: of a server that read less than it was sent, rlproxy looks for what was cut."""
    tokens = size // 4096 * 1024
    if (exact, tokens) not in _PLAIN:
        body = plain(exact, [1234] * tokens, tokens or 9)
        _PLAIN[exact, tokens] = _HEAD % len(body) + body
    return _PLAIN[exact, tokens]


class Answers(asyncio.Protocol):
    """One connection, one request after another."""

    def __init__(self) -> None:
        self._received = bytearray()
        self._needed = 0  # bytes until there is anything to do
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.Handle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._to = transport

    def connection_lost(self, error: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def data_received(self, data: bytes) -> None:
        self._received += data
        if len(self._received) < self._needed:
            return
        end = self._received.find(b"\r\n\r\n")
        if end < 0:
            return
        head = bytes(self._received[:end]).lower()
        size = self._size(head, end + 4)
        if size is None or len(self._received) < end + 4 + size:
            self._needed = end + 4 + (size or 0)
            return
        body = bytes(self._received[end + 4 : end + 4 + size])
        del self._received[: end + 4 + size]
        self._needed = 0
        self._answer(head, body)

    def _size(self, head: bytes, start: int) -> int | None:
        """Size of the body, as it stands on the wire; None where its end has not come."""
        if (match := re.search(rb"\r\ncontent-length: *(\d+)", head)) is not None:
            return int(match[1])
        if b"\r\ntransfer-encoding: chunked" not in head:
            return 0
        end = self._received.find(b"0\r\n\r\n", max(start, len(self._received) - 70_000))
        return None if end < 0 else end + 5 - start

    def _answer(self, head: bytes, body: bytes) -> None:
        if head.startswith(b"get") and b"/v1/models" in head[:40]:
            self._to.write(_HEAD % len(MODELS) + MODELS.encode())
        elif not head.startswith(b"post"):
            self._to.write(_NOT_FOUND)
        else:
            exact = b'"return_token_ids":true' in body
            if b'"stream":true' in body or b'"stream": true' in body:
                count, gap = (int(n) for n in MARK.search(body).groups())  # type: ignore[union-attr]
                self._stream(exact, len(body), count, gap / 1000)
            else:
                self._to.write(whole(exact, len(body)))

    def _stream(self, exact: bool, size: int, count: int, gap_s: float) -> None:
        self._to.write(_STREAM_HEAD + first(exact, size))
        start, sent = self._loop.time(), 1

        def send_next() -> None:
            nonlocal sent
            if sent < count:
                sent += 1
                self._to.write(_MIDDLE[exact])
                schedule()
            else:
                self._to.write(_LAST[exact] + _END)

        def schedule() -> None:
            handle = self._loop.call_at(start + sent * gap_s, send_next) if gap_s else self._loop.call_soon(send_next)
            self._timer = handle

        schedule()


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--port", type=int, default=0)
    server = await asyncio.get_running_loop().create_server(
        Answers, "127.0.0.1", parser.parse_args().port, backlog=2048
    )
    print(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main())
