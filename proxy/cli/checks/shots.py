"""Rated answers as examples in a prompt: what the base says that has read them, with no training at all.

Owns which ones are taken: the newest that people liked, and corrections of those they did not, each once. Not here: how
they are asked (proxy.checks.evaluation).
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import orjson

from proxy.checks.checks_file import ChecksError
from proxy.checks.evaluation import AskedVersion
from proxy.cli.exports.examples import Example, NotAnExample, read
from proxy.core.version_names import SHOWN_EXAMPLES

if TYPE_CHECKING:
    from proxy.cli.http import HomeClient


def base_with_examples(client: HomeClient, model: str, count: int, excluded: Collection[str]) -> AskedVersion:
    """The base, asked with so many examples before each prompt; `excluded`: completions whose prompts are asked.

    Raises ChecksError where there are none.
    """
    lines = (orjson.loads(line) for line in client.lines("/rl/export?rated=1&turn=main"))
    messages = choose(lines, count, excluded)
    if not messages:
        raise ChecksError("nothing was asked: no answer is liked or corrected yet, so --examples has none to show.")
    digest = hashlib.sha256(orjson.dumps(messages)).hexdigest()
    return AskedVersion(SHOWN_EXAMPLES, f"{model}@base", f"{model}|examples|{digest}", tuple(messages))


def choose(lines: Iterable[Mapping[str, Any]], count: int, excluded: Collection[str]) -> list[dict[str, Any]]:
    """Pairs of a question and an answer as chat messages, the newest last."""
    examples: dict[str, list[dict[str, Any]]] = {}
    for line in lines:
        try:
            example = read(line)
        except NotAnExample:
            continue
        answer = example.reply if example.good else example.correction
        question = _question(example)
        if answer is None or question is None or not answer.get("content") or example.id in excluded:
            continue
        examples.pop(question, None)  # the newest answer to a question
        reply = {"role": "assistant", "content": answer["content"]}
        examples[question] = [{"role": "user", "content": question}, reply]
    return [message for pair in list(examples.values())[-count:] for message in pair]


def _question(example: Example) -> str | None:
    """The person's last words; None where something else came last."""
    last = example.prompt[-1] if example.prompt else None
    return str(last["content"]) if last is not None and last["role"] == "user" and last["content"] else None
