"""What a person said in a message, without what their agent put around it.

Agents wrap: reminders and environment blocks, tags around the words, the name of a chat channel before them. Owns the
knowledge of these wrappers, and whether a message is a person's `/rl` line. Not here: what a command means.

Strict on purpose: the command must be the whole of what the person said. A line `/rl good` at the end of a pasted
document, in quotes, in a tool's result or in an agent's block is text like any other.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

TEXT_PARTS: Final = ("text", "input_text", "output_text")
# Blocks that agents add to a person's message: Claude Code, Cline and Roo, Codex, Cursor, OpenClaw.
_BLOCKS: Final = (
    "system-reminder", "environment_details", "environment_context", "local-command-caveat", "local-command-stdout",
    "ide_selection", "ide_opened_file", "user_info", "additional_data", "relevant-memories",
)  # fmt: skip
_OPENING: Final = re.compile("<(?:" + "|".join(_BLOCKS) + ")")
_WRAPPED: Final = re.compile(
    r"(?:\[(?:plan_mode_respond|act_mode_respond|ask_followup_question|attempt_completion)\] Result:\s*)?"
    r"<(?P<tag>user_message|user_query|user_input|task|feedback|answer)>(?P<inner>.*)</(?P=tag)>",
    re.DOTALL,
)
# Claude Code's own form of a slash command.
_SLASH: Final = re.compile(
    r"(?:<command-message>[^<]*</command-message>\s*)?<command-name>/?rl</command-name>\s*"
    r"(?:<command-message>[^<]*</command-message>\s*)?(?:<command-args>(?P<args>.*)</command-args>)?",
    re.DOTALL,
)
_CURRENT: Final = "[Current message - respond to this]"  # OpenClaw in groups: history above, the message below
_UNTRUSTED: Final = re.compile(r"(?:[A-Z][^\n:]{0,60} \(untrusted[^)\n]*\):\n```json\n.*?\n```\s*)+", re.DOTALL)
_CHANNEL: Final = re.compile(r"\[[^\[\]\n]{1,300}\]\s*(?:[^:\n/\[\]<>]{1,80}:\s*)?(?=/rl(?:\s|$))")  # [Telegram Ann …]
_TRAILER: Final = re.compile(r"(?:\n\[(?:message_id|reply_to_id)[^\]\n]*\]\s*)+$")
SHOWN: Final = 2000  # characters of a person's words that lists show
TAIL: Final = 1000  # characters in which trailers are looked for
_COMMAND: Final = re.compile(r"/rl(?:\s|$)")


def command_of(message: Mapping[str, Any]) -> str | None:
    """The `/rl …` line of a person, bare of all wrapping; None where this message is none."""
    if message.get("role") != "user":
        return None
    texts = _texts(message.get("content"))
    if not any("/rl" in text for text in texts):
        return None
    own = [said for text in texts if (said := _own(text))]
    # More than one part: a document beside the line, or Claude Code's tags with the text that they expand to.
    if not own or not all(_COMMAND.match(said) for said in own):
        return None
    return own[-1]


def silent(message: Mapping[str, Any]) -> bool:
    """Whether nobody said this: an agent's reminders alone."""
    if message.get("role") != "user":
        return False
    texts = _texts(message.get("content"))
    return bool(texts) and all(text.lstrip()[:1] in ("", "<") and not without_blocks(text) for text in texts)


def without_blocks(text: str) -> str:
    """The text without agents' blocks, to know it again: they differ from one request to the next."""
    for tag in _tags(text):
        text = _cut(text, tag, str.find)
    return text.strip()


def _tags(text: str) -> list[str]:
    """The blocks that may be in it, in the order of the table; mostly none, and that is seen in one pass."""
    if _OPENING.search(text) is None:
        return []
    return [tag for tag in _BLOCKS if f"<{tag}" in text]


def _cut(text: str, tag: str, to: Callable[[str, str, int], int]) -> str:
    """Without blocks of this tag, each up to the closing tag that `to` finds. One pass, whatever the text is."""
    opening, closing = f"<{tag}", f"</{tag}>"
    kept, at = [], 0
    while (start := text.find(opening, at)) >= 0 and (end := to(text, closing, start)) >= 0:
        inside = start + len(opening)
        whole = text[inside : inside + 1] in (">", " ", "\n")  # not the beginning of a longer name
        kept.append(text[at : start if whole else inside])
        at = end + len(closing) if whole else inside
    return "".join(kept) + text[at:]


def words(messages: Sequence[Mapping[str, Any]]) -> str:
    """What a person said last in this conversation, for lists and the search; agents' own messages are passed over."""
    for message in reversed(messages):
        if message.get("role") == "user":
            content = message.get("content")
            parts = [content] if isinstance(content, str) else content if isinstance(content, list) else []
            texts = (part if isinstance(part, str) else _text(part) for part in parts)
            if said := "\n".join(own for text in texts if (own := without_blocks(text))):
                return said[:SHOWN]
    return ""


def _text(part: Any) -> str:
    found = part.get("text") if isinstance(part, Mapping) and part.get("type") in TEXT_PARTS else None
    return found if isinstance(found, str) else ""


def _texts(content: Any) -> list[str]:
    """The text parts; none where a part is something else (an image, a tool's result): then it is no bare line."""
    if isinstance(content, str):
        return [content]
    if not isinstance(content, Sequence):
        return []
    if not all(isinstance(part, Mapping) and part.get("type") in TEXT_PARTS for part in content):
        return []
    return [str(part.get("text") or "") for part in content]


def _own(text: str) -> str:
    if "/rl" not in text:
        return without_blocks(text)
    for tag in _tags(text):
        # To the last closing tag: a document inside a block cannot close it and go on as the person.
        text = _cut(text, tag, str.rfind)
    text = text.strip()
    if (slash := _SLASH.fullmatch(text)) is not None:
        return f"/rl {slash['args'] or ''}".strip()
    if (wrapped := _WRAPPED.fullmatch(text)) is not None and f"<{wrapped['tag']}>" not in wrapped["inner"]:
        text = wrapped["inner"].strip()
    if _CURRENT in text:
        text = text.rpartition(_CURRENT)[2].strip()
    if (metadata := _UNTRUSTED.match(text)) is not None:
        text = text[metadata.end() :]
    text = text[:-TAIL] + _TRAILER.sub("", text[-TAIL:])
    if (channel := _CHANNEL.match(text)) is not None:
        text = text[channel.end() :]
    return text.strip()
