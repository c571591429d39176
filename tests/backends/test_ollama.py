"""Real Ollamas and the small real model: `make test-ollama`.

The servers are those of OLLAMA_BIN, or the one on the PATH; each runs all tests.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import aiohttp
import ollama as sdk
import pytest

from scripts.harness.in_process import Proxy, proxy_before
from scripts.harness.lora import random_adapter
from scripts.harness.ollama_server import MODEL, OllamaServer, base_gguf, binaries
from scripts.harness.serving import ROOT, Serving
from scripts.harness.versions import QUESTION, with_real_versions
from trainer.launch import LocalLauncher

pytestmark = [pytest.mark.ollama, pytest.mark.timeout(1200)]
SERVERS = binaries() or [pytest.param(None, marks=pytest.mark.skip(reason="no ollama on the PATH, and no OLLAMA_BIN"))]
LIMITS: dict[str, Any] = {"temperature": 0, "max_tokens": 16}


@pytest.fixture(params=SERVERS, ids=str)
async def server(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[OllamaServer]:
    (tmp_path / "ollama").mkdir()
    server = OllamaServer(request.param, tmp_path / "ollama")
    await server.start()
    try:
        await server.create(MODEL)
        yield server
    finally:
        await server.stop()


@pytest.fixture
async def proxy(tmp_path: Path, weights: Path, server: OllamaServer, adapters: list[Path]) -> AsyncIterator[Proxy]:
    """With two versions, none of them live."""
    proxy = before(tmp_path / "home", weights, server)
    await proxy.start()
    await with_real_versions(proxy, adapters)
    yield proxy
    await proxy.stop()


def before(home: Path, weights: Path, server: OllamaServer) -> Proxy:
    return proxy_before(
        home, backend__kind="ollama", backend__url=server.url, backend__model=MODEL, train__weights=str(weights)
    )


async def said(proxy: Proxy, model: str = MODEL) -> tuple[str, str]:
    """What is answered to a fixed question, and by which version."""
    response = await proxy.chat(QUESTION, model=model, **LIMITS)
    body = await response.json()
    assert response.status == 200, body
    return body["choices"][0]["message"]["content"], response.headers["x-rl-adapter"]


async def promote(proxy: Proxy, version: int | str) -> None:
    status, body = await proxy.post(f"/rl/promote/{version}")
    assert status == 200, body


Texts = dict[str, set[str]]


async def texts_of(proxy: Proxy) -> Texts:
    """What each says, with the prompt read anew and out of its cache: 0.9.6 computes these a little differently."""
    await promote(proxy, 1)
    await promote(proxy, 2)
    found = {pin: {(await said(proxy, f"{MODEL}@{pin}"))[0] for _ in range(2)} for pin in ("base", "v1", "v2")}
    assert not (found["base"] & found["v1"] or found["base"] & found["v2"] or found["v1"] & found["v2"]), found
    return found


async def says(proxy: Proxy, texts: Texts, pin: str, model: str | None = None) -> None:
    text, label = await said(proxy, model or f"{MODEL}@{pin}")
    assert label == pin and text in texts[pin], (text, label, texts)


async def test_init_serve_and_doctor(server: OllamaServer, tmp_path: Path, weights: Path) -> None:
    """As a person does it: real processes, the questions answered by a file."""
    env = {k: v for k, v in os.environ.items() if not k.startswith("RLPROXY_")} | {"HOME": str(tmp_path)}
    given = {"backend": "ollama", "url": server.url, "model": MODEL, "weights": str(weights), "agents": []}
    (tmp_path / "answers.json").write_text(json.dumps(given))
    home = tmp_path / "home"

    async def rlproxy(*words: str) -> tuple[int, str]:
        return await asyncio.to_thread(told_by, [sys.executable, "-m", "proxy.cli", *words, "--home", str(home)], env)

    code, said = await rlproxy("init", "--no-start", "--json", "--answers", str(tmp_path / "answers.json"))
    assert code == 0 and json.loads(said)["settings"]["backend.model"] == MODEL, said
    served = Serving(home, weights, "--backend", "ollama", "--backend-url", server.url, "--model", MODEL)
    await served.start()
    try:
        async with served.http.post(
            "/api/chat",
            json={"model": MODEL, "messages": [{"role": "user", "content": QUESTION}], "options": {"num_predict": 8}},
        ) as response:
            assert response.status == 200 and await response.read()
        code, said = await rlproxy("doctor")
        lines = {line.split()[1]: line for line in said.splitlines() if line[:1] in "✓·✗?!"}
        assert lines["backend"].startswith("✓") and lines["model"].startswith("✓"), said
        assert "ollama" in lines["backend"] and lines["leftovers"].startswith("✓"), said
    finally:
        await served.stop()


def told_by(command: list[str], env: dict[str, str]) -> tuple[int, str]:
    told = subprocess.run(command, env=env, capture_output=True, text=True, timeout=300, cwd=ROOT)
    return told.returncode, told.stdout + (told.stderr if told.returncode else "")


async def test_swaps_rollbacks_and_lists(proxy: Proxy, server: OllamaServer) -> None:
    texts = await texts_of(proxy)
    await says(proxy, texts, "v2", MODEL)
    assert (await proxy.post("/rl/rollback"))[1]["live"] == 1
    await says(proxy, texts, "v1", MODEL)
    await promote(proxy, "base")
    await says(proxy, texts, "base", MODEL)
    names = [m["id"] for m in (await proxy.get("/v1/models"))["data"]]
    tags = [m["name"].removesuffix(":latest") for m in (await proxy.get("/api/tags"))["models"]]
    assert names == tags == [MODEL, f"{MODEL}@base", f"{MODEL}@v1", f"{MODEL}@v2"]
    assert f"{MODEL}-rl:v2-{proxy.mark}" in await server.names()
    assert not [m for m in (await proxy.get("/api/ps"))["models"] if "-rl:" in m["name"]]


async def test_all_formats_are_captured(proxy: Proxy) -> None:
    await promote(proxy, 1)
    user = [{"role": "user", "content": QUESTION}]
    bodies = {
        "/v1/chat/completions": {"messages": user, "max_tokens": 8},
        "/v1/completions": {"prompt": QUESTION, "max_tokens": 8},
        "/v1/responses": {"input": QUESTION, "max_output_tokens": 16},
        "/v1/messages": {"messages": user, "max_tokens": 8},
        "/api/chat": {"messages": user, "options": {"num_predict": 8}},
        "/api/generate": {"prompt": QUESTION, "options": {"num_predict": 8}},
    }
    for path, body in bodies.items():
        for stream in (False, True):
            async with proxy.http.post(path, json={"model": MODEL, **body, "stream": stream}) as response:
                raw = await response.text()
                assert response.status == 200 and response.headers["x-rl-adapter"] == "v1", (path, raw)
            status, rated = await proxy.rate(completion_id=response.headers["x-rl-completion-id"], rating="good")
            assert status == 201, (path, stream, rated)


async def test_ollamas_own_clients(proxy: Proxy, server: OllamaServer) -> None:
    """Its SDK, and its command line with the proxy's address."""
    texts = await texts_of(proxy)
    user = {"role": "user", "content": QUESTION}
    options = {"temperature": 0, "num_predict": LIMITS["max_tokens"]}
    client = sdk.AsyncClient(host=proxy.url)
    try:
        listed = [m.model for m in (await client.list()).models]
        answer = await client.chat(f"{MODEL}@v1", [user], options=options)
        templates = {(await client.show(name)).template for name in (MODEL, f"{MODEL}@v1")}
    finally:
        await client._client.aclose()
    assert f"{MODEL}@v1" in listed and not [name for name in listed if "-rl:" in str(name)]
    assert answer.message.content in texts["v1"] and answer.model == f"{MODEL}@v1" and len(templates) == 1
    # Of `run` the base is asked: it sets no limit, and an adapter of noise may find no end.
    env = {**os.environ, "HOME": str(server.folder), "OLLAMA_HOST": proxy.url.removeprefix("http://")}
    for words in (("list",), ("ps",), ("show", f"{MODEL}@v1"), ("run", f"{MODEL}@base", "Say hello.")):
        told = await asyncio.to_thread(
            subprocess.run, [server.binary, *words], env=env, capture_output=True, text=True, timeout=300
        )
        assert told.returncode == 0, (words, told.stdout, told.stderr)
        assert words[0] != "list" or f"{MODEL}@v2" in told.stdout


async def test_a_version_that_is_removed_is_made_again(proxy: Proxy, server: OllamaServer) -> None:
    texts = await texts_of(proxy)
    for tag in [name for name in await server.names() if "-rl:" in name]:
        await server.run("rm", tag)
    await says(proxy, texts, "v2", MODEL)
    await says(proxy, texts, "v1")


async def test_a_name_that_is_taken(proxy: Proxy, server: OllamaServer) -> None:
    tag = f"{MODEL}-rl:v1-{proxy.mark}"
    await server.run("cp", MODEL, tag)
    texts = await texts_of(proxy)
    assert not texts["v1"] & texts["base"] and {tag, f"{tag}-2"} <= await server.names()


async def test_a_model_that_is_updated(proxy: Proxy, server: OllamaServer) -> None:
    """What is made of it before goes on as it was; it is noticed, and what is made later is made of the new one."""
    await promote(proxy, 1)
    first = {(await said(proxy))[0] for _ in range(2)}
    await server.create(MODEL, "SYSTEM You answer in one word.", "PARAMETER top_k 7")
    text, label = await said(proxy)
    assert label == "v1" and text in first
    await promote(proxy, 2)
    assert (await said(proxy))[1] == "v2"
    shown = await server.run("show", "--modelfile", f"{MODEL}-rl:v2-{proxy.mark}")
    assert "You answer in one word." in shown and "top_k 7" in shown


async def test_other_weights_under_its_name(proxy: Proxy, server: OllamaServer, weights: Path, tmp_path: Path) -> None:
    """A version is never put on weights that it was not trained on, whoever takes it out. A LoRA keeps these at Ollama;
    of a whole model nothing there is made of them, and they go with the update."""
    texts, tag = await texts_of(proxy), f"{MODEL}-rl:v{{}}-{proxy.mark}"
    other = random_adapter(weights, tmp_path / "other", seed=3)  # that of no version: they would say the same
    await LocalLauncher().fuse(other, base_gguf(), server.folder / "other.gguf")
    (server.folder / "Modelfile").write_text("FROM other.gguf\nPARAMETER num_thread 1\n")
    await server.run("create", MODEL, "-f", "Modelfile")
    base, _ = await said(proxy, f"{MODEL}@base")
    assert base not in texts["base"], "the model itself is the new one"
    await says(proxy, texts, "v2", MODEL)
    assert (await proxy.http.get("/api/tags")).status == 200
    state = (await proxy.get("/rl/status"))["backend"]["state"]
    assert "was updated there" in state
    await server.run("rm", tag.format(1))
    if "as whole models" in state:
        gone = await proxy.chat(QUESTION, model=f"{MODEL}@v1", **LIMITS)
        assert gone.status == 409 and "before an update" in (await gone.json())["error"]["message"]
    else:
        await says(proxy, texts, "v1")
    await says(proxy, texts, "v2", MODEL)
    await server.run("rm", *[name for name in await server.names() if "-rl:" in name])
    await server.stop()
    await server.start()  # what nothing names is removed at its start
    while (found := await proxy.chat(QUESTION, **LIMITS)).status != 200:
        assert found.status in (409, 503), await found.text()  # whoever finds it out may be told
    text, label = await said(proxy)
    assert label == "base" and text not in texts["v2"] | texts["v1"]
    assert "before an update" in (await proxy.get("/rl/status"))["problem"]


async def test_two_homes_on_one_server(
    proxy: Proxy, server: OllamaServer, tmp_path: Path, weights: Path, adapters: list[Path]
) -> None:
    other = before(tmp_path / "other", weights, server)
    await other.start()
    try:
        await with_real_versions(other, adapters[::-1])  # the numbers mean something else there
        ours, theirs = await texts_of(proxy), await texts_of(other)
        assert ours["v1"] & theirs["v2"] and ours["v2"] & theirs["v1"]
        for home, texts in ((proxy, ours), (other, theirs)):
            for pin in ("v1", "v2", "base"):
                await says(home, texts, pin)
        left = (await other.get("/rl/status"))["backend"]["left"]
        assert left["command"].startswith("ollama rm ") and proxy.mark in left["command"]
    finally:
        await other.stop()


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
async def test_a_server_that_dies_in_a_stream_and_comes_back(
    proxy: Proxy, server: OllamaServer, how: signal.Signals
) -> None:
    texts = await texts_of(proxy)
    response = await proxy.chat("Tell me a long story.", stream=True, temperature=0, max_tokens=400)
    await response.content.readany()
    await server.stop(how)
    try:
        rest = (await response.read()).decode()
    except aiohttp.ClientError:
        rest = ""
    assert "[DONE]" not in rest or '"error"' in rest, "what was cut off is no whole answer"
    failed = await proxy.chat(QUESTION, **LIMITS)
    assert failed.status == 503 and "does not answer" in (await failed.json())["error"]["message"]
    await server.start()
    for pin in texts:
        await says(proxy, texts, pin)
    stored = [c for c in await rows(proxy) if c["status"] == "done"]
    assert stored and not [c for c in await rows(proxy) if c["status"] == "pending"]


async def rows(proxy: Proxy) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = (await proxy.get("/rl/completions"))["data"]
    return found


@contextmanager
def small_disk(folder: Path, megabytes: int) -> Iterator[Path]:
    folder.mkdir()
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", folder], capture_output=True, text=True
    )
    if made.returncode != 0:
        pytest.skip(f"no small disk can be had here: {made.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", folder], check=True)


@pytest.mark.parametrize("binary", SERVERS, ids=str)
async def test_a_full_disk(binary: Path, tmp_path: Path, weights: Path, adapters: list[Path]) -> None:
    with small_disk(tmp_path / "disk", 900) as disk:
        server = OllamaServer(binary, tmp_path, models=disk)
        proxy = before(tmp_path / "home", weights, server)
        await server.start()
        try:
            await server.create(MODEL)
            await proxy.start()
            await with_real_versions(proxy, adapters[:1])
            base = await said(proxy)
            filler = disk / "filler"
            with filler.open("wb") as file:
                os.posix_fallocate(file.fileno(), 0, shutil.disk_usage(disk).free - 2**20)
            status, body = await proxy.post("/rl/promote/1")
            assert status in (501, 502, 503), body  # 501: it is seen before anything is made
            assert (await said(proxy))[1] == base[1] == "base"
            assert "v1 did not go live" in (await proxy.get("/rl/status"))["problem"]
            filler.unlink()
            await promote(proxy, 1)
            assert (await said(proxy))[1] == "v1"
            await proxy.stop()
        finally:
            await server.stop()
