"""Servers found and told apart by their own routes, against the fakes of this repository."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from proxy.backends.model_files import ModelFolders
from proxy.cli.init import discovery
from proxy.cli.init.discovery import DiscoveredServer, ListedModel, look, model_facts
from scripts.fakes.backend import FakeBackend
from scripts.fakes.cloud import FakeCloud
from scripts.fakes.listening import Listening
from scripts.fakes.llamacpp import FakeLlama
from scripts.fakes.lmstudio import FakeLMStudio
from scripts.fakes.mlx import FakeMlx
from scripts.fakes.ollama import FakeOllama
from scripts.fakes.sglang import FakeSGLang
from scripts.harness.in_process import Proxy
from tests.proxy.cli.init.gguf_files import write_head


class Plain(Listening):
    """Some server: routes and what they answer."""

    def __init__(self, status: int = 200, **routes: object) -> None:
        self._status, self._routes = status, routes

    async def start(self) -> None:
        app = web.Application()
        for name, answer in self._routes.items():
            path = "/" + name.replace("__", "/")
            status = self._status if path == "/v1/models" else 200

            async def reply(request: web.Request, answer: object = answer, status: int = status) -> web.Response:
                return web.json_response(answer, status=status)

            app.router.add_get(path, reply)
        await self.listen(app)


async def test_all_kinds_at_once_in_the_order_of_the_addresses(tmp_path: Path) -> None:
    (tmp_path / "presets.ini").write_text("[a]\nmodel = a.gguf\n[b]\nmodel = b.gguf\n")
    router, plain = FakeLlama(tmp_path / "presets.ini"), FakeLlama()
    fakes = {
        "vllm": FakeBackend(), "sglang": FakeSGLang(), "mlx": FakeMlx(), "ollama": FakeOllama(tmp_path / "o"),
        "lmstudio": FakeLMStudio(tmp_path / "l"),
    }  # fmt: skip
    fakes["vllm"].window = 4096  # type: ignore[attr-defined]
    for fake in (*fakes.values(), router, plain):
        await fake.start()  # type: ignore[attr-defined]
    try:
        closed = "http://127.0.0.1:1"
        found = await look([*(f.url for f in fakes.values()), closed, router.url, plain.url + "/v1", plain.url])
        assert [s.kind for s in found] == [*fakes, "llamacpp", "llamacpp"]
        kinds = {s.kind: s for s in found[:5]}
        assert kinds["vllm"].models == (ListedModel("fake", 4096),) and kinds["vllm"].version == "0.32.0"
        assert kinds["mlx"].models == () and "--answers" in kinds["mlx"].note, "the fake has no command line of its own"
        assert kinds["sglang"].models == (ListedModel("fake", None, "fake"),)
        assert [m.name for m in kinds["ollama"].models] == ["fake"] and kinds["ollama"].version == "0.34.4"
        assert [m.name for m in kinds["lmstudio"].models] == ["fake"], "no embedding model"
        assert [m.name for m in found[5].models] == ["a", "b"] and "backend.presets" in found[5].note
        assert "restart" in found[6].note
    finally:
        for fake in (*fakes.values(), router, plain):
            await fake.stop()


async def test_an_address_that_ends_in_api_is_a_clouds_or_ollamas_own(tmp_path: Path) -> None:
    ollama, studio = FakeOllama(tmp_path / "o"), FakeLMStudio(tmp_path / "l")
    cloud = Plain(api__v1__models={"object": "list", "data": [{"id": "m"}]})
    for server in (ollama, studio, cloud):
        await server.start()
    try:
        found = await look([f"{ollama.url}/api", f"{studio.url}/api/v1", f"{cloud.url}/api/v1"])
        assert [(s.kind, s.url) for s in found] == [
            ("ollama", ollama.url), ("lmstudio", studio.url), ("openai", f"{cloud.url}/api/v1"),
        ]  # fmt: skip
    finally:
        for server in (ollama, studio, cloud):
            await server.stop()


async def test_a_path_is_taken_as_it_is_or_lacks_its_version() -> None:
    listed = {"object": "list", "data": [{"id": "m"}]}
    cloud = Plain(v1beta__openai__models=listed, gate__v1__models=listed)
    await cloud.start()
    try:
        written = ["/v1beta/openai/", "/v1beta/openai/chat/completions", "/gate", "/gate/v1", "/elsewhere"]
        found = await look([cloud.url + path for path in written])
        assert [s.url.removeprefix(cloud.url) for s in found] == ["/v1beta/openai", "/gate/v1", "/gate/v1"]
        (scheme_less,) = await look([f"{cloud.url.removeprefix('http://')}/gate/v1"])
        assert scheme_less.url == f"{cloud.url}/gate/v1"
    finally:
        await cloud.stop()


async def test_versions_of_ours_adapters_and_embedders_are_no_models_to_choose(tmp_path: Path) -> None:
    ollama, vllm = FakeOllama(tmp_path), FakeBackend()
    ollama.add("fake-rl:v3", "sha256:x")
    await ollama.start()
    await vllm.start()
    vllm.adapters["fake@v1"] = "/x"
    try:
        found = await look([ollama.url, vllm.url])
        assert [[m.name for m in s.models] for s in found] == [["fake"], ["fake"]]
    finally:
        await ollama.stop()
        await vllm.stop()


async def test_an_rlproxy_is_no_backend(proxy: Proxy) -> None:
    assert await look([proxy.url]) == []


async def test_a_key_goes_to_the_address_that_it_is_for_and_to_no_other() -> None:
    own, other = FakeCloud(), FakeCloud()
    await own.start()
    await other.start()
    try:
        await look([f"{own.url}/v1", other.url], {own.url: "sk-mine"})
        assert set(own.keys) == {"Bearer sk-mine"} and set(other.keys) == {None}
    finally:
        await own.stop()
        await other.stop()


async def test_servers_of_other_kinds() -> None:
    models = {"object": "list", "data": [{"id": "m"}]}
    someone, web_page = Plain(v1__models=models), Plain(index="hello")
    locked = Plain(401, v1__models={"error": "no key"}, version={"version": "0.32.0"})
    old = Plain(api__v1__models={"error": "Unexpected endpoint or method. (GET /api/v1/models)"}, v1__models=models)
    for server in (someone, web_page, locked, old):
        await server.start()
    try:
        found = await look([someone.url, web_page.url, locked.url, old.url])
        assert [s.kind for s in found] == ["openai", "vllm", "lmstudio"]
        assert "captured and rated only" in found[0].note and "RLPROXY_BACKEND__API_KEY" in found[1].note
        assert "update it" in found[2].note
    finally:
        for server in (someone, web_page, locked, old):
            await server.stop()


async def test_a_server_that_never_answers_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(discovery, "ASK_S", 0.1)
    backend = FakeBackend()

    class Stuck(Listening):
        async def start(self) -> None:
            app = web.Application()
            app.router.add_get("/v1/models", self._never)
            await self.listen(app)

        async def _never(self, request: web.Request) -> web.Response:
            import asyncio

            await asyncio.sleep(60)
            return web.Response()

    stuck = Stuck()
    await stuck.start()
    await backend.start()
    try:
        assert [s.url for s in await look([stuck.url, backend.url])] == [backend.url]
    finally:
        await stuck.stop()
        await backend.stop()


async def told(server: DiscoveredServer, model: str, folder: Path) -> Mapping[str, Any]:
    """What is known of a model whose server keeps its files in this folder."""
    return (await model_facts(server, model, folder, ModelFolders([folder]))).about


async def test_what_ollama_says_of_a_model(tmp_path: Path) -> None:
    ollama = FakeOllama(tmp_path)
    ollama.about = {"model_info": {"general.architecture": "llama"}, "details": {"parameter_size": "3.2B"}}
    await ollama.start()
    try:
        (server,) = await look([ollama.url])
        about = await told(server, "fake", tmp_path)
        assert about == {"general.architecture": "llama", "details": {"parameter_size": "3.2B"}}
        assert (await told(server, "unheard-of", tmp_path))["details"] == {}
        head = tmp_path / "head.gguf"  # of which Ollama tells but a part
        write_head(head, {"general.basename": "smollm2", "tokenizer.chat_template": "{{ x }}"})
        ollama.models["fake:latest"]["files"] = [ollama.keep(head.read_bytes())]
        about = await told(server, "fake", tmp_path)
        assert about["tokenizer.chat_template"] == "{{ x }}" and about["general.architecture"] == "llama"
    finally:
        await ollama.stop()


async def test_a_folder_that_ollama_names_is_told_and_not_read(tmp_path: Path) -> None:
    ollama = FakeOllama(tmp_path / "moved")
    head = tmp_path / "head.gguf"
    write_head(head, {"general.basename": "smollm2"})
    ollama.models["fake:latest"]["files"] = [ollama.keep(head.read_bytes())]
    await ollama.start()
    try:
        (server,) = await look([ollama.url])
        facts = await model_facts(server, "fake", tmp_path, ModelFolders([tmp_path / "usual"]))
        assert (facts.unknown_folder, facts.file) == (
            ollama.blobs.parent,
            None,
        ) and "general.basename" not in facts.about
        facts = await model_facts(server, "fake", tmp_path, ModelFolders([ollama.blobs.parent]))
        assert facts.unknown_folder is None and facts.about["general.basename"] == "smollm2"
        ollama.models["fake:latest"]["files"] = ["/etc/passwd"]
        assert (await model_facts(server, "fake", tmp_path, ModelFolders([]))).unknown_folder is None
    finally:
        await ollama.stop()


async def test_the_file_that_llama_server_and_lm_studio_have_loaded(tmp_path: Path) -> None:
    llama, studio = FakeLlama(), FakeLMStudio(tmp_path)
    file = tmp_path / "m.gguf"
    write_head(file, {"general.name": "Some Model"})
    llama.file = str(file)
    await llama.start()
    await studio.start()
    try:
        (one, two) = await look([llama.url, studio.url])
        assert (await told(one, "fake", tmp_path))["general.name"] == "Some Model"
        assert (await told(two, "fake", tmp_path)) == {}, "it is no GGUF file at all"
        write_head(studio.file, {"general.name": "Fake 1B"})
        assert (await told(two, "fake", tmp_path))["general.name"] == "Fake 1B"
        llama.file = "/nowhere.gguf"
        (one,) = await look([llama.url])
        assert (await told(one, "fake", tmp_path)) == {}
    finally:
        await llama.stop()
        await studio.stop()
