"""Requests that no client library sends, as the fuzz of all routes found them: refused in our words, never a bug."""

from __future__ import annotations

import asyncio
import json
from unittest import mock

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import make_mocked_request
from structlog.testing import capture_logs

from proxy.dialects.identity import AGENT_HEADERS
from proxy.web import error_middleware
from scripts.harness.in_process import Proxy


async def raw(proxy: Proxy, head: bytes, body: bytes = b"") -> tuple[int, bytes]:
    """Status and body of the answer to these very bytes."""
    port = int(proxy.url.rpartition(":")[2])
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    lines = [head, b"host: 127.0.0.1:%d" % port, b"connection: close", b"content-length: %d" % len(body)]
    writer.write(b"\r\n".join(lines) + b"\r\n\r\n" + body)
    async with asyncio.timeout(20):
        answer = await reader.read(-1)
    writer.close()
    top, _, said = answer.partition(b"\r\n\r\n")
    return int(top.split(b" ")[1]), said


@pytest.mark.parametrize("segment", [b"%ED%A0%80", b"%FF", b"%00", b"%E2%80%AE"])
@pytest.mark.parametrize("route", [b"GET /rl/runs/", b"DELETE /v1/feedback/", b"GET /rl/completions/", b"GET /nope/"])
async def test_a_path_that_is_no_utf8(proxy: Proxy, route: bytes, segment: bytes) -> None:
    status, body = await raw(proxy, route + segment + b" HTTP/1.1")
    assert status in (400, 404) and json.loads(body)["error"]["message"]


@pytest.mark.parametrize("value", [b"\xff", b"\xed\xa0\x80"])
async def test_a_name_in_a_header_that_is_no_utf8(proxy: Proxy, value: bytes) -> None:
    status, body = await raw(proxy, b"DELETE /v1/feedback/last HTTP/1.1\r\nx-rl-user: " + value)
    assert status == 400 and b"x-rl-user" in body
    chat = b'{"model": "fake", "messages": [{"role": "user", "content": "hello"}]}'
    head = b"POST /v1/chat/completions HTTP/1.1\r\nuser-agent: Jos\xe9\r\nx-rl-session: "
    assert (await raw(proxy, head + value, chat))[0] == 400
    status, body = await raw(proxy, head + b"s", chat)
    assert status == 200, body
    assert [one["session"] for one in (await proxy.get("/rl/completions"))["data"]] == ["s"]


@pytest.mark.parametrize("given", [b"x", b"-1", b"1e3", "\u00b2".encode(), b"9" * 19, b"9" * 5000])
async def test_a_last_event_id_that_is_none(proxy: Proxy, given: bytes) -> None:
    status, body = await raw(proxy, b"GET /rl/events HTTP/1.1\r\nlast-event-id: " + given)
    assert status == 400 and json.loads(body)["error"]["param"] == "last-event-id"


async def test_a_flag_in_a_query_may_be_false(proxy: Proxy) -> None:
    await proxy.say("hello")
    id = (await proxy.get("/rl/completions"))["data"][0]["id"]
    await proxy.rate(completion_id=id, rating="good")
    for said, shown in (("", 0), ("=1", 0), ("=true", 0), ("=false", 1), ("=0", 1)):
        assert len((await proxy.get("/rl/completions?unrated" + said))["data"]) == shown, said
    assert (await raw(proxy, b"GET /rl/completions?unrated=maybe HTTP/1.1"))[0] == 400


async def test_a_method_that_a_route_has_not(proxy: Proxy) -> None:
    async with proxy.http.request("TRACE", "/rl/keys") as response:
        assert response.status == 405 and response.headers["allow"] == "DELETE, GET, HEAD, POST"


@pytest.mark.parametrize("path", ["/v1/feedback", "/v1/feedback/rt-1", "/v1/feedback/a/b", "/s/x/v1/feedback"])
async def test_what_is_said_of_ratings_never_reaches_the_backend(proxy: Proxy, path: str) -> None:
    """By a method or a path that is not there, a rating and its comment were passed on as what nobody here knows."""
    async with proxy.http.put(path, json={"completion_id": "x", "rating": "bad", "comment": "private"}) as response:
        assert response.status in (404, 405), await response.text()
        assert (await response.json())["error"]["code"] == "not_found"
    async with proxy.http.get("/v1/feedbacks") as response:
        assert (response.status, response.content_type) == (404, "application/json")
        assert "backend has no GET /v1/feedbacks" in (await response.json())["error"]["message"]


@pytest.mark.parametrize("closing", [True, False])
async def test_a_client_that_has_gone_is_no_bug(closing: bool) -> None:
    """Its connection is reset under what we write to it; a reset that is not its own is told as ever."""

    async def handler(request: web.Request) -> web.StreamResponse:
        raise aiohttp.ClientConnectionResetError("Cannot write to closing transport")

    request = make_mocked_request("GET", "/v1/models", writer=mock.Mock(output_size=0))
    assert isinstance(request.transport, mock.Mock)
    request.transport.is_closing.return_value = closing
    with capture_logs() as logs:
        response = await error_middleware.shape_errors(request, handler)
    assert response.status == (499 if closing else 500) and len(logs) == (0 if closing else 1)


@pytest.mark.parametrize("value", [b"\xff", b"J\xfcrgen", b"\xed\xa0\x80"])
@pytest.mark.parametrize("name", AGENT_HEADERS)
async def test_a_name_of_an_agent_that_is_no_utf8(proxy: Proxy, name: str, value: bytes) -> None:
    """It is passed over, as all that is not a name."""
    body = json.dumps({"model": "fake", "messages": [{"role": "user", "content": "x"}]}).encode()
    head = b"POST /v1/chat/completions HTTP/1.1\r\n%s: %s" % (name.encode(), value)
    status, answer = await raw(proxy, head, body)
    assert status == 200 and b"You said: x" in answer, answer
    (row,) = (await proxy.get("/rl/completions"))["data"]
    assert (row["status"], row["session"]) == ("done", None)
