"""Simulated evaluations with a planted slice: how often it is named, and how often one is that is none.

`python -m scripts.research.slice_errors [--times N]` writes benchmarks/slice_errors.json. Each evaluation has 300
prompts of 6 to 30 words, drawn by the frequencies of scripts/bench/prompts.txt, with a topic, a language and a tool
each. A planted slice is 5 prompts that share one feature, all of which got worse. Beside it a share of all prompts
changes by chance, half of them to the better. No model: the changes are drawn.
"""

from __future__ import annotations

import argparse
import json
import random
from collections import Counter
from pathlib import Path
from typing import Any, Final

from proxy.checks.checks_file import CheckPrompt
from proxy.checks.slices import WORD, Slice, features, worse_slices
from proxy.checks.statistics import wilson
from scripts.harness.circumstances import circumstances

ROOT: Final = Path(__file__).resolve().parents[2]
SEED: Final = 20261128
PROMPTS: Final = 300
PLANTED: Final = 5
KINDS: Final = {"word": "word: zugzwang", "topic": "topic: chess", "language": "language: is", "tool": "tool: solve"}
NOISE: Final = (0.0, 0.02, 0.05, 0.1)  # share of prompts that get worse by chance; as many get better
TYPICAL_NOISE: Final = 0.05  # of the kinds beside words
DECLINE: Final = (0.1, 0.3)  # share of prompts that get worse, spread evenly and with none better


def draw_prompts(chance: random.Random, words: list[str], counts: list[int]) -> list[dict[str, Any]]:
    return [
        {
            "name": str(number),
            "text": " ".join(chance.choices(words, counts, k=chance.randint(6, 30))),
            "tags": [chance.choice(("mail", "code", "travel", "cooking", "maths", "law"))],
            "language": chance.choices(("en", "de", "fr"), (8, 1, 1))[0],
            "tools": [{"function": {"name": chance.choice(("search", "run", "read", "write"))}}],
        }
        for number in range(PROMPTS)
    ]


def plant(prompts: list[dict[str, Any]], chosen: list[int], kind: str) -> None:
    value = KINDS[kind].partition(": ")[2]
    for index in chosen:
        match kind:
            case "word":
                prompts[index]["text"] += f" {value}"
            case "topic":
                prompts[index]["tags"] = [value]
            case "language":
                prompts[index]["language"] = value
            case "tool":
                prompts[index]["tools"] = [{"function": {"name": value}}]


def evaluated(
    chance: random.Random, frequencies: Counter[str], kind: str | None, worse: float, better: float
) -> list[Slice]:
    """The slices named in one evaluation. `kind`: of the planted feature; None plants nothing."""
    prompts = draw_prompts(chance, list(frequencies), list(frequencies.values()))
    changes = chance.choices((-1, 1, 0), (worse, better, 1 - worse - better), k=PROMPTS)
    if kind is not None:
        chosen = chance.sample(range(PROMPTS), PLANTED)
        plant(prompts, chosen, kind)
        for index in chosen:
            changes[index] = -1
    return worse_slices([features(CheckPrompt.model_validate(prompt)) for prompt in prompts], changes)


def share(count: int, times: int) -> dict[str, Any]:
    interval = wilson(count, times)
    assert interval is not None
    return {"count": count, "times": times, **interval._asdict()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--times", type=int, default=300)
    options = parser.parse_args()
    figures: dict[str, Any] = circumstances() | {"prompts": PROMPTS, "planted": PLANTED, "seed": SEED}
    frequencies = Counter(WORD.findall((ROOT / "scripts/bench/prompts.txt").read_text().casefold()))
    chance = random.Random(SEED)
    figures["named"], figures["false_alarms"] = [], []
    for kind, feature in KINDS.items():
        for noise in NOISE if kind == "word" else (TYPICAL_NOISE,):
            runs = [evaluated(chance, frequencies, kind, noise, noise) for _ in range(options.times)]
            hits = sum(any(feature in each.features for each in slices) for slices in runs)
            strangers = sum(any(feature not in each.features for each in slices) for slices in runs)
            row = {"kind": kind, "noise": noise, **share(hits, options.times), "another_named_beside": strangers}
            figures["named"].append(row)
            print(row, flush=True)
    for worse, better in [(noise, noise) for noise in NOISE] + [(decline, 0.0) for decline in DECLINE]:
        runs = [evaluated(chance, frequencies, None, worse, better) for _ in range(options.times)]
        row = {"worse": worse, "better": better, **share(sum(map(bool, runs)), options.times)}
        figures["false_alarms"].append(row)
        print(row, flush=True)
    path = ROOT / "benchmarks" / "slice_errors.json"
    path.write_text(json.dumps(figures, indent=1) + "\n")
    print(f"Wrote {path}")


if __name__ == "__main__":
    main()
