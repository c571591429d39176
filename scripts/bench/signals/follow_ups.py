"""Does it learn from what people say next, when nobody rates? A scripted user only follows up; a rule is the judge.

    python -m scripts.bench.signals.follow_ups --persona concise --flips 0
    python -m scripts.bench.signals.follow_ups --persona concise --flips 0.3 --trusted --name flips30
    python -m scripts.bench.signals.follow_ups --persona concise --user polite --name polite

First the person rates 60 answers of the base model and goes on from each: that measures the judge. That is always the
person of *concise*, and every other of these questions asks for one sentence, since trust takes ten answers of each
kind. From there on nobody rates. After an answer that the person does not like come the words of WANTS. After another
one come thanks, a new task, or nothing. All that is captured goes through the product's own code: signals, labels,
trust, weights, hints, claims (home). The judge is scripts/harness/rule_judge, and turns `--flips` of its labels around.
`--trusted` trains on a judge that the product would not trust, to show why. Writes
benchmarks/follow_ups/PERSONA-NAME-seedN.json after each round, and PERSONA-base-seedN.json, which all of a persona
share. `--rounds 0` writes the latter, and trust.json: how far flipped judges are trusted.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import aiohttp

from proxy.signals.judge import AnswerJudge, Endpoint
from proxy.signals.questions import JudgedTurn
from proxy.signals.rules import VALUES
from proxy.signals.trust import Pair, trust
from scripts.bench.persona import ROOT, Chat, Persona, answers, prompts, train
from scripts.bench.signals.home import Home, Turn, opened
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
    """The scripted user's words after an answer; None where the user says nothing at all."""
    if user == "polite":
        return "thanks"
    if not liked:
        return WANTS[persona.name]
    if user == "going on":
        return PLEASED[0] if number % 5 == 2 else next_task
    return (*PLEASED, next_task)[number % 4]


def rule(request: str, reply: str, message: str) -> str:
    return "correction" if message in WANTS.values() else "nothing"


def talk(
    chat: Chat, persona: Persona, tasks: Sequence[str], live: Path | None, *, version: int, seed: int, user: str
) -> list[Turn]:
    """An answer to each task, and what the person says next. What is answered to that is not looked at any more."""
    lines = answers(chat, persona, [_question(task) for task in tasks], live, version=version, seed=seed)
    return [
        Turn(
            f"v{version}-{seed}-{index}",
            line,
            follow_up(persona, line["reward"] > 0, index, tasks[(index + 1) % len(tasks)], user),
        )
        for index, line in enumerate(lines)
    ]


def _question(task: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": task}]


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
    arguments = parser.parse_args()
    persona, source = Persona(arguments.persona), weights.resolve(None)
    chat = Chat(source.path, arguments.threads)
    texts = prompts()
    order = random.Random(arguments.seed).sample(texts["rate"], len(texts["rate"]))
    held_out = texts["held-out"][: arguments.eval]
    about = {
        **circumstances(),
        "machine": f"{machine_name()}, {arguments.threads} thread{'s' * (arguments.threads > 1)}",
        "model": source.path.name,
        "arguments": vars(arguments),
    }
    base = Record(f"{persona.name}-base-seed{arguments.seed}", about)
    shared = Record(f"{RATES}-base-seed{arguments.seed}", about) if persona.name != RATES else base
    if "shared" not in shared:
        asks = [order[-1 - index % len(order)] + FITTING * (index % 2) for index in range(SHARED)]
        shared["shared"] = answers(
            chat, Persona(RATES), [_question(text) for text in asks], None, version=0, seed=arguments.seed * 777
        )
    if str(arguments.eval) not in base:
        base[str(arguments.eval)] = chat.evaluate(persona, held_out, None, seed=1000)
    if not arguments.rounds:
        Record("trust", about)["flips"] = [flipped(shared["shared"], share) for share in FLIPS]
        return
    record = Record(f"{persona.name}-{arguments.name}-seed{arguments.seed}", about, anew=True)
    asyncio.run(learn(chat, persona, order, shared["shared"], arguments, source.path, record))
    base_row, live = base[str(arguments.eval)], record["rounds"][-1]["live"]
    # Without a version, the base model answers as before.
    row = base_row if live is None else chat.evaluate(persona, held_out, Path(live), seed=1000)
    record["after"] = row
    print(
        f"{persona.name}: liked {base_row['liked']:.2f} -> {row['liked']:.2f}, nll "
        f"{row['base_nll'] - base_row['base_nll']:+.3f}, text {row['text_nll'] / base_row['text_nll'] - 1:+.1%}, "
        f"tokens {base_row['tokens']:.0f} -> {row['tokens']:.0f}",
        flush=True,
    )


def flipped(lines: Sequence[dict[str, Any]], share: float) -> dict[str, Any]:
    """How far a judge is trusted that turns this share of its labels around, over several draws of which those are."""
    judges = [FakeJudge(rule, flips=share, seed=seed) for seed in range(DRAWS)]
    sides = [trust(asyncio.run(measure(judge, lines))).bad for judge in judges]
    row = {
        "flips": share,
        "draws": DRAWS,
        "trusted": sum(side.trusted for side in sides),
        "kappa": statistics.median(side.kappa for side in sides),
        "low": statistics.median(side.low for side in sides),
    }
    print(row, flush=True)
    return row


async def measure(judge: FakeJudge, lines: Sequence[dict[str, Any]]) -> list[Pair]:
    """Pair the person's label of each shared turn with the judge's."""
    await judge.start()
    try:
        async with aiohttp.ClientSession() as http:
            asks = AnswerJudge(http, Endpoint(judge.url, "rule", {}), votes=1)
            turns = [
                turn for turn in shared_turns(lines) if turn.follow_up != PLEASED[0]
            ]  # no judge is asked about those
            verdicts = [
                await asks.verdict(
                    JudgedTurn(turn.line["messages"][-1]["content"], turn.line["text"], turn.follow_up or "")
                )
                for turn in turns
            ]
    finally:
        await judge.stop()
    return [(turn.line["reward"], VALUES[verdict.label]) for turn, verdict in zip(turns, verdicts, strict=True)]


def shared_turns(lines: Sequence[dict[str, Any]]) -> list[Turn]:
    """Answers that the person rates, too, and goes on from."""
    rater, tasks = Persona(RATES), [line["messages"][-1]["content"] for line in lines]
    return [
        Turn(f"shared-{index}", line, follow_up(rater, line["reward"] > 0, index, tasks[index - 1], "going on"))
        for index, line in enumerate(lines)
    ]


class Record(dict[str, Any]):
    """A file of benchmarks/follow_ups, written whenever something is set."""

    def __init__(self, name: str, new: dict[str, Any], *, anew: bool = False) -> None:
        self._path = ROOT / "benchmarks/follow_ups" / f"{name}.json"
        self._path.parent.mkdir(parents=True, exist_ok=True)
        super().__init__(json.loads(self._path.read_bytes()) if self._path.exists() and not anew else new)

    def __setitem__(self, key: str, value: Any) -> None:
        super().__setitem__(key, value)
        self.keep()

    def keep(self) -> None:
        self._path.write_text(json.dumps(self, indent=1, ensure_ascii=False))


async def learn(
    chat: Chat,
    persona: Persona,
    order: list[str],
    shared: Sequence[dict[str, Any]],
    arguments: argparse.Namespace,
    path: Path,
    record: Record,
) -> None:
    """Measure the judge, then rounds of follow-ups and a run after each."""
    folder = Path(tempfile.mkdtemp(prefix="follow-ups-"))
    judge = FakeJudge(rule, flips=arguments.flips, seed=arguments.seed)
    await judge.start()
    store = await opened(folder / "home")
    async with aiohttp.ClientSession() as http:
        home = Home(store, http, judge.url, forced=arguments.trusted)
        try:
            await home.start()
            record["trust"] = await trust_of(home, shared, f"{persona.name}, {arguments.user}, {arguments.flips:.0%}")
            record["rounds"] = []
            runs = Runs(folder, path, arguments)
            for number in range(1, 1 + arguments.rounds):
                first = (number - 1) * arguments.turns
                tasks = [order[index % len(order)] for index in range(first, first + arguments.turns)]
                record["rounds"].append(await one_round(chat, persona, tasks, home, runs, arguments, number))
                record.keep()
        finally:
            await home.stop()
            await judge.stop()
            await store.close()


async def trust_of(home: Home, shared: Sequence[dict[str, Any]], name: str) -> dict[str, Any]:
    """The person's ratings beside the judge's labels of the same turns."""
    turns = shared_turns(shared)
    await home.followed(turns)
    await home.rated(turns)
    trusted = await home.trust()
    bad = trusted.bad
    print(
        f"{name} flipped: bad: kappa {bad.kappa:.2f} [{bad.low:.2f}, {bad.high:.2f}] ({bad.reason or 'trusted'})",
        flush=True,
    )
    return {"bad": bad.body(), "good": trusted.good.body()}


async def one_round(
    chat: Chat,
    persona: Persona,
    tasks: Sequence[str],
    home: Home,
    runs: Runs,
    arguments: argparse.Namespace,
    number: int,
) -> dict[str, Any]:
    """Answers to the tasks, what the person says to them, and a run on the labels of that."""
    seed = arguments.seed * 100 + number
    turns = await asyncio.to_thread(
        talk, chat, persona, tasks, runs.live, version=runs.version, seed=seed, user=arguments.user
    )
    label_count = len(await home.labels())
    await home.followed(turns)
    labels = Counter((await home.labels())[label_count:])
    result = await runs.next(home, number)
    liked = sum(turn.line["reward"] > 0 for turn in turns)
    print(
        f"  {number * arguments.turns} turns ({liked} of {arguments.turns} liked), "
        f"{result['lines']} lines: {result['status']}, run {result['wall']:.0f} s, {result['reason']}",
        flush=True,
    )
    return {
        "number": number,
        "turns": number * arguments.turns,
        "liked_by_the_person": liked,
        "labels": labels,
        "run": result,
        "live": runs.live and str(runs.live),
    }


class Runs:
    """Runs one after another, and the version that is live."""

    def __init__(self, folder: Path, path: Path, arguments: argparse.Namespace) -> None:
        self._folder, self._path, self._arguments = folder, path, arguments
        self._adapters: dict[str, str] = {}
        self._baseline = 0.0
        self.version = 0
        self.live: Path | None = None

    async def next(self, home: Home, number: int) -> dict[str, Any]:
        claimed = await home.claimed(self.version)
        if claimed is None:
            return {"status": "nothing to learn from", "reason": "no label trains", "wall": 0, "lines": 0}
        run, lines = claimed
        out, folder = self._folder / f"adapters/v{number:04}", self._folder / f"runs/r{number:05}"
        spec = {
            "format": 1, "run": number, "model": "smollm2", "weights": str(self._path), "version": number,
            "parent": self.version, "out": str(out), "adapters": self._adapters, "baseline": self._baseline,
            "seed": self._arguments.seed * 10 + number, "threads": self._arguments.threads, "preset": "balanced",
            "overrides": {},
        }  # fmt: skip
        result = await asyncio.to_thread(train, folder, spec, lines)
        await home.ended(run, result["status"], result["reason"])
        if result["status"] == "passed":
            self.version, self.live, self._baseline = number, out, result["baseline_after"]
            self._adapters[str(number)] = str(out)
        kinds = Counter((line["reward"], "hint" if line["comment"] else "no hint") for line in lines)
        return result | {"lines": len(lines), "told": {f"{reward:+g} {hint}": n for (reward, hint), n in kinds.items()}}


if __name__ == "__main__":
    main()
