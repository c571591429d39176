"""Which way to put a comment into a prompt changes most answers: the model's server asked directly.

    python -m scripts.bench.lessons told --model qwen [--wordings hint,system] [--comments bullets,german] [--eval 16]

An answer is changed where it complies with the comment and the one without the comment does not. Writes
benchmarks/lessons/wordings-MODEL.json, each result as soon as it is there, after those of before.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final

from scripts.bench.lessons.comments import Comment, comments
from scripts.bench.lessons.servers import ask, gguf_of, llama_server
from scripts.bench.lessons.wordings import WORDINGS
from scripts.bench.persona import ROOT, Reply
from scripts.harness.circumstances import circumstances, machine_name

FOLDER: Final = ROOT / "benchmarks/lessons"
SHOWN_REPLIES: Final = 2  # replies of each that are kept


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", choices=("qwen", "smollm2"), default="qwen")
    parser.add_argument("--comments", default="bullets,lowercase,german")
    parser.add_argument("--wordings", default=",".join(WORDINGS))
    parser.add_argument("--eval", type=int, default=16, help="held-out questions")
    parser.add_argument("--seed", type=int, default=1000)


def run(arguments: argparse.Namespace) -> None:
    asyncio.run(measure(arguments))


async def measure(arguments: argparse.Namespace) -> None:
    file = gguf_of(arguments.model)
    target = FOLDER / f"wordings-{arguments.model}.json"
    results = json.loads(target.read_bytes())["results"] if target.exists() else []
    bare_replies: dict[tuple[str, ...], list[Reply]] = {}
    async with llama_server(file) as url:
        for name in arguments.comments.split(","):
            comment = comments()[name]
            questions = comment.held_out[: arguments.eval]
            if questions not in bare_replies:
                bare = [[{"role": "user", "content": question}] for question in questions]
                bare_replies[questions] = [answer.reply for answer in await ask(url, bare, arguments.seed)]
            for wording in arguments.wordings.split(","):
                talks = [WORDINGS[wording](question, comment.text) for question in questions]
                hinted_replies = [answer.reply for answer in await ask(url, talks, arguments.seed)]
                result = {
                    **circumstances(),
                    "seed": arguments.seed,
                    "comment": name,
                    "wording": wording,
                    **compare(comment, questions, bare_replies[questions], hinted_replies),
                }
                results.append(result)
                write(target, {"model": file.name, "machine": machine_name(), "results": results})
                print(f"{arguments.model} {name} {wording}: {summary(result)}", flush=True)


def compare(
    comment: Comment, questions: Sequence[str], bare_replies: Sequence[Reply], hinted_replies: Sequence[Reply]
) -> dict[str, Any]:
    """Shares that comply, and the share of those that did not which do once they are told; with standard errors."""
    verdicts = [
        (comment.complies(question, bare_reply), comment.complies(question, hinted_reply))
        for question, bare_reply, hinted_reply in zip(questions, bare_replies, hinted_replies, strict=True)
    ]
    changeable = [is_met for was_met, is_met in verdicts if not was_met]
    return {
        "questions": len(questions),
        "untold": share(is_met for is_met, _ in verdicts),
        "told": share(is_met for _, is_met in verdicts),
        "changeable": len(changeable),
        "changed": share(changeable),
        "changed_error": error(changeable),
        "replies": list(hinted_replies[:SHOWN_REPLIES]),
        "untold_replies": list(bare_replies[:SHOWN_REPLIES]),
    }


def share(verdicts: Iterable[bool]) -> float | None:
    values = list(verdicts)
    return round(sum(values) / len(values), 3) if values else None


def error(verdicts: Sequence[bool]) -> float | None:
    """Standard error of a share."""
    if not verdicts:
        return None
    rate = sum(verdicts) / len(verdicts)
    return round(math.sqrt(rate * (1 - rate) / len(verdicts)), 3)


def summary(result: dict[str, Any]) -> str:
    return (
        f"untold {result['untold']}, told {result['told']}, "
        f"changed {result['changed']} ± {result['changed_error']} of {result['changeable']}"
    )


def write(target: Path, record: Any) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n")
