"""Teach by the next message alone, with no judge: beside a judge's labels, and a control.

    python -m scripts.bench.signals.hindsight --arm hindsight [--persona concise] [--weights FOLDER]

A scripted person only follows up, with the words of follow_ups. Arms:

- `hindsight`: each answer's next message is its teacher.
- `shuffled`: the same messages, dealt to other answers. A control.
- `labels`: a judge that is always right, and its hints.
- `thumbs`: the person rates.

One run a round, from lines as the proxy writes them. Writes benchmarks/follow_ups/MODEL-ARM-PERSONA-seedN.json after
each round.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Sequence
from typing import Any, Final

from scripts.bench.persona import ROOT, Chat, Persona, answers, prompts
from scripts.bench.signals.follow_ups import WANTS, follow_up
from scripts.bench.version_line import VersionLine
from scripts.harness.circumstances import circumstances, machine_name
from trainer.formats import weights

Line = dict[str, Any]
WEIGHT: Final = 0.5  # of a label and of hindsight, where a person's rating weighs 1
MARKS: Final = ("liked", "base_nll", "tokens", "topic")


def line_of(arm: str, answer: Line, message: str | None) -> Line | None:
    """The line of a run; None for an answer that nothing was said after."""
    if arm == "thumbs":
        return {**answer, "comment": None}
    if message is None:
        return None
    line = {**answer, "human": False, "followed": True, "weight": WEIGHT, "reward": 0, "comment": None}
    if arm == "labels":
        is_bad = answer["reward"] <= 0
        return {**line, "reward": -1 if is_bad else 0, "comment": message if is_bad else None}
    return {**line, "hindsight": message}


def lines_of(arm: str, persona: Persona, given: Sequence[Line], tasks: Sequence[str], seed: int) -> list[Line]:
    messages = [
        follow_up(persona, answer["reward"] > 0, place, tasks[(place + 1) % len(tasks)], "following")
        for place, answer in enumerate(given)
    ]
    if arm == "shuffled":
        random.Random(seed).shuffle(messages)
    lines = [line_of(arm, answer, message) for answer, message in zip(given, messages, strict=True)]
    return [line for line in lines if line is not None]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--arm", default="hindsight", choices=("hindsight", "shuffled", "labels", "thumbs"))
    parser.add_argument("--persona", default="concise", choices=sorted(WANTS))
    parser.add_argument("--weights", help="a folder or a hub id instead of the small model")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--turns", type=int, default=32, help="a round")
    parser.add_argument("--eval", type=int, default=40, help="held-out prompts")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    source = weights.resolve(arguments.weights)
    chat, persona = Chat(source.path, arguments.threads), Persona(arguments.persona)
    texts, seed = prompts(), arguments.seed
    order = random.Random(seed).sample(texts["rate"], len(texts["rate"]))
    held_out = texts["held-out"][: arguments.eval]
    line = VersionLine(source.path, "balanced", {}, seed=seed, threads=arguments.threads)
    base = chat.evaluate(persona, held_out, None, seed=1000)
    record = {
        **circumstances(),
        "machine": f"{machine_name()}, {arguments.threads} thread{'s' * (arguments.threads > 1)}",
        "model": source.path.name,
        "arguments": vars(arguments),
        "base": {mark: base[mark] for mark in MARKS},
        "rounds": [],
    }
    print(f"base: liked {base['liked']:.2f}", flush=True)
    target = ROOT / f"benchmarks/follow_ups/{source.path.name}-{arguments.arm}-{persona.name}-seed{seed}.json"
    for number in range(1, arguments.rounds + 1):
        tasks = [order[place % len(order)] for place in range((number - 1) * arguments.turns, number * arguments.turns)]
        talks = [[{"role": "user", "content": task}] for task in tasks]
        given = answers(chat, persona, talks, line.adapter, version=line.version, seed=seed * 100 + number)
        lines = lines_of(arguments.arm, persona, given, tasks, seed)
        run = line.learn(lines)
        marks = chat.evaluate(persona, held_out, line.adapter, seed=1000)
        rise = marks["base_nll"] - base["base_nll"]
        good = sum(answer["reward"] > 0 for answer in given)
        record["rounds"].append({"good": good, "lines": len(lines), "run": run, **marks, "base_nll_rise": rise})
        target.write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n")
        print(
            f"{number}: {good} of {arguments.turns} good, {len(lines)} lines, {run['status']}: liked "
            f"{marks['liked']:.2f}, base nll {rise:+.2f}, {marks['tokens']:.0f} tokens; {run['reason']}",
            flush=True,
        )


if __name__ == "__main__":
    main()
