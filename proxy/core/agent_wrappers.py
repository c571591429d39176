"""The agents that put something around a person's words, and the exact format in which each of them does.

Owns how a request of such an agent is recognised, and how the person's own text is taken out of a message of it. It
also says whom the agent names as the writer. All are strict, since a web page or a file that the person pastes may
imitate every format. So one counts only in a request of its agent, and only at its place. It has to leave no doubt
which text the person typed. Everything else is text. Not here: what a command is (`user_text`), in which requests
nobody types (relay).

Agents that send a message as it was typed need no row: Codex, Continue, llm, pi.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import orjson

from proxy.core.bounded_cache import common
from store.captured.tree import SYSTEM_ROLES

TEXT_PARTS: Final = ("text", "input_text", "output_text")
ATTACHED: Final = "rl_attached"  # on a text part: it is of a document that came beside what the person typed
FAILED: Final = "rl_failed"  # on a tool's message: the client says that its result is an error
STORED: Final = "rl_stored"  # on a message: it comes out of the store, where no commands are
CONTEXT: Final = ("<<<BEGIN_OPENCLAW_INTERNAL_CONTEXT>>>", "<<<END_OPENCLAW_INTERNAL_CONTEXT>>>")

UNKNOWN: Final = "unknown"  # in place of an id
_ID: Final = re.compile(r"[^\x00-\x20\x7f]{1,150}")

Pair = tuple[str, str]  # what is right before a text, and what is right after it


class Agent(NamedTuple):
    """One agent. What it does not do stays empty."""

    name: str
    user_agent: str | None = None  # how this header begins
    prompt: re.Pattern[str] | None = None  # how its system prompt begins
    blocks: tuple[str, ...] = ()  # tags; each block is a text part of its own, beside the person's
    layers: tuple[tuple[Pair, ...], ...] = ()  # fixed strings around the person's text, the outermost first
    header: re.Pattern[str] | None = None  # what is before the person's text; a group `json` must be an object
    marker: str | None = None  # is in each of its headers: a second one makes it uncertain which is the agent's
    expands: bool = False  # a slash command comes as two parts: what was typed, in tags, and what it stands for
    quotes: bool = False  # an argument of its command line comes in quotation marks
    acts: bool = False  # the model may have it send a command's text, which then comes right after a tool's result
    trailer: Pair | None = None  # begin and end of a message that it adds after the person's
    platform: re.Pattern[str] | None = None  # in its system prompt, once: where the person writes
    repeats: bool = False  # the end of its system prompt, below the person's newest message


def _tags(*names: str) -> tuple[Pair, ...]:
    return tuple((f"<{name}>\n", f"\n</{name}>") for name in names)


_MODES: Final = ("act", "plan", "yolo")
_CLINE_NOTICES: Final = tuple(
    (f"<mode_notice>The user switched from {old} mode to {new} mode before sending this message.</mode_notice>\n", "")
    for old in _MODES
    for new in _MODES
)
_CLINE_INPUTS: Final = tuple((f'<user_input mode="{mode}">', "</user_input>") for mode in _MODES)
_CLINE_TYPED: Final = (*_tags("task", "user_message", "feedback", "answer"), *_CLINE_INPUTS)
# Never a result alone: what a tool printed comes in that way, too.
_CLINE_RESULTS: Final = tuple(
    (f"[{tool}] Result:\n{opening}", closing)
    for tool in ("plan_mode_respond", "act_mode_respond", "ask_followup_question", "attempt_completion")
    for opening, closing in _CLINE_TYPED
)

_VIBE_SUMMARY: Final = (
    "</previous_user_messages>\n\nHere is a summary of what has happened so far:\n\n<compaction_summary>",
    "</compaction_summary>",
)

# Recorded: Claude Code 2.1.329, Copilot CLI 1.0.102, opencode 1.18.33, OpenClaw 2026.9.6, Kilo 7.7.7, smolagents
# 1.26.0, Qwen Code 0.24.4, Cline 3.0.65, mistral-vibe 3.0.2. Read in its package: aider 0.86.2.
# Known from earlier versions, and not run: Cline's other tags, Roo, Cursor.
CLAUDE_CODE: Final = "claude-code"
AGENTS: Final = (
    Agent(
        CLAUDE_CODE,
        user_agent="claude-cli/",
        blocks=("system-reminder", "ide_selection", "ide_opened_file"),
        expands=True,
        acts=True,
    ),
    Agent("opencode", user_agent="opencode/", quotes=True),
    # By its prompt: its subagents, whose words a model writes, have others.
    Agent(
        "copilot",
        prompt=re.compile("You are the GitHub Copilot CLI,"),
        header=re.compile(r"<current_datetime>[0-9T:.+Z-]{10,40}</current_datetime>\n\n"),
        marker="<current_datetime>",
    ),
    Agent("kilo", user_agent="Kilo-Code/", blocks=("environment_details",), quotes=True),
    # By its prompt: its subagents, whose words a model writes, have others. The one that keeps its memory gets all that
    # was said, commands too, and words of its own that are always the same.
    Agent(
        "qwen-code",
        prompt=re.compile("You are Qwen Code,|You are now acting as the managed memory extraction subagent"),
        blocks=("system-reminder",),
    ),
    # Behind a tool's result it writes the same line into the same text, as any result could end: there it is text.
    Agent(
        "smolagents",
        prompt=re.compile(r"You are an expert assistant who can solve any task using (?:code blobs|tool calls)\."),
        layers=((("New task:\n", ""),),),
    ),
    Agent(
        "cline",
        prompt=re.compile("You are Cline,"),
        blocks=("environment_details",),
        layers=(_CLINE_NOTICES, (*_CLINE_TYPED, *_CLINE_RESULTS), _CLINE_NOTICES),
    ),
    Agent(
        "roo",
        user_agent="RooCode/",
        prompt=re.compile("You are Roo,"),
        blocks=("environment_details",),
        layers=(_tags("task", "user_message", "feedback", "answer"),),
    ),
    Agent(
        "cursor",
        prompt=re.compile(r"You are an? [^\n]{0,200}\bCursor\b"),
        blocks=("user_info", "additional_data"),
        layers=(_tags("user_query"),),
    ),
    Agent(
        "openclaw",
        prompt=re.compile(
            r"(?:<!-- openclaw:[^\n]{0,100} -->\n)?You are a personal assistant running inside OpenClaw\."
        ),
        header=re.compile(
            r"\[[A-Z][a-z]{2} \d{4}-\d\d-\d\d \d\d:\d\d [^\[\]\n]{1,40}\] "
            r"(?:Conversation info: ⟦openclaw:ctx⟧\n```json\n(?P<json>[^\n]*)\n```\n\n)?"
        ),
        marker="⟦openclaw:ctx⟧",
        trailer=CONTEXT,
        platform=re.compile(
            r'```json\n\{\n  "schema": "openclaw\.inbound_meta\.v2",\n'
            r'(?:  "account_id": "[^"\n]{0,200}",\n)?  "channel": "([a-z0-9_-]{1,40})",\n'
        ),
    ),
    # Where its context is full it sums up before it sends what was just typed, and writes the summary below that.
    Agent("mistral-vibe", prompt=re.compile(r"You help users get complex tasks done\."), trailer=_VIBE_SUMMARY),
    Agent(
        "aider",
        prompt=re.compile(
            r"Act as an expert (?:software developer|code analyst|architect engineer)\b|"
            r"You are an expert on the AI coding tool called Aider\."
        ),
        repeats=True,
    ),
)
NOBODY: Final = Agent("nobody")  # in place of the agent where nobody types: then nothing is a command

# Claude Code's form of a slash command. The part after it is the text of the command's file, with the same words.
_SLASH: Final = re.compile(
    r"<command-message>rl</command-message>\n<command-name>/rl</command-name>"
    r"(?:\n<command-args>(?P<args>.*)</command-args>)?",
    re.DOTALL,
)


def agent_of(headers: Mapping[str, str], messages: Sequence[Mapping[str, Any]]) -> Agent | None:
    """The agent that sent this request, by what only the agent itself writes; None for every other client."""
    client = headers.get("user-agent", "")
    prompt = messages[0].get("content") if messages and messages[0].get("role") in SYSTEM_ROLES else ""
    if not isinstance(prompt, str):
        prompt = _prompt(messages)
    for agent in AGENTS:
        if agent.user_agent is not None and client.startswith(agent.user_agent):
            return agent
        if agent.prompt is not None and agent.prompt.match(prompt):
            return agent
    return None


def as_typed(messages: list[dict[str, Any]], agent: Agent | None) -> list[dict[str, Any]]:
    """The messages of a request with the newest as the person typed it. The agent repeats the end of its system prompt
    below that, to the letter. Only there: what it sends in the history is as it was typed."""
    if agent is None or not agent.repeats or not messages or messages[-1].get("role") != "user":
        return messages
    text, prompt = messages[-1].get("content"), _prompt(messages)
    if not isinstance(text, str) or not prompt:
        return messages
    ends = len(text), len(prompt)
    same = common(min(ends), lambda a, b: text[ends[0] - b : ends[0] - a] == prompt[ends[1] - b : ends[1] - a])
    cut_index = text.find(
        "\n\n", max(0, len(text) - same - 1)
    )  # above it is an empty line here, and a line's end there
    if cut_index < 0 or len(text) - cut_index - 2 >= same:
        return messages
    return [*messages[:-1], {**messages[-1], "content": text[:cut_index]}]


def own_text(message: Mapping[str, Any], agent: Agent | None) -> str | None:
    """All that the person typed in this message; None where that is not certain, or where there is more than text."""
    if agent is NOBODY or STORED in message:
        return None
    content = message.get("content")
    if agent is None and type(content) is str:  # as most
        return content.strip() or None
    parts = [text for part in texts_of(content) if (text := part.strip())]
    if agent is None:
        return parts[0] if len(parts) == 1 else None
    parts = [part for part in parts if not _is_block(part, agent.blocks)]
    if agent.expands and len(parts) == 2:
        return _expanded(*parts)
    return _unwrapped(parts[0], agent) if len(parts) == 1 else None


def is_trailer(message: Mapping[str, Any], agent: Agent | None) -> bool:
    """The agent added this message after the person's."""
    if agent is None or agent.trailer is None or message.get("role") != "user":
        return False
    begin, end = agent.trailer
    texts = texts_of(message.get("content"))
    return len(texts) == 1 and texts[0].startswith(f"{begin}\n") and texts[0].endswith(f"\n{end}")


def sender_of(messages: Sequence[Mapping[str, Any]], agent: Agent | None) -> str | None:
    """Whom the agent names as the writer of the newest message of a person, as `telegram:42`; None where it names
    nobody. A sender whose id cannot be read is still somebody."""
    if agent is None or agent.header is None:
        return None
    text = _first_text(_typed(messages, agent).get("content")).strip()
    header = agent.header.match(f"{text}\n\n")  # there may be no words below it, but a picture
    info_text = None if header is None else header.groupdict().get("json")
    if info_text is None:
        return None
    info = _object(info_text)
    sender = {} if info is None else info.get("sender")
    if sender is None:
        return None
    id = sender.get("id") if isinstance(sender, dict) else None
    return f"{_platform(messages, agent)}:{id if isinstance(id, str) and _ID.fullmatch(id) else UNKNOWN}"


def newest_identities(messages: Sequence[Mapping[str, Any]], agent: Agent | None) -> list[Any]:
    """The people that a person's newest message names. Agents do it in one way, and chat completions in another: by the
    member `name`, be it a name or not."""
    if agent is not None:
        names = sender_of(messages, agent), _typed(messages, agent).get("name")
        return [entry for entry in names if entry is not None]
    for message in reversed(messages):
        if message.get("role") == "user":
            return [] if (name := message.get("name")) is None else [name]
    return []


def _typed(messages: Sequence[Mapping[str, Any]], agent: Agent | None) -> Mapping[str, Any]:
    """The newest message of a person."""
    message: Mapping[str, Any]
    for message in reversed(messages):
        if message.get("role") == "user" and (agent is None or not is_trailer(message, agent)):
            return message
    return {}


def texts_of(content: Any) -> list[str]:
    """The text parts; none where a part is something else, such as a picture, a document or the result of a tool."""
    if isinstance(content, str):
        return [content]
    if not isinstance(content, Sequence):
        return []
    if not all(isinstance(p, Mapping) and p.get("type") in TEXT_PARTS and ATTACHED not in p for p in content):
        return []
    return [str(part.get("text") or "") for part in content]


def _prompt(messages: Sequence[Mapping[str, Any]]) -> str:
    """The system prompt that the request begins with."""
    if not messages or messages[0].get("role") not in SYSTEM_ROLES:
        return ""
    content = messages[0].get("content")
    return content if isinstance(content, str) else next(iter(texts_of(content)), "")


def _first_text(content: Any) -> str:
    """Text that is not blank. Also of a message with a picture in it."""
    parts = content if isinstance(content, list) else [{"type": "text", "text": content}]
    texts = (p.get("text") for p in parts if isinstance(p, Mapping) and p.get("type") in TEXT_PARTS)
    return next((text for text in texts if isinstance(text, str) and text.strip()), "")


def _platform(messages: Sequence[Mapping[str, Any]], agent: Agent) -> str:
    """The agent's own name where its prompt says none, or several: a file that it shows there may say one, too."""
    platforms = [] if agent.platform is None else agent.platform.findall(_prompt(messages))
    return str(platforms[0]) if len(platforms) == 1 else agent.name


def _is_block(part: str, tags: Sequence[str]) -> bool:
    """One block and nothing else. A text with the tag in it once more may be two blocks with words between them."""
    return any(
        part.startswith((f"<{tag}>", f"<{tag} "))
        and part.endswith(f"</{tag}>")
        and part.count(f"<{tag}") == part.count(f"</{tag}") == 1
        for tag in tags
    )


def _expanded(typed: str, stands_for: str) -> str | None:
    command = _SLASH.fullmatch(typed)
    line = None if command is None else f"/rl {command['args'] or ''}".strip()
    return line if line == stands_for else None


def _unwrapped(text: str, agent: Agent) -> str | None:
    for layer in agent.layers:
        text = _without(text, layer)
    if agent.header is not None:
        return _headless(text, agent)
    return _unquoted(text) if agent.quotes else text


def _without(text: str, layer: Sequence[Pair]) -> str:
    """Fixed strings leave no doubt: whatever is between them, all of it is the person's."""
    for begin, end in layer:
        if text.startswith(begin) and text.endswith(end) and len(text) >= len(begin) + len(end):
            return text[len(begin) : len(text) - len(end)].strip()
    return text


def _headless(text: str, agent: Agent) -> str | None:
    assert agent.header is not None
    if agent.marker is not None and text.count(agent.marker) > 1:
        return None
    header = agent.header.match(text)
    if header is None:
        return text
    info = header.groupdict().get("json")
    if info is not None and _object(info) is None:
        return None
    return text[header.end() :].strip()


def _object(text: str) -> dict[str, Any] | None:
    try:
        parsed = orjson.loads(text)
    except orjson.JSONDecodeError:
        return None
    return parsed if isinstance(parsed, dict) else None


def _unquoted(text: str) -> str:
    """Out of quotation marks, if those within are escaped, as the agent does it."""
    if len(text) < 2 or text[0] != '"' or text[-1] != '"':
        return text
    inner = text[1:-1]
    bare = inner.replace('\\"', "")
    return text if '"' in bare or bare.endswith("\\") else inner.replace('\\"', '"').strip()
