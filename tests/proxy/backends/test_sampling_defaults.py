"""How a server samples where a client says nothing: what is recorded is what it does, or the capture is inexact."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from proxy.backends.sampling_defaults import Odds, file_defaults, is_file_in_force, props_sampling
from scripts.fakes.backend import FakeBackend
from scripts.fakes.launcher import FakeLauncher
from scripts.fakes.llamacpp import FakeLlama
from scripts.fakes.sglang import FakeSGLang
from scripts.harness.in_process import Proxy
from tests.harness.llamacpp import PRESETS, make_proxy

QWEN = {"temperature": 0.6, "top_p": 0.95, "top_k": 20, "do_sample": True, "eos_token_id": [1, 2]}
RECORDED = {"temperature": 0.6, "top_p": 0.95, "top_k": 20.0}
NEUTRAL = {"temperature": 1.0, "top_p": 1.0}


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "generation_config.json").write_text(json.dumps(QWEN))
    return folder


@pytest.fixture
async def vllm(tmp_path: Path, backend: FakeBackend) -> AsyncIterator[Proxy]:
    proxy = Proxy(tmp_path / "home", backend, FakeLauncher())
    proxy.kind = None
    yield proxy
    await proxy.stop()


async def captured(proxy: Proxy, **more: Any) -> Any:
    answer = await proxy.chat("hi", **more)
    return await proxy.store.completions.get(answer.headers["x-rl-completion-id"])


async def checked(proxy: Proxy) -> Any:
    return (await proxy.get("/rl/status"))["backend"]


async def test_what_vllm_takes_of_the_models_own_defaults_is_recorded(
    vllm: Proxy, backend: FakeBackend, model: Path
) -> None:
    backend.model_root, backend.takes = str(model), QWEN
    await vllm.start()
    found = await captured(vllm)
    assert found.new.sampling == RECORDED and found.end.exact
    assert (await captured(vllm, temperature=0.2)).new.sampling == RECORDED | {"temperature": 0.2}
    told = await checked(vllm)
    assert "temperature 0.6, top_p 0.95, top_k 20" in told["sampling"] and not told["guessed"]


async def test_the_file_is_found_with_the_weights_that_train(vllm: Proxy, backend: FakeBackend, model: Path) -> None:
    backend.model_root, backend.takes = "/in/a/container", QWEN
    await vllm.start(train__weights=str(model))
    assert (await captured(vllm)).new.sampling == RECORDED


async def test_a_vllm_that_was_told_to_leave_the_file_alone(vllm: Proxy, backend: FakeBackend, model: Path) -> None:
    backend.model_root = str(model)
    await vllm.start()
    found = await captured(vllm)
    assert found.new.sampling == NEUTRAL and found.end.exact
    assert not (await checked(vllm))["guessed"]


async def test_where_nobody_can_tell_nothing_exact_is_claimed(vllm: Proxy, backend: FakeBackend, model: Path) -> None:
    """Raw log-probs are the same however it samples. Who says all members in the request is exact all the same."""
    backend.model_root, backend.takes, backend.raw_logprobs = str(model), QWEN, True
    await vllm.start()
    found = await captured(vllm)
    assert found.new.sampling == RECORDED and not found.end.exact
    assert "temperature, top_p, top_k" in found.end.inexact_reason
    assert (await captured(vllm, temperature=1, top_p=1, top_k=0)).end.exact
    assert (await checked(vllm))["guessed"]


async def test_log_probs_of_before_sampling_are_not_taken_for_those_of_the_sampling(
    vllm: Proxy, backend: FakeBackend
) -> None:
    """vLLM's own --logprobs-mode is raw_logprobs. A run compares them with the policy's own of before sampling."""
    backend.raw_logprobs = True
    await vllm.start()
    for more in ({"temperature": 0.7}, {"top_p": 0.9}, {"top_k": 5}, {"presence_penalty": 0.5}):
        end = (await captured(vllm, **({"temperature": 1, "top_p": 1, "top_k": 0} | more))).end
        assert not end.exact and end.logprobs_of == "model" and end.token_ids and end.logprobs, more
        assert "log-probs are of the model alone" in end.inexact_reason
    for same in ({"temperature": 1, "top_p": 1}, {"temperature": 0, "top_p": 0.5}, {"temperature": 1, "top_k": -1}):
        assert (await captured(vllm, **({"top_p": 1} | same))).end.exact, "nothing stands between model and token"


async def test_log_probs_of_the_sampling_distribution(vllm: Proxy) -> None:
    await vllm.start()
    end = (await captured(vllm, temperature=0.7, top_p=1)).end
    assert end.exact and end.logprobs_of is None


async def test_a_model_that_is_not_on_this_machine_is_a_guess(vllm: Proxy, backend: FakeBackend) -> None:
    backend.model_root = "/in/a/container"
    await vllm.start()
    assert not (await captured(vllm)).end.exact
    assert "not on this machine" in (await checked(vllm))["sampling"]


@pytest.mark.parametrize(("says", "recorded"), [("model", RECORDED), ("openai", NEUTRAL), (None, RECORDED)])
async def test_sglang_tells_which_defaults_it_takes(
    tmp_path: Path, model: Path, says: str | None, recorded: dict[str, float]
) -> None:
    server = FakeSGLang()
    server.args = None if says is None else {"sampling_defaults": says, "model_path": "/in/a/container"}
    await server.start()
    proxy = make_proxy(tmp_path / "home", kind="sglang", url=server.url)
    await proxy.start(train__weights=str(model))
    assert (await captured(proxy)).new.sampling == recorded
    await proxy.stop()
    await server.stop()


@pytest.mark.parametrize("older", [False, True])
async def test_llama_server_tells_what_it_was_started_with(tmp_path: Path, older: bool) -> None:
    server = FakeLlama()
    said = {"temperature": 0.6000000238418579, "top_p": 0.95, "top_k": 40, "min_p": 0.05, "repeat_penalty": 1.1}
    server.defaults = said if older else {"params": said}
    await server.start()
    proxy = make_proxy(tmp_path / "home", url=server.url)
    await proxy.start()
    found = (await captured(proxy)).new.sampling
    assert found == {"temperature": 0.6, "top_p": 0.95, "top_k": 40.0, "min_p": 0.05, "repetition_penalty": 1.1}
    assert "/props" in (await checked(proxy))["sampling"]
    await proxy.stop()
    await server.stop()


async def test_a_routers_section_tells_it_too(tmp_path: Path) -> None:
    presets = tmp_path / "presets.ini"
    presets.write_text(PRESETS)
    server = FakeLlama(presets)
    server.defaults = {"params": {"temperature": 0.6}}
    await server.start()
    server.loaded["fake"] = "loaded"
    proxy = make_proxy(tmp_path / "home", url=server.url, presets=str(presets))
    await proxy.start()
    assert (await captured(proxy)).new.sampling["temperature"] == 0.6
    await proxy.stop()
    await server.stop()


@pytest.mark.parametrize("text", ["", "[]", '{"temperature": "hot", "top_p": true}', '{"temperature": 1.0}'])
def test_a_file_that_says_nothing_changes_nothing(model: Path, text: str) -> None:
    (model / "generation_config.json").write_text(text)
    assert file_defaults(str(model)) == (model / "generation_config.json", {})
    assert file_defaults("/nowhere") is None


@pytest.mark.parametrize(
    ("unsaid", "as_filed", "neutral", "used"),
    [
        ({"a": -0.1, "b": -3.0}, {"a": -0.1, "b": -3.05}, {"a": -0.4, "b": -2.0}, True),
        ({"a": -0.4, "b": -2.0}, {"a": -0.1, "b": -3.0}, {"a": -0.4, "b": -2.05}, False),
        ({"a": -0.1, "b": -2.5}, {"a": -0.1, "b": -3.0}, {"a": -0.4, "b": -2.0}, None),
        ({"a": -0.4, "x": -9.0}, {"a": -0.4, "b": -2.0}, {"a": -0.4, "y": -7.0}, None),
        ({"a": -0.1, "x": -9.0}, {"a": -0.1, "b": -3.0}, {"a": -0.4, "b": -2.0}, True),
        ({"a": -0.4}, {"a": -0.4}, {"a": -0.4}, None),
        ({}, {}, {}, None),
    ],
)
def test_log_probs_say_whether_a_file_is_in_force(
    unsaid: dict[str, float], as_filed: dict[str, float], neutral: dict[str, float], used: bool | None
) -> None:
    def odds(of: dict[str, float]) -> Odds:
        return {(token, ()): logprob for token, logprob in of.items()}

    assert is_file_in_force(odds(unsaid), odds(as_filed), odds(neutral)) is used


@pytest.mark.parametrize("answer", [b"", b"[]", b"{}", b'{"default_generation_settings": null}'])
def test_props_that_say_nothing(answer: bytes) -> None:
    assert props_sampling(answer) == {}
