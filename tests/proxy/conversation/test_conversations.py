"""The same message, however a client sends it back; commands out of a history."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from multidict import CIMultiDict

from proxy.conversation import conversations
from proxy.conversation.conversations import canonical, command_at, without_commands
from proxy.conversation.user_text import command_of
from proxy.core.agent_wrappers import AGENTS, agent_of
from proxy.core.errors import BadRequest
from proxy.dialects.identity import BodyIdentity, body_identity, head_identity, identity_of
from proxy.dialects.messages import Messages
from scripts.harness.agent_formats import BY_ID, CLAUDE_CODE
from scripts.harness.in_process import Proxy


def thread(messages: list[dict[str, Any]]) -> bytes | None:
    return conversations.thread(messages, lambda message: message)


REMINDER = "<system-reminder>\nIt is Saturday.\n</system-reminder>"


def assistant(content: Any, **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": content, **more}


def call(arguments: str) -> dict[str, Any]:
    return {"id": "c1", "type": "function", "function": {"name": "f", "arguments": arguments}}


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (assistant("hi"), assistant(" hi\n")),
        (assistant("hi"), assistant([{"type": "text", "text": "hi"}])),
        (assistant("ab"), assistant([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}])),
        (assistant("hi"), assistant("hi", reasoning_content="hm", refusal=None, annotations=[])),
        (assistant(None, tool_calls=[call('{"a": 1, "b": 2}')]), assistant("", tool_calls=[call('{"b":2,"a":1}')])),
        (assistant("", tool_calls=[call("")]), assistant("", tool_calls=[call("{}")])),
    ],
)
def test_the_same_message(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert canonical(one) == canonical(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (assistant("hi"), {"role": "user", "content": "hi"}),
        (assistant("hi"), assistant("Hi")),
        (assistant("", tool_calls=[call('{"a": 1}')]), assistant("", tool_calls=[call('{"a": 2}')])),
        (assistant("", tool_calls=[call("{broken")]), assistant("", tool_calls=[call("{broken!")])),
        (assistant("x"), assistant([{"type": "image_url", "image_url": {"url": "data:…"}}])),
    ],
)
def test_another_message(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert canonical(one) != canonical(other)


@pytest.mark.parametrize("text", ["/rl", "/rl good", " /rl bad too long\n", "/rl\tundo"])
def test_commands(text: str) -> None:
    assert command_of({"role": "user", "content": text}) is not None
    assert command_of({"role": "user", "content": [{"type": "text", "text": text}]}) is not None
    assert command_of({"role": "assistant", "content": text}) is None


@pytest.mark.parametrize("text", ["/rlx good", "what is /rl good?", "", "good"])
def test_no_commands(text: str) -> None:
    assert command_of({"role": "user", "content": text}) is None


TURNS = st.lists(st.tuples(st.sampled_from(["a question", "/rl good", "/rl bad why"]), st.text(max_size=5)), max_size=8)


@given(TURNS)
def test_a_history_without_its_commands(turns: list[tuple[str, str]]) -> None:
    """Each user message has its answer after it; commands go with theirs, and nothing else does."""
    messages = [m for said, answer in turns for m in ({"role": "user", "content": said}, assistant(answer))]
    kept = [
        m
        for said, answer in turns
        if said == "a question"
        for m in ({"role": "user", "content": said}, assistant(answer))
    ]
    assert [messages[i] for i in without_commands(messages)] == kept


def test_a_command_without_its_answer() -> None:
    question = {"role": "user", "content": "q"}
    assert without_commands([{"role": "user", "content": "/rl good"}, question, assistant("a")]) == [1, 2]


UNNAMED = BodyIdentity(None, None)


def who(headers: dict[str, str], path: str | None = None, body: BodyIdentity = UNNAMED) -> tuple[str | None, ...]:
    return identity_of(head_identity(CIMultiDict(headers), path), body)[:2]


def test_speaker() -> None:
    assert who({}) == (None, None)
    headers = {"x-rl-session": "s", "x-rl-user": "u", "session-id": "codex", "x-openwebui-user-email": "a@b"}
    body = BodyIdentity("b", "body", ("body",))
    assert who(headers, "p", body) == ("s", "u")
    assert who({"session-id": "c"}, "p", body) == ("p", "body")
    assert who({"session-id": "c"}, body=BodyIdentity("b", None)) == ("b", None)
    assert who({"session-id": "c", "x-openwebui-user-email": "a@b"}) == ("c", "a@b")
    for bad in ({"x-rl-session": "a b"}, {"x-rl-user": ""}, {"x-rl-user": "x" * 201}):
        with pytest.raises(BadRequest):
            who(bad)


# The thread: a conversation known again, whatever clients do to it on its way back


def call_of(name: str, arguments: dict[str, Any], id: str) -> dict[str, Any]:
    return {"id": id, "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}


WORDS = st.text(st.characters(blacklist_categories=("Cs",), blacklist_characters="<>"), min_size=1, max_size=12).filter(
    lambda text: text == text.strip() and not text.startswith("/rl")
)
ARGUMENTS = st.dictionaries(WORDS, st.integers(-(2**63), 2**64 - 1) | WORDS | st.booleans() | st.none(), max_size=4)


@st.composite
def talks(draw: st.DrawFn) -> list[dict[str, Any]]:
    """What an agent sends: system text, then user, assistant and tool messages."""
    messages: list[dict[str, Any]] = [{"role": "system", "content": draw(WORDS)}]
    for at in range(draw(st.integers(1, 4))):
        messages.append({"role": "user", "content": draw(WORDS)})
        if draw(st.booleans()):
            tool_call = call_of("look", draw(ARGUMENTS), f"c{at}")
            messages.append({"role": "assistant", "content": None, "tool_calls": [tool_call]})
            messages.append({"role": "tool", "tool_call_id": f"c{at}", "content": draw(WORDS)})
        messages.append({"role": "assistant", "content": draw(WORDS)})
    return messages


def as_clients_do(message: dict[str, Any], draw: Any) -> list[dict[str, Any]]:
    """The same message on its way back, changed in the ways that do not count."""
    sent = copy.deepcopy(message)
    role = sent["role"]
    if role == "system":
        return draw(st.sampled_from([[], [{**sent, "content": "Date: tomorrow"}], [{**sent, "role": "developer"}]]))
    if sent.get("tool_calls"):
        for one in sent["tool_calls"]:
            one["id"] = draw(st.sampled_from([one["id"], "fc_other", "toolu_01"]))
            arguments = json.loads(one["function"]["arguments"])
            again = dict(draw(st.permutations(list(arguments.items()))))
            one["function"]["arguments"] = json.dumps(again, indent=draw(st.sampled_from([None, 2])))
        sent["content"] = draw(st.sampled_from([None, "", " \n", []]))
    if role == "tool":
        sent["tool_call_id"] = draw(st.sampled_from([sent["tool_call_id"], "toolu_01"]))
    if isinstance(sent["content"], str) and sent["content"]:
        text = draw(st.sampled_from(["", "\n", "  "])) + sent["content"] + draw(st.sampled_from(["", "\n", " "]))
        if role == "assistant" and draw(st.booleans()):
            text = f"<think>hm, {text}</think>\n{text}"
        if role == "user" and draw(st.booleans()):
            text = f"{REMINDER}\n{text}"
        parts = [{"type": "text", "text": text, "cache_control": {"type": "ephemeral"}}]
        if role == "user" and draw(st.booleans()):
            parts.append({"type": "text", "text": REMINDER})
        sent["content"] = draw(st.sampled_from([text, parts]))
    if role == "assistant" and draw(st.booleans()):
        sent["reasoning_content"] = "hm"
    after = draw(st.sampled_from([[], [], [{"role": "user", "content": REMINDER}]]))
    return [sent, *after]


@given(talks(), st.data())
def test_a_thread_is_the_same_however_it_comes_back(messages: list[dict[str, Any]], data: st.DataObject) -> None:
    again = [m for message in messages for m in as_clients_do(message, data.draw)]
    assert thread(again) == thread(messages)


@given(talks(), st.data())
def test_an_edited_message_is_a_branch(messages: list[dict[str, Any]], data: st.DataObject) -> None:
    at = data.draw(st.sampled_from([i for i, m in enumerate(messages) if m["role"] != "system"]))
    edited = copy.deepcopy(messages)
    if edited[at].get("tool_calls"):
        edited[at]["tool_calls"][0]["function"]["arguments"] = '{"edited": [1]}'
    else:
        edited[at]["content"] += "!"
    assert thread(edited) != thread(messages)
    assert thread(edited[:at]) == thread(messages[:at])


@given(talks(), talks())
def test_two_talks_have_one_thread_only_if_the_same_was_said(
    one: list[dict[str, Any]], other: list[dict[str, Any]]
) -> None:
    def said(messages: list[dict[str, Any]]) -> list[Any]:
        return [canonical({**m, "tool_call_id": None}) for m in messages if m["role"] != "system"]

    assert (thread(one) == thread(other)) == (said(one) == said(other))


def test_the_thread_up_to_the_newest_reply() -> None:
    def above(*said: tuple[str, str]) -> bytes | None:
        messages = [{"role": role, "content": text} for role, text in said]
        name, found = conversations.thread_and_above(messages, lambda message: message)
        assert name == thread(messages)
        return found

    start = [("system", "x"), ("user", "a")]
    assert above() is None and above(*start) is None
    talk = [*start, ("assistant", "b"), ("user", "c"), ("assistant", "d")]
    first, second = (thread([{"role": r, "content": t} for r, t in talk[:n]]) for n in (3, 5))
    assert above(*talk[:4]) == first and above(*talk, ("system", "y"), ("user", "e")) == second
    assert above(*talk, ("tool", "found"), ("user", "e")) == second


def test_nothing_said_has_no_thread() -> None:
    assert thread([]) is None and thread([{"role": "system", "content": "x"}]) is None


def test_pictures_count() -> None:
    def picture(url: str) -> dict[str, Any]:
        parts = [{"type": "text", "text": "what is it?"}, {"type": "image_url", "image_url": {"url": url}}]
        return {"role": "user", "content": parts}

    assert thread([picture("data:a")]) != thread([picture("data:b")])
    assert thread([picture("data:a")]) == thread([picture("data:a")])


def test_a_command_above_a_summary() -> None:
    """mistral-vibe, whose context was full as the line was typed: it sums up first, and writes that below the line."""
    system = {"role": "system", "content": "You help users get complex tasks done. Act directly and proactively."}
    before = {"role": "user", "content": "You are continuing a trajectory.\n\n<previous_user_messages>"}
    question, command = {"role": "user", "content": "q"}, {"role": "user", "content": "/rl bad too long"}
    text = "</previous_user_messages>\n\nHere is a summary of what has happened so far:\n\n<compaction_summary>\n{}"
    summary = {"role": "user", "content": text.format("They asked q.\n</compaction_summary>")}
    messages = [system, before, question, command, summary]
    agent = agent_of({}, messages)
    assert command_at(messages, agent) == 3
    assert command_at(messages) is None
    assert command_at([system, before, command, question, summary], agent) is None
    assert command_at([*messages[:4], {**summary, "content": text.format("They asked q.")}], agent) is None
    ours = assistant("rlproxy: it has no answer right above")
    assert without_commands([*messages, ours, question], agent) == [0, 1, 2, 4, 6]


def test_what_may_follow_a_command() -> None:
    """System texts, and what its own agent adds; nothing that merely looks as if nobody had said it."""
    question, command = {"role": "user", "content": "q"}, {"role": "user", "content": "/rl good"}
    reminder, system = {"role": "user", "content": REMINDER}, {"role": "system", "content": "x"}
    assert command_at([question, assistant("a"), command]) == 2
    assert command_at([question, assistant("a"), command, system, system]) == 2
    openclaw = BY_ID["openclaw"].messages("q", "a", "/rl good")
    agent = agent_of({}, openclaw)
    assert agent is not None and command_at(openclaw, agent) == 3
    assert without_commands([*openclaw, assistant("rlproxy: rated"), question], agent) == [0, 1, 2, 4, 6]
    assert command_at(openclaw) is None
    for other in (None, *AGENTS):
        assert command_at([question, assistant("a"), command, reminder, system], other) is None
    assert command_at([question, assistant("a"), command, assistant("rlproxy: …"), question]) is None
    assert command_at([question, assistant("a"), command, {"role": "tool", "content": "x"}]) is None
    assert command_at([]) is None
    messages = [question, assistant("a"), command, system, assistant("rlproxy: rated"), question]
    assert without_commands(messages) == [0, 1, 3, 5]
    # A reminder was the newest message, so the model has answered it.
    messages = [question, assistant("a"), command, reminder, assistant("an answer"), question]
    assert without_commands(messages) == [0, 1, 3, 4, 5]


CLAUDE = "user_" + "ab12" * 16 + "_account__session_01234567-89ab-cdef-0123-456789abcdef"


@pytest.mark.parametrize(
    ("body", "session", "user"),
    [
        ({}, None, None),
        ({"user": "ann"}, None, "ann"),
        ({"session_id": "s", "prompt_cache_key": "k"}, "s", None),
        ({"prompt_cache_key": "k"}, "k", None),
        ({"metadata": {"session_id": "m", "user_id": "ann"}, "prompt_cache_key": "k"}, "m", "ann"),
        ({"metadata": {"user_id": CLAUDE}}, "01234567-89ab-cdef-0123-456789abcdef", None),
        ({"metadata": {"user_id": '{"device_id": "d", "session_id": "j"}'}}, "j", None),
        ({"metadata": {"user_id": "{broken"}}, None, "{broken"),
        ({"metadata": "x", "user": 3, "session_id": ["a"]}, None, None),
        ({"user": "a\nb", "session_id": "x" * 201}, None, None),
        ({"user": "Ann Smith"}, None, "Ann Smith"),
        ({"metadata": {"user_id": '{"session_id": 3}'}}, None, '{"session_id": 3}'),
        ({"metadata": {"user_id": "user_me_session_01234567"}}, None, "user_me_session_01234567"),
    ],
)
def test_who_a_body_says_it_is(body: dict[str, Any], session: str | None, user: str | None) -> None:
    assert body_identity(body, claude_code=True)[:2] == (session, user)


def test_no_other_client_is_a_machine() -> None:
    body = {"metadata": {"user_id": CLAUDE}}
    assert body_identity(body)[:2] == (None, CLAUDE) and people({}, body_identity(body)) == (CLAUDE,)


def people(headers: dict[str, str], body: BodyIdentity) -> tuple[str, ...]:
    return identity_of(head_identity(CIMultiDict(headers)), body).people


def test_all_whom_a_request_names() -> None:
    body = {"user": "ann", "safety_identifier": "ann", "metadata": {"user_id": "bob", "session_id": "s"}}
    headers = {"X-RL-User": "cyd", "x-openwebui-user-email": "", "X-OpenWebUI-User-Id": "7", "x-other": "eve"}
    assert people(headers, body_identity(body)) == ("cyd", "", "7", "ann", "bob")
    body = {"metadata": {"user_id": CLAUDE}, "user": None, "prompt_cache_key": "k"}
    assert people(CLAUDE_CODE, body_identity(body, claude_code=True)) == ()
    assert people({}, body_identity({"user": 3, "safety_identifier": ["a"]})) == ("3", "['a']")


def text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}


# What Claude Code 2.1.329 sent for `/rl good very clear` with the command file of `rlproxy connect`, long texts cut.
CLAUDE_CODE_COMMAND = [
    {
        "role": "user",
        "content": [
            text("<system-reminder>\nAs you answer the user's questions, use …\n# gitStatus …\n</system-reminder>"),
            text("<system-reminder>\nAttribution for git commits and pull requests …\n</system-reminder>\n"),
            text(
                "<command-message>rl</command-message>\n<command-name>/rl</command-name>\n"
                "<command-args>good very clear</command-args>\n"
            ),
            text("/rl good very clear\n"),
        ],
    },
    {"role": "system", "content": [text("# Environment\nYou have been invoked in the following environment: …")]},
]
# And what Codex 0.169.0 puts before a question.
CODEX_QUESTION = [
    {"role": "developer", "content": [{"type": "input_text", "text": "<permissions instructions> …"}]},
    {
        "role": "user",
        "content": [{"type": "input_text", "text": "<environment_context>\n  <cwd>/x</cwd> …\n</environment_context>"}],
    },
    {"role": "user", "content": [{"type": "input_text", "text": "hello codex"}]},
]


def test_as_claude_code_and_codex_really_send_it() -> None:
    agent = agent_of(CLAUDE_CODE, CLAUDE_CODE_COMMAND)
    assert command_at(CLAUDE_CODE_COMMAND, agent) == 0 and without_commands(CLAUDE_CODE_COMMAND, agent) == [1]
    assert command_at(CLAUDE_CODE_COMMAND) is None
    assert command_at(CODEX_QUESTION) is None
    assert thread(CODEX_QUESTION) == thread([{"role": "user", "content": "hello codex"}])


def test_the_messages_dialect_tells_claude_codes_session() -> None:
    body = {"model": "m", "max_tokens": 9, "messages": CLAUDE_CODE_COMMAND, "metadata": {"user_id": CLAUDE}}
    asked = Messages().parse(body)
    assert body_identity(body).user == CLAUDE
    assert who(CLAUDE_CODE, body=body_identity(body, claude_code=True)) == (
        "01234567-89ab-cdef-0123-456789abcdef",
        None,
    )
    agent = agent_of(CLAUDE_CODE, asked.messages)
    at = command_at(asked.messages, agent)
    assert at is not None and command_of(asked.messages[at], agent) == "/rl good very clear"


# What each dialect needs besides, to ask anything.
REQUESTS = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "x"}]},
    "/v1/completions": {"prompt": "x"},
    "/v1/responses": {"input": "x"},
    "/v1/messages": {"max_tokens": 9, "messages": [{"role": "user", "content": "x"}]},
    "/api/chat": {"messages": [{"role": "user", "content": "x"}], "stream": False},
    "/api/generate": {"prompt": "x", "stream": False},
}


@pytest.mark.parametrize("path", list(REQUESTS))
@pytest.mark.parametrize(
    ("body", "session", "user"),
    [
        ({"user": "ann"}, None, "ann"),
        ({"metadata": {"session_id": "s", "user_id": "ann"}}, "s", "ann"),
        ({"session_id": "s"}, "s", None),
        ({"prompt_cache_key": "k"}, "k", None),
        ({"client_metadata": {"session_id": "c"}, "prompt_cache_key": "k"}, "c", None),
        ({}, None, None),
    ],
)
async def test_every_dialect_is_asked_the_same_way_who_speaks(
    proxy: Proxy, path: str, body: dict[str, Any], session: str | None, user: str | None
) -> None:
    async def who(path: str, **headers: str) -> tuple[str | None, str | None]:
        request = {"model": "fake", **REQUESTS[path.removeprefix("/s/p")], **body}
        async with proxy.http.post(path, json=request, headers=headers) as response:
            assert response.status == 200, await response.text()
            found = await proxy.store.completions.get(response.headers["x-rl-completion-id"])
        assert found is not None
        return found.new.session, found.new.user

    assert await who(path) == (session, user)
    assert await who("/s/p" + path) == ("p", user)
    assert await who("/s/p" + path, **{"x-rl-session": "h", "x-rl-user": "bob"}) == ("h", "bob")
