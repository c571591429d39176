"""The real vLLM and the small real model: `make test-backends`. One server for all: it takes two cores and 4 GB."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import aiohttp
import pytest

from config.sections import BackendSection
from proxy.backends.vllm import VLLM
from proxy.core.errors import Unsupported
from scripts.harness.in_process import Proxy, proxy_before
from scripts.harness.lora import peft_on_transformers, random_adapter
from scripts.harness.versions import QUESTION, with_real_versions
from store.records import FinishedCompletion
from tests.backends.conftest import TOKENS, Say
from tests.backends.vllm_server import VLLMServer, named

pytestmark = [pytest.mark.backends, pytest.mark.timeout(1200)]

NATS = 1e-3
LONG = 160  # tokens of a reply that is under way for a while


@pytest.fixture(scope="module")
def server(weights: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[VLLMServer]:
    server = VLLMServer(weights, tmp_path_factory.mktemp("vllm") / "server.log")
    try:
        server.start()
        yield server
    finally:
        server.kill()


@pytest.fixture
async def proxy(
    tmp_path: Path,
    weights: Path,
    server: VLLMServer,
    adapters: list[Path],
) -> AsyncIterator[Proxy]:
    """A whole proxy before it, with two versions, none live, and nothing loaded by the test before."""
    server.forget_adapters()
    proxy = proxy_before(tmp_path / "home", backend__url=server.url, train__weights=str(weights))
    await proxy.start()
    await with_real_versions(proxy, adapters)
    yield proxy
    await proxy.stop()


@pytest.fixture
async def vllm(server: VLLMServer) -> AsyncIterator[VLLM]:
    async with aiohttp.ClientSession() as http:
        backend = VLLM(BackendSection(kind="vllm", url=server.url))
        await backend.start(http, asyncio.Event().wait)  # type: ignore[arg-type]
        yield backend


async def kept(proxy: Proxy, response: aiohttp.ClientResponse) -> FinishedCompletion:
    """As it is stored, whole and exact: ids and log-probs are there, one for one."""
    body = await response.read()
    assert response.status == 200, body
    found = await proxy.store.completions.get(response.headers["x-rl-completion-id"])
    assert found is not None and found.end is not None and found.status == "done"
    end = found.end
    assert end.exact and end.prompt_token_ids and end.token_ids and end.logprobs, end.inexact_reason
    assert len(end.token_ids) == len(end.logprobs)
    return end


Score = Callable[[Path | None, FinishedCompletion, float], list[float]]


@pytest.fixture(scope="module")
def scored_by_peft(weights: Path) -> Score:
    """The log-prob of each token of a reply, at a temperature, by transformers and peft."""
    import torch
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    def score(adapter: Path | None, said: FinishedCompletion, temperature: float) -> list[float]:
        model = AutoModelForCausalLM.from_pretrained(weights, dtype=torch.float32)
        if adapter is not None:
            with peft_on_transformers():
                model = PeftModel.from_pretrained(model, str(adapter))
        prompt, reply = list(said.prompt_token_ids or ()), list(said.token_ids or ())
        with torch.no_grad():
            logits = model(torch.tensor([prompt + reply])).logits[0, len(prompt) - 1 : -1].double()
        rows = torch.log_softmax(logits / temperature, -1)
        return [float(row[token]) for row, token in zip(rows, reply, strict=True)]

    return score


def away(ours: FinishedCompletion, theirs: list[float]) -> float:
    return max(abs(a - b) for a, b in zip(ours.logprobs or (), theirs, strict=False))


async def test_an_adapter_is_worn_as_peft_wears_it(
    proxy: Proxy,
    adapters: list[Path],
    said_by_peft: Say,
) -> None:
    """Greedy: the ids, and the log-prob of each, as rlproxy keeps them; whole and streamed."""
    for version in (1, 2):
        assert (await proxy.post(f"/rl/promote/{version}"))[0] == 200
    measured = {}
    for model, adapter in (("fake@base", None), ("fake@v1", adapters[0]), ("fake@v2", adapters[1])):
        ids, logprobs = await asyncio.to_thread(said_by_peft, adapter)
        for stream in (False, True):
            response = await proxy.chat(QUESTION, model=model, temperature=0, max_tokens=TOKENS, stream=stream)
            said = await kept(proxy, response)
            assert said.token_ids is not None and len(said.token_ids) >= TOKENS - 1
            assert list(said.token_ids) == ids[: len(said.token_ids)]
            measured[f"{model}, {'streamed' if stream else 'whole'}"] = away(said, logprobs)
    print("largest difference of log-probs to transformers + peft, greedy, in nats:", measured)
    assert max(measured.values()) < NATS, measured


async def test_log_probs_are_of_the_distribution_that_was_sampled_from(
    proxy: Proxy,
    adapters: list[Path],
    scored_by_peft: Score,
) -> None:
    """What the trainer compares with: after the temperature. By chat and by plain completions."""
    await proxy.post("/rl/promote/1")
    sampled = {"temperature": 0.7, "seed": 3, "max_tokens": TOKENS}
    plain = {"model": "fake", "prompt": "Three colours are", **sampled}
    measured = {}
    for name, asked in (
        ("chat, whole", proxy.chat(QUESTION, **sampled)),
        ("chat, streamed", proxy.chat(QUESTION, stream=True, **sampled)),
        ("completions, whole", proxy.http.post("/v1/completions", json=plain)),
        ("completions, streamed", proxy.http.post("/v1/completions", json={**plain, "stream": True})),
    ):
        said = await kept(proxy, await asked)
        measured[name] = away(said, await asyncio.to_thread(scored_by_peft, adapters[0], said, 0.7))
    print("the same at temperature 0.7:", measured)
    assert max(measured.values()) < NATS, measured


async def whole_stream(response: aiohttp.ClientResponse) -> str:
    raw = (await response.read()).decode()
    assert response.status == 200 and raw.endswith("data: [DONE]\n\n"), raw
    events = [json.loads(line[6:]) for line in raw.splitlines() if line.startswith("data: {")]
    return "".join(e["choices"][0]["delta"].get("content") or "" for e in events if e["choices"])


async def test_swaps_and_rollbacks_under_streams(proxy: Proxy) -> None:
    """Every reply is whole, and all of it by the version that its header names."""
    for version in (1, 2):
        await proxy.post(f"/rl/promote/{version}")
    texts = {}
    for pin in ("base", "v1", "v2"):
        texts[pin] = await proxy.say(QUESTION, model=f"fake@{pin}", temperature=0, max_tokens=TOKENS)
    assert len(set(texts.values())) == 3
    stop = asyncio.Event()
    replies: list[str] = []

    async def client() -> None:
        while not stop.is_set():
            response = await proxy.chat(QUESTION, temperature=0, max_tokens=TOKENS, stream=True)
            assert await whole_stream(response) == texts[response.headers["x-rl-adapter"]]
            replies.append(response.headers["x-rl-adapter"])

    clients = [asyncio.create_task(client()) for _ in range(3)]
    for act, live in (("promote/1", "v1"), ("rollback", "v2"), ("promote/base", "base"), ("rollback", "v2")):
        assert (await proxy.post(f"/rl/{act}"))[0] == 200
        since = len(replies)
        while live not in replies[since:]:
            assert not any(task.done() for task in clients)
            await asyncio.sleep(0.1)
    stop.set()
    await asyncio.gather(*clients)
    print("streams under four changes, none failed:", len(replies))


async def test_a_version_stays_until_its_last_reply_has_ended(proxy: Proxy, server: VLLMServer) -> None:
    await proxy.post("/rl/promote/1")
    expected = await proxy.say(QUESTION, temperature=0, max_tokens=LONG, ignore_eos=True)
    running = await proxy.chat(QUESTION, temperature=0, max_tokens=LONG, ignore_eos=True, stream=True)
    assert running.headers["x-rl-adapter"] == "v1"
    for act in ("promote/2", "promote/base"):  # v1 is now neither live nor the one before
        assert (await proxy.post(f"/rl/{act}"))[0] == 200
    assert server.models() == named(proxy.home, "v1", "v2")
    assert await whole_stream(running) == expected
    async with asyncio.timeout(30):
        while await asyncio.to_thread(server.models) != named(proxy.home, "v2"):
            await asyncio.sleep(0.1)


async def test_it_says_before_a_run_what_it_would_say_after(
    proxy: Proxy, vllm: VLLM, server: VLLMServer, weights: Path, tmp_path: Path
) -> None:
    assert await vllm.check(16, tmp_path) is None and server.models() == {"fake"}
    why = str(await vllm.check(24, tmp_path))
    print("of a rank that it does not take:", why)
    assert "takes up to 16: start it with --max-lora-rank 32, or set train.overrides.rank to 16" in why
    assert (await proxy.get("/rl/status"))["backend"]["obstacle"] is None
    other = Proxy(tmp_path / "other", proxy.backend, proxy.launcher)
    other.kind, other.flags = None, {**proxy.flags, "home": other.home, "train.overrides": {"rank": 24}}
    await other.start()
    try:
        async with asyncio.timeout(60):
            while (status := await other.get("/rl/status"))["backend"]["obstacle"] is None:  # it is being asked
                await asyncio.sleep(0.1)
        assert "--max-lora-rank 32" in status["training"]["waits_for"]
    finally:
        await other.stop()


async def test_a_rank_too_high_changes_nothing(proxy: Proxy, weights: Path, tmp_path: Path) -> None:
    """Made before the server was restarted with less, say."""
    await proxy.post("/rl/promote/1")
    folder = proxy.home / "adapters_out" / "fake" / "v0002"
    random_adapter(weights, tmp_path / "wide", seed=3, r=32)
    manifest = json.loads((folder / "manifest.json").read_text())
    for name in manifest["files"]:
        content = (tmp_path / "wide" / name).read_bytes()
        (folder / name).write_bytes(content)
        manifest["files"][name] = hashlib.sha256(content).hexdigest()
    (folder / "manifest.json").write_text(json.dumps(manifest))
    status, body = await proxy.post("/rl/promote/2")
    message = body["error"]["message"]
    print("after training:", message)
    assert status == 502 and "LoRA rank 32 is greater than max_lora_rank 16" in message
    assert (await proxy.get("/rl/status"))["live"] == 1
    assert (await proxy.chat(QUESTION, max_tokens=1)).headers["x-rl-adapter"] == "v1"


async def test_it_says_what_it_lacks_to_give_its_memory_back(vllm: VLLM) -> None:
    with pytest.raises(Unsupported, match="--enable-sleep-mode"):
        await vllm.free()
    await vllm.reclaim()


async def test_a_kill_in_the_middle_is_repaired_before_a_request_is_sent(
    proxy: Proxy,
    server: VLLMServer,
    adapters: list[Path],
    said_by_peft: Say,
) -> None:
    """Last in this file: it starts the server once more."""
    await proxy.post("/rl/promote/1")
    running = await proxy.chat(QUESTION, temperature=0, max_tokens=LONG, ignore_eos=True, stream=True)
    await running.content.readany()
    await asyncio.to_thread(server.kill)
    raw = await running.read()
    assert b"broke off" in raw and b"[DONE]" not in raw
    found = await proxy.store.completions.get(running.headers["x-rl-completion-id"])
    assert found is not None and found.status == "partial"
    response = await proxy.chat(QUESTION)
    assert response.status == 503 and response.headers["retry-after"]
    await asyncio.to_thread(server.start)
    assert server.models() == {"fake"}, "it came back without the adapter"
    response = await proxy.chat(QUESTION, temperature=0, max_tokens=TOKENS)
    assert response.headers["x-rl-adapter"] == "v1"
    said = await kept(proxy, response)
    ids, logprobs = await asyncio.to_thread(said_by_peft, adapters[0])
    assert list(said.token_ids or ()) == ids[: len(said.token_ids or ())] and away(said, logprobs) < NATS
    assert server.models() == named(proxy.home, "v1")
