"""How each kind of server is asked for a prompt as it renders it, and what it is to have no such route."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from config.settings import load
from proxy.backends.base import Prompt
from proxy.backends.llamacpp import LlamaCpp
from proxy.backends.ollama_prompts import ollama_request
from proxy.backends.openai_compatible import OpenAICompatible
from proxy.backends.vllm import VLLM
from proxy.core.errors import BackendBroke
from scripts.fakes.backend import FakeBackend
from scripts.fakes.launcher import FakeLauncher

TOOL = {"type": "function", "function": {"name": "clock"}}
ASKED = Prompt([{"role": "user", "content": "what time"}], [TOOL], {"enable_thinking": False})


@pytest.fixture(params=["vllm", "llamacpp", "openai"])
async def server(request: pytest.FixtureRequest, backend: FakeBackend, tmp_path: Path) -> AsyncIterator[Any]:
    settings = load({"home": tmp_path, "backend.kind": request.param, "backend.url": backend.url}, environ={}).settings
    kinds = {"vllm": VLLM, "openai": OpenAICompatible}
    if request.param == "llamacpp":
        made: OpenAICompatible = LlamaCpp(settings, FakeLauncher())
    else:
        made = kinds[request.param](settings.backend)
    async with aiohttp.ClientSession() as http:
        await made.start(http, asyncio.Event().wait)  # type: ignore[arg-type]
        yield made


async def test_by_its_own_routes(server: OpenAICompatible, backend: FakeBackend) -> None:
    if server.kind == "openai":
        assert await server.render(ASKED) is None
        return
    assert await server.render(ASKED) is None, "it has no such route"
    backend.speaks |= {"tokenize"} if server.kind == "vllm" else {"tokenize", "apply-template"}
    found = await server.render(ASKED)
    assert found is not None and found.ids is not None and len(found.ids) == 3, "the tool, and two words"
    assert found.text == ("clock what time" if server.kind == "llamacpp" else None)


async def test_a_server_that_cannot_render_this_one_says_so(server: OpenAICompatible, backend: FakeBackend) -> None:
    if server.kind == "openai":
        return
    backend.speaks |= {"tokenize"} if server.kind == "vllm" else {"tokenize", "apply-template"}
    with pytest.raises(BackendBroke, match="does not render a prompt"):
        await server.render(Prompt([{"role": "user"}]))


async def test_a_prompt_with_a_picture_has_its_servers_marker_and_no_ids(
    server: OpenAICompatible, backend: FakeBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its tokenizer knows nothing of pictures: three ids for a marker would be none of what it read."""
    if not isinstance(server, LlamaCpp):
        return
    backend.speaks |= {"tokenize", "apply-template"}
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}}
    asked = Prompt([{"role": "user", "content": [picture, {"type": "text", "text": "what"}]}])
    rendered = await server.render(asked)
    assert rendered is not None and rendered.text and rendered.ids is None
    assert rendered.picture_marker == "<__media__>", "of servers that do not say theirs"
    call = server._call

    async def with_props(method: str, path: str, **options: Any) -> tuple[int, bytes]:
        return (200, b'{"media_marker": "<__media_Qx__>"}') if path.startswith("/props") else await call(
            method, path, **options
        )  # fmt: skip

    monkeypatch.setattr(server, "_call", with_props)
    rendered = await server.render(asked)
    assert rendered is not None and rendered.picture_marker == "<__media_Qx__>"


def test_each_route_of_ollama_gets_what_it_got() -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "clock", "arguments": '{"zone": "UTC"}'}}
    talk = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "what "}, {"type": "text", "text": "time"}]},
        {"role": "assistant", "content": "", "reasoning_content": "Look.", "tool_calls": [call]},
        {"role": "tool", "content": "noon", "name": "clock", "tool_call_id": "c1"},
    ]
    path, body = ollama_request(Prompt(talk, [TOOL], None, "chat", {"reasoning_effort": "low", "temperature": 1}))
    assert (path, body["messages"], body["reasoning_effort"]) == ("/v1/chat/completions", talk, "low")
    assert body["tools"] == [TOOL] and "temperature" not in body and body["max_tokens"] == 1
    path, body = ollama_request(Prompt(talk, None, None, "messages", {"thinking": {"type": "enabled"}, "options": 1}))
    assert path == "/api/chat" and body["think"] is True and body["options"] == {"num_predict": 1}
    assert body["messages"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "what time"},
        {"role": "assistant", "content": "", "thinking": "Look.",
         "tool_calls": [{"function": {"name": "clock", "arguments": {"zone": "UTC"}}}]},
        {"role": "tool", "content": "noon", "tool_name": "clock", "tool_call_id": "c1"},
    ]  # fmt: skip
    said = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "time"}]
    path, body = ollama_request(Prompt(said, None, None, "ollama-generate", {"options": {"num_ctx": 99}}))
    assert (path, body) == (
        "/api/generate", {"prompt": "time", "system": "Be brief.", "options": {"num_ctx": 99, "num_predict": 1}},
    )  # fmt: skip
    assert ollama_request(Prompt(said[1:], dialect="completions"))[0] == "/api/generate"
