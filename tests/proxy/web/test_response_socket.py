"""Responses over a WebSocket: the same requests, answered by messages; what is not stored stays with its connection."""

from __future__ import annotations

import json
from typing import Any

import aiohttp
import pytest

from scripts.harness.in_process import Proxy
from scripts.suites.published import faults

TOOL = {"type": "function", "name": "look", "parameters": {"type": "object", "properties": {}}}


class Socket:
    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket

    async def ask(self, **members: Any) -> list[dict[str, Any]]:
        """The events of one request, up to its last."""
        return await self.send({"type": "response.create", "model": "fake", "input": "one two", **members})

    async def send(self, message: Any) -> list[dict[str, Any]]:
        await self._socket.send_str(message if isinstance(message, str) else json.dumps(message))
        events: list[dict[str, Any]] = []
        while not events or events[-1]["type"] not in (
            "response.completed", "response.incomplete", "response.failed", "error",
        ):  # fmt: skip
            events.append(await self._socket.receive_json(timeout=30))
        return events


def opened(proxy: Proxy, **headers: str) -> Any:
    return proxy.http.ws_connect("/v1/responses", headers=headers)


async def test_its_events_are_those_of_a_stream(proxy: Proxy) -> None:
    async with opened(proxy) as socket:
        for number in (1, 2):
            events = await Socket(socket).ask(input=f"hello {number}")
            assert [event["sequence_number"] for event in events] == list(range(len(events)))
            assert not [fault for event in events for fault in faults("response event", event)]
            answer = events[-1]["response"]
            assert answer["output"][0]["content"][0]["text"] == f"You said: hello {number} "
            assert (await proxy.get(f"/v1/responses/{answer['id']}"))["id"] == answer["id"]
    assert len((await proxy.get("/rl/completions"))["data"]) == 2


async def test_a_command_is_answered_here_too(proxy: Proxy) -> None:
    async with opened(proxy) as socket:
        first = (await Socket(socket).ask())[-1]["response"]
        rated = await Socket(socket).ask(input="/rl good clear", previous_response_id=first["id"])
    assert "rated good" in rated[-1]["response"]["output"][0]["content"][0]["text"]


async def test_what_is_not_stored_goes_on_here_alone(proxy: Proxy) -> None:
    async with opened(proxy) as socket:
        id = (await Socket(socket).ask(store=False))[-1]["response"]["id"]
        second = await Socket(socket).ask(store=False, previous_response_id=id, input="three")
        assert second[-1]["type"] == "response.completed"
        assert [m["content"] for m in proxy.backend.requests[-1]["messages"]] == [
            "one two",
            "You said: one two",
            "three",
        ]
    async with opened(proxy) as socket:
        (error,) = await Socket(socket).ask(store=False, previous_response_id=id)
        assert (error["type"], error["status"]) == ("error", 400)
        assert error["error"]["code"] == "previous_response_not_found"
        assert (await Socket(socket).ask(store=False))[-1]["type"] == "response.completed", "it may begin anew"


async def test_what_failed_is_forgotten(proxy: Proxy) -> None:
    async with opened(proxy) as socket:
        id = (await Socket(socket).ask(store=False))[-1]["response"]["id"]
        output = {"type": "function_call_output", "call_id": "call_x", "output": "x"}
        (error,) = await Socket(socket).ask(store=False, previous_response_id=id, input=[output])
        assert "No tool call found" in error["error"]["message"]
        (error,) = await Socket(socket).ask(store=False, previous_response_id=id)
        assert error["error"]["code"] == "previous_response_not_found"


async def test_a_call_and_its_result(proxy: Proxy) -> None:
    proxy.backend.wants = ("look", {"at": 1})
    async with opened(proxy) as socket:
        answer = (await Socket(socket).ask(tools=[TOOL], store=False))[-1]["response"]
        call = next(item for item in answer["output"] if item["type"] == "function_call")
        output = {"type": "function_call_output", "call_id": call["call_id"], "output": "a cat"}
        events = await Socket(socket).ask(tools=[TOOL], store=False, previous_response_id=answer["id"], input=[output])
    assert "a cat" in events[-1]["response"]["output"][0]["content"][0]["text"]


@pytest.mark.parametrize(
    "message",
    ["{", "[]", "{}", {"type": "response.cancel"}, {"type": "response.create", "generate": False},
     {"type": "response.create", "model": "fake", "input": 3}, {"type": "response.create", "model": "x", "input": "y"}],
    ids=["no JSON", "list", "no type", "another type", "warm-up", "odd input", "no such model"],
)  # fmt: skip
async def test_what_is_odd_is_an_error_and_no_end(proxy: Proxy, message: Any) -> None:
    async with opened(proxy) as socket:
        (error,) = await Socket(socket).send(message)
        assert error["type"] == "error" and error["status"] in (400, 404) and error["error"]["message"]
        assert not faults("openai error", {"error": error["error"]})
        assert (await Socket(socket).ask())[-1]["type"] == "response.completed"


async def test_who_may_not_ask_may_not_connect(proxy: Proxy) -> None:
    await proxy.stop()
    await proxy.start(server__api_key="a-long-enough-key-for-this")
    with pytest.raises(aiohttp.WSServerHandshakeError) as refusal:
        await opened(proxy)
    assert refusal.value.status == 401
    with pytest.raises(aiohttp.WSServerHandshakeError) as refusal:
        await opened(proxy, authorization="Bearer a-long-enough-key-for-this", origin="http://elsewhere.example")
    assert refusal.value.status == 403
    async with opened(proxy, authorization="Bearer a-long-enough-key-for-this") as socket:
        assert (await Socket(socket).ask())[-1]["type"] == "response.completed"


async def test_without_an_upgrade_it_is_the_backends_affair(proxy: Proxy) -> None:
    async with proxy.http.get("/v1/responses") as response:
        assert (
            response.status in (404, 405) and "has no GET /v1/responses" in (await response.json())["error"]["message"]
        )
