"""Does it learn from what people say next, when nobody rates? A scripted user only follows up; a rule is the judge.

    python -m scripts.bench.signals.follow_ups --persona concise --flips 0
    python -m scripts.bench.signals.follow_ups --persona concise --flips 0.3 --name flips30
    python -m scripts.bench.signals.follow_ups --persona concise --user polite --name polite

First the person rates 60 answers of the base model, and the judge labels what was said after them: that measures the
trust, with the product's own numbers. From there on nobody rates. Labels, weights, hints and the measure of trust are
the product's (proxy.signals); the judge is scripts/harness/rule_judge, and turns `--flips` of its labels
around. Writes benchmarks/follow_ups/PERSONA-NAME-seedN.json after each step; called again, it goes on from there.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import shutil
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import aiohttp

from config import presets
from proxy.signals.judge import AnswerJudge, Endpoint, JudgeVerdict
from proxy.signals.questions import JudgedTurn
from proxy.signals.rules import VALUES, of_message
from proxy.signals.trust import Pair, Trust, trust
from scripts.bench.persona import ROOT, Chat, Persona, prompts, rate, replayed, train
from scripts.harness.circumstances import circumstances, machine_name
from scripts.harness.rule_judge import FakeJudge
from trainer.formats import weights

SHARED = 60  # answers that the person rates before
WANTS = {
    "concise": "shorter, please",
    "bullets": "answer as a short bulleted list, like this:\n- first point\n- second point",
}
PLEASED = ("thanks", "thank you!", None)  # None: nothing is said; else a new task


def follow_up(persona: Persona, liked: bool, number: int, next_task: str, user: str) -> str | None:
    """What the scripted user says after an answer; None: nothing at all."""
    if user == "polite":
        return "thanks"
    if not liked:
        return WANTS[persona.name]
    return (*PLEASED, next_task)[number % 4]


async def labels(judge: FakeJudge, turns: Sequence[JudgedTurn | None]) -> list[JudgeVerdict | None]:
    """As the proxy labels them: by a rule where one suffices, else by the judge."""
    await judge.start()
    try:
        async with aiohttp.ClientSession() as http:
            asks = AnswerJudge(http, Endpoint(judge.url, "rule", {}), votes=1)
            found: list[JudgeVerdict | None] = []
            for turn in turns:
                ruled = None if turn is None else of_message(turn.follow_up, [turn.request])
                if turn is None:
                    found.append(None)
                elif ruled is not None:
                    found.append(JudgeVerdict(ruled.name, "", ruled.why, 0))
                else:
                    found.append(await asks.verdict(turn))
            return found
    finally:
        await judge.stop()


def followed(persona: Persona, lines: Sequence[dict[str, Any]], user: str) -> list[JudgedTurn | None]:
    tasks = [line["messages"][-1]["content"] for line in lines]
    turns: list[JudgedTurn | None] = []
    for at, line in enumerate(lines):
        said = follow_up(persona, line["reward"] > 0, at, tasks[(at + 1) % len(tasks)], user)
        turns.append(None if said is None else JudgedTurn(tasks[at], line["text"], said))
    return turns


def learned_from(
    lines: Sequence[dict[str, Any]], verdicts: Sequence[JudgeVerdict | None], trusted: Trust
) -> list[dict[str, Any]]:
    """The lines of a run: the judge's labels in place of the person's, with its weight."""
    found = []
    for line, verdict in zip(lines, verdicts, strict=True):
        value = 0.0 if verdict is None else VALUES[verdict.label]
        side = trusted.of(value)
        if verdict is None or not value or not side.trusted:
            continue
        hint = verdict.instruction if value < 0 else ""
        found.append(
            {**line, "reward": value, "weight": side.weight, "human": False, "followed": True, "comment": hint or None}
        )
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--persona", default="concise", choices=sorted(WANTS))
    parser.add_argument("--user", default="following", choices=("following", "polite"))
    parser.add_argument("--flips", type=float, default=0.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--turns", type=int, default=32, help="a round")
    parser.add_argument("--eval", type=int, default=80, help="held-out prompts")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--name", default="default")
    asked = parser.parse_args()
    persona, found = Persona(asked.persona), weights.resolve(None)
    chat = Chat(found.path, asked.threads)
    texts = prompts()
    judge = FakeJudge(
        lambda request, reply, said: "correction" if said == WANTS[persona.name] else "nothing",
        flips=asked.flips,
        seed=asked.seed,
    )
    held_out = texts["held-out"][: asked.eval]
    target = ROOT / "benchmarks/follow_ups" / f"{persona.name}-{asked.name}-seed{asked.seed}.json"
    target.parent.mkdir(parents=True, exist_ok=True)
    record: dict[str, Any] = {
        **circumstances(),
        "machine": f"{machine_name()}, {asked.threads} thread{'s' * (asked.threads > 1)}",
        "model": found.path.name,
        "arguments": vars(asked),
        "home": tempfile.mkdtemp(prefix="follow-ups-"),
        "rounds": [],
    }
    if target.exists():
        record = json.loads(target.read_bytes())
    order = random.Random(asked.seed).sample(texts["rate"], len(texts["rate"]))

    def keep() -> None:
        target.write_text(json.dumps(record, indent=1, ensure_ascii=False))

    if "trust" not in record:
        pairs = measure(chat, persona, judge, order, asked)
        measured = trust(pairs)
        record |= {"pairs": pairs, "trust": {"bad": measured.bad.as_json(), "good": measured.good.as_json()}}
        keep()
        print(
            f"{persona.name}, {asked.user}, {asked.flips:.0%} flipped: bad: kappa {measured.bad.kappa:.2f} "
            f"[{measured.bad.low:.2f}, {measured.bad.high:.2f}] ({measured.bad.why or 'trusted'})",
            flush=True,
        )
    trusted = trust([(person, said) for person, said in record["pairs"]])
    for number in range(1 + len(record["rounds"]), 1 + asked.rounds):
        learn(chat, persona, judge, order, asked, trusted, number, found.path, record)
        keep()
    for name, version in (("base", None), ("after", record["rounds"][-1]["live"])):
        if name not in record:
            record[name] = chat.evaluate(persona, held_out, None if version is None else Path(version), seed=1000)
            keep()
    base, after = record["base"], record["after"]
    print(
        f"{persona.name}: liked {base['liked']:.2f} -> {after['liked']:.2f}, nll "
        f"{after['base_nll'] - base['base_nll']:+.3f}, text {after['text_nll'] / base['text_nll'] - 1:+.1%}, tokens "
        f"{base['tokens']:.0f} -> {after['tokens']:.0f}",
        flush=True,
    )


def measure(chat: Chat, persona: Persona, judge: FakeJudge, order: list[str], asked: argparse.Namespace) -> list[Pair]:
    """What the person and the judge say of the turns that they share."""
    texts = [order[-1 - at % len(order)] for at in range(SHARED)]
    lines = rate(chat, persona, texts, None, version=0, seed=asked.seed * 777, held=0, comments=False)
    turns = followed(persona, lines, "following")
    verdicts = asyncio.run(labels(judge, turns))
    return [
        (line["reward"], VALUES[verdict.label])
        for line, verdict in zip(lines, verdicts, strict=True)
        if verdict is not None
    ]


def learn(
    chat: Chat,
    persona: Persona,
    judge: FakeJudge,
    order: list[str],
    asked: argparse.Namespace,
    trusted: Trust,
    number: int,
    path: Path,
    record: dict[str, Any],
) -> None:
    """One round of follow-ups, and a run."""
    home, rounds = Path(record["home"]), record["rounds"]
    preset = presets.resolve("balanced", {})
    passed = [one for one in rounds if one["run"]["status"] == "passed"]
    live = Path(passed[-1]["live"]) if passed else None
    version = passed[-1]["number"] if passed else 0
    first = (number - 1) * asked.turns
    texts = [order[i % len(order)] for i in range(first, first + asked.turns)]
    said = rate(chat, persona, texts, live, version=version, seed=asked.seed * 100 + number, held=0, comments=False)
    verdicts = asyncio.run(labels(judge, followed(persona, said, asked.user)))
    lines = learned_from(said, verdicts, trusted)
    for line in lines:
        line["rating"], line["completion"] = f"rt-{number}-{line['rating']}", f"rl-{number}-{line['completion']}"
    last = passed[-1]["number"] if passed else 0
    waiting = [line for one in rounds if one["number"] > last for line in one["lines"]]
    earlier = [line for one in reversed(rounds) if one["number"] <= last for line in one["lines"]]
    out, folder = home / f"adapters/v{number:04}", home / f"runs/r{number:05}"
    shutil.rmtree(folder, ignore_errors=True)  # of a run that was broken off
    spec = {
        "format": 1, "run": number, "model": "smollm2", "weights": str(path), "version": number, "parent": version,
        "out": str(out), "adapters": {str(one["number"]): one["live"] for one in passed},
        "baseline": passed[-1]["run"]["baseline_after"] if passed else 0.0, "seed": asked.seed * 10 + number,
        "threads": asked.threads, "preset": "balanced", "overrides": {},
    }  # fmt: skip
    result: dict[str, Any] = {"status": "nothing to learn from", "reason": "no label trains", "metrics": {}, "wall": 0}
    if lines + waiting:
        again = replayed(earlier, version, preset, len(lines + waiting))
        result = train(folder, spec, lines + waiting + again)
    rounds.append(
        {
            "number": number,
            "turns": number * asked.turns,
            "liked_by_the_person": sum(line["reward"] > 0 for line in said),
            "labels": Counter("none" if verdict is None else verdict.label for verdict in verdicts),
            "lines": lines,
            "run": result,
            "live": str(out) if result["status"] == "passed" else live and str(live),
        }
    )
    print(
        f"  {number * asked.turns} turns ({rounds[-1]['liked_by_the_person']} of {asked.turns} liked), {len(lines)} "
        f"labels: {result['status']}, run {result['wall']:.0f} s, {result['reason']}",
        flush=True,
    )


if __name__ == "__main__":
    main()
