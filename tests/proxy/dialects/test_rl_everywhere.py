"""`/rl` in every dialect, streamed and whole, in every form in which agents send a person's line."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

import pytest

from proxy.core.sse import EventSplitter
from scripts.harness.agent_formats import CLAUDE_CODE, OPENCODE, quoted, slash
from scripts.harness.in_process import Proxy

REMINDER = "<system-reminder>\nToday is Saturday.\n</system-reminder>"
Turn = tuple[str, Any]


class Form(NamedTuple):
    """How an agent sends a line: as text, as parts, in wrappers of its own."""

    name: str

    def __call__(self, dialect: str, line: str) -> Any:
        if dialect in ("completions", "ollama-generate", "ollama") or self.name == "text":
            said = quoted(line) if self.name == "wrapped" else line  # opencode
            return [said] if dialect == "completions" and self.name == "parts" else said
        kind = "input_text" if dialect == "responses" else "text"
        parts = [REMINDER, *slash(line)] if self.name == "wrapped" else [line]  # Claude Code
        return [{"type": kind, "text": text} for text in parts]

    def headers(self, dialect: str) -> dict[str, str]:
        if self.name != "wrapped":
            return {}
        return OPENCODE if dialect in ("completions", "ollama-generate", "ollama") else CLAUDE_CODE


PATHS = {
    "chat": "/v1/chat/completions",
    "completions": "/v1/completions",
    "responses": "/v1/responses",
    "messages": "/v1/messages",
    "ollama": "/api/chat",
    "ollama-generate": "/api/generate",
}
FORMS = [Form("text"), Form("parts"), Form("wrapped")]

dialects = pytest.mark.parametrize("dialect", PATHS)
streams = pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
forms = pytest.mark.parametrize("form", FORMS, ids=lambda form: form.name)


async def send(proxy: Proxy, dialect: str, stream: bool, *turns: Turn, key: str = "", **headers: str) -> str:
    """What is answered to a conversation; prompts have their last turn alone."""
    body: dict[str, Any] = {"model": "fake", "stream": stream}
    if dialect in ("completions", "ollama-generate"):
        body["prompt"] = turns[-1][1]
    else:
        body["input" if dialect == "responses" else "messages"] = [{"role": r, "content": c} for r, c in turns]
    if dialect == "messages":
        body["max_tokens"] = 64
    headers |= {"authorization": f"Bearer {key}"} if key else {}
    async with proxy.http.post(PATHS[dialect], json=body, headers=headers) as response:
        raw = await response.read()
        assert response.status == 200, raw
        assert ("json" not in response.content_type or "ndjson" in response.content_type) == stream
    return said(dialect, raw) if stream else whole(dialect, json.loads(raw))


def whole(dialect: str, body: dict[str, Any]) -> str:
    match dialect:
        case "chat":
            text = body["choices"][0]["message"]["content"]
        case "completions":
            text = body["choices"][0]["text"]
        case "responses":
            text = body["output"][0]["content"][0]["text"]
        case "messages":
            text = body["content"][0]["text"]
        case "ollama":
            text = body["message"]["content"]
        case _:
            text = body["response"]
    return str(text)


def said(dialect: str, raw: bytes) -> str:
    """The deltas of a stream, joined; it must have come to its end."""
    if dialect.startswith("ollama"):
        lines = [json.loads(line) for line in raw.splitlines()]
        assert [line["done"] for line in lines] == [False] * (len(lines) - 1) + [True]
        return "".join(whole(dialect, line) for line in lines)
    found = [event.data for event in EventSplitter().feed(raw) if event.data is not None]
    if dialect in ("chat", "completions"):
        assert found.pop() == b"[DONE]"
    events = [json.loads(data) for data in found]
    match dialect:
        case "chat":
            pieces = [event["choices"][0]["delta"].get("content") for event in events]
        case "completions":
            pieces = [event["choices"][0]["text"] for event in events]
        case "responses":
            assert events[-1]["type"] == "response.completed"
            pieces = [event["delta"] for event in events if event["type"] == "response.output_text.delta"]
        case _:
            assert events[-1]["type"] == "message_stop"
            pieces = [event["delta"]["text"] for event in events if event["type"] == "content_block_delta"]
    return "".join(piece or "" for piece in pieces)


VERBS: list[tuple[str, str, tuple[float, str | None, str | None] | None]] = [
    # what is typed, what is answered, the rating after it: value, comment, correction
    ("/rl good", "rated good", (1.0, None, None)),
    ("/rl good very clear", "because “very clear”", (1.0, "very clear", None)),
    ("/rl bad: too long", "rated bad", (-1.0, "too long", None)),
    *((f"/rl {n}", f"rated {n} of 5", ((n - 3) / 2, "too long", None)) for n in (1, 2, 3)),
    *((f"/rl {n}", f"rated {n} of 5", ((n - 3) / 2, None, None)) for n in (4, 5)),
    ("/rl 4 nice", "rated 4 of 5, because “nice” (your earlier rating of it is replaced)", (0.5, "nice", None)),
    ("/rl bad\nand more", "nothing was rated", (0.5, "nice", None)),
    ("/rl fix: It is\n5.", "nothing is rated yet", (0.5, "nice", None)),
    ("/rl fix", "would have been right", (-1.0, None, "It is\n5.")),
    ("/rl fix: It is 4.", "would have been right", (-1.0, None, "It is 4.")),
    ("/rl status", "the base model answers", (-1.0, None, "It is 4.")),
    ("/rl help", "/rl undo", (-1.0, None, "It is 4.")),
    ("/rl", "/rl undo", (-1.0, None, "It is 4.")),
    ("/rl undo no, really", "takes no words after it", (-1.0, None, "It is 4.")),
    ("/rl undo", "(bad) is taken back", None),
    ("/rl undo", "nothing to undo", None),
]


@forms
@streams
@dialects
async def test_every_verb(proxy: Proxy, dialect: str, stream: bool, form: Form) -> None:
    question = ("user", "one")
    reply = await send(proxy, dialect, stream, question)
    assert reply == "You said: one "
    (row,) = await proxy.store.completions.page(limit=9)
    for line, answer, expected in VERBS:
        if dialect == "completions" and ("\n" in line or line == "/rl fix"):  # raw text of several lines may be a file
            continue
        turns: list[Turn] = [question, ("assistant", reply), ("user", form(dialect, line))]
        said = await send(proxy, dialect, stream, *turns, **form.headers(dialect))
        assert said.startswith("rlproxy: ") and answer in said, (line, said)
        rating = await proxy.store.ratings.live(row.new.id, "owner")
        assert (rating and (rating.value, rating.comment, rating.correction)) == expected, line
    assert len(await proxy.store.completions.page(limit=9)) == len(proxy.backend.requests) == 1


@forms
@streams
@dialects
async def test_an_admins_verbs(proxy: Proxy, dialect: str, stream: bool, form: Form) -> None:
    await proxy.stop()
    await proxy.start(server__api_key="use", server__admin_key="boss")
    for verb in ("train", "pause", "resume", "rollback", "reset"):
        line = ("user", form(dialect, f"/rl {verb}"))
        said = await send(proxy, dialect, stream, line, key="use", **form.headers(dialect))
        assert "admin key" in said and "nothing was done" in said
        said = await send(proxy, dialect, stream, line, key="boss", **form.headers(dialect))
        assert said.startswith("rlproxy: ") and "admin key" not in said
    assert not proxy.backend.requests


async def test_a_prompt_alone_is_about_its_own_persons_last_answer(proxy: Proxy) -> None:
    """Completions and generate send no history: there `/rl` means what it means on the command line."""

    async def prompt(text: str, **headers: str) -> str:
        body = {"model": "fake", "prompt": text}
        async with proxy.http.post("/v1/completions", json=body, headers=headers) as response:
            return str((await response.json())["choices"][0]["text"])

    assert "nothing was rated" in await prompt("/rl good")
    ann, bob = {"x-rl-user": "ann"}, {"x-rl-user": "bob"}
    await prompt("one", **ann)
    assert "nothing was rated" in await prompt("/rl good", **bob)
    assert "nothing was rated" in await prompt("/rl good")  # whoever this is, it is not Ann
    await prompt("two", **bob)
    assert "rated good" in await prompt("/rl good", **ann)
    rated = {c.new.user: [r.rater for r in c.ratings] for c in await proxy.store.completions.page(limit=9)}
    assert rated == {"ann": ["ann"], "bob": []}
    await prompt("three", **{"x-rl-session": "s", **ann})
    await prompt("four", **ann)
    assert "rated 5 of 5" in await prompt("/rl 5", **{"x-rl-session": "s", **ann})
    assert [c.ratings[0].value for c in await proxy.store.completions.page(limit=2) if c.ratings] == [1.0]


@streams
async def test_beside_a_tools_result(proxy: Proxy, stream: bool) -> None:
    """Not in Claude Code: there the text of a command that the model called as a skill stands in the same place."""
    use = {"type": "tool_use", "id": "call-1", "name": "look", "input": {"b": 1, "a": 2}}
    result = {"type": "tool_result", "tool_use_id": "call-1", "content": "a wall"}
    tools = [{"name": "look", "input_schema": {"type": "object"}}]
    asking = {"model": "fake", "max_tokens": 9, "tools": tools}
    question = {"role": "user", "content": "one"}
    async with proxy.http.post("/v1/messages", json={**asking, "messages": [question]}) as response:
        blocks = (await response.json())["content"]
        id = response.headers["x-rl-completion-id"]
    assert blocks[1]["input"] == use["input"]
    turns: list[Turn] = [("user", "one"), ("assistant", blocks)]
    beside = [result, {"type": "text", "text": REMINDER}, {"type": "text", "text": "/rl bad too hasty"}]
    answer = await send(proxy, "messages", stream, *turns, ("user", beside), **CLAUDE_CODE)
    assert "rated" not in answer and await proxy.store.ratings.live(id, "owner") is None
    assert "/rl bad too hasty" in json.dumps(proxy.backend.requests[-1]["messages"])


async def test_with_a_systems_word_between(proxy: Proxy) -> None:
    reply = await send(proxy, "chat", False, ("user", "one"))
    turns: list[Turn] = [("user", "one"), ("assistant", reply), ("system", "It is late."), ("user", REMINDER)]
    assert "rated good" in await send(proxy, "chat", False, *turns, ("user", "/rl good"))
