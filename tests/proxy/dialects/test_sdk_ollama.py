"""Ollama's own SDK against what we say: it must understand every byte, and we what it sends."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any

import ollama
import pytest

from proxy.core.errors import BackendDown
from scripts.fakes.translating import TranslatingServer, call


@pytest.fixture
async def client(url: str) -> AsyncIterator[ollama.AsyncClient]:
    async with ollama.AsyncClient(host=url) as client:
        yield client


def look(where: str) -> str:
    """Looks.

    Args:
      where: the direction
    """
    return where


async def chat(client: ollama.AsyncClient, stream: bool, messages: list[Any], **more: Any) -> list[ollama.ChatResponse]:
    if not stream:
        return [await client.chat("m", messages, **more)]
    return [part async for part in await client.chat("m", messages, stream=True, **more)]


def said(parts: list[ollama.ChatResponse]) -> tuple[str, str, list[Any]]:
    calls = [c for part in parts for c in part.message.tool_calls or ()]
    return (
        "".join(part.message.content or "" for part in parts),
        "".join(part.message.thinking or "" for part in parts),
        calls,
    )


HI = [{"role": "user", "content": "hi"}]
both = pytest.mark.parametrize("stream", [False, True])


@both
async def test_text(client: ollama.AsyncClient, stream: bool) -> None:
    parts = await chat(client, stream, HI)
    assert said(parts) == ("Hello there.", "", [])
    last = parts[-1]
    assert last.model == "m" and last.done and last.done_reason == "stop"
    assert (last.prompt_eval_count, last.eval_count) == (12, 5)
    assert datetime.fromisoformat(last.created_at or "").tzinfo == UTC and (last.total_duration or 0) > 0
    assert not any(part.done for part in parts[:-1]) and (len(parts) > 3) == stream


@both
async def test_thinking_and_tools_there_and_back(
    server: TranslatingServer, client: ollama.AsyncClient, stream: bool
) -> None:
    calls = [call("call_1", "look", where="north"), call("call_2", "look", where="south")]
    server.reply = {"role": "assistant", "content": "I look.", "reasoning_content": "Where?", "tool_calls": calls}
    server.finish_reason = "tool_calls"
    parts = await chat(client, stream, HI, tools=[look], think=True)
    text, thinking, found = said(parts)
    assert (text, thinking) == ("I look.", "Where?")
    assert [c.function.arguments for c in found] == [{"where": "north"}, {"where": "south"}]
    assert server.asked[-1]["tools"][0]["function"]["name"] == "look"

    results = [{"role": "tool", "content": "A wall.", "tool_name": "look"} for _ in found]
    answer = ollama.Message(role="assistant", content=text, thinking=thinking, tool_calls=found)
    await chat(client, stream, [*HI, answer, *results], tools=[look])
    back = server.asked[-1]["messages"]
    assert [m["role"] for m in back] == ["user", "assistant", "tool", "tool"]
    assert [c["id"] for c in back[1]["tool_calls"]] == [m["tool_call_id"] for m in back[2:]]
    assert back[1]["tool_calls"][0]["function"] == {"name": "look", "arguments": '{"where":"north"}'}


@both
async def test_options_and_pictures(server: TranslatingServer, client: ollama.AsyncClient, stream: bool) -> None:
    png = b"\x89PNG\r\n\x1a\n"
    options = ollama.Options(temperature=0.2, num_predict=9, num_ctx=4096)
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    await chat(client, stream, [{**HI[0], "images": [png]}], options=options, format=schema, think=False)
    asked = server.asked[-1]
    assert (asked["temperature"], asked["max_tokens"]) == (0.2, 9) and asked.get("stream", False) == stream
    assert asked["response_format"]["json_schema"]["schema"] == schema
    assert asked["messages"][0]["content"][1]["image_url"]["url"] == "data:image/png;base64,iVBORw0KGgo="


@both
async def test_generate(server: TranslatingServer, client: ollama.AsyncClient, stream: bool) -> None:
    server.reply["reasoning_content"] = "Hm."
    if stream:
        parts = [p async for p in await client.generate("m", "hi", system="Be brief.", stream=True)]
    else:
        parts = [await client.generate("m", "hi", system="Be brief.")]
    assert "".join(p.response or "" for p in parts) == "Hello there."
    assert "".join(p.thinking or "" for p in parts) == "Hm." and parts[-1].done_reason == "stop"
    assert server.asked[-1]["messages"] == [{"role": "system", "content": "Be brief."}, *HI]


@both
async def test_a_command(server: TranslatingServer, client: ollama.AsyncClient, stream: bool) -> None:
    parts = await chat(client, stream, [{"role": "user", "content": "/rl good"}])
    assert said(parts)[0].startswith("rlproxy: ") and parts[-1].done and not server.asked


@both
async def test_errors(server: TranslatingServer, client: ollama.AsyncClient, stream: bool) -> None:
    server.error = BackendDown("The backend does not answer.")
    with pytest.raises(ollama.ResponseError) as down:
        await chat(client, stream, HI)
    assert down.value.status_code == 503 and down.value.error == "The backend does not answer."
    with pytest.raises(ollama.ResponseError, match="cannot say") as refused:
        await client.generate("m", "hi", raw=True)
    assert refused.value.status_code == 400


async def test_an_error_in_the_middle(server: TranslatingServer, client: ollama.AsyncClient) -> None:
    server.breaks = True
    with pytest.raises(ollama.ResponseError, match="It broke off"):
        await chat(client, True, HI)
