"""Requests that an agent makes on the side, known by its structure and not by its words.

Owns two rules, which come after those of `turns`. One is a request that quotes a recent exchange inside one message,
and does not go on with it (a title, a summary, a checkpoint). The other goes on from an answer under another system
prompt, with tools (a subagent). Pure. Not here: which exchanges are recent (store), the rules by header and by words
(turns).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from store.captured.tree import ASIDE
from store.records import GoesOn, Lately

SUBAGENT, QUOTATION = "subagent", "quotation"  # the rules
ENDS: Final = 20_000  # characters of a message that are looked at, at either end
SYSTEM: Final = 1 << 15  # characters of a system text that are compared, at its beginning
KNOWN_BY: Final = 120  # characters by which a quoted message is known: many quote no more of it
_LABEL: Final = 40  # characters before a quotation, in which it says whose words these are
_SAME: Final = 0.5  # how much of two system prompts has to be the same, of all their lines
_TRIES: Final = 20  # places of the same words in one message

_OF: Final = r"(?:(?:^|\n)[^\w\n]{0,6}(?:%s)\b\W{0,6}|\"(?:content|text)\"\s*:\s*\")$"
_PERSON: Final = re.compile(_OF % "user|human|person|you")
_MODEL: Final = re.compile(_OF % "assistant|ai|model|bot|agent")
_SOMEBODY: Final = re.compile(r"(?:^|\n)[^\w\n]{0,6}(?:user|human|person|you)\b|\"(?:content|text)\"\s*:")
# The same of a text as it came, with any white space in it: where it is not, no line says whose words come next. A line
# is read from its last end on: in a row of 40,000 line ends, a search from each of them would not come to an end.
_LINE_ENDS: Final = r"\n\r\x0b\x0c\x1c-\x1e\x85\u2028\u2029"
_MAYBE: Final = re.compile(rf"[{_LINE_ENDS}][^\w{_LINE_ENDS}]*+(?:user|human|person|you)", re.IGNORECASE)
_MAYBE_JSON: Final = re.compile('"(?:content|text)"', re.IGNORECASE)
_MAYBE_FIRST: Final = re.compile(r"[^\w\n]*+(?:user|human|person|you)", re.IGNORECASE)
_NEXT: Final = re.compile(r"\n[^\w\n]{0,6}(?:user|human|person|you)\b[^\w\n]{0,3}(?::|\n)")


def may_quote(messages: Sequence[Mapping[str, Any]]) -> bool:
    """Tell if these messages begin a conversation and say of some words whose they are. Most do not, and then nobody
    has to look up what was said lately."""
    message = _newest(messages)
    if message is None:
        return False
    text = _ends(message)
    if not (_MAYBE_FIRST.match(text) or _MAYBE.search(text) or _MAYBE_JSON.search(text)):
        return False
    return _SOMEBODY.search(_lines(text)) is not None


def quotes(messages: Sequence[Mapping[str, Any]], lately: Sequence[Lately]) -> bool:
    """Tell if these messages quote one of these exchanges, the newest first, and nothing that a person said after it.

    Whoever sends the whole conversation in one message each time, as some programs do, quotes too: there the newest
    words of the person are new.
    """
    text = _only_words(messages)
    return text is not None and any(_quoted(text, one) for one in lately)


def _only_words(messages: Sequence[Mapping[str, Any]]) -> str | None:
    said = _newest(messages)
    return None if said is None else _lines(said)


def _newest(messages: Sequence[Mapping[str, Any]]) -> str | None:
    """The newest message; None where these go on with a conversation."""
    said = None
    for message in messages:
        role = message.get("role")
        if role == "user":
            said = message
        elif role not in ASIDE:
            return None
    if said is None:
        return None
    content = said.get("content")
    return content if type(content) is str else _text(said)


def _quoted(text: str, one: Lately) -> bool:
    asked, answer = _beginning(one.asked), _beginning(one.text)
    if not asked:
        return False
    at = _labelled(text, asked, 0, _PERSON)
    if at is not None and answer and one.status != "pending":  # else it is one of tools, or not there yet
        at = _labelled(text, answer, at + len(asked), _MODEL)
    if at is None:
        return False
    return _NEXT.search(text, at + len(answer or asked)) is None


def _labelled(text: str, words: str, start: int, label: re.Pattern[str]) -> int | None:
    """Where these words are, right behind whose they are."""
    for _ in range(_TRIES):
        if (at := text.find(words, start)) < 0:
            return None
        if label.search(text[max(0, at - _LABEL) : at]):
            return at
        start = at + 1
    return None


def _text(message: Mapping[str, Any]) -> str:
    content = message.get("content")
    parts = content if isinstance(content, list) else [{"text": content}]
    texts = (part.get("text") for part in parts if isinstance(part, Mapping))
    return "\n".join(text for text in texts if isinstance(text, str))


def _ends(text: str) -> str:
    return text if len(text) <= 2 * ENDS + 1 else f"{text[:ENDS]}\n{text[-ENDS:]}"


def _lines(text: str) -> str:
    """Both ends of it, as they are compared."""
    return "\n".join(" ".join(line.split()) for line in _ends(text).casefold().splitlines())


def _beginning(text: str) -> str:
    return next((line for line in _lines(text[: 4 * KNOWN_BY]).splitlines() if line), "")[:KNOWN_BY].rstrip()


def is_subagent(goes_on: Sequence[GoesOn], system: Sequence[str], *, tools: bool, new_words: bool) -> bool:
    """Tell whether a request that repeats one of these replies is a subagent's: under a system prompt of its own, with
    tools. `system`: the bodies of its system texts; `new_words`: a message of the person's kind comes after the reply.

    A person who goes on under another prompt counts as one, too, for that first turn. A mode of an agent mostly shares
    more than half of its prompt with the others.
    """
    if not goes_on or not may_be_subagent(tools=tools, new_words=new_words):
        return False
    if not new_words:  # the next step of what the reply above began
        return (goes_on[0].turn, goes_on[0].rule) == ("side", SUBAGENT)
    mains = [one for one in goes_on if one.turn == "main"]
    return bool(mains) and all(_differ(one.system, system) for one in mains)


def may_be_subagent(*, tools: bool, new_words: bool) -> bool:
    """Tell whether the replies that a request repeats have to be looked up: one that asks anew has tools."""
    return tools or not new_words


def _differ(one: Sequence[str], other: Sequence[str]) -> bool:
    mine, theirs = _pieces(one), _pieces(other)
    if not mine or not theirs:
        return False
    same = sum(map(len, mine & theirs))
    return same < _SAME * sum(map(len, mine | theirs))


def _pieces(system: Sequence[str]) -> frozenset[str]:
    """Its lines, as JSON has them; the texts are long, and what is new in them is mostly a date."""
    return frozenset(line for body in system for line in body[:SYSTEM].split("\\n") if line.strip())
