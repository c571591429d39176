"""The wire corpus: odd servers and clients, one file each; what leaves, what is stored, whether a rating is taken."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from scripts.fakes.backend import FakeBackend
from scripts.fakes.launcher import FakeLauncher
from scripts.fakes.scripted import ScriptedServer
from scripts.golden.wire import DIRECT, WireCase, WireRequest, cases
from scripts.harness.in_process import Proxy
from store.records import Completion
from tests.harness.polling import Polls

SERVER_ID = "up-1"  # the id that scripted servers give to their answers


@pytest.mark.parametrize("case", cases(), ids=lambda case: case.id)
async def test_case(case: WireCase, tmp_path: Path) -> None:
    server = ScriptedServer(case.answers)
    await server.start()
    try:
        direct = [await _ask(server.url, request) for request in case.requests]
        server.forget()
        async with _proxy(tmp_path, case, server.url) as proxy:
            for request, (_, _, direct_body) in zip(case.requests, direct, strict=True):
                await _check(proxy, server, request, direct_body)
    finally:
        await server.stop()


@contextlib.asynccontextmanager
async def _proxy(home: Path, case: WireCase, url: str) -> AsyncIterator[Proxy]:
    # A model folder without defaults for sampling: captures can be exact.
    weights = home / "model"
    await asyncio.to_thread(weights.mkdir)
    proxy = Proxy(home / "home", FakeBackend(), FakeLauncher())
    proxy.kind = None
    proxy.flags |= {"backend.kind": case.backend, "backend.url": url, "backend.model": "m", "train.start_at": 10**6}
    await proxy.start(train__weights=str(weights), **case.settings)
    try:
        yield proxy
    finally:
        await proxy.stop()


async def _ask(url: str, request: WireRequest) -> tuple[int, dict[str, str], bytes]:
    """The status, the headers in lower case, and the body; a body that breaks off ends where it broke."""
    headers = {"content-type": "application/json", **request.headers}
    timeout = aiohttp.ClientTimeout(total=30)
    async with (
        aiohttp.ClientSession(timeout=timeout) as http,
        http.request(
            request.method, url + request.path, data=request.body.encode(), headers=headers, allow_redirects=False
        ) as response,
    ):
        body = b""
        with contextlib.suppress(aiohttp.ClientPayloadError, ConnectionError):
            async for piece in response.content.iter_any():
                body += piece
        return response.status, {name.lower(): value for name, value in response.headers.items()}, body


async def _check(proxy: Proxy, server: ScriptedServer, request: WireRequest, direct_body: bytes) -> None:
    earlier = len(server.requests)
    status, headers, body = await _ask(proxy.url, request)
    assert status == request.status, body
    for name, value in request.head.items():
        assert headers.get(name, "") == value, name
    id = headers.get("x-rl-completion-id", "")
    if request.answer is not None:
        wanted = direct_body if request.answer == DIRECT else request.answer.encode()
        assert body == wanted.replace(SERVER_ID.encode(), id.encode() if id else SERVER_ID.encode())
    for text in request.contains:
        assert text.encode() in body, (text, body)
    for text in request.lacks:
        assert text.encode() not in body, (text, body)
    questions = server.requests[earlier:]
    if request.questions is not None:
        assert len(questions) == request.questions, questions
    _check_sent(request, b"\n".join(b"%s %s\n%s" % (q.method.encode(), q.target.encode(), q.body) for q in questions))
    await _check_stored(proxy, request, id)


def _check_sent(request: WireRequest, questions: bytes) -> None:
    for text in request.sent:
        assert text.encode() in questions, (text, questions)
    for text in request.unsent:
        assert text.encode() not in questions, (text, questions)


async def _check_stored(proxy: Proxy, request: WireRequest, id: str) -> None:
    if not request.captured:
        assert not id and not await proxy.store.completions.page(limit=1)
        return
    if request.stored is not None:
        completion = await _captured(proxy, id)
        stored = {name: _member(completion, name) for name in request.stored}
        assert stored == request.stored
    if request.rating is not None:
        status, answer = await proxy.rate(completion_id=id, rating="good")
        assert {201: "taken"}.get(status, "refused") == request.rating, answer


async def _captured(proxy: Proxy, id: str) -> Completion:
    async for _ in Polls():
        completion = await proxy.store.completions.get(id)
        if completion is not None and completion.status != "pending":
            return completion
    raise AssertionError(f"{id} was never stored")


def _member(completion: Completion, name: str) -> Any:
    """A member of the stored completion or of its end, by its name; `message` is the reply as JSON text."""
    if name == "message":
        return completion.end.reply.body.decode() if completion.end and completion.end.reply else None
    holders = (completion, completion.new, *([completion.end] if completion.end else []))
    return next(getattr(holder, name) for holder in holders if hasattr(holder, name))
