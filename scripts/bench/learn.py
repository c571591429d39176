"""Does it learn what a person likes, and stay sane? Personas rate; liked share and sanity on held-out prompts.

    python -m scripts.bench.learn --persona concise --seeds 1,2,3
    python -m scripts.bench.learn --persona my_taste.py --set learning_rate=2e-4 --name slow
    python -m scripts.bench.learn --persona one_paragraph,second_person --rounds 2   # one taste after the other

Writes benchmarks/learn/PERSONA-NAME-seedN.json and prints a line a round. A run that is rejected gives its ratings
back, as the proxy does: the next run has them too. Several personas rate in turn on one line of versions; each is asked
after every run.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from pathlib import Path
from typing import Any

from scripts.bench.persona import ROOT, Chat, Persona, prompts, rate
from scripts.bench.version_line import VersionLine, overrides_of
from scripts.harness.circumstances import circumstances, machine_name
from trainer.formats import weights


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--persona", default="concise", help="names in scripts/bench/personas, or Python files")
    parser.add_argument("--weights", help="a folder or a hub id instead of the small model")
    parser.add_argument("--seeds", default="1")
    parser.add_argument("--rounds", type=int, default=3, help="of each persona")
    parser.add_argument("--ratings", type=int, default=32, help="a round")
    parser.add_argument("--siblings", type=int, default=1, help="replies to each question, which make pairs")
    parser.add_argument("--held", type=int, default=4, help="of them, kept back for the gate")
    parser.add_argument(
        "--late", type=float, default=0.0, help="share of a round that rates replies of an earlier version"
    )
    parser.add_argument("--behind", type=int, default=1, help="versions between those replies and the live one")
    parser.add_argument("--no-comments", action="store_true", help="ratings alone")
    parser.add_argument("--eval", type=int, default=80, help="held-out prompts")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--name", default="default")
    parser.add_argument("--preset", default="balanced")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="override a preset value")
    arguments = parser.parse_args()
    overrides = overrides_of(arguments.set)
    personas, source = [Persona(spec) for spec in arguments.persona.split(",")], weights.resolve(arguments.weights)
    chat = Chat(source.path, arguments.threads)
    held_out = prompts()[f"held-out {personas[0].prompts}".strip()][: arguments.eval]
    base = chat.evaluate(personas[0], held_out, None, seed=1000, raters=personas[1:] and personas)
    print(f"{names(personas)}: base {liked(base)}, nll {base['base_nll']:.3f}", flush=True)
    for seed in map(int, arguments.seeds.split(",")):
        learn(chat, personas, source.path, arguments, overrides, seed, base, held_out)


def names(personas: list[Persona]) -> str:
    return "+".join(persona.name for persona in personas)


def liked(evaluation: dict[str, Any]) -> str:
    shares = evaluation.get("liked_by", {"liked": evaluation["liked"]})
    return ", ".join(f"{name} {share:.2f}" for name, share in shares.items())


def learn(
    chat: Chat,
    personas: list[Persona],
    path: Path,
    arguments: argparse.Namespace,
    overrides: dict[str, Any],
    seed: int,
    base: dict[str, Any],
    held_out: list[str],
) -> None:
    """Rounds of rating and training from the base on, written down after each."""
    target = ROOT / "benchmarks/learn" / f"{names(personas)}-{arguments.name}-seed{seed}.json"
    target.parent.mkdir(parents=True, exist_ok=True)
    texts = prompts()
    asks = f"rate {personas[0].prompts}".strip()
    order = random.Random(seed).sample(texts[asks], len(texts[asks]))
    line = VersionLine(path, arguments.preset, overrides, seed=seed, threads=arguments.threads)
    print(f"seed {seed}:", flush=True)
    record: dict[str, Any] = {
        **circumstances(),
        "machine": f"{machine_name()}, {arguments.threads} thread{'s' * (arguments.threads > 1)}",
        "model": path.name,
        "persona": names(personas),
        "seed": seed,
        "arguments": vars(arguments),
        "preset": line.preset.model_dump(),
        "base": base,
        "rounds": [],
    }
    for number in range(1, arguments.rounds * len(personas) + 1):
        start, persona = time.monotonic(), personas[(number - 1) // arguments.rounds]
        first = (number - 1) * arguments.ratings
        texts_now = [order[i // arguments.siblings % len(order)] for i in range(first, first + arguments.ratings)]
        lines = rated(chat, persona, texts_now, line.versions, arguments, seed * 100 + number)
        rating_seconds = time.monotonic() - start
        result = line.learn(lines)
        now = chat.evaluate(persona, held_out, line.adapter, seed=1000, raters=personas[1:] and personas)
        good = sum(rating["reward"] > 0 for rating in lines)
        record["rounds"].append({"good": good, "rating_seconds": rating_seconds, "run": result, "eval": now})
        target.write_text(json.dumps(record, indent=1, ensure_ascii=False))
        gates = {name: check["value"] for name, check in result["gate"].items()}
        metrics = result["metrics"]
        print(
            f"  {number * arguments.ratings} ratings ({good} good): {result['status']}, {liked(now)}, "
            f"nll {now['base_nll'] - base['base_nll']:+.3f}, text {now['text_nll'] / base['text_nll'] - 1:+.1%}, "
            f"on topic {now['topic'] - base['topic']:+.2f}, "
            f"distinct-2 {now['distinct_2']:.2f}, tokens {now['tokens']:.0f}, run {result['wall']:.0f} s, "
            f"kl_old {metrics.get('kl_old')}, steps {metrics.get('steps')}, way {result['choices'].get('way')}, "
            f"{gates}, {result['reason']}",
            flush=True,
        )


def rated(
    chat: Chat,
    persona: Persona,
    texts: list[str],
    lives: list[tuple[int, Path | None]],
    arguments: argparse.Namespace,
    seed: int,
) -> list[dict[str, Any]]:
    """One round's lines: those of `--late` rate replies of the version that was live `--behind` versions before."""
    late, previous = round(arguments.late * len(texts)), lives[-1 - arguments.behind :][0]
    lines: list[dict[str, Any]] = []
    for of, (version, adapter) in ((texts[:late], previous), (texts[late:], lives[-1])):
        if of:
            held_count = round(arguments.held * len(of) / len(texts))
            options = {"version": version, "seed": seed + 50 * bool(lines), "held": held_count}
            lines += rate(chat, persona, of, adapter, comments=not arguments.no_comments, **options)
    return lines


if __name__ == "__main__":
    main()
