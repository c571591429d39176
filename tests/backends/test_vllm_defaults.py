"""How the real vLLM samples where a client says nothing, of a model that ships its own way: `make test-backends`.

A server for each way of starting it. What rlproxy records is compared with what transformers makes of the same tokens.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from proxy.backends import openai_compatible
from proxy.backends.sampling_defaults import FILE, MEMBERS, Odds, distance, first_token_odds, is_file_in_force
from proxy.backends.vllm import ASK
from scripts.harness.in_process import Proxy, proxy_before
from scripts.harness.versions import QUESTION
from store.records import FinishedCompletion
from tests.backends.vllm_server import VLLMServer

pytestmark = [pytest.mark.backends, pytest.mark.timeout(1200)]

QWEN = {"do_sample": True, "temperature": 0.6, "top_p": 0.95, "top_k": 20}
RECORDED = {"temperature": 0.6, "top_p": 0.95, "top_k": 20.0}
NEUTRAL = {"temperature": 1.0, "top_p": 1.0}
NATS = 1e-3


@pytest.fixture(scope="module")
def with_a_way(weights: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The small model, as Qwen ships its own."""
    folder = tmp_path_factory.mktemp("model")
    for file in weights.iterdir():
        (folder / file.name).symlink_to(file)
    (folder / FILE).unlink(missing_ok=True)
    (folder / FILE).write_text(json.dumps(QWEN))
    return folder


@pytest.fixture(scope="module", params=["the file", "--generation-config vllm", "--logprobs-mode raw_logprobs"])
def server(
    request: pytest.FixtureRequest, with_a_way: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[str, VLLMServer]]:
    options = request.param.split() if request.param.startswith("--") else []
    server = VLLMServer(with_a_way, tmp_path_factory.mktemp("vllm") / "server.log", *options)
    try:
        server.start()
        yield request.param, server
    finally:
        server.kill()


@pytest.fixture
async def proxy(
    tmp_path: Path, with_a_way: Path, server: tuple[str, VLLMServer], monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Proxy]:
    monkeypatch.setattr(openai_compatible, "LOOKS_S", 120.0)  # on a busy machine, too
    proxy = proxy_before(tmp_path / "home", backend__url=server[1].url, train__weights=str(with_a_way))
    await proxy.start()
    yield proxy
    await proxy.stop()


def by_transformers(weights: Path, said: FinishedCompletion, sampling: dict[str, float]) -> list[float]:
    """Log-probs of the distribution that it was sampled from, the tokens outside a nucleus left out."""
    import torch
    from transformers import (
        AutoModelForCausalLM,
        LogitsProcessorList,
        TemperatureLogitsWarper,
        TopKLogitsWarper,
        TopPLogitsWarper,
    )

    way = LogitsProcessorList([TemperatureLogitsWarper(sampling["temperature"])])
    way += [TopKLogitsWarper(int(sampling["top_k"]))] if "top_k" in sampling else []
    way += [TopPLogitsWarper(sampling["top_p"])] if sampling["top_p"] < 1 else []
    model = AutoModelForCausalLM.from_pretrained(weights, dtype=torch.float32)
    prompt, reply = list(said.prompt_token_ids or ()), list(said.token_ids or ())
    with torch.no_grad():
        logits = model(torch.tensor([prompt + reply])).logits[0, len(prompt) - 1 : -1]
    rows = torch.log_softmax(way(None, logits).double(), -1)
    return [float(row[token]) for row, token in zip(rows, reply, strict=True)]


async def first_token(server: VLLMServer, way: Mapping[str, float]) -> Odds:
    """What the probe sees of it."""
    asked = {"model": "fake", "messages": ASK, "max_tokens": 1, "logprobs": True, "top_logprobs": 5, **way}
    chat = f"{server.url}/v1/chat/completions"
    async with aiohttp.ClientSession() as http, http.post(chat, json=asked) as response:
        return first_token_odds(await response.read())


async def captured(proxy: Proxy, **more: Any) -> tuple[dict[str, float], FinishedCompletion]:
    answer = await proxy.chat(QUESTION, max_tokens=24, **more)
    found = await proxy.store.completions.get(answer.headers["x-rl-completion-id"])
    assert found is not None and found.end is not None and found.end.token_ids
    return dict(found.new.sampling), found.end


async def test_what_is_recorded_is_how_it_sampled(
    proxy: Proxy, server: tuple[str, VLLMServer], with_a_way: Path
) -> None:
    started, real = server
    unsaid, again, as_filed, neutral = [await first_token(real, way) for way in ({}, {}, RECORDED, MEMBERS)]
    print(started, "; asked twice it is", distance(unsaid, again), "nats apart, from the file's way", end=" ")
    print(distance(unsaid, as_filed), "and from the neutral one", distance(unsaid, neutral))
    sampling, said = await captured(proxy)
    status = (await proxy.get("/rl/status"))["backend"]
    if "raw" in started:
        assert is_file_in_force(unsaid, as_filed, neutral) is None
        assert sampling == RECORDED and not said.exact and status["guessed"]
        return
    assert sampling == (RECORDED if started == "the file" else NEUTRAL)
    assert said.exact and not status["guessed"], said.inexact_reason
    theirs = await asyncio.to_thread(by_transformers, with_a_way, said, sampling)
    away = max(abs(a - b) for a, b in zip(said.logprobs or (), theirs, strict=True))
    print("largest difference of log-probs to transformers in that way:", away)
    assert away < NATS


async def test_what_a_client_says_goes_before(proxy: Proxy, server: tuple[str, VLLMServer]) -> None:
    """Exact, unless its log-probs are those of before the temperature."""
    sampling, said = await captured(proxy, temperature=0.9, top_p=1, top_k=-1)
    assert sampling["temperature"] == 0.9 and sampling["top_p"] == 1
    assert said.exact is ("raw" not in server[0]), said.inexact_reason
