"""A model server that answers each path with scripted bytes, and remembers each request byte by byte.

Owns the framing: each read is one chunk. Answers of one path are given in their order; the last one repeats. A path
without an answer is a 404. Questions that rlproxy asks of its own accord are not scripted and not remembered.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from proxy.backends.vllm import ASK
from proxy.training.weights_compare import CHATS

_MODELS = b'{"object":"list","data":[{"id":"m","object":"model","created":1,"owned_by":"x"}]}'


@dataclass(frozen=True, slots=True)
class ScriptedAnswer:
    path: str = ""  # of the request without its query; empty: any that is not asked by rlproxy itself
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    reads: Sequence[bytes] = ()
    pause: float = 0.0  # seconds between two reads
    is_cut: bool = False  # the connection closes before the body has ended


@dataclass(frozen=True, slots=True)
class SeenRequest:
    method: str
    target: str
    headers: Mapping[str, str]  # names in lower case
    body: bytes


class ScriptedServer:
    def __init__(self, answers: Sequence[ScriptedAnswer]) -> None:
        self.requests: list[SeenRequest] = []
        self.url = ""
        self._answers = answers
        self._counts: dict[str, int] = {}  # requests of each path
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, limit=2**26)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def stop(self) -> None:
        assert self._server is not None
        self._server.close()
        for writer in list(self._writers):
            writer.close()
        await self._server.wait_closed()

    def forget(self) -> None:
        """Start every path's answers from the first, and drop the remembered requests."""
        self._counts.clear()
        self.requests.clear()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        try:
            with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
                request = await _read(reader)
                await self._write(writer, self._answer(request), headless=request.method == "HEAD")
        finally:
            self._writers.discard(writer)
            writer.close()

    def _answer(self, request: SeenRequest) -> ScriptedAnswer:
        path = request.target.partition("?")[0]
        candidates = [answer for answer in self._answers if answer.path == path]
        if not candidates and not _is_own_question(request, path):
            candidates = [answer for answer in self._answers if not answer.path]
        if _is_own_question(request, path) and not candidates:
            if path == "/v1/models":
                return ScriptedAnswer(headers={"content-type": "application/json"}, reads=[_MODELS])
            return ScriptedAnswer(status=404)
        self.requests.append(request)
        if not candidates:
            return ScriptedAnswer(status=404)
        index = self._counts.get(path, 0)
        self._counts[path] = index + 1
        return candidates[min(index, len(candidates) - 1)]

    async def _write(self, writer: asyncio.StreamWriter, answer: ScriptedAnswer, *, headless: bool) -> None:
        head = [f"HTTP/1.1 {answer.status} Scripted", *(f"{name}: {value}" for name, value in answer.headers.items())]
        is_chunked = not any(name.lower() == "content-length" for name in answer.headers)
        head += ["connection: close", *(["transfer-encoding: chunked"] if is_chunked else [])]
        writer.write("\r\n".join(head).encode() + b"\r\n\r\n")
        if headless:
            return
        for index, read in enumerate(answer.reads):
            if index:
                await asyncio.sleep(answer.pause)  # each read is seen before the next one is there, mostly
            writer.write(b"%x\r\n%s\r\n" % (len(read), read) if is_chunked else read)
            await writer.drain()
        if is_chunked and not answer.is_cut:
            writer.write(b"0\r\n\r\n")
            await writer.drain()


async def _read(reader: asyncio.StreamReader) -> SeenRequest:
    lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    method, target, _ = lines[0].split(" ", 2)
    fields = [line.split(":", 1) for line in lines[1:] if ":" in line]
    headers = {name.strip().lower(): value.strip() for name, value in fields}
    return SeenRequest(method, target, headers, await reader.readexactly(int(headers.get("content-length", "0"))))


_OWN_PATHS = frozenset(
    {"/v1/models", "/props", "/slots", "/tokenize", "/apply-template", "/version", "/health", "/server_info",
     "/get_model_info", "/get_server_info", "/lora-adapters", "/v1/load_lora_adapter", "/v1/unload_lora_adapter",
     "/api/version", "/api/show", "/api/tags", "/api/ps"}
)  # fmt: skip


def _is_own_question(request: SeenRequest, path: str) -> bool:
    """Tell whether rlproxy may ask this of its own accord; a case that scripts such a path gets it all the same."""
    if path in _OWN_PATHS:
        return True
    with contextlib.suppress(ValueError):
        body = json.loads(request.body) if request.body else None
        return isinstance(body, dict) and body.get("messages") in (*CHATS, ASK)
    return False
