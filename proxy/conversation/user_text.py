"""A person's words in a message, without what their agent put around it.

Owns whether a message is a person's `/rl` line, which is strict. What a person said, as lists show it and as
conversations are compared, is lenient, since nothing is done because of it. The formats of agents are
`agent_wrappers`'. Not here: what a command means.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from proxy.core.agent_wrappers import CONTEXT, TEXT_PARTS, Agent, own_text, texts_of

# Blocks that agents add to a person's message: Claude Code, Cline and Roo, Codex, Cursor, Copilot, OpenClaw.
_BLOCKS: Final = (
    "system-reminder", "environment_details", "environment_context", "local-command-caveat", "local-command-stdout",
    "ide_selection", "ide_opened_file", "user_info", "additional_data", "relevant-memories",
    "current_datetime",
)  # fmt: skip
_OPENING: Final = re.compile("<(?:" + "|".join(_BLOCKS) + f")|{CONTEXT[0]}")
_NAME_ENDS: Final = (">", " ", "\n")
EXCERPT_LENGTH: Final = 2000  # characters of a person's words that lists show
_begins: Final = re.compile(r"\s*(?:/|[rR][lL]:)").match
# With a slash; or without one, for clients that keep such lines for themselves: then with one of these words right
# behind the colon, which nobody writes by accident.
PREFIX: Final = re.compile(
    r"/(?:rl|Rl|RL)(?=\s|$)|(?:rl|Rl|RL):(?=(?i:good|bad|[1-5]|👍|👎|fix|undo|status|help|train|pause|resume|rollback|reset)(?:[\s:,]|$))"
)


def may_be_commands(messages: Sequence[Mapping[str, Any]], agent: Agent | None = None) -> bool:
    """Tell whether any of them could be a `/rl` line: hardly any message begins like one."""
    if agent is not None:
        return True
    for message in messages:
        if message.get("role") == "user":
            content = message.get("content")
            if type(content) is not str or _begins(content):
                return True
    return False


def command_of(message: Mapping[str, Any], agent: Agent | None = None) -> str | None:
    """The `/rl …` or `rl:…` line that is all the person typed in this message; None for every other message.

    `agent` is the one that sent it, where that is known. Without one there are no wrappers: a message is the bare line
    or it is text. A line at the end of a pasted document, in quotes, in a tool's result or in an agent's block is text.
    """
    if message.get("role") != "user":
        return None
    content = message.get("content")
    if agent is None and type(content) is str and _begins(content) is None:
        return None  # as nearly all
    text = own_text(message, agent)
    return text if text is not None and PREFIX.match(text) else None


def silent(message: Mapping[str, Any]) -> bool:
    """Nobody said this: it looks like an agent's reminders alone. A document may look so too, so nothing may be done
    because a message is silent."""
    if message.get("role") != "user":
        return False
    texts = texts_of(message.get("content"))
    return bool(texts) and all(text.lstrip()[:1] in ("", "<") and not without_blocks(text) for text in texts)


def without_blocks(text: str) -> str:
    """The text without agents' blocks, to know it again: they differ from one request to the next."""
    if _OPENING.search(text) is None:  # as in most
        return text.strip()
    for tag in _BLOCKS:
        text = _cut(text, f"<{tag}", f"</{tag}>", _NAME_ENDS)
    return _cut(text, *CONTEXT, ("\n",)).strip()


def _cut(text: str, opening: str, closing: str, goes_on: tuple[str, ...]) -> str:
    """Without what is from each `opening` that goes on so to the next `closing`. One pass, whatever the text is."""
    pieces, position, start = [], 0, text.find(opening)
    while start >= 0:
        inside = start + len(opening)
        if not text.startswith(goes_on, inside):  # the beginning of a longer name
            start = text.find(opening, inside)
            continue
        if (end := text.find(closing, inside)) < 0:
            break
        pieces.append(text[position:start])
        position = end + len(closing)
        start = text.find(opening, position)
    return "".join(pieces) + text[position:]


def last_words(messages: Sequence[Mapping[str, Any]]) -> str | None:
    """A person's last words where each message is one text, as most; None where one of them is in parts."""
    for message in reversed(messages):
        if message.get("role") == "user":
            content = message.get("content")
            if type(content) is not str:
                return None
            if text := without_blocks(content):
                return text
    return ""


def words(messages: Sequence[Mapping[str, Any]], most: int = EXCERPT_LENGTH) -> str:
    """A person's last words in this conversation, for lists and the search; agents' own messages are passed over.

    `most` characters of it: more than are shown where secrets are still to be taken out, since half a key is one too.
    """
    for message in reversed(messages):
        if message.get("role") == "user":
            content = message.get("content")
            parts = [content] if isinstance(content, str) else content if isinstance(content, list) else []
            texts = (part if isinstance(part, str) else _text(part) for part in parts)
            if joined := "\n".join(bare_text for text in texts if (bare_text := without_blocks(text))):
                return joined[:most]
    return ""


def _text(part: Any) -> str:
    text = part.get("text") if isinstance(part, Mapping) and part.get("type") in TEXT_PARTS else None
    return text if isinstance(text, str) else ""
