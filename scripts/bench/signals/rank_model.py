"""How well does a real model rank? Two answers to each question, of which one is plainly better.

    python -m scripts.bench.signals.rank_model --url http://127.0.0.1:8000 --model qwen

Sums: a right answer beside a wrong one. Topic: an answer beside one to another question. The questions, both orders,
and what counts as a pair are the product's. Writes benchmarks/judge_model/MODEL-ranking.json.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import re
from collections import Counter
from typing import Any, Final

import aiohttp

from proxy.signals import ranking
from proxy.signals.judge import AnswerJudge, Endpoint
from scripts.bench.persona import ROOT, prompts
from scripts.bench.signals.judge_model import PAIRS
from scripts.harness.circumstances import circumstances, machine_name
from store.learning.judged_pairs import RankedGroup

GROUPS: Final = 40  # of each kind
NUMBER: Final = re.compile(r"\d+")
BETTER, WORSE = "better", "worse"  # ids of the two answers
NO_PAIR: Final = "no pair"


def sums(dice: random.Random) -> list[RankedGroup]:
    groups = []
    for question in prompts()["held-out sums"][:GROUPS]:
        total = sum(map(int, NUMBER.findall(question)))
        wrong = total + dice.choice([-3, -2, -1, 1, 2, 3])
        groups.append(_group(question, f"The sum is {total}.", f"The sum is {wrong}.", dice))
    return groups


def topics(dice: random.Random) -> list[RankedGroup]:
    """Answers that people were content with, each beside the answer to the question before it."""
    turns = [json.loads(line) for line in PAIRS.read_text(encoding="utf-8").splitlines()]
    content = [turn for turn in turns if turn["label"] in ("solved", "nothing")][:GROUPS]
    return [
        _group(turn["request"], turn["reply"], content[place - 1]["reply"], dice)
        for place, turn in enumerate(content)
        if turn["reply"] != content[place - 1]["reply"]
    ]


def _group(question: str, better: str, worse: str, dice: random.Random) -> RankedGroup:
    answers = [(BETTER, better), (WORSE, worse)]
    dice.shuffle(answers)
    return RankedGroup(question, tuple(answers))


async def rank_all(url: str, model: str, groups: list[RankedGroup], dice: random.Random) -> tuple[Counter[str], int]:
    """How many groups gave each outcome, and the tokens that asking cost."""
    outcomes, tokens = Counter[str](), 0
    async with aiohttp.ClientSession() as http:
        judge = AnswerJudge(http, Endpoint(url, model, {}), votes=1)
        for group in groups:
            # The product shuffles by the ids; here those say which answer is better.
            neutral = {id: f"{dice.random():.6f}" for id, _ in group.answers}
            masked = group._replace(answers=tuple((neutral[id], text) for id, text in group.answers))
            ranked = await ranking.rank(judge, masked, keep=str)
            tokens += ranked.tokens
            best = ranked.pairs[0][0] if ranked.pairs else None
            winner = next((id for id, masked_id in neutral.items() if masked_id == best), None)
            outcomes[winner or f"{NO_PAIR}: {ranked.reason}"] += 1
            print(f"{sum(outcomes.values())} of {len(groups)}: {winner or ranked.reason}", flush=True)
    return outcomes, tokens


def row(outcomes: Counter[str], tokens: int) -> dict[str, Any]:
    """Agreement with the plain truth among the groups that made a pair. Kappa is 2 · right − 1: either answer is the
    better one as often."""
    pairs = outcomes[BETTER] + outcomes[WORSE]
    right = outcomes[BETTER] / pairs if pairs else None
    return {
        "outcomes": outcomes,
        "pairs": pairs,
        "right": right,
        "kappa": None if right is None else 2 * right - 1,
        "tokens": tokens,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", required=True, help="an OpenAI-compatible server")
    parser.add_argument("--model", required=True)
    arguments = parser.parse_args()
    dice = random.Random(1)
    record: dict[str, Any] = {**circumstances(), "machine": machine_name(), "model": arguments.model}
    for kind, groups in (("sums", sums(dice)), ("topic", topics(dice))):
        record[kind] = row(*asyncio.run(rank_all(arguments.url, arguments.model, groups, dice)))
        print(f"{kind}: {record[kind]}", flush=True)
    target = ROOT / "benchmarks/judge_model" / f"{arguments.model}-ranking.json"
    target.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
