"""A whole proxy before a server whose API is at a path of its own, as clouds have it."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from scripts.fakes.backend import FakeBackend
from scripts.fakes.launcher import FakeLauncher
from scripts.fakes.scripted import ScriptedAnswer, ScriptedServer
from scripts.harness.in_process import Proxy

JSON = {"content-type": "application/json"}
CHAT = ScriptedAnswer(
    headers=JSON,
    reads=[
        b'{"id":"up-1","object":"chat.completion","created":1,"model":"m","choices":[{"index":0,'
        b'"message":{"role":"assistant","content":"hello"},"finish_reason":"stop"}]}'
    ],
)
LIST = ScriptedAnswer(headers=JSON, reads=[b'{"object":"list","data":[{"id":"m","object":"model","owned_by":"x"}]}'])


@contextlib.asynccontextmanager
async def proxy_at(home: Path, server: ScriptedServer, path: str) -> AsyncIterator[Proxy]:
    await server.start()
    proxy = Proxy(home, FakeBackend(), FakeLauncher())
    proxy.kind = None
    proxy.flags |= {"backend.kind": "openai", "backend.url": server.url + path}
    await proxy.start()
    try:
        yield proxy
    finally:
        await proxy.stop()
        await server.stop()


def at(path: str, answer: ScriptedAnswer) -> ScriptedAnswer:
    return ScriptedAnswer(path=path, status=answer.status, headers=answer.headers, reads=answer.reads)


@pytest.mark.parametrize(
    ("written", "base"),
    [
        ("", "/v1"),
        ("/v1/", "/v1"),
        ("/v1/chat/completions", "/v1"),
        ("/v1beta/openai", "/v1beta/openai"),
        ("/v1beta/openai/chat/completions", "/v1beta/openai"),
        ("/api/paas/v4/", "/api/paas/v4"),
        ("/api/v3", "/api/v3"),
        ("/gate/v1", "/gate/v1"),
    ],
)
async def test_every_route_is_behind_the_path(tmp_path: Path, written: str, base: str) -> None:
    """The relay's, a passed route's, and those that rlproxy asks by itself."""
    server = ScriptedServer([at(f"{base}/chat/completions", CHAT), at(f"{base}/models", LIST)])
    async with proxy_at(tmp_path, server, written) as proxy:
        assert await proxy.say("hi", model="m") == "hello"
        assert [m["id"] for m in (await proxy.get("/v1/models"))["data"]] == ["m"]
        async with proxy.http.get("/readyz") as ready:
            assert ready.status == 200, await ready.text()
        async with proxy.http.post("/v1/embeddings", json={"model": "m", "input": "x"}) as response:
            assert response.status == 404
        targets = {request.target for request in server.requests}
        assert targets == {f"{base}/{route}" for route in ("chat/completions", "models", "embeddings")}


async def test_a_path_that_lacks_its_version(tmp_path: Path) -> None:
    server = ScriptedServer([at("/gate/v1/chat/completions", CHAT)])
    async with proxy_at(tmp_path, server, "/gate") as proxy, proxy.http.get("/readyz") as ready:
        said = await ready.text()
        assert ready.status == 503 and "404 to GET /gate/models" in said and "should /gate be /gate/v1?" in said


async def test_one_model_of_a_server_that_only_lists_them(tmp_path: Path) -> None:
    server = ScriptedServer([at("/v1/models", LIST)])
    async with proxy_at(tmp_path, server, "/v1") as proxy:
        assert (await proxy.get("/v1/models/m"))["id"] == "m"
        assert server.requests[-1].target == "/v1/models"
        async with proxy.http.get("/v1/models/m", headers={"authorization": "Bearer theirs"}) as response:
            assert response.status == 200 and server.requests[-1].headers["authorization"] == "Bearer theirs"
        async with proxy.http.get("/v1/models/other") as response:
            assert response.status == 404


async def test_one_model_of_a_server_that_has_the_route(tmp_path: Path) -> None:
    refusal = b'{"error":{"message":"no such model"}}'
    refused = ScriptedAnswer(path="/v1/models/m", status=404, headers=JSON, reads=[refusal])
    server = ScriptedServer([at("/v1/models", LIST), refused])
    async with proxy_at(tmp_path, server, "/v1") as proxy, proxy.http.get("/v1/models/m") as response:
        assert (response.status, await response.read()) == (404, refusal), "its own word counts"


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses", "/v1/embeddings"])
async def test_the_name_of_a_request_reaches_the_backend(tmp_path: Path, path: str) -> None:
    server = ScriptedServer([CHAT])
    async with proxy_at(tmp_path, server, "/v1") as proxy:
        body = {"model": "m", "messages": [{"role": "user", "content": "x"}], "input": "x"}
        async with proxy.http.post(path, json=body, headers={"X-Request-Id": "req-7"}):
            assert server.requests[-1].headers["x-request-id"] == "req-7"


async def test_a_proxy_in_the_environment_is_not_gone_through_and_that_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = ScriptedServer([CHAT])
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    async with proxy_at(tmp_path, server, "/v1") as proxy:
        assert await proxy.say("hi", model="m") == "hello"
        await server.stop()
        hint = "HTTP_PROXY is set, and rlproxy goes through no proxy"
        async with await proxy.chat("hi", model="m") as response:
            assert response.status == 503 and hint in await response.text()
        monkeypatch.setenv("NO_PROXY", "localhost,127.0.0.1")
        async with await proxy.chat("hi", model="m") as response:
            assert response.status == 503 and hint not in await response.text()
        await server.start()
