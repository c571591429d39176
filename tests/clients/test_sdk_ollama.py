"""Ollama's own SDK through the whole proxy, sync and async, native and translated."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import ollama
import pytest

from proxy.backends.openai_compatible import OpenAICompatible
from scripts.harness.in_process import Proxy
from tests.clients.calls import clients, made, pieces, streams, ways

SCHEMA = {"type": "object", "properties": {"said": {"type": "string"}}, "required": ["said"]}


def look() -> str:
    """Looks."""
    return "here"


@pytest.fixture
async def client(proxy: Proxy, sync: bool, way: str) -> AsyncIterator[Any]:
    if way == "native":  # a server of a kind that is asked once what it speaks
        proxy.backend.speaks.add("ollama")
        await proxy.stop()
        proxy.kind = OpenAICompatible
        await proxy.start(backend__kind="openai")
    client = (ollama.Client if sync else ollama.AsyncClient)(host=proxy.url)
    yield client
    await made(sync, client.close)


async def last_row(proxy: Proxy, way: str, dialect: str) -> str:
    """The newest completion's id; Ollama's bodies carry none."""
    (row,) = await proxy.store.completions.page(limit=1)
    assert row.end is not None and row.end.status == "done"
    assert (row.end.translated, row.new.dialect) == (way == "translated", dialect)
    return row.new.id


@clients
@streams
@ways
async def test_chat(proxy: Proxy, client: Any, sync: bool, stream: bool, way: str) -> None:
    async def ask(messages: list[Any], **more: Any) -> list[Any]:
        if stream:
            return await pieces(sync, client.chat, "fake", messages, stream=True, **more)
        return [await made(sync, client.chat, "fake", messages, **more)]

    def text(parts: list[Any]) -> str:
        assert [part.done for part in parts] == [False] * (len(parts) - 1) + [True]
        return "".join(part.message.content or "" for part in parts)

    hi = [{"role": "user", "content": "hi there"}]
    parts = await ask(hi)
    assert text(parts) == "You said: hi there " and parts[-1].done_reason == "stop" and parts[-1].eval_count == 4
    id = await last_row(proxy, way, "ollama")

    proxy.backend.thinks = True
    parts = await ask(hi, tools=[look], think=True)
    assert "".join(part.message.thinking or "" for part in parts) == "Let me think. "
    (call,) = [call for part in parts for call in part.message.tool_calls or ()]
    assert call.function.name == "look" and call.function.arguments == {"a": 2, "b": 1}
    back = ollama.Message(role="assistant", content=text(parts), tool_calls=[call])
    result = {"role": "tool", "content": look(), "tool_name": "look"}
    assert text(await ask([*hi, back, result], tools=[look])) == "It is here"

    assert json.loads(text(await ask(hi, format=SCHEMA))) == {"said": "hi there"}

    reply = {"role": "assistant", "content": "You said: hi there "}
    assert "rated good" in text(await ask([*hi, reply, {"role": "user", "content": "/rl good"}]))
    ratings = [
        await proxy.store.ratings.live(row.new.id, "owner") for row in await proxy.store.completions.page(limit=9)
    ]
    assert len([rating for rating in ratings if rating]) == 1 and id


@clients
@streams
@ways
async def test_generate(proxy: Proxy, client: Any, sync: bool, stream: bool, way: str) -> None:
    async def ask(prompt: str) -> str:
        if stream:
            parts = await pieces(sync, client.generate, "fake", prompt, stream=True)
        else:
            parts = [await made(sync, client.generate, "fake", prompt)]
        assert parts[-1].done
        return "".join(part.response or "" for part in parts)

    assert await ask("hi there") == "You said: hi there "
    id = await last_row(proxy, way, "ollama-generate")
    assert "rated bad" in await ask("/rl bad")
    assert await proxy.store.ratings.live(id, "owner") is not None
