"""A model that is updated at Ollama while versions of it live: none of them is ever put on other weights."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from proxy.backends.origins import MOST, Origins
from scripts.fakes.ollama import FakeOllama
from scripts.harness.in_process import Proxy
from tests.harness.llamacpp import said_by, with_versions
from tests.harness.ollama import NEW, OLD, make_proxy

MODEL = "fake:latest"
OTHERS = b"GGUF another fine-tune of the same shape" * 100


@pytest.fixture(params=[OLD, NEW])
async def ollama(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[FakeOllama]:
    fake = FakeOllama(tmp_path / "ollama", request.param)
    await fake.start()
    yield fake
    await fake.stop()


@pytest.fixture
async def proxy(tmp_path: Path, ollama: FakeOllama) -> AsyncIterator[Proxy]:
    proxy = make_proxy(tmp_path / "home", ollama.url)
    await proxy.start()
    await with_versions(proxy, 1, 2)
    yield proxy
    await proxy.stop()


def update(ollama: FakeOllama, *, keeps: bool) -> str:
    """Other weights under the same name. The digest of the old file, which stays while something is made of it."""
    before: str = ollama.models[MODEL]["files"][0]
    ollama.add(MODEL, ollama.keep(OTHERS))
    if not keeps:
        ollama.blob(before).unlink()
    return before


def take_out(ollama: FakeOllama, tag: str) -> None:
    del ollama.models[tag]
    ollama.loaded = [name for name in ollama.loaded if name != tag]


async def remade(proxy: Proxy, ollama: FakeOllama, version: int) -> str:
    """The tag of a version that was taken out, after a request for it."""
    tag = f"fake-rl:v{version}-{proxy.mark}"
    take_out(ollama, tag)
    return await said_by(proxy, f"fake@v{version}")


async def test_a_version_is_made_again_of_the_weights_that_it_was_trained_on(proxy: Proxy, ollama: FakeOllama) -> None:
    await proxy.post("/rl/promote/1")
    before = update(ollama, keeps=True)
    assert await remade(proxy, ollama, 1) == f"fake-rl:v1-{proxy.mark}"
    made = ollama.created[-1]
    if ollama.version == OLD:
        assert made["files"] == {"model.gguf": before} and made["adapters"] and "from" not in made
    else:
        whole = ollama.blob(made["files"]["model.gguf"]).read_bytes()
        assert whole.startswith(b"GGUF the person's own model") and whole.endswith(b"v0001")
    await proxy.post("/rl/promote/2")
    assert ollama.models[f"fake-rl:v2-{proxy.mark}"]["files"] != ollama.models[f"fake-rl:v1-{proxy.mark}"]["files"]


async def test_where_those_weights_are_gone_the_model_itself_answers(proxy: Proxy, ollama: FakeOllama) -> None:
    await proxy.post("/rl/promote/1")
    update(ollama, keeps=False)
    take_out(ollama, f"fake-rl:v1-{proxy.mark}")
    made = len(ollama.created)
    response = await proxy.chat("who?")
    await response.read()
    assert response.status in (200, 409)  # 409: the one request that found it out, where it cannot be asked again
    assert await said_by(proxy) == MODEL and len(ollama.created) == made
    status = await proxy.get("/rl/status")
    assert status["live"] == 0 and "v1 cannot answer, the base model answers instead" in status["problem"]
    assert "before an update" in status["problem"] and "damaged" not in status["problem"]
    code, body = await proxy.post("/rl/promote/1")
    assert code == 409 and "before an update" in body["error"]["message"]
    assert (await proxy.post("/rl/promote/2"))[0] == 200


async def test_it_is_said_which_version_goes_on_with_the_old_weights(proxy: Proxy, ollama: FakeOllama) -> None:
    await proxy.post("/rl/promote/1")
    update(ollama, keeps=True)
    await (await proxy.http.get("/api/tags")).read()
    state = (await proxy.get("/rl/status"))["backend"]["state"]
    assert f"fake was updated there: fake-rl:v1-{proxy.mark} go on with" in state and "promote base" in state
    assert await said_by(proxy) == f"fake-rl:v1-{proxy.mark}"
    await proxy.post("/rl/promote/2")
    await proxy.post("/rl/promote/base")
    assert f"fake-rl:v2-{proxy.mark}" not in (await proxy.get("/rl/status"))["backend"]["state"]


async def test_another_template_is_no_other_model(proxy: Proxy, ollama: FakeOllama) -> None:
    await proxy.post("/rl/promote/1")
    ollama.models[MODEL]["template"] = "{{ .Prompt }}!"
    await (await proxy.http.get("/api/tags")).read()
    assert "was updated" not in (await proxy.get("/rl/status"))["backend"]["state"]
    assert await remade(proxy, ollama, 1) == f"fake-rl:v1-{proxy.mark}"
    assert ollama.version == NEW or ollama.created[-1]["from"] == "fake"


def test_the_record(tmp_path: Path) -> None:
    path = tmp_path / "origins.json"
    origins = Origins(path)
    origins.record("a", None)
    assert not path.exists() and origins.earlier_file("a", "x") is None
    origins.record("a", "x")
    origins.record("a", "y")
    assert Origins(path).earlier_file("a", "y") == "x" and origins.earlier_file("a", "x") is None
    assert origins.earlier_file("a", None) is None
    for n in range(MOST):
        origins.record(str(n), "x")
    assert len(json.loads(path.read_text())) == MOST and origins.earlier_file("a", "y") is None
