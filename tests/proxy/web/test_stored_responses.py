"""Captured responses by their ids: the same as when they were made, as a stream again, and what they were asked."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from openai import AsyncOpenAI, BadRequestError, NotFoundError

from scripts.harness.in_process import Proxy

TOOL = {"type": "function", "name": "look", "parameters": {"type": "object", "properties": {}}}
CUSTOM = {"type": "custom", "name": "look"}
CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "cut": {"max_output_tokens": 2},
    "tools": {"tools": [TOOL]},
    "custom tool": {"tools": [CUSTOM]},
    "settings": {"temperature": 0.5, "metadata": {"a": "b"}, "instructions": "Be brief.", "presence_penalty": 0.5},
    "schema": {"text": {"format": {"type": "json_schema", "name": "said", "schema": {"type": "object"}}}},
}


@pytest.fixture
async def client(proxy: Proxy) -> AsyncIterator[AsyncOpenAI]:
    async with AsyncOpenAI(base_url=f"{proxy.url}/v1", api_key="any", max_retries=0) as client:
        yield client


async def _ask(proxy: Proxy, case: str, **members: Any) -> dict[str, Any]:
    proxy.backend.wants = ("look", {"input": "here"}) if "tool" in case else None
    body = {"model": "fake", "input": "one two", **CASES[case], **members}
    async with proxy.http.post("/v1/responses", json=body) as response:
        assert response.status == 200
        return dict(await response.json())


def _plain(response: dict[str, Any]) -> dict[str, Any]:
    """With the arguments of calls as values: the store keeps no white space between them."""
    output = [
        {**item, "arguments": json.loads(item["arguments"])} if "arguments" in item else item
        for item in response["output"]
    ]
    return {**response, "output": output}


@pytest.mark.parametrize("case", CASES)
async def test_it_is_the_same_as_when_it_was_made(proxy: Proxy, case: str) -> None:
    answer = await _ask(proxy, case)
    assert _plain(await proxy.get(f"/v1/responses/{answer['id']}")) == _plain(answer)
    assert type(answer["created_at"]) is int
    assert (answer["completed_at"] is None) is (answer["status"] == "incomplete") is (case == "cut")
    assert answer["completed_at"] is None or type(answer["completed_at"]) is int


@pytest.mark.parametrize("case", CASES)
async def test_it_streams_again(proxy: Proxy, client: AsyncOpenAI, case: str) -> None:
    answer = await _ask(proxy, case)
    stream = await client.responses.retrieve(answer["id"], stream=True)
    events = [event async for event in stream]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert events[0].type == "response.created" and events[-1].type == f"response.{answer['status']}"
    last = events[-1].response.model_dump(mode="json", exclude_unset=True, by_alias=True)
    assert _plain(last) == _plain(answer)
    remaining = await client.responses.retrieve(answer["id"], stream=True, starting_after=2)
    assert [event.sequence_number async for event in remaining] == list(range(3, len(events)))


async def test_what_a_client_may_leave_out_is_told(proxy: Proxy) -> None:
    answer = await _ask(proxy, "tools")
    assert answer["tools"] == [{**TOOL, "description": None, "strict": False}]
    assert (answer["presence_penalty"], answer["frequency_penalty"]) == (0.0, 0.0)
    form = (await _ask(proxy, "schema"))["text"]["format"]
    assert (form["description"], form["strict"]) == (None, False)


async def test_log_probs_have_the_members_of_openai_alone(proxy: Proxy) -> None:
    proxy.backend.logprob_ids = True
    answer = await _ask(proxy, "plain", include=["message.output_text.logprobs"])
    entries = answer["output"][0]["content"][0]["logprobs"]
    assert entries and all(entry.keys() == {"token", "logprob", "bytes", "top_logprobs"} for entry in entries)


async def test_the_text_of_a_stored_answer_keeps_its_white_space(proxy: Proxy) -> None:
    answer = await _ask(proxy, "cut")
    assert answer["output"][0]["content"][0]["text"] == "You said: " and answer["output"][0]["status"] == "incomplete"


async def test_its_items_are_what_it_was_asked(proxy: Proxy, client: AsyncOpenAI) -> None:
    first = await _ask(proxy, "plain")
    proxy.backend.wants = None
    call = {"type": "function_call", "call_id": "c1", "name": "look", "arguments": '{"at": 1}'}
    result = {"type": "function_call_output", "call_id": "c1", "output": "a cat"}
    more = [{"role": "user", "content": "three"}, call, result]
    second = await _ask(proxy, "settings", previous_response_id=first["id"], input=more)
    page = await client.responses.input_items.list(second["id"], order="asc")
    items = [item.model_dump(exclude_none=True) for item in page.data]
    assert [item["type"] for item in items] == [
        "message", "message", "message", "function_call", "function_call_output",
    ]  # fmt: skip
    assert [item.get("role") for item in items[:3]] == ["user", "assistant", "user"]
    assert items[0]["content"] == [{"type": "input_text", "text": "one two"}]
    assert items[1]["content"][0]["type"] == "output_text" and items[4]["output"] == "a cat"
    assert items[3]["arguments"] == '{"at":1}' and len({item["id"] for item in items}) == 5
    newest = await client.responses.input_items.list(second["id"], limit=2)
    assert [item.id for item in newest.data] == [items[4]["id"], items[3]["id"]] and newest.has_more
    rest = [item.id async for item in await client.responses.input_items.list(second["id"], after=items[3]["id"])]
    assert rest == [item["id"] for item in items[2::-1]]


async def test_what_cannot_be_asked_of_it_is_said(proxy: Proxy, client: AsyncOpenAI) -> None:
    answer = await _ask(proxy, "plain")
    with pytest.raises(BadRequestError, match="with `background`"):
        await client.responses.cancel(answer["id"])
    with pytest.raises(BadRequestError, match="has no item"):
        await client.responses.input_items.list(answer["id"], after="msg_1")
    with pytest.raises(BadRequestError, match="`limit` must be"):
        await client.responses.input_items.list(answer["id"], limit=101)
    with pytest.raises(BadRequestError, match="`starting_after` must be"):
        await client.responses.retrieve(answer["id"], stream=True, extra_query={"starting_after": "x"})
    with pytest.raises(NotFoundError):
        await client.responses.input_items.list("resp_unknown")
    await client.responses.delete(answer["id"])
    with pytest.raises(NotFoundError):
        await client.responses.cancel(answer["id"])


async def test_one_that_broke_streams_as_failed(proxy: Proxy, client: AsyncOpenAI) -> None:
    proxy.backend.mood = "cut"
    body = {"model": "fake", "input": "one two three", "stream": True}
    async with proxy.http.post("/v1/responses", json=body) as response:
        id, _ = response.headers["x-rl-completion-id"], await response.read()
    events = [event async for event in await client.responses.retrieve(id, stream=True)]
    assert events[-1].type == "response.failed" and events[-1].response.error is not None
    assert (await proxy.get(f"/v1/responses/{id}"))["status"] == "failed"
