"""Responses in the background: polls, streams and cancelling reach the backend until the status is final."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from scripts.fakes.backend import FakeBackend
from scripts.fakes.launcher import FakeLauncher
from scripts.fakes.listening import Listening
from scripts.harness.in_process import Proxy
from store.records import Completion

ITEM = {
    "id": "msg_1", "type": "message", "role": "assistant", "status": "completed",
    "content": [{"type": "output_text", "text": "hello", "annotations": []}],
}  # fmt: skip


class BackgroundServer(Listening):
    """It works on one response, until it is told to be done."""

    def __init__(self) -> None:
        self.status = "queued"
        self.requests: list[str] = []
        self.is_lost = False
        self.release = asyncio.Event()  # of a stream, after its first event
        self.has_last_blank_line = True

    async def start(self, port: int = 0) -> None:
        app = web.Application()
        app.add_routes([
            web.get("/v1/models", self._models),
            web.post("/v1/responses", self._post),
            web.get("/v1/responses/{id}", self._get),
            web.post("/v1/responses/{id}/cancel", self._cancel),
            web.delete("/v1/responses/{id}", self._delete),
        ])  # fmt: skip
        await self.listen(app, port)

    def response(self) -> dict[str, Any]:
        output = [ITEM] if self.status in ("completed", "cancelled") else []
        error = {"code": "server_error", "message": "out of memory"} if self.status == "failed" else None
        return {"id": "resp_7", "object": "response", "created_at": 1, "status": self.status, "model": "m",
                "background": True, "output": output, "error": error}  # fmt: skip

    async def _models(self, request: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [{"id": "m", "object": "model"}]})

    async def _post(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        return await self._stream(request) if body.get("stream") else web.json_response(self.response())

    async def _get(self, request: web.Request) -> web.StreamResponse:
        self.requests.append(request.path_qs)
        if self.is_lost:
            return web.json_response({"error": {"message": "no such response", "code": 404}}, status=404)
        if request.query.get("stream") == "true":
            self.release.set()
            return await self._stream(request)
        return web.json_response(self.response())

    async def _stream(self, request: web.Request) -> web.StreamResponse:
        stream = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await stream.prepare(request)

        async def send(number: int, kind: str, **members: Any) -> None:
            event = {"type": kind, "sequence_number": number, **members}
            end = "\n\n" if self.has_last_blank_line or kind != "response.completed" else ""
            await stream.write(f"event: {kind}\ndata: {json.dumps(event)}{end}".encode())

        self.status = "in_progress"
        await send(0, "response.created", response=self.response())
        await send(1, "response.output_text.delta", item_id="msg_1", output_index=0, content_index=0, delta="hel")
        await self.release.wait()
        await send(2, "response.output_text.delta", item_id="msg_1", output_index=0, content_index=0, delta="lo")
        self.status = "completed"
        await send(3, "response.completed", response=self.response())
        await stream.write_eof()
        return stream

    async def _cancel(self, request: web.Request) -> web.Response:
        self.requests.append(request.path_qs)
        self.status = "cancelled"
        return web.json_response(self.response())

    async def _delete(self, request: web.Request) -> web.Response:
        self.requests.append(f"DELETE {request.path_qs}")
        return web.json_response({"id": "resp_7", "object": "response", "deleted": True})


@pytest.fixture
async def server() -> AsyncIterator[BackgroundServer]:
    server = BackgroundServer()
    await server.start()
    yield server
    await server.stop()


@pytest.fixture
async def open_proxy(tmp_path: Path, server: BackgroundServer) -> AsyncIterator[Proxy]:
    async with _started(tmp_path, server) as proxy:
        yield proxy


@contextlib.asynccontextmanager
async def _started(home: Path, server: BackgroundServer) -> AsyncIterator[Proxy]:
    proxy = Proxy(home / "home", FakeBackend(), FakeLauncher())
    proxy.kind = None
    await proxy.start(backend__kind="openai", backend__url=server.url, backend__model="m")
    try:
        yield proxy
    finally:
        await proxy.stop()


async def _ask(proxy: Proxy, **members: Any) -> dict[str, Any]:
    body = {"model": "m", "input": "x", "background": True, "store": True, **members}
    async with proxy.http.post("/v1/responses", json=body) as response:
        assert response.status == 200
        found: dict[str, Any] = await response.json()
        assert found["id"] == response.headers["x-rl-completion-id"]
        return found


async def _poll(proxy: Proxy, id: str) -> dict[str, Any]:
    async with proxy.http.get(f"/v1/responses/{id}") as response:
        assert response.status == 200
        found: dict[str, Any] = await response.json()
        return found


async def _row(proxy: Proxy, id: str) -> Completion:
    found = await proxy.store.completions.get(id)
    assert found is not None
    return found


async def test_polls_reach_the_backend_until_it_is_done(open_proxy: Proxy, server: BackgroundServer) -> None:
    queued = await _ask(open_proxy)
    id = queued["id"]
    assert queued["status"] == "queued" and id.startswith("rl-")
    assert (await _row(open_proxy, id)).status == "pending"
    server.status = "in_progress"
    assert (await _poll(open_proxy, id))["status"] == "in_progress" and (await _row(open_proxy, id)).status == "pending"
    server.status = "completed"
    done = await _poll(open_proxy, id)
    assert (done["id"], done["status"], done["output"]) == (id, "completed", [ITEM])
    row = await _row(open_proxy, id)
    assert row.end is not None and (row.status, row.end.text, row.end.finish_reason) == ("done", "hello", "stop")
    assert server.requests == ["/v1/responses/resp_7"] * 2
    assert (await open_proxy.rate(completion_id=id, rating="good"))[0] == 201


async def test_one_that_is_not_done_takes_no_rating(open_proxy: Proxy) -> None:
    id = (await _ask(open_proxy))["id"]
    status, answer = await open_proxy.rate(completion_id=id, rating="bad")
    assert status == 409 and "fetch it first" in answer["error"]["message"]


async def test_a_restart_in_between_loses_nothing(tmp_path: Path, server: BackgroundServer) -> None:
    async with _started(tmp_path, server) as proxy:
        id = (await _ask(proxy))["id"]
    server.status = "completed"
    async with _started(tmp_path, server) as proxy:
        assert (await _row(proxy, id)).status == "pending"
        assert (await _poll(proxy, id))["status"] == "completed"
        row = await _row(proxy, id)
        assert row.end is not None and (row.status, row.end.text) == ("done", "hello")
        # Its conversation goes on from it.
        messages = [{"role": "user", "content": "x"}, {"role": "assistant", "content": "hello"}]
        line = {"role": "user", "content": "/rl bad"}
        async with proxy.http.post("/v1/chat/completions", json={"model": "m", "messages": [*messages, line]}) as said:
            assert "rated bad" in (await said.json())["choices"][0]["message"]["content"]
        assert [rating.value for rating in (await _row(proxy, id)).ratings] == [-1.0]


async def test_two_polls_at_once_store_it_once(open_proxy: Proxy, server: BackgroundServer) -> None:
    id = (await _ask(open_proxy))["id"]
    server.status = "completed"
    found = await asyncio.gather(*(_poll(open_proxy, id) for _ in range(8)))
    assert {one["status"] for one in found} == {"completed"} and (await _row(open_proxy, id)).status == "done"
    async with open_proxy.http.get("/rl/status") as response:
        assert "not captured" not in await response.text()


async def test_what_was_cancelled_keeps_what_came(open_proxy: Proxy, server: BackgroundServer) -> None:
    id = (await _ask(open_proxy))["id"]
    async with open_proxy.http.post(f"/v1/responses/{id}/cancel") as response:
        found = await response.json()
    assert (found["id"], found["status"]) == (id, "cancelled") and server.requests == ["/v1/responses/resp_7/cancel"]
    row = await _row(open_proxy, id)
    assert row.end is not None and (row.status, row.end.text, row.end.error) == ("partial", "hello", "it was cancelled")


async def test_one_that_failed_is_an_error_in_its_words(open_proxy: Proxy, server: BackgroundServer) -> None:
    id = (await _ask(open_proxy))["id"]
    server.status = "failed"
    assert (await _poll(open_proxy, id))["error"]["message"] == "out of memory"
    row = await _row(open_proxy, id)
    assert row.end is not None and (row.status, row.end.error) == ("error", "out of memory")


async def test_one_that_the_backend_has_lost(open_proxy: Proxy, server: BackgroundServer) -> None:
    id = (await _ask(open_proxy))["id"]
    server.is_lost = True
    found = await _poll(open_proxy, id)
    assert found["status"] == "failed" and "does not have this response any more" in found["error"]["message"]
    assert (await _row(open_proxy, id)).status == "error"


async def test_one_that_was_stored_outlives_the_backend(open_proxy: Proxy, server: BackgroundServer) -> None:
    id = (await _ask(open_proxy))["id"]
    server.status = "completed"
    await _poll(open_proxy, id)
    server.is_lost = True
    assert (await _poll(open_proxy, id))["output"][0]["content"][0]["text"] == "hello"
    await server.stop()
    assert (await _poll(open_proxy, id))["status"] == "completed"


async def test_a_backend_that_is_down_loses_nothing(open_proxy: Proxy, server: BackgroundServer) -> None:
    id, port = (await _ask(open_proxy))["id"], int(server.url.rpartition(":")[2])
    await server.stop()
    async with open_proxy.http.get(f"/v1/responses/{id}") as response:
        assert response.status == 503
    await server.start(port)
    server.status = "completed"
    assert (await _poll(open_proxy, id))["status"] == "completed" and (await _row(open_proxy, id)).status == "done"


async def test_a_stream_that_its_client_leaves_goes_on(open_proxy: Proxy, server: BackgroundServer) -> None:
    body = {"model": "m", "input": "x", "background": True, "stream": True}
    async with open_proxy.http.post("/v1/responses", json=body) as response:
        id = response.headers["x-rl-completion-id"]
        assert b'"delta": "hel"' in await response.content.readuntil(b'"hel"}\n\n')
    async with asyncio.timeout(10):
        while await open_proxy.store.items.response_of(id) is None:
            await asyncio.sleep(0.01)
    assert (await _row(open_proxy, id)).status == "pending"
    async with open_proxy.http.get(f"/v1/responses/{id}", params={"stream": "true", "starting_after": "1"}) as response:
        raw = await response.read()
    assert server.requests == ["/v1/responses/resp_7?stream=true&starting_after=1"]
    assert b"resp_7" not in raw and id.encode() in raw and b"response.completed" in raw
    row = await _row(open_proxy, id)
    assert row.end is not None and (row.status, row.end.text) == ("done", "hello")


async def test_a_stream_that_is_read_to_its_end_is_stored_at_once(open_proxy: Proxy, server: BackgroundServer) -> None:
    server.release.set()
    body = {"model": "m", "input": "x", "background": True, "stream": True}
    async with open_proxy.http.post("/v1/responses", json=body) as response:
        id, raw = response.headers["x-rl-completion-id"], await response.read()
    row = await _row(open_proxy, id)
    assert b"resp_7" not in raw and row.end is not None and (row.status, row.end.text) == ("done", "hello")
    assert await open_proxy.store.items.response_of(id) is None


async def test_a_stream_again_whose_last_blank_line_is_lacking(open_proxy: Proxy, server: BackgroundServer) -> None:
    id = (await _ask(open_proxy))["id"]
    server.has_last_blank_line = False
    async with open_proxy.http.get(f"/v1/responses/{id}", params={"stream": "true"}) as response:
        raw = await response.read()
    row = await _row(open_proxy, id)
    assert b"resp_7" not in raw and row.end is not None and (row.status, row.end.text) == ("done", "hello")


async def test_one_that_nobody_fetches_expires_with_the_others(open_proxy: Proxy) -> None:
    id = (await _ask(open_proxy))["id"]
    assert await open_proxy.store.completions.expiring(2**40) == 1
    assert await open_proxy.store.completions.expire(2**40) == 1
    assert await open_proxy.store.completions.get(id) is None


async def test_deleting_one_deletes_it_there_too(open_proxy: Proxy, server: BackgroundServer) -> None:
    id = (await _ask(open_proxy))["id"]
    async with open_proxy.http.delete(f"/v1/responses/{id}") as response:
        assert response.status == 200
    assert server.requests == ["DELETE /v1/responses/resp_7"]
    assert await open_proxy.store.completions.get(id) is None


async def test_nothing_is_kept_of_one_that_is_not_captured(open_proxy: Proxy, server: BackgroundServer) -> None:
    """Its client has the backend's own id, and asks by that."""
    body = {"model": "m", "input": "x", "background": True}
    async with open_proxy.http.post("/v1/responses", json=body, headers={"x-rl-capture": "off"}) as response:
        assert (await response.json())["id"] == "resp_7"
    assert (await _poll(open_proxy, "resp_7"))["id"] == "resp_7"
    assert await open_proxy.store.completions.page(limit=1) == []
