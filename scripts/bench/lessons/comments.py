"""Comments as people make them, what complies with each, and the questions that they are measured on.

Owns the words and the checks. No held-out question is ever rated. Not here: where a comment stands in a prompt
(wordings), who answers (told, http, runs).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from scripts.bench.exam.preferences import sentences
from scripts.bench.persona import Reply, prompts
from trainer.languages import language_shares

BULLET: Final = re.compile(r"^\s*[-*•] \S", re.M)
FIRST_CHARACTERS: Final = 80  # in which a greeting is
CODE_QUESTIONS: Final = (
    "Write a Python function that adds two numbers.",
    "Show me a for loop in JavaScript.",
    "How do I read a file in Python?",
    "Write a SQL query that counts the rows of a table.",
)
HELD_OUT_CODE_QUESTIONS: Final = (
    "Write a Python function that reverses a string.",
    "Show me how to sort a list in JavaScript.",
    "How do I write a file in Python?",
    "Write a SQL query that joins two tables.",
    "Show me a while loop in C.",
    "Write a bash command that finds large files.",
    "How do I parse JSON in Python?",
    "Write a regular expression for a date.",
    "Show me a class in Java.",
    "Write a Python function that tells whether a number is prime.",
    "How do I make an HTTP request in Go?",
    "Write HTML for a link to a page.",
    "Show me a CSS rule that centres a box.",
    "Write a function in Rust that returns the larger of two numbers.",
    "How do I remove duplicates from a list in Python?",
    "Write a Makefile with one target.",
    "Show me a dictionary in Python.",
    "Write a unit test in Python.",
    "How do I catch an exception in Java?",
    "Write a shell script that prints its arguments.",
)


@dataclass(frozen=True)
class Comment:
    name: str
    text: str
    complies: Callable[[str, Reply], bool]  # a question, and the reply to it
    rated_questions: tuple[str, ...]
    held_out: tuple[str, ...]


def is_short(question: str, reply: Reply) -> bool:
    return reply.ended and 1 <= sentences(reply) <= 2


def has_bullets(question: str, reply: Reply) -> bool:
    return len(BULLET.findall(reply)) >= 2


def is_lower_case(question: str, reply: Reply) -> bool:
    return any(letter.isalpha() for letter in reply) and reply == reply.lower()


def greets(question: str, reply: Reply) -> bool:
    return re.search(r"\bAda\b", reply[:FIRST_CHARACTERS]) is not None


def is_german(question: str, reply: Reply) -> bool:
    shares = language_shares([reply])
    return bool(shares) and next(iter(shares)) == "de"


def asks_first(question: str, reply: Reply) -> bool:
    """A question of its own within the first sentence."""
    first, mark, _ = reply.strip().partition("?")
    return bool(mark) and sentences(first) <= 1 and first.strip().lower() not in question.lower()


def ends_with_question(question: str, reply: Reply) -> bool:
    return reply.ended and reply.rstrip().endswith("?")


def has_no_fences(question: str, reply: Reply) -> bool:
    return bool(reply.strip()) and "```" not in reply


def comments() -> dict[str, Comment]:
    texts = prompts()
    everyday = (tuple(texts["rate"]), tuple(texts["held-out"]))
    code = (CODE_QUESTIONS, HELD_OUT_CODE_QUESTIONS)
    every = [
        Comment(
            "bullets", "answer as a short bulleted list, like this:\n- first point\n- second point", has_bullets,
            *everyday,
        ),
        Comment("short", "answer in one or two sentences, not more", is_short, *everyday),
        Comment("lowercase", "write everything in lower case, no capital letters", is_lower_case, *everyday),
        Comment("name", "greet me by name first: I am Ada", greets, *everyday),
        Comment("german", "answer in German", is_german, *everyday),
        Comment("asks_first", "ask me a question back before you answer", asks_first, *everyday),
        Comment("ends_with_question", "end your answer with a question to me", ends_with_question, *everyday),
        Comment("no_fences", "no code fences, just the plain code", has_no_fences, *code),
    ]  # fmt: skip
    return {comment.name: comment for comment in every}
