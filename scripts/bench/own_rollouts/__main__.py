"""Measure what a model learns from answers that rlproxy samples itself: success on held-out tasks of reasoning-gym.

    python -m scripts.bench.own_rollouts --task shortest_path [--arm both] [--rounds 2] [--seed 0] [--weights PATH]

A real `rlproxy serve` with the built-in backend. A round asks each of `--prompts` questions once. Then nobody asks:
rlproxy samples `--size` answers to each, its child process scores them, and a run starts by itself. Held-out questions
are asked before and after, uncaptured. Arms: `outcomes` (the score), `text` (words on what was wrong alone), `both`,
`shuffled` (a control). reasoning-gym comes from the environment of `scripts/harness_env inspect_ai`. Appends to
benchmarks/own_rollouts.json.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any, Final

from scripts.bench.own_rollouts import checker
from scripts.harness.circumstances import circumstances
from scripts.harness.serving import Serving
from trainer.formats.weights import resolve

ROOT: Final = Path(__file__).resolve().parents[3]
TASKS: Final = ("knights_knaves", "shortest_path", "binary_matrix")
ARMS: Final = ("outcomes", "text", "both", "shuffled")
UNCAPTURED: Final = {"x-rl-capture": "off"}
AT_ONCE: Final = 4
ROUND_S: Final = 3600.0


def site_packages() -> str:
    """Where reasoning-gym is."""
    python = subprocess.run(
        [ROOT / "scripts/harness_env", "inspect_ai"], capture_output=True, text=True, check=True
    ).stdout.strip()
    find = "import sysconfig; print(sysconfig.get_paths()['purelib'])"
    return subprocess.run([python, "-c", find], capture_output=True, text=True, check=True).stdout.strip()


def write_checker(folder: Path) -> Path:
    """The file of `train.reward`, with this run's settings in it."""
    source = Path(checker.__file__).read_text().splitlines()
    line = next(index for index, text in enumerate(source) if text.startswith("SETTINGS:"))
    source[line] = f"SETTINGS = {checker.SETTINGS!r}"
    file = folder / "checker.py"
    file.write_text("\n".join(source) + "\n")
    return file


async def ask(serving: Serving, question: str, tokens: int, **headers: str) -> str:
    body = {
        "model": "small", "messages": [{"role": "user", "content": question}], "max_tokens": tokens, "temperature": 1.0,
    }  # fmt: skip
    async with serving.http.post("/v1/chat/completions", json=body, headers=headers) as response:
        answer = await response.json()
        if response.status != 200:
            raise SystemExit(f"{response.status}: {answer}")
        return str(answer["choices"][0]["message"]["content"])


async def success(serving: Serving, dataset: Any, questions: list[Any], tokens: int) -> dict[str, float]:
    """The share of held-out questions that are answered right, and the mean score."""
    gate = asyncio.Semaphore(AT_ONCE)

    async def scored(entry: Any) -> float:
        async with gate:
            text = await ask(serving, entry["question"], tokens, **UNCAPTURED)
        return checker.score(dataset, entry, text)

    scores = await asyncio.gather(*map(scored, questions))
    return {"right": sum(value == 1 for value in scores) / len(scores), "score": sum(scores) / len(scores)}


async def until_run(serving: Serving, last_id: int) -> dict[str, Any]:
    """The next run once it has ended."""
    async with asyncio.timeout(ROUND_S):
        while True:
            status = await serving.status()
            run = status["last_run"]
            if run is not None and run["id"] > last_id and run["ended_at"] and status["training"]["run"] is None:
                return {"run": run, "rollouts": status["rollouts"], "episodes": status["episodes"]}
            await asyncio.sleep(2.0)


async def measure(args: argparse.Namespace, folder: Path) -> dict[str, Any]:
    trained = args.prompts * args.rounds
    checker.SETTINGS |= {"task": args.task, "seed": args.seed, "count": trained + args.held, "arm": args.arm}
    checker.SETTINGS["path"] = site_packages()
    dataset, by_question = checker.entries()
    entries = list(by_question.values())
    serving = Serving(
        folder / "home",
        args.weights or resolve().path,
        RLPROXY_TRAIN__REWARD=f"{write_checker(folder)}:reward",
        RLPROXY_TRAIN__REWARD_TIMEOUT_S="120",
        RLPROXY_TRAIN__REWARD_MEMORY_MB="4096",
        RLPROXY_TRAIN__ROLLOUTS=str(args.size),
        RLPROXY_TRAIN__ROLLOUT_MINUTES="1440",
        RLPROXY_TRAIN__ROLLOUT_TOKENS="10000000",
        RLPROXY_TRAIN__QUIET_S="2",
        RLPROXY_TRAIN__START_AT_EPISODES=str(args.prompts * args.size),
        RLPROXY_TRAIN__GROUP_TIMEOUT_S="30",
        **({"RLPROXY_TRAIN__OVERRIDES__OBJECTIVE": "distill"} if args.arm == "text" else {}),
    )
    serving.home.mkdir()
    await serving.start()
    rounds: list[dict[str, Any]] = []
    try:
        held_out = entries[trained:]
        base = await success(serving, dataset, held_out, args.tokens)
        print(json.dumps({"before": base}), flush=True)
        for number in range(args.rounds):
            began, last = time.monotonic(), rounds[-1]["run"]["id"] if rounds else 0
            for entry in entries[number * args.prompts : (number + 1) * args.prompts]:
                await ask(serving, entry["question"], args.tokens)
            outcome = await until_run(serving, last)
            outcome["seconds"] = round(time.monotonic() - began, 1)
            outcome["after"] = await success(serving, dataset, held_out, args.tokens)
            rounds.append(outcome)
            print(json.dumps({key: outcome[key] for key in ("after", "rollouts", "seconds")}), flush=True)
    finally:
        await serving.stop()
    return {"before": base, "rounds": rounds}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", choices=TASKS, default=TASKS[0])
    parser.add_argument("--arm", choices=ARMS, default="both")
    parser.add_argument("--prompts", type=int, default=8, help="of a round")
    parser.add_argument("--size", type=int, default=8, help="answers to each")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--held", type=int, default=40)
    parser.add_argument("--tokens", type=int, default=32, help="of an answer")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--weights", type=Path)
    parser.add_argument("--json", type=Path, default=ROOT / "benchmarks/own_rollouts.json")
    args = parser.parse_args()
    arguments = {key: value for key, value in vars(args).items() if key not in ("json", "weights")}
    row = {**circumstances(), **arguments, "weights": str(args.weights or "default")}
    with tempfile.TemporaryDirectory() as folder:
        row |= asyncio.run(measure(args, Path(folder)))
    rows = json.loads(args.json.read_text()) if args.json.exists() else []
    args.json.write_text(json.dumps([*rows, row], indent=1) + "\n")


if __name__ == "__main__":
    main()
