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
from scripts.research.reply_pool import Said, pool
from trainer import loop
from trainer.formats import weights
from trainer.io.progress import Progress, Stop
from trainer.policy import policies
from trainer.policy.policy import Policy

TRIES = ROOT / "benchmarks/poisoned.jsonl"
SUMMARY = ROOT / "benchmarks/poisoned.json"
RATINGS, HELD, TOKENS = 32, 4, 96


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tries", type=int, default=20, help="of each kind")
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--persona", default="concise")
    parser.add_argument("--weights", default=None, help="another model than the small one; with --into")
    parser.add_argument("--minutes", type=float, default=60, help="start no try after so long")
    parser.add_argument("--into", type=Path, default=TRIES, help="another file of tries: no summary is written then")
    asked = parser.parse_args()
    end = time.monotonic() + 60 * asked.minutes
    chat = Chat(weights.resolve(asked.weights).path, threads=1)
    persona, replies = Persona(asked.persona), [said.cut(TOKENS, chat) for said in pool(chat)]
    keep_loaded(chat)
    done = {(line["kind"], line["try"]) for line in lines_of(asked.into)}
    asked.into.parent.mkdir(parents=True, exist_ok=True)
    for kind in asked.kinds.split(","):
        for number in range(asked.tries):
            if (kind, number) in done or time.monotonic() > end:
                continue
            found = attempt(chat, persona, replies, kind, number)
            with asked.into.open("a") as file:
                file.write(json.dumps(found, ensure_ascii=False) + "\n")
            print(f"{kind} {number} ({found['about']}): {found['status']}, {found['reason']}", flush=True)
    if asked.into == TRIES:
        summarise(asked.persona)


def attempt(chat: Chat, persona: Persona, replies: list[Said], kind: str, number: int) -> dict[str, Any]:
    """One try, and what became of it."""
    rng = random.Random(f"{kind} {number}")
    made = KINDS[kind](chat, persona, draw(replies, rng, RATINGS), rng, number)
    for one in rng.sample(made.lines, HELD):
        one["split"] = "held"
    home = Path(tempfile.mkdtemp(prefix="poisoned-"))
    start = time.monotonic()
    try:
        result = run(home, chat.weights, made, number)
    finally:
        shutil.rmtree(home)
    return {
        "kind": kind,
        "model": chat.weights.name,
        "try": number,
        "about": made.about,
        "good": sum(one["reward"] > 0 for one in made.lines),
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

    def open_policy(framework: str, path: Path, preset: Preset, *, parent: Path | None, **rest: Any) -> Policy:
        if path != chat.weights or parent:
            other: Policy = opened(framework, path, preset, parent=parent, **rest)
            return other
        chat.policy.wear(start)
        chat.policy.restore({})
        return chat.policy

    policies.open_policy = open_policy  # type: ignore[assignment]


def draw(replies: list[Said], rng: random.Random, count: int) -> list[Said]:
    """One reply each to `count` prompts."""
    by_prompt: dict[str, list[Said]] = {}
    for said in replies:
        by_prompt.setdefault(said.prompt, []).append(said)
    return [rng.choice(by_prompt[prompt]) for prompt in rng.sample(sorted(by_prompt), count)]


def run(home: Path, base: Path, made: Try, number: int) -> dict[str, Any]:
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
    (folder / "run.json").write_text(json.dumps(spec | made.spec))
    (folder / "samples.jsonl").write_text("\n".join(map(json.dumps, made.lines)))
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
        of_kind = [one for one in tries if one["kind"] == kind]
        stopped: dict[str, int] = {}
        for one in of_kind:
            if one["status"] != "passed":
                stopped[one["status"]] = stopped.get(one["status"], 0) + 1
        passed = sum(one["status"] == "passed" for one in of_kind)
        table[kind] = {"tries": len(of_kind), "passed": passed, "stopped": stopped}
    about = {
        "date": now(),
        "machine": machine(),
        "commit": sorted({one["commit"] for one in tries}),
        "versions": {
            "python": sys.version.split()[0],
            "torch": torch.__version__,
            "transformers": transformers.__version__,
        },
        "model": weights.resolve(None).path.name,
        "persona": persona,
        "ratings": RATINGS,
        "held": HELD,
        "max_tokens": TOKENS,
        "kinds": table,
        "raw": TRIES.name,
    }
    SUMMARY.write_text(json.dumps(about, indent=1, ensure_ascii=False) + "\n")
    print(json.dumps(table, indent=1))


if __name__ == "__main__":
    main()
