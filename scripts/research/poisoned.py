"""Does the gate stop what should not go live, and let pass what should? Many small runs of each kind.

    python -m scripts.research.poisoned --tries 20 [--kinds good,random]

A try is a whole run of the trainer's loop, from a run folder to its result, on a model that is loaded once. It has 32
rated replies of the bare small model, drawn anew, 4 of them held back. It counts as stopped unless its status is
`passed`. A line a try goes to benchmarks/poisoned.jsonl at once. Tries that are there already are not made again, so
start it as often as you like. The file benchmarks/poisoned.json sums up all lines and says which commits they are of.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import torch
import transformers

from config.presets import Preset
from scripts.bench.persona import ROOT, Chat, Persona
from scripts.harness.circumstances import commit, machine, now
from scripts.research.poison import KINDS, Try
from scripts.research.reply_pool import PoolReply, pool
from trainer import loop
from trainer.formats import weights
from trainer.io.progress import Progress, Stop
from trainer.policy import policies
from trainer.policy.policy import Policy

TRIES = ROOT / "benchmarks/poisoned.jsonl"
SUMMARY = ROOT / "benchmarks/poisoned.json"
RATINGS, HELD_COUNT, TOKENS = 32, 4, 96


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tries", type=int, default=20, help="of each kind")
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--persona", default="concise")
    parser.add_argument("--weights", default=None, help="another model than the small one; with --into")
    parser.add_argument("--minutes", type=float, default=60, help="start no try after so long")
    parser.add_argument("--into", type=Path, default=TRIES, help="another file of tries: no summary is written then")
    arguments = parser.parse_args()
    end = time.monotonic() + 60 * arguments.minutes
    chat = Chat(weights.resolve(arguments.weights).path, threads=1)
    persona, replies = Persona(arguments.persona), [answer.cut(TOKENS, chat) for answer in pool(chat)]
    keep_loaded(chat)
    finished = {(line["kind"], line["try"]) for line in lines_of(arguments.into)}
    arguments.into.parent.mkdir(parents=True, exist_ok=True)
    for kind in arguments.kinds.split(","):
        for number in range(arguments.tries):
            if (kind, number) in finished or time.monotonic() > end:
                continue
            result = attempt(chat, persona, replies, kind, number)
            with arguments.into.open("a") as file:
                file.write(json.dumps(result, ensure_ascii=False) + "\n")
            print(f"{kind} {number} ({result['about']}): {result['status']}, {result['reason']}", flush=True)
    if arguments.into == TRIES:
        summarise(arguments.persona)


def attempt(chat: Chat, persona: Persona, replies: list[PoolReply], kind: str, number: int) -> dict[str, Any]:
    """One try, and what became of it."""
    rng = random.Random(f"{kind} {number}")
    trial = KINDS[kind](chat, persona, draw(replies, rng, RATINGS), rng, number)
    for entry in rng.sample(trial.lines, HELD_COUNT):
        entry["split"] = "held"
    home = Path(tempfile.mkdtemp(prefix="poisoned-"))
    start = time.monotonic()
    try:
        result = run(home, chat.weights, trial, number)
    finally:
        shutil.rmtree(home)
    return {
        "kind": kind,
        "model": chat.weights.name,
        "try": number,
        "about": trial.about,
        "good": sum(entry["reward"] > 0 for entry in trial.lines),
        "status": result["status"],
        "reason": result["reason"],
        "gate": {name: check["value"] for name, check in result["gate"].items()},
        "metrics": result["metrics"],
        "seconds": round(time.monotonic() - start, 1),
        "date": now(),
        "commit": commit(),
    }


def keep_loaded(chat: Chat) -> None:
    """Lets each run begin with the model that is loaded already, its adapter and optimiser as new."""
    opened, start = policies.open_policy, chat.policy.adapter()

    def open_policy(framework: str, path: Path, preset: Preset, *, parent: Path | None, **options: Any) -> Policy:
        if path != chat.weights or parent:
            policy: Policy = opened(framework, path, preset, parent=parent, **options)
            return policy
        chat.policy.wear(start)
        chat.policy.restore({})
        return chat.policy

    policies.open_policy = open_policy  # type: ignore[assignment]


def draw(replies: list[PoolReply], rng: random.Random, count: int) -> list[PoolReply]:
    """One reply each to `count` prompts."""
    by_prompt: dict[str, list[PoolReply]] = {}
    for answer in replies:
        by_prompt.setdefault(answer.prompt, []).append(answer)
    return [rng.choice(by_prompt[prompt]) for prompt in rng.sample(sorted(by_prompt), count)]


def run(home: Path, base: Path, trial: Try, number: int) -> dict[str, Any]:
    folder = home / "run"
    folder.mkdir()
    spec = {
        "format": 1,
        "run": number,
        "model": "smollm2",
        "weights": str(base),
        "version": 1,
        "parent": 0,
        "out": str(home / "v0001"),
        "seed": number,
        "threads": 1,
    }
    (folder / "run.json").write_text(json.dumps(spec | trial.spec))
    (folder / "samples.jsonl").write_text("\n".join(map(json.dumps, trial.lines)))
    (folder / "calibration.jsonl").write_text("")
    with Progress(folder) as progress:
        result: dict[str, Any] = loop.run(folder, progress, Stop())
    return result


def lines_of(path: Path) -> Iterator[dict[str, Any]]:
    if path.exists():
        yield from map(json.loads, path.read_text(encoding="utf-8").splitlines())


def summarise(persona: str) -> None:
    tries = list(lines_of(TRIES))
    table = {}
    for kind in KINDS:
        of_kind = [trial for trial in tries if trial["kind"] == kind]
        stopped: dict[str, int] = {}
        for trial in of_kind:
            if trial["status"] != "passed":
                stopped[trial["status"]] = stopped.get(trial["status"], 0) + 1
        passed = sum(trial["status"] == "passed" for trial in of_kind)
        table[kind] = {"tries": len(of_kind), "passed": passed, "stopped": stopped}
    about = {
        "date": now(),
        "machine": machine(),
        "commit": sorted({trial["commit"] for trial in tries}),
        "versions": {
            "python": sys.version.split()[0],
            "torch": torch.__version__,
            "transformers": transformers.__version__,
        },
        "model": weights.resolve(None).path.name,
        "persona": persona,
        "ratings": RATINGS,
        "held": HELD_COUNT,
        "max_tokens": TOKENS,
        "kinds": table,
        "raw": TRIES.name,
    }
    SUMMARY.write_text(json.dumps(about, indent=1, ensure_ascii=False) + "\n")
    print(json.dumps(table, indent=1))


if __name__ == "__main__":
    main()
