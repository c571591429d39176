"""Does it learn from what people say next, when nobody rates? A scripted user only follows up; a rule is the judge.

    python -m scripts.bench.signals.follow_ups --persona concise --flips 0
    python -m scripts.bench.signals.follow_ups --persona concise --flips 0.3 --name flips30
    python -m scripts.bench.signals.follow_ups --persona concise --user polite --name polite

First the person rates 60 answers of the base model, and the judge labels what was said after them: that measures the
trust, with the product's own numbers. That is always the person of *concise*, and every other of these questions asks
for one sentence, since trust takes ten answers of each kind. From there on nobody rates. Labels, weights, hints and the
measure of trust are the product's (proxy.signals); the judge is scripts/harness/rule_judge, and turns `--flips` of its
labels around. `--trusted` trains on a judge that the product would not trust, to show why. Writes
benchmarks/follow_ups/PERSONA-NAME-seedN.json after each step, and PERSONA-base-seedN.json, which all of a persona
share. `--rounds 0` writes the latter, and trust.json: how far flipped judges are trusted. Called again, it goes on.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import shutil
import statistics
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
from proxy.signals.trust import MOST_WEIGHT, Pair, Trust, trust
from scripts.bench.persona import ROOT, Chat, Persona, prompts, rate, replayed, train
from scripts.harness.circumstances import circumstances, machine_name
from scripts.harness.rule_judge import FakeJudge
from trainer.formats import weights

SHARED = 60  # answers that the person rates before
WANTS = {
    "concise": "shorter, please",
    "bullets": "answer as a short bulleted list, like this:\n- first point\n- second point",
}
FLIPS, DRAWS = (0.0, 0.1, 0.2, 0.3), 20
RATES, FITTING = "concise", " Answer in one short sentence."
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


def weights_of(trusted: Trust, forced: bool) -> dict[str, float]:
    """What a label of each side weighs in training; nothing where it is not trusted, unless that is forced."""
    weights = {side.side: side.weight if side.trusted else 0.0 for side in trusted}
    return {side: weight or MOST_WEIGHT * forced for side, weight in weights.items()}


def learned_from(
    lines: Sequence[dict[str, Any]], verdicts: Sequence[JudgeVerdict | None], weigh: dict[str, float]
) -> list[dict[str, Any]]:
    """The lines of a run: the judge's labels in place of the person's, with its weight."""
    found = []
    for line, verdict in zip(lines, verdicts, strict=True):
        value = 0.0 if verdict is None else VALUES[verdict.label]
        weight = weigh["bad" if value < 0 else "good"]
        if verdict is None or not value or not weight:
            continue
        hint = verdict.instruction if value < 0 else ""
        found.append(
            {**line, "reward": value, "weight": weight, "human": False, "followed": True, "comment": hint or None}
        )
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--persona", default="concise", choices=sorted(WANTS))
    parser.add_argument("--user", default="following", choices=("following", "polite"))
    parser.add_argument("--flips", type=float, default=0.0)
    parser.add_argument("--trusted", action="store_true", help="train on the judge's labels in any case")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=3, help="0: what all of a persona share, and the trust")
    parser.add_argument("--turns", type=int, default=32, help="a round")
    parser.add_argument("--eval", type=int, default=40, help="held-out prompts")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--name", default="default")
    asked = parser.parse_args()
    persona, found = Persona(asked.persona), weights.resolve(None)
    chat = Chat(found.path, asked.threads)
    texts = prompts()
    order = random.Random(asked.seed).sample(texts["rate"], len(texts["rate"]))
    held_out = texts["held-out"][: asked.eval]
    here = {
        **circumstances(),
        "machine": f"{machine_name()}, {asked.threads} thread{'s' * (asked.threads > 1)}",
        "model": found.path.name,
        "arguments": vars(asked),
    }
    base = Record(f"{persona.name}-base-seed{asked.seed}", here)
    shared = Record(f"{RATES}-base-seed{asked.seed}", here) if persona.name != RATES else base
    if "shared" not in shared:
        asks = [order[-1 - at % len(order)] + FITTING * (at % 2) for at in range(SHARED)]
        rater, seed = Persona(RATES), asked.seed * 777
        shared["shared"] = rate(chat, rater, asks, None, version=0, seed=seed, held=0, comments=False)
    if str(asked.eval) not in base:
        base[str(asked.eval)] = chat.evaluate(persona, held_out, None, seed=1000)
    if not asked.rounds:
        Record("trust", here)["flips"] = [flipped(shared["shared"], share) for share in FLIPS]
        return
    record = Record(f"{persona.name}-{asked.name}-seed{asked.seed}", here)
    judge = FakeJudge(
        lambda request, reply, said: "correction" if said in WANTS.values() else "nothing",
        flips=asked.flips,
        seed=asked.seed,
    )
    trusted = trust(measure(Persona(RATES), judge, shared["shared"]))
    record["trust"] = {"bad": trusted.bad.as_json(), "good": trusted.good.as_json()}
    bad = trusted.bad
    print(
        f"{persona.name}, {asked.user}, {asked.flips:.0%} flipped: bad: kappa {bad.kappa:.2f} "
        f"[{bad.low:.2f}, {bad.high:.2f}] ({bad.why or 'trusted'})",
        flush=True,
    )
    record.setdefault("home", tempfile.mkdtemp(prefix="follow-ups-"))
    record.setdefault("rounds", [])
    for number in range(1 + len(record["rounds"]), 1 + asked.rounds):
        learn(chat, persona, judge, order, asked, weights_of(trusted, asked.trusted), number, found.path, record)
        record.keep()
    before, live = base[str(asked.eval)], record["rounds"][-1]["live"]
    if "after" not in record:  # without a version, the base model answers as before
        record["after"] = before if live is None else chat.evaluate(persona, held_out, Path(live), seed=1000)
    after = record["after"]
    print(
        f"{persona.name}: liked {before['liked']:.2f} -> {after['liked']:.2f}, nll "
        f"{after['base_nll'] - before['base_nll']:+.3f}, text {after['text_nll'] / before['text_nll'] - 1:+.1%}, "
        f"tokens {before['tokens']:.0f} -> {after['tokens']:.0f}",
        flush=True,
    )


def flipped(lines: Sequence[dict[str, Any]], share: float) -> dict[str, Any]:
    """How far a judge is trusted that turns this share of its labels around, over several draws of which those are."""

    def rule(request: str, reply: str, said: str) -> str:
        return "correction" if said in WANTS.values() else "nothing"

    judges = [FakeJudge(rule, flips=share, seed=seed) for seed in range(DRAWS)]
    found = [trust(measure(Persona(RATES), judge, lines)).bad for judge in judges]
    row = {
        "flips": share,
        "draws": DRAWS,
        "trusted": sum(one.trusted for one in found),
        "kappa": statistics.median(one.kappa for one in found),
        "low": statistics.median(one.low for one in found),
    }
    print(row, flush=True)
    return row


class Record(dict[str, Any]):
    """A file of benchmarks/follow_ups, written whenever something is set: what was broken off goes on."""

    def __init__(self, name: str, new: dict[str, Any]) -> None:
        self._path = ROOT / "benchmarks/follow_ups" / f"{name}.json"
        self._path.parent.mkdir(parents=True, exist_ok=True)
        super().__init__(json.loads(self._path.read_bytes()) if self._path.exists() else new)

    def __setitem__(self, key: str, value: Any) -> None:
        super().__setitem__(key, value)
        self.keep()

    def keep(self) -> None:
        self._path.write_text(json.dumps(self, indent=1, ensure_ascii=False))


def measure(persona: Persona, judge: FakeJudge, lines: Sequence[dict[str, Any]]) -> list[Pair]:
    """What the person and the judge say of the turns that they share."""
    verdicts = asyncio.run(labels(judge, followed(persona, lines, "following")))
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
    weigh: dict[str, float],
    number: int,
    path: Path,
    record: Record,
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
    lines = learned_from(said, verdicts, weigh)
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
