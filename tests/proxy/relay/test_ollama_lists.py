"""All list routes of a proxy before Ollama name the same versions, and each can be asked for by that name."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from scripts.fakes.ollama import FakeOllama
from scripts.harness.in_process import Proxy
from tests.harness.lines import call, create
from tests.harness.llamacpp import said_by, with_versions
from tests.harness.ollama import make_proxy


@pytest.fixture
async def ollama(tmp_path: Path) -> AsyncIterator[FakeOllama]:
    fake = FakeOllama(tmp_path / "ollama", "0.33.2")
    fake.add("another:7b", fake.keep(b"GGUF another"))
    await fake.start()
    yield fake
    await fake.stop()


@pytest.fixture
async def proxy(tmp_path: Path, ollama: FakeOllama) -> AsyncIterator[Proxy]:
    proxy = make_proxy(tmp_path / "home", ollama.url, **{"backend.model": "fake"})
    await proxy.start()
    await with_versions(proxy, 1, 2)
    yield proxy
    await proxy.stop()


async def test_all_lists_agree(proxy: Proxy, ollama: FakeOllama) -> None:
    await proxy.post("/rl/promote/2")  # v1 is not at Ollama: it is made when it is asked for
    ollama.add("fake-rl:v1-abcdef", ollama.keep(b"GGUF of another home"))
    tags = (await proxy.get("/api/tags"))["models"]
    names = [entry["name"].removesuffix(":latest") for entry in tags]
    assert names == ["fake", "another:7b", "fake@base", "fake@v1", "fake@v2"]
    assert [m["id"] for m in (await proxy.get("/v1/models"))["data"]] == names
    assert all(entry["name"] == entry["model"] and len(entry["digest"]) == 64 for entry in tags)
    running = {entry["name"] for entry in (await proxy.get("/api/ps"))["models"]}
    assert running == {"fake@v2"}
    for name in names[2:]:
        assert (await proxy.get(f"/v1/models/{name}"))["id"] == name
    assert await said_by(proxy, "fake@v1") == f"fake-rl:v1-{proxy.mark}"
    assert await said_by(proxy, "fake@v1:latest") == f"fake-rl:v1-{proxy.mark}", "as Ollama's clients may say it"


async def test_a_version_is_shown_as_its_model(proxy: Proxy) -> None:
    async def show(**body: str) -> tuple[int, str]:
        async with proxy.http.post("/s/trip/api/show", json=body) as response:
            return response.status, await response.text()

    shown = await show(model="fake")
    assert shown[0] == 200
    for body in ({"model": "fake@v1"}, {"name": "fake@base"}, {"model": "fake@v2:latest"}):
        assert await show(**body) == shown
    assert await show(model="fake@v7") == (404, '{"error":"model \'fake@v7\' not found"}')
    assert (await show(model="nobody"))[0] == 404


async def test_what_is_no_list_passes_through(proxy: Proxy) -> None:
    assert (await proxy.get("/api/version"))["version"] == "0.33.2"
    async with proxy.http.post("/api/show", data=b"{no json") as response:
        assert response.status == 400


@pytest.mark.parametrize("body", [{"prompt": ""}, {"keep_alive": "10m"}, {"keep_alive": 0}])
async def test_a_version_is_loaded_and_unloaded_by_its_name_and_that_is_no_turn(
    proxy: Proxy, ollama: FakeOllama, body: dict[str, Any]
) -> None:
    before = len(await proxy.store.completions.page(limit=99))
    for path, more in (("/api/generate", body), ("/api/chat", {**body, "messages": []})):
        async with proxy.http.post(path, json={"model": "fake@v1", **more}) as response:
            answer = await response.json()
            assert response.status == 200 and "x-rl-completion-id" not in response.headers
        assert answer["model"] == "fake@v1", "not the tag that it has at Ollama"
        assert answer["done_reason"] == ("unload" if body.get("keep_alive") == 0 else "load")
        assert (path, {"model": f"fake-rl:v1-{proxy.mark}", **more}) in ollama.asked
    assert len(await proxy.store.completions.page(limit=99)) == before


async def test_a_key_of_a_line_sees_its_own_versions(proxy: Proxy) -> None:
    await create(proxy, "ann", **{"from": "base"})
    await create(proxy, "bob", **{"from": "v2"})
    tag = f"fake-rl:v2-{proxy.mark}"
    assert await said_by(proxy, "fake@v2") == tag
    _, key = await call(proxy, "POST", "/rl/keys", {"name": "ann", "role": "use", "line": "ann"}, proxy.local)
    tags = (await call(proxy, "GET", "/api/tags", key=key["key"]))[1]["models"]
    assert [entry["name"] for entry in tags] == ["fake:latest", "another:7b", "fake@base", "fake@ann"]
    assert (await call(proxy, "GET", "/api/ps", key=key["key"]))[1]["models"] == []
    for model in ("fake@bob", "fake@v2", tag):
        assert (await call(proxy, "POST", "/api/show", {"model": model}, key["key"]))[0] == 404, model
