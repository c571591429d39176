"""A prompt that the server cut: seen by its count, said once, and never where it may have been read whole."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from proxy.conversation.cut_prompts import LAST, WORTH, CutPrompts, cut_reason
from scripts.fakes.backend import FakeBackend
from scripts.fakes.launcher import FakeLauncher
from scripts.fakes.ollama import FakeOllama
from scripts.harness.in_process import Proxy
from store.records import Message

LONG = "word " * 6000


def says(role: str, content: Any, **more: Any) -> Message:
    return Message(role, json.dumps({"content": content, **more}).encode())


@pytest.mark.parametrize(
    ("prompt", "tokens", "cut"),
    [
        ([says("user", LONG), says("user", "hi")], 33, True),
        ([says("user", [{"type": "text", "text": LONG}])], 33, True),
        ([says("user", LONG)], 6_000, False),
        ([says("user", "-" * 40_000)], 4_000, False),  # many characters a token
        ([says("user", "x" * (WORTH - 1))], 3, False),
        (
            [says("user", "hi"), says("assistant", LONG, reasoning_content=LONG)],
            33,
            False,
        ),  # its template leaves it out
        ([says("user", [{"type": "image_url", "image_url": {"url": LONG}}])], 33, False),
        ([says("user", LONG)], None, False),
        ([says("user", LONG)], "33", False),
        ([says("user", LONG)], 0, False),
    ],
)
def test_by_how_few_tokens_it_is_seen(prompt: list[Message], tokens: Any, cut: bool) -> None:
    found = cut_reason(prompt, {"prompt_tokens": tokens})
    assert (found is not None) == cut
    if found:
        assert found == "it read 33 tokens of 30,000 characters" or "30,002" in found
    assert cut_reason(prompt, None) is None


@pytest.fixture
async def proxy(tmp_path: Path, ollama: FakeOllama) -> AsyncIterator[Proxy]:
    proxy = Proxy(tmp_path / "home", FakeBackend(), FakeLauncher())
    proxy.kind = None
    proxy.flags |= {"backend.kind": "ollama", "backend.url": ollama.url}
    await proxy.start()
    yield proxy
    await proxy.stop()


async def test_it_is_said_once_with_the_setting_that_helps(proxy: Proxy, ollama: FakeOllama) -> None:
    ollama.room = 1
    talk = [{"role": "user", "content": LONG}, {"role": "assistant", "content": "ok"}, {"role": "user", "content": "?"}]
    body = {"model": "fake", "messages": talk, "stream": False}
    with capture_logs() as said:
        for path in ("/api/chat", "/v1/chat/completions"):
            async with proxy.http.post(path, json=body) as response:
                assert response.status == 200
                id = response.headers["x-rl-completion-id"]
            found = await proxy.store.completions.get(id)
            assert found is not None and found.end is not None
            assert str(found.end.inexact_reason).startswith("the server cut the prompt: it read ")
            assert str(found.end.inexact_reason).endswith("tokens of 30,000 characters")
    status = await proxy.get("/rl/status")
    assert status["cut"].startswith("2 conversations were longer than the server's context")
    assert "OLLAMA_CONTEXT_LENGTH" in status["cut"] and "num_ctx" in status["cut"]
    assert len([line for line in said if line["event"] == "a prompt was cut"]) == 1
    await proxy.stop()
    await proxy.start()
    assert (await proxy.get("/rl/status"))["cut"] == status["cut"], "a restart puts nothing right"


def test_what_was_put_right_is_no_longer_said() -> None:
    cut = CutPrompts("give it more")
    assert cut.line is None and cut.note(None) is None
    assert cut.note("it read 3") == cut.line and str(cut.line).endswith("beginning: it read 3; give it more")
    assert cut.note("it read 4") is None and "2 conversations" in str(cut.line) and "it read 4" in str(cut.line)
    for _ in range(LAST):
        cut.note(None)
    assert cut.line is None
    assert cut.note("it read 5") is not None, "it is said aloud again"
