"""How well does a real model judge? The small model behind a real server, on the 60 labelled pairs of the tests.

    python -m scripts.bench.signals.judge_model
    python -m scripts.bench.signals.judge_model --url http://127.0.0.1:8000 --model Qwen3.5-9B

Writes benchmarks/judge_model/MODEL-VOTES.json. Questions, the reading of answers and kappa are the
product's. Answers of the small model are cut after 48 tokens, since it rambles; another model may take as many as the
product lets it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import aiohttp

from proxy.signals import judge as module
from proxy.signals.judge import AnswerJudge, Endpoint, JudgeVerdict
from proxy.signals.questions import JudgedTurn
from proxy.signals.rules import VALUES
from proxy.signals.trust import interval, kappa
from scripts.bench.persona import ROOT
from scripts.harness.circumstances import circumstances, machine_name

PAIRS = ROOT / "tests/proxy/signals/pairs.jsonl"
SHORT = 48  # tokens


@contextmanager
def small_model() -> Iterator[str]:
    """The built-in backend, at its address."""
    command = [sys.executable, "-P", "-m", "trainer.serve", "--name", "smollm2", "--watch-stdin"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT) as server:
        assert server.stdout is not None and server.stdin is not None
        try:
            yield str(json.loads(server.stdout.readline())["url"])
        finally:
            server.stdin.close()


async def verdicts(url: str, model: str, pairs: list[dict[str, str]], votes: int) -> list[JudgeVerdict]:
    async with aiohttp.ClientSession() as http:
        judge = AnswerJudge(http, Endpoint(url, model, {}), votes)
        results = []
        for pair in pairs:
            results.append(await judge.verdict(JudgedTurn(pair["request"], pair["reply"], pair["follow_up"])))
            print(
                f"{len(results)} of {len(pairs)}: {pair['label']} -> {results[-1].label} ({results[-1].reason})",
                flush=True,
            )
        return results


def side(pairs: list[dict[str, str]], results: list[JudgeVerdict], sign: float) -> dict[str, Any]:
    """Agreement with the labels on one side: bad (-1) or good (1)."""
    outcomes = [
        (VALUES[p["label"]] * sign > 0, VALUES[v.label] * sign > 0) for p, v in zip(pairs, results, strict=True)
    ]
    cells = tuple(outcomes.count(cell) for cell in ((True, True), (True, False), (False, True), (False, False)))
    return {
        "both": cells[0],
        "missed": cells[1],
        "invented": cells[2],
        "neither": cells[3],
        "kappa": kappa(cells),
        "interval": interval(cells),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", help="an OpenAI-compatible server; without it the small model is started")
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--votes", type=int, default=1)
    arguments = parser.parse_args()
    pairs = [json.loads(line) for line in PAIRS.read_text(encoding="utf-8").splitlines()]
    if arguments.url:
        results = asyncio.run(verdicts(arguments.url, arguments.model, pairs, arguments.votes))
    else:
        module.MOST_TOKENS = SHORT  # type: ignore[misc]
        with small_model() as url:
            results = asyncio.run(verdicts(url, arguments.model, pairs, arguments.votes))
    record = {
        **circumstances(),
        "machine": machine_name(),
        "model": arguments.model,
        "votes": arguments.votes,
        "pairs": len(pairs),
        "labels": Counter(verdict.label for verdict in results),
        "why": Counter(verdict.reason for verdict in results),
        "verdicts": [
            {"label": pair["label"], "verdict": verdict.label, "reason": verdict.reason}
            for pair, verdict in zip(pairs, results, strict=True)
        ],
        "tokens": sum(verdict.tokens for verdict in results),
        "bad": side(pairs, results, -1),
        "good": side(pairs, results, 1),
    }
    target = ROOT / "benchmarks/judge_model" / f"{arguments.model}-{arguments.votes}.json"
    target.parent.mkdir(exist_ok=True)
    target.write_text(json.dumps(record, indent=1) + "\n")
    print(json.dumps(record, indent=1))


if __name__ == "__main__":
    main()
