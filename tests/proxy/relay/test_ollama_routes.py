"""What Ollama's own client asks before its first message, where the server is another kind."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import ollama
import pytest

from proxy.relay.ollama_routes import VERSION
from scripts.harness.in_process import Proxy
from tests.harness.llamacpp import with_versions


@pytest.fixture
async def client(proxy: Proxy) -> AsyncIterator[ollama.AsyncClient]:
    client = ollama.AsyncClient(host=proxy.url)
    yield client
    await client._client.aclose()


@pytest.fixture(autouse=True)
async def another_kind(proxy: Proxy) -> None:
    proxy.backend.has_tags = False
    await with_versions(proxy, 1)


async def test_all_lists_name_the_same_models(proxy: Proxy, client: ollama.AsyncClient) -> None:
    names = ["fake", "fake@base", "fake@v1"]
    assert [model.model for model in (await client.list()).models] == names
    assert [model.model for model in (await client.ps()).models] == ["fake"]
    for name in names:
        shown = await client.show(name)
        assert shown.capabilities == ["completion", "tools"]
        answer = await client.chat(name, messages=[{"role": "user", "content": "hi"}])
        assert answer.message.content
    assert await proxy.get("/api/version") == {"version": VERSION}


async def test_a_window_that_the_server_tells(proxy: Proxy, client: ollama.AsyncClient) -> None:
    proxy.backend.window = 4096
    shown = await client.show("fake:latest")
    assert shown.modelinfo == {"general.architecture": "unknown", "unknown.context_length": 4096}


@pytest.mark.parametrize(
    ("body", "status"),
    [({"model": "other"}, 404), ({}, 404), ([], 400), ("x", 400)],
    ids=["other", "none", "list", "text"],
)
async def test_what_cannot_be_shown(proxy: Proxy, body: Any, status: int) -> None:
    async with proxy.http.post("/api/show", json=body) as response:
        assert response.status == status and isinstance((await response.json())["error"], str)
