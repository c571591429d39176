"""Does the gap that a run measures tell when a version does without its lesson? Versions of exams, asked and measured.

    python -m scripts.bench.lessons gaps --weights FOLDER --preference identity VERSION_FOLDER…

Each folder is a version that `scripts.bench.exam` or `runs` has trained on that preference's comment. The base and
each version answer the probes with the comment and without, and the gap is measured as a run does it. No probe was
trained on. Appends to benchmarks/lessons/gaps.json, a version as soon as it is measured.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any, Final

from scripts.bench.exam.preferences import preferences
from scripts.bench.lessons.comments import comments
from scripts.bench.lessons.told import FOLDER, error, share, write
from scripts.bench.lessons.wordings import PRODUCT, WORDINGS
from scripts.bench.persona import Chat, Reply
from scripts.harness.circumstances import circumstances, machine_name
from trainer.formats import weights
from trainer.formats.manifest import MANIFEST
from trainer.run import lesson_gaps
from trainer.run.context import RunModel

TARGET: Final = FOLDER / "gaps.json"
SEED: Final = 1000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("versions", nargs="*", type=Path, help="folders; the base is always measured")
    parser.add_argument("--weights", help="a folder instead of the small model")
    parser.add_argument("--preference", default="identity", help="of scripts.bench.exam, or a comment of this package")
    parser.add_argument("--eval", type=int, default=10, help="probes")
    parser.add_argument("--threads", type=int, default=1)


def run(arguments: argparse.Namespace) -> None:
    path = weights.resolve(arguments.weights).path
    chat = Chat(path, arguments.threads)
    results = json.loads(TARGET.read_bytes()) if TARGET.exists() else []
    for folder in (None, *arguments.versions):
        result = {
            **circumstances(), "machine": machine_name(), "model": path.name, "seed": SEED,
            "comment": arguments.preference, "version": version_name(folder),
            **measure(chat, arguments.preference, folder, arguments.eval),
        }  # fmt: skip
        results.append(result)
        write(TARGET, results)
        print(
            {k: v for k, v in result.items() if k not in ("machine", "date", "commit", "gaps", "replies")}, flush=True
        )


def version_name(folder: Path | None) -> str:
    if folder is None:
        return "base"
    manifest = json.loads((folder / MANIFEST).read_bytes())
    return f"v{manifest['version']}, trained on {len(manifest['samples'])} ratings"


def measure(chat: Chat, name: str, folder: Path | None, count: int) -> dict[str, Any]:
    text, probes, complies = wish(name)
    bare = [[{"role": "user", "content": probe}] for probe in probes[:count]]
    hinted = [WORDINGS[PRODUCT](probe, text) for probe in probes[:count]]
    model = RunModel(chat.policy, chat.template, folder, {}, ("en",))
    with chat.policy.wearing(folder):
        replies = [chat.said(reply) for reply in chat.answer_now(bare + hinted, SEED)]
        pairs = [
            lesson_gaps.PromptPair(*map(chat.template.prompt, prompts)) for prompts in zip(hinted, bare, strict=True)
        ][: lesson_gaps.MOST_PROMPTS]
        gap = lesson_gaps.measure_pairs(model, pairs)
    verdicts = [complies(probe, reply) for probe, reply in zip(probes[:count] * 2, replies, strict=True)]
    return {
        "probes": count,
        "untold": share(verdicts[:count]),
        "told": share(verdicts[count:]),
        "told_error": error(verdicts[count:]),
        "untold_error": error(verdicts[:count]),
        **(gap.json() if gap else {}),  # nothing where no reply tells
        "replies": replies[:2],
    }


def wish(name: str) -> tuple[str, tuple[str, ...], Any]:
    """The words, the probes, and what complies."""
    if name in (exam := preferences()):
        preference = exam[name]

        def complies(question: str, reply: Reply) -> bool:
            return preference.comply(reply) >= 1

        return preference.feedback, preference.probes, complies
    comment = comments()[name]
    return comment.text, comment.held_out, comment.complies
