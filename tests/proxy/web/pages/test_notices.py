"""What stands between answers and a run, on the page: both prompts side by side, and prompts that a server cut."""

from __future__ import annotations

import html
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from scripts.fakes.backend import FakeBackend
from scripts.fakes.launcher import FakeLauncher
from scripts.fakes.ollama import FakeOllama
from scripts.harness.in_process import Proxy
from tests.harness.visits import Visit
from tests.harness.weights_checks import reads_otherwise, said
from tests.proxy.conversation.test_cut_prompts import LONG
from tests.proxy.training.test_rehearsal import WHY, answers, tried

pytestmark = pytest.mark.usefixtures("quick_rehearsal")


async def test_both_prompts_stand_side_by_side_and_the_inbox_says_it_once(proxy: Proxy, visit: Visit) -> None:
    proxy.launcher.refuses = WHY
    reads_otherwise(proxy)
    await answers(proxy, 2)
    await said(proxy, "other")
    await tried(proxy, "refused")
    progress = await visit.get("/progress")
    assert '<pre tabindex="0">[user]x</pre>' in progress and "The server reads, 3 tokens" in progress
    assert '<pre tabindex="0">&lt;user&gt;x</pre>' in progress and "of the weights makes, 2 tokens" in progress
    assert html.escape(WHY, quote=True).replace("&#x27;", "&#39;") in progress
    inbox = await visit.get("/")
    assert inbox.count("The server does not run what trains") == 1 and inbox.count("Of the newest 2 answers") == 1
    assert 'href="/progress#prompts"' in inbox


async def test_where_all_is_well_the_inbox_says_nothing(proxy: Proxy, visit: Visit) -> None:
    await answers(proxy, 2)
    await tried(proxy, "prompts")
    assert "notices" not in await visit.get("/")
    progress = await visit.get("/progress")
    assert "A run would take the prompts of the newest 2 answers; " in progress and "<pre" not in progress


async def test_a_server_that_does_not_tell_its_text(small: Proxy, ollama: FakeOllama) -> None:
    await small.stop()
    ollama.version = "0.9.6"
    read = {
        "prompt_ids": [1] * 99, "rendered": "<user>x", "theirs": None, "their_tokens": None,
        "reply_ids": [], "logprobs": [], "best": [],
    }  # fmt: skip
    small.launcher.weights_say = {"conversations": [read] * 3, "wrong": "the server read 3 tokens", "explained": 0}
    await small.start()
    visit = Visit(small.url)
    try:
        await answers(small, 2)
        await said(small, "other")
        progress = await visit.get("/progress")
    finally:
        await visit.http.close()
    assert "It does not tell how it renders." in progress and "&lt;user&gt;x" in progress
    assert "weights makes, 99 tokens" in progress


@pytest.fixture
async def small(tmp_path: Path, ollama: FakeOllama) -> AsyncIterator[Proxy]:
    proxy = Proxy(tmp_path / "small", FakeBackend(), FakeLauncher())
    proxy.kind, ollama.room = None, 1
    proxy.flags |= {"backend.kind": "ollama", "backend.url": ollama.url}
    await proxy.start()
    yield proxy
    await proxy.stop()


async def test_a_cut_prompt_is_shown_with_the_setting_that_helps(small: Proxy) -> None:
    visit = Visit(small.url)
    talk: list[Any] = [{"role": "user", "content": LONG}, {"role": "assistant", "content": "ok"}]
    try:
        ids = []
        for messages in ([*talk, {"role": "user", "content": "?"}], [{"role": "user", "content": "short"}]):
            body = {"model": "fake", "messages": messages, "stream": False}
            async with small.http.post("/api/chat", json=body) as response:
                ids.append(response.headers["x-rl-completion-id"])
        cut, whole = [await visit.get(f"/completions/{id}") for id in ids]
        assert "left out the beginning of this conversation: it read" in cut and "OLLAMA_CONTEXT_LENGTH" in cut
        assert "left out" not in whole
        inbox = await visit.get("/")
        assert inbox.count("OLLAMA_CONTEXT_LENGTH") == 1 and "num_ctx" in inbox
        assert "OLLAMA_CONTEXT_LENGTH" in await visit.get("/progress")
    finally:
        await visit.http.close()
