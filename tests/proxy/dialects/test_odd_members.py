"""Odd members of requests, as mutations of valid ones found them: relayed, translated, or refused. No error is ours.

What is relayed is captured as well.
"""

from __future__ import annotations

from typing import Any

import pytest
from structlog.testing import capture_logs

from scripts.harness.in_process import Proxy

ODD = (5, True, {"a": 1}, [5], [None], "x")
SHELL = {"type": "local_shell_call", "call_id": "c1", "action": {"type": "exec", "command": ["ls"]}}
QUESTION = {"role": "user", "content": "hello"}


@pytest.fixture(params=["native", "translated"])
async def either(request: pytest.FixtureRequest, proxy: Proxy) -> Proxy:
    await proxy.stop()
    proxy.kind = None
    translate = ["responses", "messages", "ollama"] if request.param == "translated" else []
    await proxy.start(backend__kind="openai", backend__translate=translate)
    return proxy


async def answered(proxy: Proxy, route: str, body: dict[str, Any]) -> int:
    with capture_logs() as lines:
        async with proxy.http.post(route, json={"model": "fake", **body}) as response:
            raw = await response.read()
    assert b"bug of rlproxy" not in raw, raw
    assert not [line for line in lines if line["log_level"] == "error"], lines
    return response.status


@pytest.mark.parametrize("calls", ODD)
async def test_calls_of_an_earlier_answer(either: Proxy, calls: Any) -> None:
    earlier = {"role": "assistant", "content": "hi", "tool_calls": calls}
    assert await answered(either, "/v1/chat/completions", {"messages": [QUESTION, earlier, QUESTION]}) == 200
    (row,) = await either.store.completions.page()
    assert row.status == "done"


@pytest.mark.parametrize("output", [*ODD, [{"type": "text", "text": None}], [{"type": "text", "text": 5}]])
@pytest.mark.parametrize(
    "kind", ["local_shell_call_output", "shell_call_output", "computer_call_output", "function_call_output"]
)
async def test_the_output_of_a_tool(either: Proxy, kind: str, output: Any) -> None:
    items = [QUESTION, SHELL, {"type": kind, "call_id": "c1", "output": output}]
    await answered(either, "/v1/responses", {"input": items})  # the server may break at it


@pytest.mark.parametrize("form", ODD)
async def test_the_form_of_a_custom_tool(either: Proxy, form: Any) -> None:
    tool = {"type": "custom", "name": "patch", "format": form}
    assert await answered(either, "/v1/responses", {"input": "x", "tools": [tool]}) in (200, 400)


@pytest.mark.parametrize("form", [*ODD, []])
async def test_the_format_of_a_text(either: Proxy, form: Any) -> None:
    assert await answered(either, "/v1/responses", {"input": "x", "text": {"format": form}}) in (200, 400)


@pytest.mark.parametrize("kind", [[], {}, ["text"], 5, None])
@pytest.mark.parametrize("role", ["user", "assistant"])
@pytest.mark.parametrize("is_inner", [False, True])
async def test_the_type_of_a_block(either: Proxy, role: str, kind: Any, *, is_inner: bool) -> None:
    block: dict[str, Any] = {"type": kind, "text": "x"}
    if is_inner:
        block = {"type": "tool_result", "tool_use_id": "t", "content": [block]}
    messages = [QUESTION, {"role": role, "content": [block]}, QUESTION]
    assert await answered(either, "/v1/messages", {"messages": messages, "max_tokens": 9}) in (200, 400)
