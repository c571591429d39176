"""Histories that rlproxy spells out: each call and result in the kind of item that the server knows its tool by."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from scripts.fakes.backend import FakeBackend
from scripts.fakes.launcher import FakeLauncher
from scripts.fakes.scripted import ScriptedAnswer, ScriptedServer
from scripts.harness.in_process import Proxy

CUSTOM = {"type": "custom", "name": "exec"}
INNER = {"type": "function", "name": "find", "parameters": {"type": "object"}}
SPACE = {"type": "namespace", "name": "files", "description": "…", "tools": [INNER]}
TOOLS = [CUSTOM, SPACE, {"type": "shell"}]
CALLS = [
    {"type": "custom_tool_call", "id": "ctc_1", "call_id": "c1", "name": "exec", "input": "print(1)"},
    {"type": "function_call", "id": "fc_1", "call_id": "c2", "namespace": "files", "name": "find", "arguments": "{}"},
    {"type": "shell_call", "id": "sh_1", "call_id": "c3", "action": {"commands": ["ls"], "timeout_ms": None}},
]
RESULTS = [
    {"type": "custom_tool_call_output", "call_id": "c1", "output": "1"},
    {"type": "function_call_output", "call_id": "c2", "output": "none"},
    {"type": "shell_call_output", "call_id": "c3", "output": [{"stdout": "a", "stderr": ""}]},
]
SAID = [{"type": "message", "id": "msg_1", "role": "assistant", "content": [{"type": "output_text", "text": "Done."}]}]


def answer_of(output: list[dict[str, Any]]) -> ScriptedAnswer:
    body = {"id": "resp_1", "object": "response", "created_at": 1, "model": "m", "status": "completed"}
    raw = json.dumps({**body, "output": output, "usage": None}).encode()
    return ScriptedAnswer("/v1/responses", headers={"content-type": "application/json"}, reads=[raw])


@pytest.fixture
async def server() -> AsyncIterator[ScriptedServer]:
    server = ScriptedServer([answer_of(CALLS), answer_of(SAID)])
    await server.start()
    yield server
    await server.stop()


@pytest.fixture
async def cloud(tmp_path: Path, server: ScriptedServer) -> AsyncIterator[Proxy]:
    """rlproxy before a server that has the Responses API itself."""
    proxy = Proxy(tmp_path, FakeBackend(), FakeLauncher())
    proxy.kind = None
    await proxy.start(backend__kind="openai", backend__url=server.url, backend__model="m")
    yield proxy
    await proxy.stop()


async def ask(proxy: Proxy, **body: Any) -> str:
    async with proxy.http.post("/v1/responses", json={"model": "m", "tools": TOOLS, **body}) as response:
        assert response.status == 200
        return str((await response.json())["id"])


def sent(server: ScriptedServer) -> list[dict[str, Any]]:
    """The newest input, without the members that a client may leave out."""
    items = json.loads(server.requests[-1].body)["input"]
    return [{key: value for key, value in item.items() if key != "status"} for item in items]


async def test_calls_that_the_client_answers_are_of_its_own_kinds(cloud: Proxy, server: ScriptedServer) -> None:
    """A server refuses the result of a custom tool, or of a shell, whose call is a function's."""
    first = await ask(cloud, input="x")
    await ask(cloud, previous_response_id=first, input=RESULTS)
    _, custom, function, shell, *results = sent(server)
    assert custom == {"type": "custom_tool_call", "call_id": "c1", "name": "exec", "input": "print(1)"}
    assert function == {key: value for key, value in CALLS[1].items() if key != "id"}
    assert (shell["type"], shell["call_id"], shell["action"]["commands"]) == ("shell_call", "c3", ["ls"])
    assert results == RESULTS


async def test_calls_and_results_of_earlier_turns_are_of_one_kind(cloud: Proxy, server: ScriptedServer) -> None:
    first = await ask(cloud, input="x")
    second = await ask(cloud, previous_response_id=first, input=RESULTS)
    await ask(cloud, previous_response_id=second, input="next")
    kinds: dict[str, list[str]] = {}
    for item in sent(server):
        if "call_id" in item:
            kinds.setdefault(item["call_id"], []).append(item["type"])
    assert kinds == {
        "c1": ["custom_tool_call", "custom_tool_call_output"],
        "c2": ["function_call", "function_call_output"],
        "c3": ["function_call", "function_call_output"],  # the store has a shell's result as a text
    }
    page = (await cloud.get(f"/v1/responses/{second}/input_items?order=asc"))["data"]
    assert [item["type"] for item in page[1:3]] == ["custom_tool_call", "function_call"]
    assert page[2]["namespace"] == "files" and page[2]["name"] == "find"


async def test_a_call_that_its_tool_cannot_say_stays_a_functions(proxy: Proxy) -> None:
    """A model that is asked in chat completions may call a custom tool without its one argument."""
    proxy.backend.wants = "exec", {"b": 1}
    first = await ask(proxy, model="fake", input="x", tools=[CUSTOM])
    await ask(proxy, model="fake", previous_response_id=first, input="next", tools=[CUSTOM])
    call = proxy.backend.requests[-1]["messages"][1]["tool_calls"][0]
    assert json.loads(call["function"]["arguments"]) == {"b": 1}


async def test_a_picture_that_lies_at_the_server_is_still_named(cloud: Proxy, server: ScriptedServer) -> None:
    """A picture without an address is refused there."""
    picture = {"type": "input_image", "file_id": "file-1", "detail": "low"}
    first = await ask(cloud, input=[{"role": "user", "content": [{"type": "input_text", "text": "see"}, picture]}])
    await ask(cloud, previous_response_id=first, input="next")
    assert sent(server)[0]["content"][1] == picture
