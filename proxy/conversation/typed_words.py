"""A request's newest turn as it is kept for signals.

Owns two facts that only the request itself tells. They are which words a person typed, where that is certain, and which
tool results the client marked as errors. Not here: what they say about the answer above (proxy.signals).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from proxy.conversation.redaction import Redactor
from proxy.core.agent_wrappers import FAILED, Agent, is_trailer, own_text
from store.captured.tree import SYSTEM_ROLES

LONGEST: Final = 20_000  # characters; whoever types more has pasted a document
MOST_ERRORS: Final = 64
_BLANK: Final = re.compile(r"\n\s*\n")
PASTED: Final = 1000  # characters, quotes and code not counted, from which on nobody can tell what of it was pasted
PARAGRAPHS: Final = 3  # more of them likewise
_FENCE: Final = re.compile(r"\s{0,3}(`{3,}|~{3,})")
_QUOTED: Final = re.compile(r"\s{0,3}(?:>|\|)|\t| {4}")  # a quote, a table, indented code
_OPENS: Final = re.compile(r"\s*<([A-Za-z][\w:.-]{0,60})\b[^<>\n]{0,2000}>")


def typed_text(messages: Sequence[Mapping[str, Any]], agent: Agent | None, redactor: Redactor) -> str | None:
    """All that a person typed in the newest message, with its secrets out. None where the newest message is not a
    person's, and where it is not certain what in it was typed."""
    for message in reversed(messages):
        role = message.get("role")
        if role in SYSTEM_ROLES or (agent is not None and is_trailer(message, agent)):
            continue
        text = own_text(message, agent) if role == "user" else None
        return redactor.text(text) if text and len(text) <= LONGEST else None
    return None


def own_words(typed: str) -> str:
    """The part of a typed message that surely is the person's own: no code, quotes, tables or blocks of markup. Empty
    where the rest is so long that a page may have been pasted. A short paste without such marks looks like typing."""
    lines: list[str] = []
    until = ""  # the end of the block that these lines are in
    for line in typed.splitlines():
        if until:
            until = "" if until in line else until
        elif (fence := _FENCE.match(line)) is not None:
            until = fence[1]
        elif (opens := _OPENS.match(line)) is not None:
            until = "" if (end := f"</{opens[1]}>") in line else end
        elif not _QUOTED.match(line):
            lines.append(line)
    text = "\n".join(lines).strip()
    return "" if len(text) > PASTED or len(_BLANK.split(text)) > PARAGRAPHS else text


def marked_errors(messages: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    """The calls below the newest reply whose results the client says are errors."""
    ids: list[str] = []
    for message in reversed(messages):
        if message.get("role") == "assistant":
            break
        if message.get("role") == "tool" and message.get(FAILED) and message.get("tool_call_id"):
            ids.append(str(message["tool_call_id"])[:200])
    return tuple(ids[:MOST_ERRORS])
