"""The client of scripts/bench/relay: raw asyncio, so that it is not what is measured. A line of JSON is an order.

Owns requests, keep-alive connections in a closed loop, and when what came. An order on stdin is answered on stdout:
{"op": "load", …} measures, {"op": "idle", …} opens streams and leaves them open until {"op": "drop"}.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Callable
from pydoc_data.topics import topics
from typing import Any

LATE_S = 10.0  # how long requests that were under way at the end may still take
OPENED_AT_ONCE = 50
NUMBER = "[[000000000000]]"


class Prompt:
    """A request whose last message is new each time, as an agent's is; the history before it is the same."""

    def __init__(self, order: dict[str, Any]) -> None:
        text = "".join(topics.values())
        turns, size = order["turns"], order["size"]
        each = max(1, (size - 200) // turns)
        says = [text[i * each % 400_000 :][:each] for i in range(turns)]
        if order["fresh"]:
            says[0] = NUMBER + says[0]
        says[-1] = NUMBER + says[-1]
        mark = f"You answer briefly. [[{order['chunks']} chunks {order['gap_ms']} ms]]"
        messages = [{"role": "system", "content": mark}]
        messages += [{"role": ("user", "assistant")[i % 2], "content": part} for i, part in enumerate(says)]
        body = {"model": order["model"], "messages": messages, "stream": order["kind"] == "stream"}
        packed = json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode()
        head = f"POST {order['path']} HTTP/1.1\r\nhost: {order['host']}:{order['port']}\r\n"
        fields = {"content-type": "application/json", "content-length": len(packed), **order["headers"]}
        head += "".join(f"{name}: {value}\r\n" for name, value in fields.items()) + "\r\n"
        self._parts = (head.encode() + packed).split(NUMBER.encode())
        self._count = order["first"]

    def next(self) -> bytes:
        self._count += 1
        return (b"[[%012d]]" % self._count).join(self._parts)


class Answer:
    """One answer, as it comes."""

    def __init__(self, on_end: Callable[[str | None], None]) -> None:
        self._on_end = on_end
        self.sent = time.perf_counter()
        self.first: float | None = None  # when its first event, or its first byte of a body, came
        self.last: float | None = None
        self.gaps: list[float] = []
        self._head: bytes | None = None
        self._received = bytearray()
        self._needed = 0
        self._chunked = self._stream = False
        self._tail = b""  # of what a chunked body has said

    @property
    def closes(self) -> bool:
        return self._head is not None and b"\r\nconnection: close" in self._head

    def feed(self, data: bytes) -> None:
        if self._head is None:
            self._received += data
            end = self._received.find(b"\r\n\r\n")
            if end < 0:
                return
            self._head = bytes(self._received[:end]).lower()
            data = bytes(self._received[end + 4 :])
            self._received.clear()
            self._chunked = b"transfer-encoding: chunked" in self._head
            self._stream = b"content-type: text/event-stream" in self._head
            if not self._chunked:
                start = self._head.find(b"content-length:")
                self._needed = int(self._head[start + 15 :].split(b"\r\n", 1)[0]) if start >= 0 else 0
        self._body(data)

    def _body(self, data: bytes) -> None:
        if b"data:" in data or (not self._stream and data):
            now = time.perf_counter()
            if self.first is None:
                self.first = now
            elif self.last is not None and b"[DONE]" not in data:
                self.gaps.append(now - self.last)
            self.last = now
        if self._chunked:
            self._tail = (self._tail + data)[-400:]
            if self._tail.endswith(b"\r\n0\r\n\r\n") or self._tail == b"0\r\n\r\n":
                self._on_end(self._verdict())
        else:
            self._tail = (self._tail + data)[-400:]
            self._needed -= len(data)
            if self._needed <= 0:
                self._on_end(self._verdict())

    def _verdict(self) -> str | None:
        assert self._head is not None
        if not self._head.startswith(b"http/1.1 200"):
            return f"{self._head[:40].decode()} {self._tail.decode('utf-8', 'replace')}"
        whole = b"[DONE]" in self._tail if self._stream else self._tail.rstrip(b"\r\n0").endswith(b"}")
        return None if whole else f"the answer has no end: {self._tail[-200:]!r}"


class Caller(asyncio.Protocol):
    """One connection that asks again as soon as it has its answer."""

    def __init__(self, load: Load) -> None:
        self._load = load
        self._answer: Answer | None = None
        self.to: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.to = transport

    def ask(self) -> None:
        request = self._load.prompt.next()
        self._answer = Answer(self._answered)
        self.to.write(request)

    def data_received(self, data: bytes) -> None:
        if self._answer is not None:
            self._answer.feed(data)

    def _answered(self, wrong: str | None) -> None:
        answer, self._answer = self._answer, None
        assert answer is not None
        self._load.note(answer, wrong)
        if answer.closes:
            self.to.close()  # connection_lost asks again
        elif not self._load.over():
            asyncio.get_running_loop().call_soon(lambda: None if self.to.is_closing() else self.ask())

    def connection_lost(self, error: Exception | None) -> None:
        if self._answer is not None:
            self._load.note(self._answer, f"the connection was closed ({error or 'no reason'})")
            self._answer = None
        if not self._load.over():
            self._load.reconnect()


class Load:
    """So many callers for so long."""

    def __init__(self, order: dict[str, Any]) -> None:
        self.order = order
        self.prompt = Prompt(order)
        self.latencies: list[float] = []
        self.firsts: list[float] = []
        self.gaps: list[float] = []
        self.errors: list[str] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._callers: list[Caller] = []
        self._open = 0
        self._stopped = asyncio.Event()
        self._until = 0.0
        self._at_least = 0

    def over(self) -> bool:
        total = len(self.latencies) + len(self.errors)
        return (time.perf_counter() >= self._until and total >= self._at_least) or len(self.errors) > 20

    def note(self, answer: Answer, wrong: str | None) -> None:
        self._open -= 1
        if wrong is not None:
            self.errors.append(wrong)
        else:
            assert answer.first is not None
            self.latencies.append(time.perf_counter() - answer.sent)
            self.firsts.append(answer.first - answer.sent)
            self.gaps += answer.gaps
        if not self.over():
            self._open += 1  # asks again
        elif self._open <= 0:
            self._stopped.set()

    def reconnect(self) -> None:
        task = asyncio.create_task(self._connect_and_ask())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _connect_and_ask(self) -> None:
        try:
            (await self._connect()).ask()
        except OSError as error:
            self._open -= 1
            self.errors.append(f"no connection: {error}")
            if self._open <= 0 or self.over():
                self._stopped.set()

    async def _connect(self) -> Caller:
        _, caller = await asyncio.get_running_loop().create_connection(
            lambda: Caller(self), self.order["host"], self.order["port"]
        )
        self._callers.append(caller)
        return caller

    async def run(self) -> dict[str, Any]:
        at_once, start = self.order["at_once"], time.perf_counter()
        try:
            callers = [await self._connect() for _ in range(at_once)]
        except OSError as error:  # it has ended
            self.errors.append(f"no connection: {error}")
            return self._summary(start)
        start = time.perf_counter()
        self._until, self._at_least, self._open = start + self.order["seconds"], self.order["at_least"], at_once
        for caller in callers:
            caller.ask()
        try:
            async with asyncio.timeout(self.order["seconds"] + LATE_S):
                await self._stopped.wait()
        except TimeoutError:
            pass
        return self._summary(start)

    def _summary(self, start: float) -> dict[str, Any]:
        """Stop asking, and sum up what came since then."""
        seconds = time.perf_counter() - start
        self._until, self._at_least = 0.0, 0
        for caller in self._callers:
            caller.to.abort()
        return {
            "answers": len(self.latencies), "seconds": round(seconds, 4), "failed": len(self.errors),
            "unfinished": max(0, self._open), "errors": self.errors[:3],
            "latency_ms": shares(self.latencies), "first_ms": shares(self.firsts), "gap_ms": shares(self.gaps),
        }  # fmt: skip


def shares(seconds: list[float]) -> dict[str, float] | None:
    if not seconds:
        return None
    seconds = sorted(seconds)
    return {name: round(seconds[min(int(len(seconds) * share), len(seconds) - 1)] * 1000, 4)
            for name, share in (("p50", 0.5), ("p99", 0.99))}  # fmt: skip


class Idle(asyncio.Protocol):
    """A stream that has begun, and says no more."""

    def __init__(self, first: Callable[[], None]) -> None:
        self._first: Callable[[], None] | None = first

    def data_received(self, data: bytes) -> None:
        if self._first is not None and b"data:" in data:
            self._first()
            self._first = None


async def idle(order: dict[str, Any], streams: list[asyncio.Transport]) -> dict[str, Any]:
    """So many streams of which each has had its first event."""
    prompt, loop, count, all_in = Prompt(order), asyncio.get_running_loop(), 0, asyncio.Event()

    def count_stream() -> None:
        nonlocal count
        count += 1
        if count == order["at_once"]:
            all_in.set()

    async def open_stream() -> None:
        to, _ = await loop.create_connection(lambda: Idle(count_stream), order["host"], order["port"])
        streams.append(to)
        to.write(prompt.next())

    start = time.perf_counter()
    try:
        for first in range(0, order["at_once"], OPENED_AT_ONCE):
            await asyncio.gather(*(open_stream() for _ in range(min(OPENED_AT_ONCE, order["at_once"] - first))))
            await asyncio.sleep(0.02)
        async with asyncio.timeout(order["seconds"]):
            await all_in.wait()
    except TimeoutError:
        pass
    except OSError as error:
        return {"begun": count, "error": f"no connection: {error}"}
    return {"begun": count, "seconds": round(time.perf_counter() - start, 3)}


async def main() -> None:
    streams: list[asyncio.Transport] = []
    while line := await asyncio.to_thread(sys.stdin.readline):
        order = json.loads(line)
        if order["op"] == "drop":
            for to in streams:
                to.abort()
            streams.clear()
            reply: dict[str, Any] = {}
        else:
            reply = await (Load(order).run() if order["op"] == "load" else idle(order, streams))
        print(json.dumps(reply), flush=True)


if __name__ == "__main__":
    asyncio.run(main())
