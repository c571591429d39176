"""Values that no client of ours sends: nested a thousand deep, or a number of four hundred digits.

Of a client they are refused with a sentence, before the model is asked. A server that sends them gets no error of
rlproxy's own. Nobody else notices.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from proxy.core.json_edit import DEEPEST
from proxy.dialects.chat_form import arguments_of, tidy_arguments
from scripts.fakes.backend import FakeBackend
from scripts.fakes.launcher import FakeLauncher
from scripts.fakes.scripted import ScriptedAnswer, ScriptedServer
from scripts.harness.in_process import Proxy

HI = {"role": "user", "content": "hi"}


def deep(levels: int, opening: str, closing: str) -> str:
    return opening * levels + "1" + closing * levels


@pytest.mark.parametrize("levels", [DEEPEST + 1, 300, 1000, 5000, 100_000])
@pytest.mark.parametrize(("opening", "closing"), [("[", "]"), ('{"a":', "}")])
async def test_what_is_nested_too_deeply_is_refused_and_disturbs_nobody(
    proxy: Proxy, levels: int, opening: str, closing: str
) -> None:
    value = deep(levels, opening, closing)
    bodies = {
        "/v1/chat/completions": f'{{"model":"fake","messages":[{json.dumps(HI)}],"metadata":{value}}}',
        "/v1/messages": f'{{"model":"fake","max_tokens":9,"messages":[{json.dumps(HI)}],"metadata":{{"a":{value}}}}}',
        "/v1/responses": f'{{"model":"fake","input":"hi","metadata":{{"a":{value}}}}}',
        "/api/chat": f'{{"model":"fake","stream":false,"messages":[{json.dumps(HI)}],"format":{value}}}',
    }
    for path, body in bodies.items():
        async with proxy.http.post(path, data=body, headers={"content-type": "application/json"}) as response:
            assert response.status == 400, path
    assert await proxy.store.completions.page(limit=9) == []
    await proxy.chat("still here")
    status = await proxy.get("/rl/status")
    assert not status.get("problem"), status


async def test_arguments_that_are_nested_deeply_are_kept_as_text(proxy: Proxy) -> None:
    arguments = deep(600, "[", "]")
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": arguments}}
    messages: list[dict[str, Any]] = [
        HI,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "done"},
    ]
    async with proxy.http.post("/v1/chat/completions", json={"model": "fake", "messages": messages}) as response:
        assert response.status == 200
    (row,) = await proxy.store.completions.page(limit=9)
    assert row.end is not None and row.end.status == "done"
    (full,) = [await proxy.store.completions.get(row.new.id)]
    assert full is not None and arguments.encode() in full.new.prompt[1].body


@pytest.mark.parametrize("name", ["temperature", "top_p"])
async def test_a_number_that_no_float_holds_is_the_backends_to_refuse(proxy: Proxy, name: str) -> None:
    body = f'{{"model":"fake","messages":[{json.dumps(HI)}],"{name}":1{"0" * 400}}}'
    async with proxy.http.post("/v1/chat/completions", data=body) as response:
        assert response.status == 200
    (row,) = await proxy.store.completions.page(limit=9)
    assert row.end is not None and row.end.status == "done" and not row.end.exact
    assert row.new.sampling[name] == 1.0, "the server's own: what it took is not known"


async def test_a_models_arguments_that_are_nested_deeply_stay_text() -> None:
    for levels in (300, 100_000):
        text = deep(levels, "[", "]")
        assert arguments_of(text) == {"arguments": text} and tidy_arguments(text) == text


@pytest.mark.parametrize("number", ["1" + "0" * 400, "-" + "9" * 25, "NaN", "1e999", "184467440737095516160"])
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses", "/api/chat"])
async def test_a_number_that_json_cannot_carry_on_poisons_nothing(proxy: Proxy, number: str, path: str) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": f'{{"a": {number}}}'}}
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "x": "NUMBER"}}}
    body: dict[str, Any] = {"model": "fake", "stream": False, "x_seed": "NUMBER", "tools": [tool]}
    if path == "/v1/responses":
        body |= {"input": "hi", "tools": [], "metadata": {"a": "NUMBER"}}
    else:
        body["messages"] = [HI, {"role": "assistant", "content": "", "tool_calls": [call]}, HI]
    text = json.dumps(body).replace('"NUMBER"', number)
    async with proxy.http.post(path, data=text) as response:
        assert response.status in (200, 400), await response.text()
        id = response.headers.get("x-rl-completion-id", "")
        if response.status == 400:
            return
    await proxy.rate(completion_id=id, rating="good")
    for page in (f"/rl/completions/{id}", f"/completions/{id}"):
        async with proxy.http.get(page) as response:
            assert response.status == 200, page
    async with proxy.http.get("/rl/export") as response:
        lines = (await response.read()).splitlines()
        assert id in [json.loads(line).get("id") for line in lines]


SSE = {"content-type": "text/event-stream"}
JSON = {"content-type": "application/json"}
MESSAGE = '"message":{"role":"assistant","content":"hello"},"finish_reason":"stop"'
DEEP_ANSWERS = {
    "error": (400, JSON, '{"error":{"message":DEEP}}'),
    "missing": (404, JSON, '{"error":{"message":DEEP}}'),
    "error under 200": (200, JSON, '{"error":{"message":DEEP}}'),
    "error in a stream": (200, SSE, 'data: {"choices":[]}\n\ndata: {"error":{"message":DEEP}}\n\n'),
    "usage": (200, JSON, f'{{"choices":[{{{MESSAGE}}}],"usage":{{"completion_tokens":DEEP}}}}'),
    "usage in a stream": (200, SSE, 'data: {"choices":[],"usage":{"completion_tokens":DEEP}}\n\ndata: [DONE]\n\n'),
    "parts": (200, JSON, '{"choices":[{"message":{"content":[{"type":"thinking","thinking":THOUGHT}]}}]}'),
    "half of a character": (
        200, SSE, 'data: {"choices":[{"delta":{"content":"\\ud83d"}}]}\n\ndata: {"choices":[],"x":DEEP}\n\n'
    ),
}  # fmt: skip


@pytest.mark.parametrize("translate", [(), ("messages", "responses", "ollama", "completions")])
@pytest.mark.parametrize("name", DEEP_ANSWERS)
async def test_a_server_that_nests_a_thousand_levels_makes_no_error_of_our_own(
    tmp_path: Path, name: str, translate: tuple[str, ...]
) -> None:
    status, headers, body = DEEP_ANSWERS[name]
    body = body.replace("DEEP", deep(1000, "[", "]"))
    body = body.replace("THOUGHT", deep(480, '[{"type":"thinking","thinking":', "}]"))
    server = ScriptedServer([ScriptedAnswer(status=status, headers=headers, reads=[body.encode()])])
    await server.start()
    rlproxy = Proxy(tmp_path, FakeBackend(), FakeLauncher())
    rlproxy.kind = None
    flags = {"backend__kind": "openai", "backend__url": server.url, "backend__model": "m"}
    await rlproxy.start(**flags, backend__translate=translate)
    try:
        asked: dict[str, Any] = {"model": "m", "stream": headers is SSE, "max_tokens": 9}
        bodies: dict[str, dict[str, Any]] = {
            "/v1/chat/completions": {"messages": [HI]},
            "/v1/messages": {"messages": [HI]},
            "/v1/responses": {"input": "hi"},
            "/api/chat": {"messages": [HI]},
            "/v1/completions": {"prompt": "hi"},
        }
        for path, said in bodies.items():
            async with rlproxy.http.post(path, json={**asked, **said}) as response:
                text = await response.text()
                assert "rlproxy itself failed" not in text and response.status in (200, 400, 404, 502), (path, text)
    finally:
        await rlproxy.stop()
        await server.stop()
