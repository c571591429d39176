"""Anthropic's own SDK against what we say: it must understand every byte, and we what it sends."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import anthropic
import pytest
from anthropic.types import Message, RawMessageStreamEvent
from anthropic.types.shared import ErrorResponse
from pydantic import TypeAdapter

from proxy.core.errors import BackendDown, Unauthorized
from proxy.core.json_edit import loads
from proxy.core.sse import EventSplitter
from scripts.fakes.translating import TranslatingServer, call

TOOLS: list[Any] = [{"name": "look", "description": "Looks.", "input_schema": {"type": "object", "properties": {}}}]
EVENT = TypeAdapter[Any](RawMessageStreamEvent)


@pytest.fixture
async def client(url: str) -> AsyncIterator[anthropic.AsyncAnthropic]:
    async with anthropic.AsyncAnthropic(base_url=url, api_key="key", max_retries=0) as client:
        yield client


def ask(text: str = "hi", **more: Any) -> dict[str, Any]:
    return {"model": "m", "max_tokens": 64, "messages": [{"role": "user", "content": text}], **more}


async def ended(client: anthropic.AsyncAnthropic, stream: bool, request: dict[str, Any]) -> Message:
    """The whole message, streamed or not; the same is expected of both."""
    if not stream:
        return await client.messages.create(**request)
    async with client.messages.stream(**request) as events:
        return await events.get_final_message()


both = pytest.mark.parametrize("stream", [False, True])


@both
async def test_text(client: anthropic.AsyncAnthropic, stream: bool) -> None:
    message = await ended(client, stream, ask())
    assert message.id.startswith("rl-") and message.model == "m" and message.role == "assistant"
    assert [block.to_dict() for block in message.content] == [{"type": "text", "text": "Hello there."}]
    assert message.stop_reason == "end_turn" and message.stop_sequence is None
    assert (message.usage.input_tokens, message.usage.output_tokens) == (12, 5)


async def test_text_as_it_comes(client: anthropic.AsyncAnthropic) -> None:
    async with client.messages.stream(**ask()) as events:
        pieces = [piece async for piece in events.text_stream]
    assert pieces == ["Hel", "lo ", "the", "re."]


@both
async def test_thinking_and_tools_there_and_back(
    server: TranslatingServer, client: anthropic.AsyncAnthropic, stream: bool
) -> None:
    calls = [call("call_1", "look", where="north"), call("call_2", "look")]
    server.reply = {"role": "assistant", "content": "I look.", "reasoning_content": "Where?", "tool_calls": calls}
    server.finish_reason = "tool_calls"
    request = ask(tools=TOOLS, tool_choice={"type": "auto"}, thinking={"type": "enabled", "budget_tokens": 1024})
    message = await ended(client, stream, request)
    assert [block.type for block in message.content] == ["thinking", "text", "tool_use", "tool_use"]
    assert message.stop_reason == "tool_use"
    assert [b.input for b in message.content if b.type == "tool_use"] == [{"where": "north"}, {}]

    results = [
        {"type": "tool_result", "tool_use_id": block.id, "content": [{"type": "text", "text": "A wall."}]}
        for block in message.content
        if block.type == "tool_use"
    ]
    turns = [*request["messages"], message.to_param(), {"role": "user", "content": results}]
    await ended(client, stream, {**request, "messages": turns})
    back = server.asked[-1]["messages"]
    assert [m["role"] for m in back] == ["user", "assistant", "tool", "tool"]
    assert back[1]["content"] == "I look." and back[1]["reasoning_content"] == "Where?"
    assert [c["id"] for c in back[1]["tool_calls"]] == [m["tool_call_id"] for m in back[2:]] == ["call_1", "call_2"]


@both
async def test_a_limit(server: TranslatingServer, client: anthropic.AsyncAnthropic, stream: bool) -> None:
    server.finish_reason = "length"
    assert (await ended(client, stream, ask())).stop_reason == "max_tokens"
    assert server.asked[-1]["max_tokens"] == 64


@both
async def test_a_command(server: TranslatingServer, client: anthropic.AsyncAnthropic, stream: bool) -> None:
    message = await ended(client, stream, ask("/rl good"))
    (block,) = message.content
    assert block.type == "text" and block.text.startswith("rlproxy: ")
    assert message.stop_reason == "end_turn" and message.usage.output_tokens == 0 and not server.asked


@both
async def test_errors(server: TranslatingServer, client: anthropic.AsyncAnthropic, stream: bool) -> None:
    server.error = BackendDown("The backend does not answer.")
    with pytest.raises(anthropic.InternalServerError) as down:
        await ended(client, stream, ask())
    assert down.value.type == "overloaded_error" and down.value.api_message == "The backend does not answer."
    server.error = Unauthorized("No key.")
    with pytest.raises(anthropic.AuthenticationError):
        await ended(client, stream, ask())
    with pytest.raises(anthropic.BadRequestError) as refused:
        await ended(client, stream, ask(tools=[{"type": "web_search_20250305", "name": "web_search"}]))
    assert refused.value.type == "invalid_request_error" and "cannot say" in str(refused.value.api_message)


async def test_an_error_in_the_middle(server: TranslatingServer, client: anthropic.AsyncAnthropic) -> None:
    server.breaks = True
    async with client.messages.stream(**ask()) as events:
        pieces = aiter(events.text_stream)
        assert [await anext(pieces), await anext(pieces)] == ["Hel", "lo "]
        with pytest.raises(anthropic.APIStatusError) as broken:
            await anext(pieces)
    assert "It broke off." in str(broken.value.api_message)


async def test_every_event_has_the_types_of_the_sdk(server: TranslatingServer, url: str) -> None:
    """The client takes what it gets without checking; its types are stricter."""
    server.reply |= {"reasoning_content": "Hm.", "tool_calls": [call("call_1", "look", where="north")]}
    async with aiohttp.ClientSession() as http:
        async with http.post(f"{url}/v1/messages", json=ask(stream=True)) as response:
            assert response.content_type == "text/event-stream"
            events = EventSplitter().feed(await response.read())
        for event in events:
            assert event.data is not None
            found = EVENT.validate_python(loads(event.data), strict=True)
            assert event.raw.startswith(f"event: {found.type}\n".encode())
        async with http.post(f"{url}/v1/messages", json=ask()) as response:
            Message.model_validate(await response.json(), strict=True)
        server.error = BackendDown("x")
        async with http.post(f"{url}/v1/messages", json=ask()) as response:
            ErrorResponse.model_validate(await response.json(), strict=True)
