"""Five tastes in sequence: how well is each learned, and what is left of it when the last was?

    python -m scripts.bench.retention                                   # five tastes, two rounds of 32 thumbs each
    python -m scripts.bench.retention --alone                           # each of them from the base
    python -m scripts.bench.retention --set learning_rate=5e-4 --name slow

After every run all tastes rate the version's replies to the same held-out prompts; sums stand for ordinary ability
until they are taught. Writes benchmarks/retention/NAME-seedN.json after every run. Killed, the same command goes on.
"""

from __future__ import annotations

import argparse
import json
import shutil
import time
from pathlib import Path
from typing import Any, Final

from scripts.bench.persona import ROOT, Chat, Persona
from scripts.bench.retention import table
from scripts.bench.retention.course import Course, Plan
from scripts.bench.retention.shares import Examiner
from scripts.bench.version_line import overrides_of
from scripts.harness.circumstances import circumstances, machine_name
from trainer.formats import weights

SEQUENCE: Final = "sequence"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--tastes",
        default="one_paragraph,second_person,short_sentences,concise,sums",
        help="names in scripts/bench/personas, or Python files, in this order",
    )
    parser.add_argument("--rounds", type=int, default=2, help="of each taste")
    parser.add_argument("--ratings", type=int, default=32, help="a round")
    parser.add_argument("--alone", action="store_true", help="each taste but the first from the base instead")
    parser.add_argument("--seeds", default="1")
    parser.add_argument("--eval", type=int, default=40, help="held-out prompts")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--weights", help="a folder or a hub id instead of the small model")
    parser.add_argument("--preset", default="balanced")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="override a preset value")
    parser.add_argument("--name", default="plain")
    parser.add_argument("--keep", action="store_true", help="the versions, in the cache, when all is measured")
    arguments = parser.parse_args()
    source = weights.resolve(arguments.weights)
    tastes = [Persona(spec) for spec in arguments.tastes.split(",")]
    chat = Chat(source.path, arguments.threads)
    examiner = Examiner(chat, tastes, arguments.eval)
    base = examiner.examine(None)
    print(f"base: {liked(base)}", flush=True)
    for seed in map(int, arguments.seeds.split(",")):
        measure(chat, examiner, tastes, arguments, seed, base)


def measure(
    chat: Chat,
    examiner: Examiner,
    tastes: list[Persona],
    arguments: argparse.Namespace,
    seed: int,
    base: dict[str, Any],
) -> None:
    """One seed: the sequence, or each further taste alone, beside what the record already holds."""
    target = ROOT / "benchmarks/retention" / f"{arguments.name}-seed{seed}.json"
    record = opened(target, chat, seed, base)
    home = weights.cache_folder() / "bench/retention" / f"{target.stem}-{chat.weights.name}"
    overrides = overrides_of(arguments.set)
    plan = Plan(seed, arguments.rounds, arguments.ratings, arguments.threads, arguments.preset, overrides)
    about = {
        **circumstances(),
        "machine": f"{machine_name()}, {arguments.threads} thread{'s' * (arguments.threads > 1)}",
        "arguments": vars(arguments),
    }
    parts = {taste.name: [taste] for taste in tastes[1:]} if arguments.alone else {SEQUENCE: tastes}
    courses = {
        name: Course(chat, examiner, part, plan, home / name, about, skipped=tastes.index(part[0]))
        for name, part in parts.items()
    }
    start, count = time.monotonic(), 0
    for name, course in courses.items():
        print(f"seed {seed}, {name}:", flush=True)
        for round_ in course.go_on():
            count += 1
            remaining = sum(each.remaining for each in courses.values())
            minutes = (time.monotonic() - start) / count * remaining / 60
            print(f"  {line(round_)}; {remaining} runs remain, {minutes:.0f} minutes", flush=True)
            record["courses"][name] = course.record
            target.write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n")
    print(report(record, [taste.name for taste in tastes], arguments.rounds), flush=True)
    if not arguments.keep:
        shutil.rmtree(home)


def opened(target: Path, chat: Chat, seed: int, base: dict[str, Any]) -> dict[str, Any]:
    """The record so far: the sequence and the tastes alone are measured by two commands."""
    courses = {}
    if target.exists():
        previous = json.loads(target.read_bytes())
        if list(previous["base"]["liked"]) != list(base["liked"]):
            raise SystemExit(f"{target} holds other tastes: give another --name, or move it away.")
        courses = previous["courses"]
    target.parent.mkdir(parents=True, exist_ok=True)
    return {"model": chat.weights.name, "seed": seed, "base": base, "courses": courses}


def line(round_: dict[str, Any]) -> str:
    run = round_["run"]
    return (
        f"{round_['taste']} ({round_['good']} good): {run['status']}, {liked(round_['marks'])}, "
        f"base nll {table.sense(run)}, pushed {table.pushed(run)}, "
        f"rated in {round_['rating_seconds']:.0f} s, run {run['wall']:.0f} s, "
        f"examined in {round_['marks']['seconds']:.0f} s, {run['reason']}"
    )


def liked(marks: dict[str, Any]) -> str:
    return ", ".join(f"{taste} {share:.2f}" for taste, share in marks["liked"].items())


def report(record: dict[str, Any], tastes: list[str], rounds: int) -> str:
    """Both tables; nothing of a sequence that was not run."""
    courses = {name: course["rounds"] for name, course in record["courses"].items()}
    base = record["base"]["liked"]
    if SEQUENCE not in courses:
        return "The sequence is not measured yet."
    sequence = courses.pop(SEQUENCE)
    return f"\n{table.history(base, sequence)}\n\n{table.markdown(table.rows(tastes, rounds, base, sequence, courses))}"


if __name__ == "__main__":
    main()
