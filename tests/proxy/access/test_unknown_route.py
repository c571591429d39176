"""What clients send to paths that lead nowhere, and what they are told: in JSON, what happened and what to do."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import openai
import pytest
from aiohttp import FormData, web

from proxy.access.roles import ASKS
from proxy.access.unknown_route import MISTAKES, is_bare
from proxy.dialects import dialect_at
from scripts.fakes.listening import Listening
from scripts.harness.in_process import Proxy

SAID = {"model": "fake", "messages": [{"role": "user", "content": "Hi"}]}


async def error_of(response: Any, status: int = 404) -> str:
    body = await response.json()  # which also wants the content type
    assert response.status == status and set(body) == {"error"} and body["error"]["type"] == "invalid_request_error"
    return str(body["error"]["message"])


@pytest.mark.parametrize(
    ("path", "right"),
    [
        ("/v1/v1/chat/completions", "{}/v1, or {} for"),  # …/v1 for a client that adds that itself
        ("/v1/v1/messages?beta=true", "{}/v1, or {} for"),  # ANTHROPIC_BASE_URL=…/v1
        ("/v1/v1/models", "{}/v1, or {} for"),
        ("/v1/api/chat", "{}."),  # OLLAMA_HOST=…/v1
        ("/api/api/generate", "{}."),
        ("/v1/chat/completions/chat/completions", "{}/v1, or {} for"),  # the whole route as a base URL
        ("/s/mine/v1/v1/chat/completions", "{}/s/mine/v1, or {}/s/mine for"),
        ("/v1//messages?beta=true", "{}/v1, or {} for"),  # a base URL that ends with a slash
        ("/v1/responses/", "{}/v1, or {} for"),  # a server that drops the slash would answer, and nothing be stored
        ("/v1/Chat/Completions", "{}/v1, or {} for"),
        ("/s/mine/api/chat/", "{}/s/mine."),
    ],
)
async def test_a_base_url_with_a_part_too_many_is_named(proxy: Proxy, path: str, right: str) -> None:
    before = len(proxy.backend.asked)
    async with proxy.http.post(path, json=SAID) as response:
        said = await error_of(response)
    assert path.partition("?")[0] in said and f"It is {right.format(proxy.url, proxy.url)}" in said
    assert len(proxy.backend.asked) == before, "nothing of it reached the backend"


async def test_a_base_url_that_the_real_client_doubles(proxy: Proxy) -> None:
    async with openai.AsyncOpenAI(base_url=f"{proxy.url}/v1/v1", api_key="x", max_retries=0) as client:
        with pytest.raises(openai.NotFoundError, match=f"It is {proxy.url}/v1"):
            await client.chat.completions.create(model="fake", messages=[{"role": "user", "content": "Hi"}])


def test_no_route_that_works_is_called_a_mistake() -> None:
    assert not [path for path in MISTAKES if dialect_at(path)] and len(MISTAKES) > 50
    assert not set(MISTAKES) & {one.split()[1] for one in ASKS}


ASKED: dict[str, Callable[[], dict[str, Any]]] = {
    "/v1/embeddings": lambda: {"json": {"model": "fake", "input": "Hi"}},
    "/v1/moderations": lambda: {"json": {"input": "Hi"}},
    "/v1/audio/speech": lambda: {"json": {"model": "tts-1", "voice": "alloy", "input": "Hi"}},
    "/v1/audio/transcriptions": lambda: {"data": FormData({"model": "whisper-1", "file": io.BytesIO(b"RIFF")})},
    "/v1/images/generations": lambda: {"json": {"prompt": "a cat"}},
}


@pytest.mark.parametrize("path", ASKED)
async def test_a_route_that_the_backend_lacks(proxy: Proxy, path: str) -> None:
    """vLLM and the built-in backend say "Not Found", and no more."""
    async with proxy.http.post(path, **ASKED[path]()) as response:
        said = await error_of(response)
    assert f"vllm backend has no POST {path}" in said and "nothing was stored" in said and "own address" in said


async def test_ollamas_clients_are_told_in_their_shape(proxy: Proxy) -> None:
    async with proxy.http.post("/api/embed", json={"model": "fake", "input": "Hi"}) as response:
        body = await response.json()
    assert response.status == 404 and "has no POST /api/embed" in body["error"]


async def test_a_head_request_has_no_body(proxy: Proxy) -> None:
    async with proxy.http.head("/v1/unknown") as response:
        assert response.status == 404 and await response.read() == b""


class Explaining(Listening):
    """A server that says why."""

    def __init__(self, status: int, body: bytes) -> None:
        self._status, self._body = status, body

    async def start(self) -> None:
        app = web.Application()
        app.router.add_route("*", "/{rest:.*}", self._said)
        await self.listen(app)

    async def _said(self, request: web.Request) -> web.Response:
        if request.path == "/v1/models":
            return web.json_response({"data": [{"id": "fake"}]})
        return web.Response(status=self._status, body=self._body, content_type="application/json")


WHY = (
    b'{"error":{"code":501,"message":"This server does not support embeddings. Start it with `--embeddings`"}}',
    b'{"error":"model \\"fake\\" not found, try pulling it first"}',
    b'{"object":"error","message":"The model `fake` does not exist.","type":"NotFoundError","code":404}',
    b'{"detail":[{"loc":["body","input"],"msg":"Field required"}]}',
    b"<html>Not Found</html>",
)


@pytest.mark.parametrize("said", WHY)
async def test_what_a_backend_says_of_its_own_accord_is_passed_on(proxy: Proxy, said: bytes) -> None:
    backend = Explaining(404, said)
    await backend.start()
    try:
        await proxy.stop()
        await proxy.start(backend__url=backend.url)
        async with proxy.http.post("/v1/embeddings", json={"model": "fake", "input": "Hi"}) as response:
            assert (response.status, await response.read()) == (404, said)
    finally:
        await backend.stop()


@pytest.mark.parametrize(
    "said",
    [
        b'{"detail":"Not Found"}', b"404: Not Found", b"Not Found", b"404 page not found", b"",
        b'{"error":{"message":"Not Found","type":"invalid_request_error","param":null,"code":404}}',
        b'{"error":{"code":404,"message":"File Not Found","type":"not_found_error"}}',
        b'{"detail":"Method Not Allowed"}',
    ],
)  # fmt: skip
def test_bare_refusals(said: bytes) -> None:
    assert is_bare(404, said) and not is_bare(400, said)
