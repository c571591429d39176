"""The first words of an answer, by which people see which one was rated.

Owns how they are cut and made harmless. Control characters are spelt out, and line breaks are spaces, so an answer can
neither move a cursor nor begin a line of its own. Not here: who may see them (reach), where they are shown.
"""

from __future__ import annotations

from typing import Final

from proxy.conversation.conversations import as_chat
from proxy.core.terminal import escape_controls
from store.records import Message, RecentCompletion

QUOTED: Final = 60  # characters


def first_words(text: str) -> str:
    """Without quotation marks."""
    line = escape_controls(" ".join(text[: 20 * QUOTED].split()))
    return line if len(line) <= QUOTED else f"{line[:QUOTED].rstrip()}…"


def quote_text(text: str, calls: Message | None = None) -> str:
    """In quotation marks; a call of tools where nothing else was said."""
    if words := first_words(text):
        return f"“{words}”"
    names = [] if calls is None else _names(calls)
    return f"a call of {first_words(', '.join(names))}" if names else "no words"


def quote_of(answer: RecentCompletion) -> str:
    """How an answer begins, as far as it has come."""
    if answer.status != "pending":
        return quote_text(answer.text, answer.calls)
    return f"{quote_text(answer.text) if answer.has_content else 'no words yet'}, still streaming"


def _names(reply: Message) -> list[str]:
    calls = as_chat(reply).get("tool_calls")
    functions = [call.get("function") for call in calls or () if isinstance(call, dict)]
    return [str(function.get("name")) for function in functions if isinstance(function, dict)]
