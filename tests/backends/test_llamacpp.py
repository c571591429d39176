"""The real llama-server and the small real model: `make test-backends`."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import psutil
import pytest

from config.settings import load
from proxy.backends.llamacpp_managed import LlamaManaged
from proxy.backends.openai_compatible import OpenAICompatible
from proxy.versions import warm_up
from scripts.harness.in_process import Proxy
from scripts.harness.versions import QUESTION, with_real_versions
from tests.backends.conftest import TOKENS, Say
from tests.harness.llamacpp import make_proxy
from trainer.formats.weights import cache_folder
from trainer.launch import LocalLauncher

pytestmark = [pytest.mark.backends, pytest.mark.timeout(1200)]

SERVER = cache_folder() / "venvs" / "llamacpp" / "bin" / "llama-server-vulkan"
# fp32 throughout: with the default KV cache of 16 bits log-probs are up to 8e-3 nats away.
EXACT = {
    "ctx-size": "1024",
    "parallel": "2",
    "threads": "1",
    "cache-type-k": "f32",
    "cache-type-v": "f32",
    "flash-attn": "off",
}


@contextlib.asynccontextmanager
async def running(folder: Path, *options: object, port: int = 0) -> AsyncIterator[int]:
    """llama-server, as a person would start it; its port."""
    if not port:
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            port = taken.getsockname()[1]
    with (folder / "server.log").open("ab") as log:
        process = await asyncio.create_subprocess_exec(
            SERVER, *map(str, options), "--offline", "--port", str(port), stdout=log, stderr=log
        )
    try:
        async with aiohttp.ClientSession() as http:
            while not await healthy(http, port):
                assert process.returncode is None, (folder / "server.log").read_text()[-2000:]
                await asyncio.sleep(0.1)
        yield port
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()


async def healthy(http: aiohttp.ClientSession, port: int) -> bool:
    try:
        async with http.get(f"http://127.0.0.1:{port}/health") as response:
            return response.status == 200
    except aiohttp.ClientError:
        return False


@pytest.fixture
async def router(tmp_path: Path, base_gguf: Path) -> AsyncIterator[tuple[str, Path]]:
    """The proxy is told its address and its preset file."""
    presets = tmp_path / "presets.ini"
    lines = "\n".join(f"{key} = {value}" for key, value in EXACT.items())
    presets.write_text(f"[*]\n{lines}\n\n[fake]\nmodel = {base_gguf}\n")
    async with running(tmp_path, "--models-preset", presets, "--models-max", 3) as port:
        yield f"http://127.0.0.1:{port}", presets


async def asked(proxy: Proxy, model: str = "fake") -> tuple[list[int], list[float]]:
    response = await proxy.chat(QUESTION, model=model, temperature=0, max_tokens=TOKENS, logprobs=True, top_logprobs=1)
    body = await response.json()
    entries = body["choices"][0]["logprobs"]["content"]
    return [entry["id"] for entry in entries], [entry["logprob"] for entry in entries]


async def same(proxy: Proxy, model: str, theirs: tuple[list[int], list[float]]) -> float:
    ids, logprobs = await asked(proxy, model)
    assert ids == theirs[0][: len(ids)] and len(ids) >= TOKENS - 1
    return max(abs(a - b) for a, b in zip(logprobs, theirs[1], strict=False))


async def streamed(proxy: Proxy, texts: dict[str, str], stop: asyncio.Event) -> int:
    """One client: every reply is whole, and all of it by the version that the header names."""
    served = 0
    while not stop.is_set():
        response = await proxy.chat(QUESTION, stream=True, temperature=0, max_tokens=TOKENS)
        raw = (await response.read()).decode()
        assert response.status == 200 and raw.endswith("data: [DONE]\n\n"), raw
        events = [json.loads(line[6:]) for line in raw.splitlines() if line.startswith("data: {")]
        text = "".join(e["choices"][0]["delta"].get("content") or "" for e in events if e["choices"])
        assert text == texts[response.headers["x-rl-adapter"]]
        served += 1
    return served


def plain(base_gguf: Path) -> list[str]:
    """Options of a server of one model."""
    return ["-m", str(base_gguf), "--alias", "fake", *(part for k, v in EXACT.items() for part in (f"--{k}", v))]


def start(home: Path, weights: Path, **flags: str) -> Proxy:
    proxy = make_proxy(home, **flags)
    proxy.launcher = LocalLauncher()  # type: ignore[assignment]
    proxy.flags["train.weights"] = str(weights)
    return proxy


async def test_a_router_wears_the_adapter_as_peft_does_and_swaps_under_load(
    tmp_path: Path, weights: Path, adapters: list[Path], said_by_peft: Say, router: tuple[str, Path]
) -> None:
    url, presets = router
    proxy = start(tmp_path / "home", weights, url=url, presets=str(presets))
    await proxy.start()
    try:
        await with_real_versions(proxy, adapters)
        for version in (1, 2):
            status, body = await proxy.post(f"/rl/promote/{version}")
            assert status == 200, body
        away = {}
        for model, adapter in (("fake@base", None), ("fake@v1", adapters[0]), ("fake@v2", adapters[1])):
            away[model] = await same(proxy, model, await asyncio.to_thread(said_by_peft, adapter))
        print("largest difference of log-probs, in nats:", away)
        assert max(away.values()) < 1e-3, away
        texts = {}
        for pin in ("base", "v1", "v2"):
            body = await proxy.chat(QUESTION, model=f"fake@{pin}", temperature=0, max_tokens=TOKENS)
            texts[pin] = (await body.json())["choices"][0]["message"]["content"]
        assert len(set(texts.values())) == 3
        stop = asyncio.Event()
        clients = [asyncio.create_task(streamed(proxy, texts, stop)) for _ in range(3)]
        for act in ("promote/1", "rollback", "promote/base", "promote/1"):
            assert (await proxy.post(f"/rl/{act}"))[0] == 200
            await asyncio.sleep(1)
        stop.set()
        assert sum(await asyncio.gather(*clients)) > 3
    finally:
        await proxy.stop()


async def test_processes_of_ours_wear_the_adapter_as_peft_does(
    tmp_path: Path, weights: Path, adapters: list[Path], said_by_peft: Say, base_gguf: Path
) -> None:
    command = " ".join([str(SERVER), "--offline", *plain(base_gguf)])
    proxy = start(tmp_path / "home", weights, url="", command=command)
    await proxy.start()
    try:
        await with_real_versions(proxy, adapters[:1])
        status, body = await proxy.post("/rl/promote/1")
        assert status == 200, body
        assert await same(proxy, "fake", await asyncio.to_thread(said_by_peft, adapters[0])) < 1e-3
        assert (await proxy.post("/rl/rollback"))[1]["live"] == 0
        assert await same(proxy, "fake", await asyncio.to_thread(said_by_peft, None)) < 1e-3
    finally:
        await proxy.stop()


async def test_processes_of_ours_give_their_memory_back_for_a_run_and_answer_as_before(
    tmp_path: Path, weights: Path, adapters: list[Path], base_gguf: Path
) -> None:
    command = " ".join([str(SERVER), "--offline", *plain(base_gguf)])
    flags = start(tmp_path / "home", weights, url="", command=command).flags
    backend = LlamaManaged(load(flags, environ={}).settings, LocalLauncher())
    (tmp_path / "home").mkdir()

    async def say(http: aiohttp.ClientSession, model: str) -> str:
        address = backend.address(model)
        said = [{"role": "user", "content": QUESTION}]
        body = {"model": json.loads(address.members["model"]), "messages": said, "temperature": 0, "max_tokens": TOKENS}
        url, headers = f"{address.url}/v1/chat/completions", backend.headers()  # rlproxy asks with a key of its own
        async with http.post(url, json=body, headers=headers) as response:
            return str((await response.json())["choices"][0]["message"]["content"])

    async with aiohttp.ClientSession() as http:
        try:
            await backend.start(http, backend.ready)
            await backend.load("fake@v1", adapters[0])
            before = [await say(http, model) for model in ("fake", "fake@v1")]
            processes = psutil.Process().children(recursive=True)
            held = sum(process.memory_info().rss for process in processes)
            await backend.free()
            gone, alive = await asyncio.to_thread(psutil.wait_procs, processes, 0)
            print(f"{held / 2**20:.0f} MiB were held by {len(gone)} processes")
            assert held > 2**29 and not alive and "rests" in backend.state
            await backend.free()  # no error
            await backend.reclaim()
            await backend.reclaim()
            await backend.load("fake@v1", adapters[0])
            assert [await say(http, model) for model in ("fake", "fake@v1")] == before and before[0] != before[1]
        finally:
            await backend.stop()


async def test_a_plain_server_switches_between_what_it_was_started_with(
    tmp_path: Path, weights: Path, adapters: list[Path], said_by_peft: Say, base_gguf: Path
) -> None:
    """The same prompt by turns: with its cache, the server would answer for one version with another's."""
    async with contextlib.AsyncExitStack() as stack:
        async with running(tmp_path, *plain(base_gguf)) as port:
            proxy = start(tmp_path / "home", weights, url=f"http://127.0.0.1:{port}")
            await proxy.start()
            stack.push_async_callback(proxy.stop)
            asked = {"model": "fake", "max_tokens": 1, "messages": [{"role": "user", "content": QUESTION}]}
            async with proxy.http.post("/v1/messages/count_tokens", json=asked) as response:
                counted = (await response.json())["input_tokens"]
            async with proxy.http.post("/v1/messages", json=asked) as response:
                assert (await response.json())["usage"]["input_tokens"] == counted
            await with_real_versions(proxy, adapters[:1])
            status, body = await proxy.post("/rl/promote/1")
            message = body["error"]["message"]
            told = re.search(r"restart it with --lora-scaled (\S+:0),", message)
            assert status == 501 and told, message
        await stack.enter_async_context(running(tmp_path, *plain(base_gguf), "--lora-scaled", told[1], port=port))
        assert (await proxy.post("/rl/promote/1"))[0] == 200
        expected = {"fake": await asyncio.to_thread(said_by_peft, adapters[0])}
        expected["fake@base"] = await asyncio.to_thread(said_by_peft, None)
        for model in ("fake", "fake@base", "fake", "fake@base"):
            assert await same(proxy, model, expected[model]) < 1e-3


TOPICS = (
    "I keep bees on a roof in the middle of a large city, and they fly to the park and the river all summer long.",
    "My grandmother left me an old piano that nobody has tuned since the year nineteen hundred and eighty four.",
    "We are planning to walk across the Alps in September with two dogs, a donkey and far too many maps.",
    "There is a small bakery at the corner which sells nothing but rye bread, poppy seed rolls and strong coffee.",
)


async def read_anew(proxy: Proxy) -> list[int]:
    """How many tokens of each conversation's prompt the live version has to read when it goes on, all at once."""

    async def go_on(topic: str) -> int:
        response = await proxy.chat(topic, "I see.", "What next?", temperature=0, max_tokens=4)
        return int((await response.json())["timings"]["prompt_n"])

    return await asyncio.gather(*map(go_on, TOPICS))


@pytest.mark.parametrize("ahead", [True, False])
async def test_what_has_been_read_ahead_is_not_read_again(
    tmp_path: Path, weights: Path, adapters: list[Path], base_gguf: Path, ahead: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first turn of each of four conversations, when they go on after a swap."""
    monkeypatch.setattr(warm_up, "READ_AHEAD_S", 120.0)  # on a busy machine, too
    if not ahead:
        monkeypatch.setattr(LlamaManaged, "read_ahead_limit", OpenAICompatible.read_ahead_limit)
    options = [part if part != "2" else "4" for part in plain(base_gguf)]  # a slot for each
    proxy = start(tmp_path / "home", weights, url="", command=" ".join([str(SERVER), "--offline", *options]))
    await proxy.start()
    try:
        await with_real_versions(proxy, adapters[:1])
        async with proxy.http.post("/rl/capture", json={"session": "other", "capture": "off"}) as response:
            assert response.status == 200  # what made the version is no conversation that runs
        main = {"x-rl-turn": "main"}  # though it is short
        await asyncio.gather(*(proxy.say(topic, temperature=0, max_tokens=4, headers=main) for topic in TOPICS))
        assert (await proxy.post("/rl/promote/1"))[0] == 200
        read = await read_anew(proxy)
        print("tokens read after the swap, of each conversation:", read, "read ahead" if ahead else "not read ahead")
        assert max(read) < 30 if ahead else min(read) > 40
    finally:
        await proxy.stop()
