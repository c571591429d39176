"""Which reply belongs to which conversation.

Owns the canonical form of a message, as it is stored, and the thread. That is a looser name of a conversation, by which
a reply that comes back is known again. The `/rl` lines in a history are removed here. The tree itself is the store's,
what a person said `user_text`'s, main or side `turns`', session and user of a request `speaker`'s.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import orjson

from proxy.conversation.user_text import command_of, silent, without_blocks
from proxy.core.agent_wrappers import ATTACHED, TEXT_PARTS, Agent, is_trailer
from proxy.core.json_edit import DEEPEST, dumps, is_deeper
from store.captured.tree import SYSTEM_ROLES, message_hash, without
from store.records import Message

# What makes a message the same message. Reasoning, refusals, audio, annotations and ids come and go in clients.
_IDENTITY: Final = ("name", "tool_call_id")
_THINKING: Final = re.compile(r"\s*<(think|thinking|reasoning)>.*?</\1>", re.DOTALL)


def canonical(message: Mapping[str, Any]) -> Message:
    """The message as the tree keeps it. Equal for all the ways in which clients send the same message back."""
    content = message.get("content")
    body: dict[str, Any] = {"content": content.strip() if type(content) is str else _content(content)}
    calls = message.get("tool_calls")
    if calls and isinstance(calls, list):  # a client may have sent anything in their place
        body["tool_calls"] = [_tool_call(call) for call in calls if isinstance(call, dict)]
    for key in _IDENTITY:
        if message.get(key):
            body[key] = message[key]
    return Message(str(message.get("role") or "assistant"), dumps(body, in_order=True))


def _content(content: Any) -> Any:
    """Text parts and a plain string are the same text; outer white space does not count."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content.strip()
    if isinstance(content, list):
        parts = [p for p in content if isinstance(p, dict)]
        if len(parts) == len(content) and all(p.get("type") in TEXT_PARTS for p in parts):
            return "".join(str(p.get("text", "")) for p in parts).strip()
        if any(ATTACHED in part for part in parts):  # a mark of ours, and no part of the message
            return [{k: v for k, v in p.items() if k != ATTACHED} if isinstance(p, dict) else p for p in content]
    return content


def _tool_call(call: Mapping[str, Any]) -> dict[str, Any]:
    function = call.get("function")
    function = function if isinstance(function, Mapping) else {}  # the backend says what is wrong with it
    stored_function = {"name": function.get("name"), "arguments": arguments_in(function)}
    stored_call = {"type": "function", "function": stored_function}
    return {**stored_call, "id": call["id"]} if call.get("id") else stored_call


def arguments_in(function: Mapping[str, Any]) -> Any:
    """Arguments of a call, as JSON. A model may write anything; then the text itself is compared. None at all are an
    empty object: servers stream them as an empty text, and formats that have objects send that back."""
    arguments = function.get("arguments")
    if isinstance(arguments, str) and not arguments.strip():
        return {}
    with contextlib.suppress(orjson.JSONDecodeError):
        parsed = orjson.loads(arguments) if isinstance(arguments, str) else arguments
        return arguments if is_deeper(parsed, DEEPEST) else parsed
    return arguments


def as_chat(message: Message) -> dict[str, Any]:
    """A message of the tree in OpenAI chat form, for chat templates and exports."""
    return {"role": message.role, **orjson.loads(message.body)}


def text_of(message: Mapping[str, Any]) -> str | None:
    content = _content(message.get("content"))
    return content if isinstance(content, str) else None


def thread(messages: Sequence[Mapping[str, Any]], keepable: Callable[[Message], Message]) -> bytes | None:
    """The name of this conversation by what no client changes when it sends it again; None for an empty one.

    System texts, agents' blocks, reasoning and tool-call ids do not count. Everything a person or the model said does,
    so an edited message is another conversation. Only for finding a reply: what is stored and trained is exact.
    `keepable` takes its secrets out: a name made of a card's number would give it away to whoever tries all numbers.
    """
    return thread_and_above(messages, keepable)[0]


def thread_and_above(
    messages: Sequence[Mapping[str, Any]], keepable: Callable[[Message], Message]
) -> tuple[bytes | None, bytes | None]:
    """The thread, and the thread up to the newest reply in it; None where there is no reply."""
    name = thread_of_reply = None
    for message in messages:
        name = extend_thread(name, message, keepable)
        if message.get("role") == "assistant":
            thread_of_reply = name
    return name, thread_of_reply


def extend_thread(
    name: bytes | None,
    message: Mapping[str, Any],
    keepable: Callable[[Message], Message],
    stored: Message | None = None,
    node: bytes | None = None,
) -> bytes | None:
    """`stored`: the message as it is stored; `node`: its name there, if it is stored right below `name`. That is the
    thread's name, too, where nothing in the message is passed over."""
    role, content = message.get("role"), message.get("content")
    if role in SYSTEM_ROLES:
        return name
    if type(content) is str:
        text = content.strip()
        loose: Any = _loose_text(text, role)
        if role == "user" and not loose and text[:1] in ("", "<"):  # silent
            return name
        bare = not (message.get("tool_calls") or message.get("name") or message.get("tool_call_id"))
        if stored is not None and bare and loose == text:  # as most: its canonical form is made once only
            return node or message_hash(name, stored.role, stored.body)
    elif silent(message):
        return name
    else:
        loose = loose_content(message)
    canonical_message = keepable(canonical(_loose(message, loose)))
    return message_hash(name, canonical_message.role, canonical_message.body)


def _loose(message: Mapping[str, Any], content: Any) -> dict[str, Any]:
    loose: dict[str, Any] = {"role": message.get("role"), "content": content}
    calls = message.get("tool_calls")
    if calls and isinstance(calls, list):
        loose["tool_calls"] = [{k: v for k, v in call.items() if k != "id"} for call in calls if isinstance(call, dict)]
    return loose


def loose_content(message: Mapping[str, Any]) -> Any:
    """Without what clients change when they send it back."""
    content = _content(message.get("content"))
    if isinstance(content, str):
        return _loose_text(content, message.get("role"))
    if not isinstance(content, list):
        return content
    parts = [{k: v for k, v in p.items() if k != "cache_control"} for p in content if isinstance(p, dict)]
    texts = [
        {**p, "text": without_blocks(str(p["text"]))} if p.get("type") in TEXT_PARTS and "text" in p else p
        for p in parts
    ]
    return [p for p in texts if p.get("text") != ""]


def _loose_text(text: str, role: Any) -> str:
    if role == "user":
        return without_blocks(text)
    thought = _THINKING.match(text) if role == "assistant" else None
    return text[thought.end() :].strip() if thought else text


def command_at(messages: Sequence[Mapping[str, Any]], agent: Agent | None = None) -> int | None:
    """Where the command is that this request ends in: the newest message of the person.

    Only system texts and what this very agent adds may follow. A message that merely looks like reminders may be a
    pasted document, and must not let an older command act again.
    """
    theirs = (i for i in range(len(messages) - 1, -1, -1) if not _is_aside(messages[i], agent))
    place = next(theirs, None)
    if place is None or command_of(messages[place], agent) is None:
        return None
    place_above = next(theirs, None)
    return None if place_above is not None and _may_act(messages[place_above], agent) else place


def _is_aside(message: Mapping[str, Any], agent: Agent | None) -> bool:
    """Neither a person nor the model said this."""
    return message.get("role") in SYSTEM_ROLES or is_trailer(message, agent)


def _may_act(message: Mapping[str, Any], agent: Agent | None) -> bool:
    """Tell if the message of a user below this one may be what the model had its agent send. What a person types comes
    below an answer, also where they broke off a tool. Then the agent says so in a part of its own."""
    return agent is not None and agent.acts and message.get("role") == "tool"


def without_commands(messages: Sequence[Mapping[str, Any]], agent: Agent | None = None) -> list[int]:
    """Which messages of the history the model may see: no `/rl` line, and none of our answers to one. A command never
    reaches the model, so the assistant message after it can only be ours."""
    hidden: list[int] = []
    ours = acts = False  # the next assistant message is our answer; the next message of the person may be no person's
    for index, message in enumerate(messages):
        role = message.get("role")
        if role == "assistant":
            if ours:
                hidden.append(index)
            ours = acts = False
        elif role == "user":
            if not acts and command_of(message, agent) is not None:
                hidden.append(index)
                ours = True
            elif agent is None or not is_trailer(message, agent):
                ours = acts = False
        elif role not in SYSTEM_ROLES:
            ours, acts = False, _may_act(message, agent)
    return list(without(range(len(messages)), hidden))
