"""Ollama behind a whole proxy, with a fake one: before 0.34.1 with LoRA files, since then with whole models."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from proxy.backends import gguf_files
from proxy.backends.installed_versions import mark_of
from proxy.backends.ollama import Ollama
from scripts.fakes.launcher import FakeLauncher
from scripts.fakes.ollama import LICENSE, TEMPLATE, FakeOllama
from scripts.harness.in_process import Proxy
from scripts.models import tiny as tiny_models
from tests.harness.llamacpp import said_by, with_versions
from tests.harness.ollama import NEW, OLD, make_proxy
from tests.harness.polling import Polls


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
    await with_versions(proxy, 1, 2, 3)
    yield proxy
    await proxy.stop()


async def test_swaps_and_rolls_back(proxy: Proxy, ollama: FakeOllama) -> None:
    before = dict(ollama.models["fake:latest"])
    assert await said_by(proxy) == "fake:latest"
    for version in (1, 2, 3):
        status, body = await proxy.post(f"/rl/promote/{version}")
        assert status == 200, body
        assert await said_by(proxy) == f"fake-rl:v{version}-{proxy.mark}"
    assert (await proxy.post("/rl/rollback"))[0] == 200
    assert await said_by(proxy) == f"fake-rl:v2-{proxy.mark}"
    assert await said_by(proxy, "fake@base") == "fake:latest"
    assert (await proxy.post("/rl/rollback?base"))[0] == 200 and await said_by(proxy) == "fake:latest"
    assert ollama.models["fake:latest"] == before


async def test_how_a_version_is_made(proxy: Proxy, ollama: FakeOllama) -> None:
    await proxy.post("/rl/promote/1")
    (made,) = ollama.created
    assert made["model"] == f"fake-rl:v1-{proxy.mark}" and made["stream"] is False
    if ollama.version == OLD:
        assert made["from"] == "fake" and list(made["adapters"]) == ["adapter.gguf"] and "files" not in made
        return
    assert "from" not in made and "adapters" not in made
    whole = ollama.blob(made["files"]["model.gguf"]).read_bytes()
    assert whole.startswith(b"GGUF the person's own model") and whole.endswith(b"v0001")
    # What its Modelfile says is said of the new one, too: nothing of it is in the file.
    assert (
        made["template"] == f'{TEMPLATE} "quoted"\n' and made["system"] == "You are fake." and made["parser"] == "qwen3"
    )
    assert made["parameters"] == {"top_k": 20, "stop": ["<|end|>"]} and made["license"] == [LICENSE]
    assert made["messages"] == [{"role": "user", "content": "Hello"}]
    assert not list(proxy.home.glob("gguf/*fused*"))  # Ollama has its own copy


async def test_ten_swaps_leave_two_of_ours_and_nobody_elses_is_touched(tmp_path: Path, ollama: FakeOllama) -> None:
    ollama.add("other-rl:v1", ollama.keep(b"GGUF somebody's"))
    ollama.add("fake-rl:v77", ollama.keep(b"GGUF somebody's of this very name"))
    proxy = make_proxy(tmp_path / "home", ollama.url, **{"backend.model": "fake"})
    await proxy.start()
    await with_versions(proxy, *range(1, 11))
    for version in range(1, 11):
        assert (await proxy.post(f"/rl/promote/{version}"))[0] == 200
    assert ollama.ours == {f"fake-rl:v9-{proxy.mark}", f"fake-rl:v10-{proxy.mark}", "other-rl:v1", "fake-rl:v77"}
    assert set(json.loads((proxy.home / "ollama.json").read_text())) == {
        f"fake-rl:v9-{proxy.mark}",
        f"fake-rl:v10-{proxy.mark}",
    }
    assert f"fake-rl:v8-{proxy.mark}" not in ollama.loaded
    names = [m["id"] for m in (await proxy.get("/v1/models"))["data"]]
    assert [n for n in names if "@" not in n] == ["fake"]
    await proxy.stop()


async def test_swaps_under_streams_break_none_and_mix_none(proxy: Proxy, ollama: FakeOllama) -> None:
    ollama.pause_s = 0.005
    stop, replies = asyncio.Event(), 0

    async def client() -> None:
        nonlocal replies
        while not stop.is_set():
            response = await proxy.chat("x", stream=True)
            body = (await response.read()).decode()
            label = response.headers["x-rl-adapter"]
            name = "fake:latest" if label == "base" else f"fake-rl:{label}-{proxy.mark}"
            assert response.status == 200 and body.endswith("data: [DONE]\n\n"), body
            assert body.count(f'"content": "{name} "') == body.count('"content"') == 4, f"{label} answered {body}"
            replies += 1

    clients = [asyncio.create_task(client()) for _ in range(8)]
    for act in (
        "promote/1",
        "promote/2",
        "promote/3",
        "rollback",
        "promote/1",
        "promote/3",
        "rollback?base",
        "promote/2",
    ):
        status, body = await proxy.post(f"/rl/{act}")
        assert status == 200, body
        await asyncio.sleep(0.05)
    stop.set()
    await asyncio.gather(*clients)
    assert replies > 20 and ollama.cut == []


async def test_a_pinned_version_is_made_once_and_gives_its_memory_back(proxy: Proxy, ollama: FakeOllama) -> None:
    await proxy.post("/rl/promote/2")
    await proxy.post("/rl/promote/3")
    assert await said_by(proxy, "fake@v1") == await said_by(proxy, "fake@v1") == f"fake-rl:v1-{proxy.mark}"
    async for _ in Polls():
        if f"fake-rl:v1-{proxy.mark}" not in ollama.loaded:
            break
    assert f"fake-rl:v1-{proxy.mark}" not in ollama.loaded and len(ollama.created) == 3


async def test_a_version_that_goes_does_not_take_the_live_one_out_of_memory(proxy: Proxy, ollama: FakeOllama) -> None:
    """Before 0.34.1 they share one place there, whose end is one for both."""
    for version in (1, 2, 3):
        await proxy.post(f"/rl/promote/{version}")
    for _ in range(20):
        await asyncio.sleep(0.02)
        assert f"fake-rl:v3-{proxy.mark}" in ollama.loaded and f"fake-rl:v1-{proxy.mark}" not in ollama.loaded


async def test_a_name_that_somebody_else_took_is_neither_used_nor_removed(proxy: Proxy, ollama: FakeOllama) -> None:
    """The next free one is taken; a version that somebody has replaced is made again beside it."""
    first = f"fake-rl:v1-{proxy.mark}"
    ollama.add(first, ollama.keep(b"GGUF not of rlproxy"))
    status, body = await proxy.post("/rl/promote/1")
    assert status == 200, body
    assert await said_by(proxy) == f"{first}-2" and first in ollama.models
    second = f"fake-rl:v2-{proxy.mark}"
    for version in (2, 3):
        await proxy.post(f"/rl/promote/{version}")
    ollama.add(second, ollama.keep(b"GGUF made anew by somebody"))
    await proxy.stop()
    await proxy.start()
    assert await said_by(proxy, "fake@v2") == f"{second}-2"
    await proxy.post("/rl/rollback?base")
    await with_versions(proxy, 4, 5)
    for version in (4, 5):
        assert (await proxy.post(f"/rl/promote/{version}"))[0] == 200
    assert {first, second} <= ollama.ours and not {first, second} & set(ollama.deleted)


@pytest.mark.parametrize(
    ("mood", "says"),
    [
        ("cut", "does not answer"),
        ("full", "no space left on device"),
        ("refuse-create", "something broke in here"),
        ("no-memory", "requires more system memory"),
    ],
)
async def test_a_failure_on_the_way_changes_nothing(proxy: Proxy, ollama: FakeOllama, mood: str, says: str) -> None:
    await proxy.post("/rl/promote/1")
    ollama.uploads, ollama.mood = 0, mood
    for one in ollama.blobs.iterdir():  # the files of these versions are alike for the fake trainer
        if one.name not in {f"sha256-{d[7:]}" for d in ollama.models["fake:latest"]["files"]}:
            one.unlink()
    status, body = await proxy.post("/rl/promote/2")
    assert status in (502, 503) and says in body["error"]["message"], body
    assert "v1 still answers" in (await proxy.get("/rl/status"))["problem"]
    assert await said_by(proxy) == f"fake-rl:v1-{proxy.mark}"
    assert mood in ("refuse-create", "no-memory") or ollama.uploads > 0
    ollama.mood = "well"
    assert (await proxy.post("/rl/promote/2"))[0] == 200 and await said_by(proxy) == f"fake-rl:v2-{proxy.mark}"


async def test_a_conversion_that_fails_changes_nothing(proxy: Proxy, ollama: FakeOllama) -> None:
    proxy.launcher.lacks = "lm_head cannot have a LoRA in llama.cpp"
    status, body = await proxy.post("/rl/promote/1")
    assert status == 502 and "lm_head" in body["error"]["message"] and await said_by(proxy) == "fake:latest"
    assert not ollama.created and not ollama.ours


async def test_a_restart_of_ollama_and_of_rlproxy_makes_nothing_anew(proxy: Proxy, ollama: FakeOllama) -> None:
    await proxy.post("/rl/promote/1")
    await proxy.post("/rl/promote/2")
    port = int(ollama.url.rpartition(":")[2])
    await ollama.stop()
    response = await proxy.chat("anybody there?")
    assert response.status == 503 and "does not answer" in (await response.json())["error"]["message"]
    await ollama.start(port)
    assert await said_by(proxy) == f"fake-rl:v2-{proxy.mark}"
    await proxy.stop()
    await proxy.start()
    assert (
        await said_by(proxy) == f"fake-rl:v2-{proxy.mark}"
        and await said_by(proxy, "fake@v1") == f"fake-rl:v1-{proxy.mark}"
    )
    assert len(ollama.created) == 2 and ollama.deleted == []


async def test_after_a_restart_the_live_version_is_in_memory(proxy: Proxy, ollama: FakeOllama) -> None:
    """Versions with LoRA files share one place there: the one that is given back last is the one that has it."""
    await proxy.post("/rl/promote/1")
    await proxy.post("/rl/promote/2")
    port = int(ollama.url.rpartition(":")[2])
    await proxy.stop()
    await ollama.stop()
    await ollama.start(port)
    await proxy.start()
    assert ollama.loaded == (
        [f"fake-rl:v2-{proxy.mark}"]
        if ollama.version == OLD
        else [f"fake-rl:v1-{proxy.mark}", f"fake-rl:v2-{proxy.mark}"]
    )
    assert await said_by(proxy) == f"fake-rl:v2-{proxy.mark}" and len(ollama.created) == 2


@pytest.mark.parametrize("made", [True, False])
async def test_a_crash_while_a_version_is_made(proxy: Proxy, ollama: FakeOllama, made: bool) -> None:
    """It was written down first: what is there is ours, what is not there is made."""
    await proxy.post("/rl/promote/1")
    await proxy.stop()
    record = proxy.home / "ollama.json"
    about = json.loads(record.read_text())
    about[f"fake-rl:v1-{proxy.mark}"]["digest"] = None
    record.write_text(json.dumps(about))
    if not made:
        del ollama.models[f"fake-rl:v1-{proxy.mark}"]
    (proxy.home / "gguf").mkdir(exist_ok=True)
    for left in ("v0001.fused.gguf", ".v0002.fused.gguf.tmp"):
        (proxy.home / "gguf" / left).write_bytes(b"GGUF")
    await proxy.start()
    assert await said_by(proxy) == f"fake-rl:v1-{proxy.mark}" and len(ollama.created) == (1 if made else 2)
    assert json.loads(record.read_text())[f"fake-rl:v1-{proxy.mark}"]["digest"] is not None
    assert not [p for p in (proxy.home / "gguf").iterdir() if "fused" in p.name]


async def test_a_version_that_was_removed_there_is_made_again(proxy: Proxy, ollama: FakeOllama) -> None:
    await proxy.post("/rl/promote/1")
    del ollama.models[f"fake-rl:v1-{proxy.mark}"]
    assert await said_by(proxy) == f"fake-rl:v1-{proxy.mark}" and len(ollama.created) == 2


async def test_an_update_of_ollama_in_between(proxy: Proxy, ollama: FakeOllama) -> None:
    """Made with a LoRA, it goes on answering; the next one is a whole model."""
    ollama.version = OLD
    await proxy.post("/rl/promote/1")
    ollama.version = NEW
    assert await said_by(proxy) == f"fake-rl:v1-{proxy.mark}"
    assert (await proxy.post("/rl/promote/2"))[0] == 200 and await said_by(proxy) == f"fake-rl:v2-{proxy.mark}"
    assert "adapters" in ollama.created[0] and "files" in ollama.created[1]


async def test_both_apis_name_the_version_and_ids_are_ours(proxy: Proxy, ollama: FakeOllama) -> None:
    await proxy.post("/rl/promote/1")
    ollama.asked.clear()
    ids = set()
    for stream in (False, True):
        native = await proxy.http.post(
            "/api/chat", json={"model": "fake", "messages": [{"role": "user", "content": "x"}], "stream": stream}
        )
        text = await native.text()
        assert native.headers["x-rl-adapter"] == "v1" and f"fake-rl:v1-{proxy.mark} " in text
        assert {json.loads(line)["model"] for line in text.splitlines()} == {"fake"}
        chat = await proxy.chat("x", stream=stream)
        text = await chat.text()
        assert chat.headers["x-rl-adapter"] == "v1" and '"fake"' in text and "chatcmpl-7" not in text
        ids |= {native.headers["x-rl-completion-id"], chat.headers["x-rl-completion-id"]}
    assert [(path, body["model"]) for path, body in ollama.asked] == [
        ("/api/chat", f"fake-rl:v1-{proxy.mark}"), ("/v1/chat/completions", f"fake-rl:v1-{proxy.mark}"),
    ] * 2  # fmt: skip
    assert len(ids) == 4
    for one in ids:
        assert (await proxy.rate(completion_id=one, rating="good"))[0] == 201


async def test_what_samples_where_the_client_says_nothing(proxy: Proxy, ollama: FakeOllama) -> None:
    """Its OpenAI routes say 1.0 for the client, its own take the Modelfile's."""
    ollama.models["fake:latest"]["parameters"] = {"temperature": 0.6, "top_k": 20, "repeat_penalty": 1.05}
    await proxy.stop()
    await proxy.start()
    await proxy.say("x")
    await (await proxy.http.post("/api/generate", json={"model": "fake", "prompt": "x", "stream": False})).read()
    await proxy.http.post(
        "/api/chat", json={"model": "fake", "messages": [{"role": "user", "content": "x"}], "stream": False}
    )
    found = {c["dialect"]: c["sampling"] for c in [json.loads(line) for line in await exported(proxy)]}
    assert found["chat"]["temperature"] == 1.0 and found["chat"]["top_p"] == 1.0
    assert found["ollama"] == {"temperature": 0.6, "top_p": 0.9, "top_k": 20, "min_p": 0, "repetition_penalty": 1.05}


@pytest.mark.parametrize(("version", "penalty"), [("0.17.4", 1.1), ("0.17.5", None)])
async def test_older_ones_sample_with_a_penalty(
    proxy: Proxy, ollama: FakeOllama, version: str, penalty: float | None
) -> None:
    ollama.version = version
    await proxy.stop()
    await proxy.start()
    await proxy.say("x")
    *_, found = [json.loads(line)["sampling"] for line in await exported(proxy)]
    assert found.get("repetition_penalty") == penalty


async def exported(proxy: Proxy) -> list[str]:
    async with proxy.http.get("/rl/export") as response:
        return (await response.text()).splitlines()


async def test_latest_is_the_same_model(proxy: Proxy, ollama: FakeOllama) -> None:
    await proxy.post("/rl/promote/1")
    response = await proxy.chat("x", model="fake:latest")
    assert response.headers["x-rl-adapter"] == "v1" and (await response.json())["model"] == "fake:latest"


async def test_several_models_and_none_named(tmp_path: Path, ollama: FakeOllama) -> None:
    ollama.add("hub.example/someone/Other-GGUF:Q4_K_M", ollama.keep(b"GGUF other"))
    proxy = make_proxy(tmp_path / "home", ollama.url)
    await proxy.start()
    response = await proxy.chat("x")
    message = (await response.json())["error"]["message"]
    assert response.status == 503 and "fake, hub.example/someone/Other-GGUF:Q4_K_M; say which" in message
    await proxy.stop()
    await proxy.start(backend__model="hub.example/someone/Other-GGUF:Q4_K_M")
    assert await said_by(proxy, "hub.example/someone/Other-GGUF:Q4_K_M") == "hub.example/someone/Other-GGUF:Q4_K_M"
    await proxy.stop()


@pytest.mark.parametrize(
    ("model", "tag"),
    [
        ("llama3.2", "llama3.2-rl:v7"),
        ("llama3.2:3b", "llama3.2-3b-rl:v7"),
        ("someone/x:q4_0", "someone/x-q4_0-rl:v7"),
        ("hub.example/a/B-GGUF:Q4_K_M", "hub.example/a/B-GGUF-Q4_K_M-rl:v7"),
    ],
)
def test_names(tmp_path: Path, model: str, tag: str) -> None:
    from config.settings import load

    settings = load({"home": tmp_path, "backend.kind": "ollama", "backend.model": model}, environ={}).settings
    backend = Ollama(settings, FakeLauncher())
    assert json.loads(backend.address(f"{model}@v7").members["model"]) == f"{tag}-{mark_of(tmp_path)}"
    assert json.loads(backend.address(model).members["model"]) == model
    assert json.loads(backend.address("another@v7").members["model"]) == "another@v7"
    assert backend.url == "http://127.0.0.1:11434"


# What keeps a version from being made is said before anything is trained


async def test_a_folder_of_models_that_is_not_read_is_named_with_its_setting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OLLAMA_MODELS")
    fake = FakeOllama(tmp_path / "moved", NEW)
    await fake.start()
    proxy = make_proxy(tmp_path / "home", fake.url)
    await proxy.start()
    try:
        obstacle = (await proxy.get("/rl/status"))["backend"]["obstacle"]
        assert f'set backend.models_dir = "{fake.blobs.parent}" in rlproxy.toml' in obstacle
    finally:
        await proxy.stop()
        await fake.stop()


async def test_what_is_missing_is_said_before_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeOllama(tmp_path / "ollama", NEW)
    await fake.start()
    proxy = make_proxy(tmp_path / "home", fake.url)
    await proxy.start()
    await with_versions(proxy, 1)
    own = fake.blob(fake.models["fake:latest"]["files"][0])
    assert (await proxy.get("/rl/status"))["backend"]["obstacle"] is None
    own.rename(tmp_path / "copy.gguf")
    status = await proxy.get("/rl/status")
    assert "cannot be read" in status["backend"]["obstacle"] and "backend.gguf" in status["training"]["waits_for"]
    code, body = await proxy.post("/rl/promote/1")
    assert code == 501 and "backend.gguf" in body["error"]["message"] and await said_by(proxy) == "fake:latest"
    await proxy.stop()
    await proxy.start(backend__gguf=str(tmp_path / "copy.gguf"))
    assert (await proxy.post("/rl/promote/1"))[0] in (200, 409)  # 409: the start has seen to it already
    assert await said_by(proxy) == f"fake-rl:v1-{proxy.mark}"
    monkeypatch.setattr(gguf_files, "GROWTH", 2**60)
    assert "GB are free" in (await proxy.get("/rl/status"))["training"]["waits_for"]
    await proxy.stop()
    await fake.stop()


@pytest.mark.parametrize(
    ("version", "files", "says"),
    [
        ("0.4.7", None, "update it"),
        (NEW, "registry-model", "from no GGUF file"),
        (NEW, "no gguf", "is no GGUF file"),
    ],
)
async def test_an_ollama_that_cannot(tmp_path: Path, version: str, files: str | None, says: str) -> None:
    fake = FakeOllama(tmp_path / "ollama", version)
    if files == "no gguf":
        fake.blob(fake.models["fake:latest"]["files"][0]).write_bytes(b"something else")
    await fake.start()
    if files == "registry-model":
        fake.blob = lambda digest: Path("kimi:cloud")  # type: ignore[method-assign]
    proxy = make_proxy(tmp_path / "home", fake.url)
    await proxy.start()
    assert await said_by(proxy) == "fake:latest"
    assert says in (await proxy.get("/rl/status"))["training"]["waits_for"]
    await proxy.stop()
    await fake.stop()


async def test_a_build_without_a_number_gets_whole_models(tmp_path: Path) -> None:
    fake = FakeOllama(tmp_path / "ollama", "0.0.0")
    await fake.start()
    proxy = make_proxy(tmp_path / "home", fake.url)
    await proxy.start()
    await with_versions(proxy, 1)
    assert (await proxy.post("/rl/promote/1"))[0] == 200 and "files" in fake.created[0]
    await proxy.stop()
    await fake.stop()


async def test_a_model_with_a_projector_keeps_it(tmp_path: Path) -> None:
    fake = FakeOllama(tmp_path / "ollama", NEW)
    eyes = fake.keep(b"GGUF what sees")
    fake.models["fake:latest"]["files"].append(eyes)
    await fake.start()
    proxy = make_proxy(tmp_path / "home", fake.url)
    await proxy.start()
    await with_versions(proxy, 1)
    assert (await proxy.post("/rl/promote/1"))[0] == 200
    assert eyes in fake.created[0]["files"].values() and len(fake.created[0]["files"]) == 2
    await proxy.stop()
    await fake.stop()


@pytest.mark.parametrize("release", [OLD, NEW])
async def test_the_release_decides_which_layers_train(tmp_path: Path, release: str) -> None:
    """A LoRA file of DeepSeek's would do nothing on most layers; in a whole model the same ones act."""
    fake = FakeOllama(tmp_path / "ollama", release)
    await fake.start()
    weights = tiny_models.make("deepseek_v3", tmp_path / "deepseek")
    proxy = make_proxy(tmp_path / "home", fake.url, **{"train.weights": str(weights)})
    await proxy.start()
    layers = (await proxy.get("/rl/status"))["backend"]["layers"]
    await proxy.stop()
    await fake.stop()
    lora = "deepseek_v3: o_proj; without kv_a_proj_with_mqa kv_b_proj q_a_proj q_b_proj, which"
    whole = "deepseek_v3: kv_a_proj_with_mqa o_proj q_a_proj q_b_proj; without kv_b_proj, which"
    assert layers.startswith(lora if release == OLD else whole)
