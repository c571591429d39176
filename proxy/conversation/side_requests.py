"""Requests that an agent makes on the side, known by their structure and not by their words.

Owns four rules, which come after those of `turns`. One is a request that quotes a recent exchange inside one message,
and does not go on with it (a title, a summary, a checkpoint). The second goes on from an answer under another system
prompt, with tools (a subagent). The third begins with the words that an answer gave to a tool (a subagent, too). The
fourth asks for a summary or a review below an answer, in another way than the person's turns or sooner than anybody
writes. Pure. Not here: which exchanges are recent (store), the rules by header and by words (turns).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from typing import Any, Final, NamedTuple

import orjson

from config.languages import written_size
from proxy.conversation.own_tasks import (
    BRIEF,
    Manner,
    asks_own_task,
    is_made_otherwise,
    is_too_soon,
)
from proxy.conversation.transcripts import Transcript, beginning, has_labels, normalise
from proxy.conversation.user_text import without_blocks
from store.captured.tree import SYSTEM_ROLES
from store.records import RecentCompletion, RepeatedReply

SUBAGENT, QUOTATION, OWN_TASK = "subagent", "quotation", "own-task"  # the rules
SYSTEM: Final = 1 << 15  # characters of a system text that are compared, at its beginning
_SAME: Final = 0.5  # how much of two system prompts has to be the same, of all their lines
_LEAST_ANSWER: Final = 8  # characters by which an answer is known without its question
_AROUND: Final = 600  # characters around a transcript in which its task is said
MIN_TASK_LENGTH: Final = 16  # characters of a task that is given to a subagent: fewer may be anybody's
_MOST_WORDS: Final = 200  # of a person in a transcript that are compared
_MOST_TEXTS: Final = 64  # of one call


def may_quote(messages: Sequence[Mapping[str, Any]]) -> bool:
    """Tell if these messages begin a conversation and say of some words whose they are. Most do not, and then nobody
    has to look up what was said lately."""
    text = _only_text(messages)
    return text is not None and has_labels(text)


class Quotation(NamedTuple):
    """A quotation of what was said lately."""

    turn: RecentCompletion | None  # of a `/rl` line and our answer: the newest turn, if there is one


def quotation(messages: Sequence[Mapping[str, Any]], recent_turns: Sequence[RecentCompletion]) -> Quotation | None:
    """The quotation of one of these exchanges (newest first) in the messages, where a person says nothing new after it.

    Some programs send the whole conversation in one message each time, and so quote too. There the newest words of the
    person are new, and nothing answers them. Where a text says that it wants a summary or a title, a part
    of an exchange is enough.
    """
    text = _only_text(messages)
    if text is None:
        return None
    transcript = Transcript(normalise(text))
    system = "\n".join(_text(message) for message in messages if message.get("role") in SYSTEM_ROLES)
    is_task = asks_own_task(f"{system}\n{transcript.around(_AROUND)}") or asks_own_task(system)
    questions = {words for turn in recent_turns if (words := beginning(turn.asked))}
    new = _newest_words(transcript, questions, is_task=is_task)
    for turn in recent_turns:
        end = _end_of(turn, transcript, is_task=is_task)
        if end is not None and end > new:
            return Quotation(turn)
    if is_task and any(end > new for end in transcript.commands()):
        return Quotation(recent_turns[0] if recent_turns else None)
    return None


def _end_of(turn: RecentCompletion, transcript: Transcript, *, is_task: bool) -> int | None:
    """Where the quotation of this exchange ends."""
    question, answer = beginning(turn.asked), beginning(turn.text)
    start_of_question = transcript.find(question, "person") if question else None
    if start_of_question is None:
        if (
            is_task
            and written_size(answer) >= _LEAST_ANSWER
            and (start := transcript.find(answer, "model")) is not None
        ):
            return start + len(answer)
        return None
    end = start_of_question + len(question)
    if not answer or turn.status == "pending":  # it is one of tools, or not there yet
        return end
    start = transcript.find(answer, "model", end)
    return start + len(answer) if start is not None else end if is_task else None


def _newest_words(transcript: Transcript, questions: Set[str], *, is_task: bool) -> int:
    """Where a person last says in it what has not been asked yet; -1: nowhere. A program may ask
    a question once more: only one that stands there answered is surely old, unless a summary is wanted."""
    for count, (words, is_answered) in enumerate(transcript.persons()):
        if transcript.is_command(words):
            continue
        is_known = any(transcript.begins_with(question, words.start) for question in questions)
        if count == _MOST_WORDS or not is_known or not (is_answered or is_task):
            return words.start
    return -1


def _only_text(messages: Sequence[Mapping[str, Any]]) -> str | None:
    """The newest message's; None where these go on with a conversation."""
    newest = None
    for message in messages:
        role = message.get("role")
        if role == "user":
            newest = message
        elif role not in SYSTEM_ROLES:
            return None
    return None if newest is None else _text(newest)


def _text(message: Mapping[str, Any]) -> str:
    content = message.get("content")
    if type(content) is str:
        return content
    parts = content if isinstance(content, list) else []
    texts = (part.get("text") for part in parts if isinstance(part, Mapping))
    return "\n".join(text for text in texts if isinstance(text, str))


def is_subagent(goes_on: Sequence[RepeatedReply], system: Sequence[str], *, tools: bool) -> bool:
    """Tell whether a request with new words below one of these replies is a subagent's: under a system prompt of its
    own, with tools. `system`: the bodies of its system texts.

    A person who goes on under another prompt counts as one, too, for that first turn. A mode of an agent mostly shares
    more than half of its prompt with the others.
    """
    if not tools:
        return False
    mains = [reply for reply in goes_on if reply.turn == "main"]
    return bool(mains) and all(differs(reply.system, system) for reply in mains)


def goes_on_aside(goes_on: Sequence[RepeatedReply]) -> str | None:
    """The rule of a request that takes the next step of what a side turn began, where nobody says anything new."""
    if goes_on and goes_on[0].turn == "side" and goes_on[0].rule in (SUBAGENT, QUOTATION, OWN_TASK):
        return goes_on[0].rule
    return None


def differs(system: Sequence[str], second_system: Sequence[str]) -> bool:
    """Tell whether two requests have system texts that are mostly not the same."""
    mine, theirs = _pieces(system), _pieces(second_system)
    if not mine or not theirs:
        return False
    same = sum(map(len, mine & theirs))
    return same < _SAME * sum(map(len, mine | theirs))


def _pieces(system: Sequence[str]) -> frozenset[str]:
    """Its lines, as JSON has them; the texts are long, and what is new in them is mostly a date."""
    return frozenset(line for body in system for line in body[:SYSTEM].split("\\n") if line.strip())


def may_be_given(messages: Sequence[Mapping[str, Any]]) -> bool:
    """Tell whether these messages begin a conversation with words that an answer may have given to a tool."""
    text = _only_text(messages)
    return text is not None and written_size(text) >= MIN_TASK_LENGTH


def gives(reply: bytes, messages: Sequence[Mapping[str, Any]]) -> bool:
    """Tell whether a reply, as it is stored, gives a tool the words that these messages begin a conversation with."""
    text = without_blocks(_only_text(messages) or "")
    candidates = {text, text.partition("\n\n")[2].strip(), text.rpartition("\n\n")[0].strip()}
    calls = orjson.loads(reply).get("tool_calls") or []
    return any(
        string in candidates
        for call in calls
        for string in _strings(call.get("function", {}).get("arguments"))
        if written_size(string) >= MIN_TASK_LENGTH
    )


def _strings(value: Any) -> Iterator[str]:
    """The first texts in the arguments of a call."""
    waiting = [value]
    for _ in range(_MOST_TEXTS):
        if not waiting:
            return
        item = waiting.pop()
        if isinstance(item, str):
            yield item.strip()
        else:
            waiting += list(item.values() if isinstance(item, dict) else item if isinstance(item, list) else ())[
                :_MOST_TEXTS
            ]


def is_own_task(text: str, elapsed: float, manner: Manner, previous: Manner) -> bool:
    """Tell whether an agent asks this below an answer. `text`: what `may_be_own_task` was true for. `elapsed`: seconds
    since that answer, or since our answer to a `/rl` line below it. `previous`: how its request was made."""
    return is_too_soon(text, elapsed) or is_made_otherwise(manner, previous)


def may_be_own_task(text: str) -> bool:
    """Tell whether a text below an answer asks for a summary, a title, a memory or a review of the conversation."""
    return written_size(text) >= BRIEF and asks_own_task(text)
