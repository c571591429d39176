"""Measure how long a person waits during rollouts, with the queue of `backend.episodes_at_once` and without it.

    python -m scripts.bench.rollouts [--clients 64] [--answers 8] [--turns 2] [--tokens 16] [--json FILE]

A real `rlproxy serve` with the built-in backend runs three times. The person asks alone, then beside the clients with
the default setting, then beside them with room for all at the backend. Each client plays one episode after the other,
of turns that resend their history. Nothing trains. Writes benchmarks/rollouts.json: compare the figures of one file.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final

from scripts.harness.circumstances import circumstances
from scripts.harness.serving import Serving
from trainer.formats.weights import resolve

ROOT: Final = Path(__file__).resolve().parents[2]
ALL: Final = 100_000
PAUSE_S: Final = 1.0  # in which a person reads
NEVER: Final = {"RLPROXY_TRAIN__ENABLED": "false"}


class Rollouts:
    def __init__(self, serving: Serving, turns: int, tokens: int) -> None:
        self._serving, self._turns, self._tokens = serving, turns, tokens
        self._numbers = itertools.count()
        self.turns = 0  # that were answered

    async def play(self) -> None:
        """One episode after the other, until cancelled."""
        while True:
            id = f"ep-{next(self._numbers)}"
            async with self._serving.http.post("/rl/episodes", json={"id": id}, raise_for_status=True):
                pass
            texts = [f"Task {id}: tell me a story."]
            for _ in range(self._turns):
                answer = await ask(self._serving, texts, self._tokens, {"x-rl-session": id})
                texts += [answer, "Go on."]
                self.turns += 1
            async with self._serving.http.post(f"/rl/episodes/{id}/reward", json={"reward": 1}, raise_for_status=True):
                pass


async def ask(serving: Serving, texts: list[str], tokens: int, headers: dict[str, str]) -> str:
    """The answer, which has as many tokens whatever the model thinks of it."""
    messages = [{"role": "assistant" if index % 2 else "user", "content": text} for index, text in enumerate(texts)]
    body = {"model": "small", "messages": messages, "max_tokens": tokens, "ignore_eos": True}
    async with serving.http.post("/v1/chat/completions", json=body, headers=headers) as response:
        answer = await response.json()
        if response.status != 200:
            raise SystemExit(f"{response.status}: {answer}")
        return str(answer["choices"][0]["message"]["content"])


async def person(serving: Serving, answers: int, tokens: int) -> list[float]:
    """Seconds of each answer, the first left out: it may wait for what only a first request costs."""
    seconds = []
    for number in range(answers + 1):
        began = time.perf_counter()
        await ask(serving, [f"{number}. Why is the sky blue?"], tokens, {})
        seconds.append(round(time.perf_counter() - began, 3))
        await asyncio.sleep(PAUSE_S)
    return seconds[1:]


async def phase(args: argparse.Namespace, folder: Path, name: str, clients: int, at_once: int) -> dict[str, Any]:
    serving = Serving(folder / name, args.weights, **NEVER, RLPROXY_BACKEND__EPISODES_AT_ONCE=str(at_once))
    serving.home.mkdir()
    await serving.start()
    rollouts = Rollouts(serving, args.turns, args.tokens)
    playing = [asyncio.create_task(rollouts.play()) for _ in range(clients)]
    try:
        await person(serving, 0, args.tokens)
        began, turns_before = time.perf_counter(), rollouts.turns
        seconds = await person(serving, args.answers, args.tokens)
        episodes = (await serving.status())["episodes"]
        rate = (rollouts.turns - turns_before) / (time.perf_counter() - began)
        broken = [task.exception() for task in playing if task.done()]
        if broken:
            raise SystemExit(f"{name}: {broken[0]!r}")
    finally:
        for task in playing:
            task.cancel()
        await asyncio.gather(*playing, return_exceptions=True)
        await serving.stop()
    figures: dict[str, Any] = {"name": name, "answers_s": seconds, "median_s": round(statistics.median(seconds), 3)}
    if clients:
        figures |= {"turns_a_second": round(rate, 2), "requests": episodes["requests"]}
    print(json.dumps(figures), flush=True)
    return figures


async def measured(args: argparse.Namespace, folder: Path) -> list[dict[str, Any]]:
    return [
        await phase(args, folder, "alone", 0, 0),
        await phase(args, folder, "queue", args.clients, 0),
        await phase(args, folder, "no-queue", args.clients, ALL),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--answers", type=int, default=8, help="of the person, in each of the three")
    parser.add_argument("--turns", type=int, default=2, help="of an episode")
    parser.add_argument("--tokens", type=int, default=16, help="of each answer")
    parser.add_argument("--weights", type=Path)
    parser.add_argument("--json", type=Path, default=ROOT / "benchmarks/rollouts.json")
    args = parser.parse_args()
    args.weights = args.weights or resolve(None).path
    settings = {name: getattr(args, name) for name in ("clients", "answers", "turns", "tokens")}
    about = circumstances() | {"what": settings, "threads": os.environ.get("OMP_NUM_THREADS")}
    with tempfile.TemporaryDirectory(prefix="rlproxy-rollouts-") as folder:
        phases = asyncio.run(measured(args, Path(folder)))
    args.json.write_text(json.dumps(about | {"phases": phases}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
