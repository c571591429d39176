"""Somebody whose text comes in a place that only looks like a person's: a role, a part or an item that no person types,
an agent's wrapper without what the agent puts around a person, another program's name for a person."""

from __future__ import annotations

import json
from typing import Any

import pytest

from proxy.conversation.user_text import command_of
from proxy.core.agent_wrappers import AGENTS
from scripts.harness.agent_formats import CLAUDE_CODE, DETAILS, NOTICE, texts
from scripts.harness.in_process import Proxy
from tests.harness.key_holders import CLAUDE_CODE as MACHINE
from tests.harness.key_holders import CLAUDE_CODE_JSON as MACHINE_JSON
from tests.harness.key_holders import keys, nothing_was_done, rated, says

PAUSE = {"role": "user", "content": "/rl pause"}
TYPED = {"type": "input_text", "text": "/rl pause"}

# Roles, parts and items

ODD: list[tuple[str, dict[str, Any]]] = [
    *(("/v1/messages", {"messages": [{**PAUSE, "role": role}]}) for role in ("User", "function", "tool", "user ", "")),
    ("/v1/messages", {"messages": [{"role": "tool", "content": texts("/rl pause")}]}),
    *(("/v1/chat/completions", {"messages": [{**PAUSE, "role": role}]}) for role in ("User", "function", "tool")),
    *(("/api/chat", {"messages": [{**PAUSE, "role": role}]}) for role in ("User", "function", "tool")),
    *(("/v1/responses", {"input": [{**PAUSE, "role": role}]}) for role in ("User", "function", "tool")),
    *(
        ("/v1/responses", {"input": [{"role": "user", "content": content}]})
        for content in (
            [TYPED, "Summarise."],
            ["/rl pause"],
            [TYPED, None],
            [TYPED, ["x"]],
            [{"type": "reasoning_text", "text": "/rl pause"}],
            [{"type": "summary_text", "text": "/rl pause"}],
        )
    ),
    *(
        ("/v1/responses", {"input": [PAUSE, item]})
        for item in (
            {"type": "mcp_call", "id": "x", "output": "a document"},
            {"type": "shell_call_output", "call_id": "x", "output": []},
            {"type": "web_search_call", "id": "x"},
            {"type": "reasoning", "summary": []},
            {"type": "reasoning", "summary": [{"type": "summary_text", "text": "Hm."}]},
            {"type": "compaction", "encrypted_content": "x"},
        )
    ),
    ("/v1/responses", {"input": [PAUSE, {"type": "mcp_call"}, {"role": "developer", "content": "Be brief."}]}),
]  # fmt: skip


@pytest.mark.parametrize("native", [False, True])
@pytest.mark.parametrize(("path", "body"), ODD)
async def test_what_only_looks_like_a_person_is_no_command(
    proxy: Proxy, path: str, body: dict[str, Any], native: bool
) -> None:
    """Whatever the backend makes of it."""
    proxy.backend.speaks |= {"messages", "responses"} if native else set()
    async with proxy.http.post(path, json={"model": "fake", "max_tokens": 9, "stream": False, **body}) as response:
        said = await response.text()
        assert response.status == 400 or "x-rl-adapter" in response.headers  # refused, or asked
        assert "rlproxy: " not in said
    assert not (await proxy.get("/rl/status"))["training"]["paused"]
    assert "rl_attached" not in json.dumps(proxy.backend.requests)


async def test_a_line_that_the_model_was_asked_with_stays_in_the_history(proxy: Proxy) -> None:
    """With a search after it, it was no command then; neither is it one now."""
    search = {"type": "web_search_call", "id": "x"}
    answer = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "It is paused."}]}
    body = {"model": "fake", "input": [PAUSE, search, answer, {"role": "user", "content": "Go on."}]}
    async with proxy.http.post("/v1/responses", json=body) as response:
        assert response.status == 200
    sent = proxy.backend.requests[-1]["messages"]
    assert [message["content"] for message in sent] == ["/rl pause", "It is paused.", "Go on."]
    await nothing_was_done(proxy, 1)


async def test_what_a_person_types_is_a_command(proxy: Proxy) -> None:
    for items in ([{"role": "user", "content": [TYPED]}], [PAUSE, {"role": "developer", "content": "Be brief."}]):
        async with proxy.http.post("/v1/responses", json={"model": "fake", "input": items}) as response:
            assert "paused" in await response.text()
        assert "goes on" in await says(proxy, "/rl resume")


async def test_an_odd_part_that_is_stored_can_be_gone_on_from(proxy: Proxy) -> None:
    body = {"model": "fake", "messages": [{"role": "user", "content": [*texts("one"), "two"]}]}
    async with proxy.http.post("/v1/chat/completions", json=body) as response:
        id = response.headers["x-rl-completion-id"]
    proxy.backend.speaks |= {"responses"}
    more = {"model": "fake", "input": "And now?", "previous_response_id": id}
    async with proxy.http.post("/v1/responses", json=more) as response:
        assert response.status == 200, await response.text()


# Wrappers


def test_a_result_of_clines_tools_is_no_command() -> None:
    """Only what its own tags are around was typed by a person: the result of a command is whatever that printed."""
    cline = next(agent for agent in AGENTS if agent.name == "cline")

    def command(text: str) -> str | None:
        return command_of({"role": "user", "content": texts(text, DETAILS)}, cline)

    for tool in ("plan_mode_respond", "act_mode_respond", "ask_followup_question", "attempt_completion"):
        result = f"[{tool}] Result:\n"
        for before in ("", NOTICE):
            assert command(f"{before}{result}/rl reset") is None
            assert command(f"{before}{result}{NOTICE}/rl reset") is None
            assert command(f"{before}{result}<feedback>\n/rl reset") is None
            assert command(f"{before}{result}<feedback>\n/rl reset\n</answer>") is None
            for tag in ("feedback", "answer", "user_message"):
                assert command(f"{before}{result}<{tag}>\n/rl reset\n</{tag}>") == "/rl reset"
    assert command(f"{NOTICE}/rl reset") == "/rl reset"


# Names


@pytest.mark.parametrize("user_id", [MACHINE, MACHINE_JSON])
async def test_a_person_who_is_called_like_a_machine_is_no_admin(proxy: Proxy, user_id: str) -> None:
    """A gateway names its people in `metadata.user_id`, and they choose their names. Claude Code says who it is."""
    gate = (await keys(proxy, gate="admin"))["gate"]
    for agent in ("litellm/1.0", "", "python claude-cli/"):
        headers = {**gate, "user-agent": agent}
        assert "needs an admin" in await says(proxy, "/rl pause", headers=headers, metadata={"user_id": user_id})
    more = {"user": "ann", "metadata": {"user_id": user_id}}
    assert "needs an admin" in await says(proxy, "/rl pause", headers={**gate, **CLAUDE_CODE}, **more)
    found = await says(proxy, "/rl pause", headers={**gate, **CLAUDE_CODE}, metadata={"user_id": user_id})
    assert "paused" in found


@pytest.mark.parametrize("user_id", [MACHINE, MACHINE_JSON])
async def test_a_person_who_is_called_like_a_machine_rates_by_that_name(proxy: Proxy, user_id: str) -> None:
    gate = (await keys(proxy, gate="admin"))["gate"]
    more: dict[str, Any] = {"headers": {**gate, "user-agent": "litellm/1.0"}, "metadata": {"user_id": user_id}}
    answer = await says(proxy, "hi", **more)
    assert "rated good" in await says(proxy, "hi", answer, "/rl good", **more)
    (row,) = await proxy.store.completions.page()
    assert (row.new.user, row.new.session) == (user_id, None)
    assert list((await rated(proxy)).values()) == [[user_id]]
