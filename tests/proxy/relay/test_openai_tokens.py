"""Counts by tiktoken, with a table of single bytes in place of one that it would download: a token is a byte."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tiktoken import Encoding, registry

from proxy.relay.openai_tokens import TokenEstimate, count
from scripts.fakes.backend import FakeBackend
from scripts.fakes.launcher import FakeLauncher
from scripts.harness.in_process import Proxy

CALL = {"function": {"name": "f", "arguments": "{}"}}
BYTES = {bytes([n]): n for n in range(256)}
ASKED: dict[str, Any] = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 8}


@pytest.fixture
def table(monkeypatch: pytest.MonkeyPatch) -> None:
    made = Encoding("o200k_base", pat_str=r"(?s).", mergeable_ranks=BYTES, special_tokens={"<|endoftext|>": 256})
    monkeypatch.setitem(registry.ENCODINGS, "o200k_base", made)


@pytest.fixture
async def proxy(tmp_path: Path) -> AsyncIterator[Proxy]:
    backend = FakeBackend()
    backend.model = "gpt-4o"
    await backend.start()
    proxy = Proxy(tmp_path / "home", backend, FakeLauncher())
    await proxy.start()
    yield proxy
    await proxy.stop()
    await backend.stop()


def told(*messages: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"messages": list(messages), **more}


@pytest.mark.parametrize(
    ("chat", "tokens"),
    [
        (told({"role": "user", "content": "hi"}), 3 + 3 + len("userhi")),
        (told({"role": "system", "content": "é"}, {"role": "user", "content": "hi"}), 3 + 6 + len("systemuserhi") + 2),
        (told({"role": "user", "content": [{"type": "text", "text": "hi"}, {"type": "text", "text": "ho"}]}), 14),
        (told({"role": "user", "content": "<|endoftext|>"}), 6 + len("user<|endoftext|>")),  # words, not the token
        (told({"role": "assistant", "content": None, "tool_calls": [CALL]}), 18),
        (told({"role": "user", "content": "hi"}, tools=[{"type": "function"}]), 12 + len('[{"type":"function"}]')),
    ],
)
@pytest.mark.usefixtures("table")
async def test_texts_count_with_what_stands_around_them(chat: dict[str, Any], tokens: int) -> None:
    assert await count("gpt-4o-2024-08-06", chat) == TokenEstimate(tokens, "o200k_base")
    assert await count("openai/gpt-4o", chat) == TokenEstimate(tokens, "o200k_base")


async def test_a_model_that_tiktoken_does_not_know_is_not_guessed() -> None:
    assert await count("qwen3-8b", told({"role": "user", "content": "hi"})) == (
        "tiktoken does not know a model 'qwen3-8b'"
    )


async def test_a_table_that_cannot_be_had_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(tmp_path))
    monkeypatch.setitem(registry.ENCODINGS, "o200k_base", None)
    del registry.ENCODINGS["o200k_base"]
    said = await count("gpt-4o", told({"role": "user", "content": "hi"}))  # no test may reach the network
    assert isinstance(said, str) and "could not have its table o200k_base" in said


@pytest.mark.usefixtures("table")
async def test_the_route_counts_where_the_server_cannot(proxy: Proxy) -> None:
    async with proxy.http.post("/v1/messages/count_tokens", json={**ASKED, "model": "gpt-4o"}) as response:
        assert response.status == 200 and await response.json() == {"input_tokens": 12}
        assert response.headers["x-rl-tiktoken"] == "o200k_base"


@pytest.mark.usefixtures("table")
async def test_a_server_that_counts_is_asked_first(proxy: Proxy) -> None:
    proxy.backend.speaks |= {"tokenize", "apply-template"}
    async with proxy.http.post("/v1/messages/count_tokens", json={**ASKED, "model": "gpt-4o"}) as response:
        assert await response.json() == {"input_tokens": 1} and "x-rl-tiktoken" not in response.headers
