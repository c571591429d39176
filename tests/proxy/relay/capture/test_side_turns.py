"""What an agent asks for its own sake below an answer, in every format; and people who ask nearly the same."""

from __future__ import annotations

import time
from typing import Any

import pytest

from scripts.harness.in_process import Proxy
from tests.proxy.conversation.test_answer_on_screen import says

Messages = list[dict[str, Any]]

Q = "how do I list files that changed in the last hour?"
AGENT = "You are a coding agent.\n" + "\n".join(f"Rule {number} of the house." for number in range(30))
COMPACT = (
    "Tools are not available now. Write a summary of the conversation so far, by which you can go on with it. Say what "
    "the user wants, what is done, which files matter, and what comes next. Do not answer anything that is still open."
)
REVIEW = f"Review the conversation above, and save to memory what is worth it. {COMPACT}"
LOOK = {"name": "look", "description": "Looks.", "parameters": {"type": "object", "properties": {}}}
TOOLS: dict[str, list[dict[str, Any]]] = {
    "chat": [{"type": "function", "function": LOOK}],
    "responses": [{"type": "function", **LOOK}],
    "messages": [{"name": "look", "description": "Looks.", "input_schema": {"type": "object", "properties": {}}}],
    "ollama": [{"type": "function", "function": LOOK}],
}
PATHS = {
    "chat": "/v1/chat/completions",
    "responses": "/v1/responses",
    "messages": "/v1/messages",
    "ollama": "/api/chat",
}
formats = pytest.mark.parametrize("format", PATHS)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Seconds by which the clock is ahead, in a list."""
    ahead, real = [0.0], time.time
    monkeypatch.setattr(time, "time", lambda: real() + ahead[0])
    return ahead


def limited(format: str, tokens: int) -> dict[str, Any]:
    if format == "ollama":
        return {"options": {"num_predict": tokens}}
    return {"max_output_tokens" if format == "responses" else "max_tokens": tokens}


def without_calls(format: str) -> dict[str, Any]:
    if format == "ollama":
        return {"tools": []}
    return {"tool_choice": {"type": "none"} if format == "messages" else "none"}


class Client:
    """One conversation in one format."""

    def __init__(self, proxy: Proxy, format: str, system: str | None = AGENT) -> None:
        self.proxy, self.format, self.system = proxy, format, system
        self.messages: Messages = []

    async def ask(self, text: str, *, stays: bool = True, stream: bool = True, **members: Any) -> str:
        """The completion's id. Where it `stays`, the conversation goes on from its answer."""
        self.proxy.backend.says = answer = f"It is {len(self.messages)} and so on."
        self.proxy.backend.letter = True
        messages = [*self.messages, says("user", text)]
        body = self.body(messages) | {"stream": stream, **members}
        async with self.proxy.http.post(PATHS[self.format], json=body) as response:
            await response.read()
            assert response.status == 200, await response.text()
            id = response.headers.get("x-rl-completion-id", "")
        if stays:
            self.messages = [*messages, says("assistant", answer)]
        return id

    def body(self, messages: Messages) -> dict[str, Any]:
        limit = {"max_tokens": 4000} if self.format == "messages" else {}
        body: dict[str, Any] = {"model": "fake", "tools": TOOLS[self.format], **limit}
        if self.format == "responses":
            return body | {"instructions": self.system, "input": messages}
        if self.format == "messages":
            return body | {"system": self.system, "messages": messages}
        system = [] if self.system is None else [says("system", self.system)]
        return body | {"messages": [*system, *messages]}

    async def turn(self, id: str) -> tuple[str, str]:
        row = await self.proxy.store.completions.get(id)
        assert row is not None
        return row.new.turn, row.new.turn_rule


@pytest.fixture
def wants_nothing(proxy: Proxy) -> None:
    proxy.backend.wants = "none", {}


pytestmark = pytest.mark.usefixtures("wants_nothing")


@formats
@pytest.mark.parametrize("how", ["no calls", "a limit", "whole", "another prompt", "at once"])
async def test_an_agents_own_task(proxy: Proxy, format: str, how: str, clock: list[float]) -> None:
    client = Client(proxy, format)
    first = await client.ask(Q)
    clock[0] += 0.5 if how == "at once" else 30
    members: dict[str, Any] = {
        "no calls": without_calls(format),
        "a limit": limited(format, 80_000),
        "whole": {"stream": False},
    }.get(how, {})
    if how == "another prompt":
        client.system = "You sum up what was said.\nBe brief.\n"
        members = {"tools": None} if format != "ollama" else {"tools": []}
    side = await client.ask(COMPACT, stays=False, **members)
    assert await client.turn(first) == ("main", "default")
    assert await client.turn(side) == ("side", "own-task")
    status, body = await proxy.rate(completion_id="last", rating="bad")
    assert (status, body["completion_id"]) == (201, first)


async def test_its_next_steps(proxy: Proxy, clock: list[float]) -> None:
    """A review calls tools, and goes on with their results."""
    client = Client(proxy, "chat")
    await client.ask(Q)
    proxy.backend.wants = "look", {}
    side = await client.ask(REVIEW, stays=False)
    calls = [{"id": "call-1", "type": "function", "function": {"name": "look", "arguments": "{}"}}]
    row = await proxy.store.completions.get(side)
    assert row is not None and row.end is not None
    called = {**says("assistant", row.end.text), "tool_calls": calls}
    client.messages = [*client.messages, says("user", REVIEW), called]
    body = client.body([*client.messages, {**says("tool", "nothing"), "tool_call_id": "call-1"}])
    async with proxy.http.post(PATHS["chat"], json=body) as response:
        step = response.headers["x-rl-completion-id"]
    assert await client.turn(step) == ("side", "own-task")


@formats
async def test_right_after_a_command(proxy: Proxy, format: str, clock: list[float]) -> None:
    """Hermes reviews after each message of a person, also after `/rl good`: the answer above is older then."""
    client = Client(proxy, format)
    first = await client.ask(Q)
    clock[0] += 60
    await client.ask("/rl good")
    clock[0] += 1
    assert await client.turn(await client.ask(REVIEW, stays=False)) == ("side", "own-task")
    clock[0] += 60
    assert await client.turn(await client.ask(REVIEW, stays=False)) == ("main", "default")
    rows = await proxy.store.completions.page()
    assert {rating.value for row in rows if row.new.id == first for rating in row.ratings} == {1.0}


@formats
@pytest.mark.parametrize(
    ("text", "after_s"),
    [
        (COMPACT, 30),  # with a prompt of one's own, pasted
        ("Please summarize our conversation so far.", 0.1),  # in a queue of the client
        ("and in the last day?", 0.1),
        (f"Review auth.py. {'It checks the session and its history. ' * 9}", 0.1),
    ],
)
async def test_what_a_person_asks(proxy: Proxy, format: str, text: str, after_s: float, clock: list[float]) -> None:
    client = Client(proxy, format)
    await client.ask(Q)
    clock[0] += after_s
    id = await client.ask(text)
    assert await client.turn(id) == ("main", "default")
    status, body = await proxy.rate(completion_id="last", rating="good")
    assert (status, body["completion_id"]) == (201, id)


@formats
@pytest.mark.parametrize("how", ["no calls", "a limit", "whole"])
async def test_a_person_who_changes_the_settings(proxy: Proxy, format: str, how: str, clock: list[float]) -> None:
    """Without asking for a summary; or for one in so few words that nobody else writes so."""
    client = Client(proxy, format)
    await client.ask(Q)
    clock[0] += 30
    members: dict[str, Any] = {
        "no calls": without_calls(format),
        "a limit": limited(format, 1000),
        "whole": {"stream": False},
    }[how]
    for text in (
        "and how in the last day, without those of root and of other people on this machine?",
        "Recap our chat",
    ):
        assert await client.turn(await client.ask(text, **members)) == ("main", "default")


async def test_a_client_that_rewrites_its_answers(proxy: Proxy, clock: list[float]) -> None:
    """gptme puts two answers into one message."""
    client = Client(proxy, "chat")
    await client.ask(Q)
    await client.ask("go on")
    first, _, second = client.messages[1:4]
    client.messages = [client.messages[0], says("assistant", f"{first['content']}\n\n{second['content']}")]
    clock[0] += 30
    side = await client.ask(COMPACT, stays=False, max_tokens=8192, tools=None, stream=False)
    assert await client.turn(side) == ("side", "own-task")


TASK = "Find out where the session tokens are checked, and list the files."


async def given(client: Client, **arguments: Any) -> None:
    """The model gives a tool this."""
    client.proxy.backend.wants = "look", arguments
    await client.ask("where are tokens checked?")
    client.proxy.backend.wants = "none", {}


@formats
@pytest.mark.parametrize("wrapped", ["{}", "<current_datetime>now</current_datetime>\n\n{}", "# Task\n\n{}"])
async def test_a_subagent(proxy: Proxy, format: str, wrapped: str) -> None:
    client = Client(proxy, format)
    await given(client, agents=[{"name": "x", "prompt": TASK}])
    subagent = Client(proxy, format, "You are a subagent. Answer in one line.")
    assert await client.turn(await subagent.ask(wrapped.replace("{}", TASK))) == ("side", "subagent")


@formats
async def test_a_subagent_with_the_same_prompt_and_fewer_tools(proxy: Proxy, format: str) -> None:
    client = Client(proxy, format)
    await given(client, prompt=TASK)
    fewer = [
        {**tool, "name": "other"} if "name" in tool else {**tool, "function": {**LOOK, "name": "other"}}
        for tool in TOOLS[format]
    ]
    assert await client.turn(await Client(proxy, format).ask(TASK, tools=fewer)) == ("side", "subagent")


@formats
async def test_a_person_who_pastes_a_tools_argument(proxy: Proxy, format: str) -> None:
    """Into the next conversation of the same client; or a part of it, or a short one, anywhere."""
    client = Client(proxy, format)
    await given(client, prompt=TASK, command="ls -la")
    assert await client.turn(await Client(proxy, format).ask(TASK)) == ("main", "default")
    other = Client(proxy, format, "You are another agent.")
    assert await client.turn(await other.ask(f"Why did it do this: {TASK}")) == ("main", "default")
    assert await client.turn(await Client(proxy, format, "Another one.").ask("ls -la")) == ("main", "default")


async def test_anothers_call_gives_nothing(proxy: Proxy) -> None:
    client = Client(proxy, "chat")
    await given(client, prompt=TASK)
    other = Client(proxy, "chat", "You are a subagent.")
    assert await client.turn(await other.ask(TASK, user="bob")) == ("main", "default")
