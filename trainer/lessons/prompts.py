"""Prompts that a run makes itself: with a comment, and the gate's ordinary questions.

Owns their form; the questions' text is config.languages'. The proxy has them rendered by the server that the model runs
on; `trainer.launch` hands them over. So this module is free of numpy and torch. Not here: how a prompt becomes tokens
(samples, rendering).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from config.languages import gate_questions

HINT: Final = "\n\n[user's hint / instruction]\n{hint}"
CALL_RESULT: Final = "ok"  # of a tool, in a prompt that is rendered for the call before it
# Ordinary questions, none about anybody's taste. A well model of any size answers them in some sentences.
NEUTRAL: Final = gate_questions()


def neutral(question: str) -> list[dict[str, Any]]:
    """The conversation that asks it."""
    return [{"role": "user", "content": question}]


def with_calls(messages: Sequence[Mapping[str, Any]], reply: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The conversation with a reply's tool calls in it, and an answer of each tool, so that a template writes the reply
    whole. With a user's message after it some templates leave out the reasoning.
    """
    results = [
        {
            "role": "tool",
            "tool_call_id": call.get("id") or "",
            "name": (call.get("function") or {}).get("name") or "",
            "content": CALL_RESULT,
        }
        for call in reply.get("tool_calls") or ()
    ]
    return [*map(dict, messages), dict(reply), *results]


def comment_of(line: Mapping[str, Any]) -> str | None:
    """The comment of a line of samples.jsonl that teaches. On a liked reply it is praise, and praise is no
    instruction."""
    comment, reward = line.get("comment"), line.get("reward")
    if not isinstance(comment, str) or not isinstance(reward, int | float) or reward >= 0:
        return None
    return comment.strip() or None


def join_lessons(lessons: Sequence[str]) -> str:
    """Several lessons as one hint, in their order."""
    return "\n".join(text.strip() for text in lessons)


def lessons_of(line: Mapping[str, Any]) -> tuple[str, ...]:
    """The lessons in the prompt of a line of samples.jsonl, in their order."""
    lessons = line.get("lessons")
    return tuple(text.strip() for text in lessons if isinstance(text, str)) if isinstance(lessons, list) else ()


def without_lessons(messages: Sequence[Mapping[str, Any]], lessons: Sequence[str]) -> list[dict[str, Any]] | None:
    """The messages as their client sent them; None without lessons, and where they are not where `with_hint` puts
    them."""
    if not lessons:
        return None
    words = HINT.format(hint=join_lessons(lessons))
    for index in range(len(messages) - 1, -1, -1):
        content = messages[index].get("content")
        if messages[index].get("role") != "user":
            continue
        bare: Any = None
        if isinstance(content, str):
            own_text, marked_words, later_text = content.rpartition(words)
            # A later system text is joined to it with an empty line (proxy.dialects.chat_turns).
            is_there = marked_words and (not later_text or later_text.startswith("\n\n"))
            bare = own_text + later_text if is_there else None
        elif isinstance(content, list) and content:
            bare = _parts_without(content, words)
        if bare is None:
            return None
        return [dict(m) if i != index else {**m, "content": bare} for i, m in enumerate(messages)]
    return None


def _parts_without(parts: Sequence[Any], words: str) -> list[Any] | None:
    """The parts without the words of lessons; None where they are in no place of `with_hint`."""
    if parts[-1] == {"type": "text", "text": words.lstrip("\n")}:
        return [*parts[:-1]]
    text = parts[0].get("text") if isinstance(parts[0], Mapping) else None
    if not isinstance(text, str) or not text.endswith(words):
        return None
    own_text = text.removesuffix(words)
    return [{**parts[0], "text": own_text}, *parts[1:]] if own_text else [*parts[1:]]


def teacher_comment(line: Mapping[str, Any]) -> str | None:
    """The comment of a line of samples.jsonl that a teacher is told. None for one that its prompt had as a lesson."""
    comment = comment_of(line)
    return None if comment in lessons_of(line) else comment


def with_hint(
    messages: Sequence[Mapping[str, Any]], comment: str, *, is_in_text: bool = False
) -> list[dict[str, Any]] | None:
    """Copy the messages and put the comment after the last user message. Returns None if no user has written one.

    `is_in_text`: within the text before the pictures, for a format in which a message has one text (Ollama's).
    """
    for index in range(len(messages) - 1, -1, -1):
        if messages[index].get("role") == "user":
            break
    else:
        return None
    content, hint = messages[index].get("content"), HINT.format(hint=comment)
    new_content: Any
    if isinstance(content, list) and is_in_text:
        has_text = bool(content) and content[0].get("type") == "text"
        text = content[0]["text"] if has_text else ""
        new_content = [{"type": "text", "text": text + hint}, *content[has_text:]]
    elif isinstance(content, list):
        new_content = [*content, {"type": "text", "text": hint.lstrip("\n")}]
    else:
        new_content = (content or "") + hint
    return [dict(m) if i != index else {**m, "content": new_content} for i, m in enumerate(messages)]
