"""Which reply belongs to which conversation.

Owns the canonical form of a message, as it is stored; the thread, a looser name of a conversation by which a reply
that comes back is known again; the `/rl` lines in a history and how they are removed; session and user of a request.
The tree itself is the store's, what a person said `spoken`'s, main or side `turns`'.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import orjson

from proxy.errors import BadRequest
from proxy.spoken import command_of, silent, without_blocks
from proxy.wire import DEEPEST, deeper, dumps
from proxy.wrappers import ATTACHED, TEXT_PARTS, Agent, added_after, agent_of
from store.records import Message
from store.tree import ASIDE, message_hash

# What makes a message the same message. Reasoning, refusals, audio, annotations and ids come and go in clients.
_IDENTITY: Final = ("name", "tool_call_id")
_NAME: Final = re.compile(r"[\x21-\x7e]{1,200}")
_THINKING: Final = re.compile(r"\s*<(think|thinking|reasoning)>.*?</\1>", re.DOTALL)
_THEIRS: Final = re.compile(r"[^\x00-\x20\x7f][^\x00-\x1f\x7f]{0,199}")
_CLAUDE_CODE: Final = re.compile(r"user_[0-9a-f]{64}_account_[0-9a-f-]{0,36}_session_([0-9a-f-]{36})")
# Headers in which agents name their conversation: Claude Code, Codex, opencode, Open WebUI; and their user.
_SESSION_HEADERS: Final = (
    "x-claude-code-session-id", "session-id", "session_id", "x-session-id", "x-openwebui-chat-id",
)  # fmt: skip
_USER_HEADERS: Final = ("x-openwebui-user-email", "x-openwebui-user-id")
AGENT_HEADERS: Final = (*_SESSION_HEADERS, *_USER_HEADERS)


def canonical(message: Mapping[str, Any]) -> Message:
    """The message as the tree keeps it. Equal for all the ways in which clients send the same message back."""
    body: dict[str, Any] = {"content": _content(message.get("content"))}
    if calls := message.get("tool_calls"):
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
    arguments = function.get("arguments")
    with contextlib.suppress(orjson.JSONDecodeError):  # a model may write anything; then the text itself is compared
        found = orjson.loads(arguments) if isinstance(arguments, str) else arguments
        arguments = arguments if deeper(found, DEEPEST) else found
    found = {"type": "function", "function": {"name": function.get("name"), "arguments": arguments}}
    return {**found, "id": call["id"]} if call.get("id") else found


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
    name = above = None
    for message in messages:
        name = extend_thread(name, message, keepable)
        if message.get("role") == "assistant":
            above = name
    return name, above


def extend_thread(
    name: bytes | None,
    message: Mapping[str, Any],
    keepable: Callable[[Message], Message],
    kept: Message | None = None,
) -> bytes | None:
    if message.get("role") in ASIDE or silent(message):
        return name
    loose = kept if kept is not None and _is_loose(message) else keepable(canonical(_loose(message)))
    return message_hash(name, loose.role, loose.body)


def _is_loose(message: Mapping[str, Any]) -> bool:
    """Whether there is nothing in it to pass over, as in most: then its canonical form is made once only."""
    content = message.get("content")
    if not isinstance(content, str) or any(message.get(key) for key in ("tool_calls", *_IDENTITY)):
        return False
    return bool(_loose_content(message) == content.strip())


def _loose(message: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {"role": message.get("role"), "content": _loose_content(message)}
    if calls := message.get("tool_calls"):
        found["tool_calls"] = [{k: v for k, v in call.items() if k != "id"} for call in calls if isinstance(call, dict)]
    return found


def _loose_content(message: Mapping[str, Any]) -> Any:
    content = _content(message.get("content"))
    if isinstance(content, str):
        if message.get("role") == "assistant":
            thought = _THINKING.match(content)
            return content[thought.end() :].strip() if thought else content
        return without_blocks(content) if message.get("role") == "user" else content
    if not isinstance(content, list):
        return content
    parts = [{k: v for k, v in p.items() if k != "cache_control"} for p in content if isinstance(p, dict)]
    texts = [
        {**p, "text": without_blocks(str(p["text"]))} if p.get("type") in TEXT_PARTS and "text" in p else p
        for p in parts
    ]
    return [p for p in texts if p.get("text") != ""]


def is_command(message: Mapping[str, Any], agent: Agent | None = None) -> bool:
    """Whether this is a person's `/rl …` line."""
    return command_of(message, agent) is not None


def command_at(messages: Sequence[Mapping[str, Any]], agent: Agent | None = None) -> int | None:
    """Where the command is that this request ends in: the newest message of the person.

    Only system texts and what this very agent adds may follow. A message that merely looks like reminders may be a
    pasted document, and must not let an older command act again.
    """
    for i in range(len(messages) - 1, -1, -1):
        if not _aside(messages[i], agent):
            return i if is_command(messages[i], agent) else None
    return None


def _aside(message: Mapping[str, Any], agent: Agent | None) -> bool:
    """Neither a person nor the model said this."""
    return message.get("role") in ASIDE or added_after(message, agent)


class Sight(NamedTuple):
    """Whether the model may see a message, and what the next one has to know of it."""

    kept: bool
    ours: bool  # after a command: the next assistant message is our answer to it


def sight(above: Sight | None, message: Mapping[str, Any], agent: Agent | None = None) -> Sight:
    """Of a message below another: no `/rl` line, and none of our answers to one.

    A command never reaches the model, so the assistant message after it can only be ours.
    """
    if is_command(message, agent):
        return Sight(False, True)
    if above is None or not above.ours:
        return Sight(True, False)
    if message.get("role") == "assistant":
        return Sight(False, False)
    return Sight(True, _aside(message, agent))


def without_commands(messages: Sequence[Mapping[str, Any]], agent: Agent | None = None) -> list[int]:
    """Which messages of the history the model may see."""
    kept: list[int] = []
    state: Sight | None = None
    for i, message in enumerate(messages):
        state = sight(state, message, agent)
        if state.kept:
            kept.append(i)
    return kept


class Named(NamedTuple):
    """Session and user as a body names them; and all that stands where a user is named, be it a name or not."""

    session: str | None
    user: str | None
    people: tuple[Any, ...] = ()


def named(body: Mapping[str, Any], *, claude_code: bool = False) -> Named:
    """Who speaks, as far as the body says; for every dialect. What is no name is passed over: it is the agent's.

    Claude Code puts its session into `metadata.user_id` (`user_…_session_<uuid>`, later a JSON object); the rest of
    that is a machine, not a person, so no user comes of it. Only in its requests, and exactly in its form: with any
    other client it may be a person's name, and whom a request names is no admin.
    """
    metadata, client = _within(body, "metadata"), _within(body, "client_metadata")  # the latter is Codex's
    user_id = metadata.get("user_id")
    session, user = _packed(user_id) if claude_code else (None, user_id)
    own = (body.get("session_id"), metadata.get("session_id"), client.get("session_id"))
    sessions = (*own, session, metadata.get("chat_id"))
    users = (body.get("user"), user, body.get("safety_identifier"))
    return Named(
        next((s for s in (*sessions, body.get("prompt_cache_key")) if _is_name(s)), None),
        next((u for u in users if _is_name(u)), None),
        tuple(u for u in users if u is not None),
    )


def _within(body: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    found = body.get(key)
    return found if isinstance(found, Mapping) else {}


def _packed(user_id: Any) -> tuple[str | None, Any]:
    """Session and user out of `metadata.user_id`."""
    if not isinstance(user_id, str):
        return None, user_id
    if user_id.startswith("{"):
        with contextlib.suppress(orjson.JSONDecodeError):
            found = orjson.loads(user_id)
            if isinstance(found.get("device_id"), str) and _is_name(session := found.get("session_id")):
                return session, None
    if (found := _CLAUDE_CODE.fullmatch(user_id)) is not None:
        return found[1], None
    return None, user_id


class Speaker(NamedTuple):
    """Whose request this is."""

    session: str | None
    user: str | None


def speaker(
    headers: Mapping[str, str],
    *,
    path_session: str | None,
    user: str | None,
    session: str | None = None,
    body: Mapping[str, Any] = MappingProxyType({}),
) -> Speaker:
    """Session and user: our headers first, then the path, then body and headers of the agent's own. Of users the
    header before the body: a gateway adds it, and passes on a body that it did not write. `user` and `session` are what
    `body` says in any client's words.

    Raises BadRequest where one of our headers holds no name.
    """
    if _is_claude_code(headers):
        session, user, _ = named(body, claude_code=True)
    session = session or next((headers[h] for h in _SESSION_HEADERS if _is_name(headers.get(h))), None)
    user = next((headers[h] for h in _USER_HEADERS if _is_name(headers.get(h))), None) or user
    return Speaker(name_in(headers, "x-rl-session") or path_session or session, name_in(headers, "x-rl-user") or user)


def people(headers: Mapping[str, str], body: Mapping[str, Any], sender: str | None = None) -> tuple[str, ...]:
    """All whom a request names, by whatever means, each once. What is there and is no name names somebody too: a
    gateway that fills it in has a person behind it, whatever they are called. `sender`: whom its agent names."""
    by_header = [value for name, value in headers.items() if name.lower() in ("x-rl-user", *_USER_HEADERS)]
    in_body = (str(one) for one in named(body, claude_code=_is_claude_code(headers)).people)
    return tuple(dict.fromkeys([*by_header, *in_body, *([] if sender is None else [sender])]))


def _is_claude_code(headers: Mapping[str, str]) -> bool:
    agent = agent_of(headers, ())
    return agent is not None and agent.name == "claude-code"


def _is_name(value: Any) -> bool:
    return isinstance(value, str) and _THEIRS.fullmatch(value) is not None


def only(headers: Mapping[str, str], header: str) -> str | None:
    """The one value of a header: of two, one is of somebody else. Raises BadRequest."""
    value = headers.get(header)
    if value is not None and any(other != value for name, other in headers.items() if name.lower() == header):
        raise BadRequest(f"The header `{header}` came twice, with different values; nothing was done.", param=header)
    return value


def name_in(headers: Mapping[str, str], header: str) -> str | None:
    """Raises BadRequest where it is there and is not a name: an empty one would else count as nobody, or the owner."""
    value = only(headers, header)
    if value is not None and not _NAME.fullmatch(value):
        raise BadRequest(f"The header `{header}` must be 1 to 200 printable ASCII characters.", param=header)
    return value
