"""Are comments in the weights after the next run, while lessons are on? Held-out answers with and without the lesson.

    python -m scripts.bench.lessons runs --weights FOLDER [--comments bullets,german] [--runs 2] [--lessons off]

A round asks `--ratings` questions. An answer that does not comply is disliked with the comment, one that complies is
liked. From the first comment on the lesson is in each prompt, as the proxy puts it there (`--lessons off`: in none).
Each round is one run with its gate, by real trainer processes. Writes benchmarks/lessons/NAME-COMMENT-MODEL-seedN.json
after each run.
"""

from __future__ import annotations

import argparse
from typing import Any, Final

from scripts.bench.lessons.comments import Comment, comments
from scripts.bench.lessons.told import FOLDER, compare, summary, write
from scripts.bench.lessons.wordings import PRODUCT, WORDINGS
from scripts.bench.persona import Chat, Persona
from scripts.bench.persona import answers as rated_answers
from scripts.bench.version_line import VersionLine
from scripts.harness.circumstances import circumstances, machine_name
from trainer.formats import weights

BARE_ANSWERS: Final = 4  # answers before the first comment acts
HELD_EVERY: Final = 8  # rated answers, of which one is kept back for the gate
EVALUATION_SEED: Final = 1000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--weights", help="a folder instead of the small model")
    parser.add_argument("--comments", default="bullets,lowercase")
    parser.add_argument("--lessons", choices=("on", "off"), default="on")
    parser.add_argument("--runs", type=int, default=2)
    parser.add_argument("--ratings", type=int, default=32, help="a run")
    parser.add_argument("--eval", type=int, default=40, help="held-out questions")
    parser.add_argument("--seeds", default="1")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--name", default="runs", help="the beginning of the file's name")


def run(arguments: argparse.Namespace) -> None:
    path = weights.resolve(arguments.weights).path
    chat = Chat(path, arguments.threads)
    for name in arguments.comments.split(","):
        for seed in map(int, arguments.seeds.split(",")):
            learn(chat, comments()[name], seed, arguments)


def learn(chat: Chat, comment: Comment, seed: int, arguments: argparse.Namespace) -> None:
    """Rounds of rating and training from the base on, written down after each."""
    model = chat.weights.name
    target = FOLDER / f"{arguments.name}-{comment.name}-{model}-seed{seed}.json"
    line = VersionLine(chat.weights, "balanced", {}, seed=seed, threads=arguments.threads, lessons=True)
    record: dict[str, Any] = {
        **circumstances(), "machine": f"{machine_name()}, {arguments.threads} threads", "model": model,
        "comment": comment.name, "text": comment.text, "seed": seed, "arguments": vars(arguments) | {"run": None},
        "base": held_out(chat, comment, line, arguments.eval), "runs": [],
    }  # fmt: skip
    print(
        f"{model} {comment.name} seed {seed}, lessons {arguments.lessons}: base {summary(record['base'])}", flush=True
    )
    for number in range(1, arguments.runs + 1):
        rated = rate(chat, comment, line, arguments, number, seed)
        result = line.learn(rated)
        result.pop("steps")
        evaluation = held_out(chat, comment, line, arguments.eval)
        good = sum(row["reward"] > 0 for row in rated)
        record["runs"].append({"good": good, "rated": len(rated), "result": result, "held_out": evaluation})
        write(target, record)
        print(
            f"  run {number} ({good} of {len(rated)} good): {result['status']}, {summary(evaluation)}, "
            f"gap {result.get('lessons', {}).get('lesson')}, {result['wall']:.0f} s, {result['reason']}",
            flush=True,
        )


class Commenter(Persona):
    """Says the comment to what does not comply, and likes the rest."""

    def __init__(self, comment: Comment) -> None:
        self.name = comment.name
        self.rate = lambda question, reply: 1.0 if comment.complies(question, reply) else -1.0
        self.comment = lambda question, reply: None if comment.complies(question, reply) else comment.text


def rate(
    chat: Chat, comment: Comment, line: VersionLine, arguments: argparse.Namespace, number: int, seed: int
) -> list[dict[str, Any]]:
    """The lines of one round. From the first comment on the lesson is in the prompt."""
    first = (number - 1) * arguments.ratings
    pool = comment.rated_questions
    questions = [pool[index % len(pool)] for index in range(first, first + arguments.ratings)]
    bare_count = len(questions) if arguments.lessons == "off" else BARE_ANSWERS if number == 1 else 0
    talks = [
        [{"role": "user", "content": question}] if index < bare_count else WORDINGS[PRODUCT](question, comment.text)
        for index, question in enumerate(questions)
    ]
    lines = rated_answers(
        chat, Commenter(comment), talks, line.adapter, version=line.version, seed=seed * 100 + number, comments=True
    )
    for index, row in enumerate(lines):
        if index >= bare_count:
            row |= {"lessons": [comment.text], "lesson_ratings": ["lesson"]}
        if index % HELD_EVERY == HELD_EVERY - 1:
            row["split"] = "held"
    return lines


def held_out(chat: Chat, comment: Comment, line: VersionLine, count: int) -> dict[str, Any]:
    """Held-out answers of the live version without the lesson and with it."""
    questions = comment.held_out[:count]
    bare = [[{"role": "user", "content": question}] for question in questions]
    hinted = [WORDINGS[PRODUCT](question, comment.text) for question in questions]
    with chat.policy.wearing(line.adapter):
        replies = [chat.said(reply) for reply in chat.answer_now(bare + hinted, EVALUATION_SEED)]
    return compare(comment, questions, replies[: len(questions)], replies[len(questions) :])
