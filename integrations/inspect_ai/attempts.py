"""Rounds of tasks through inspect_ai and rlproxy: attempts in groups, then a held-out look.

Runs in an environment with inspect-ai, reasoning-gym and openai (scripts/harness_env). Prints a line of JSON for each
round. `--shuffle` deals a round's rewards out at random: a control, which must not rise.
"""

import argparse
import json
import logging
import os
import random
import sys
import time
import urllib.request

from inspect_ai import Task, eval
from inspect_ai.dataset import MemoryDataset
from inspect_ai.model import GenerateConfig, get_model
from tasks import TASKS, asked, reward, samples

logging.disable(logging.WARNING)
NOTHING_S = 5.0  # without an episode that could train: no run comes


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--url", required=True)
    parser.add_argument("--model", default="small")
    parser.add_argument("--task", choices=TASKS, default="chain_sum")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--prompts", type=int, default=16, help="of a round; each is a group")
    parser.add_argument("--members", type=int, default=8)
    parser.add_argument("--held-out", type=int, default=48, help="prompts, each asked twice")
    parser.add_argument("--tokens", type=int, help="of a turn; else the task's own")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--done", type=int, help="rounds that were made before, by the same rlproxy")
    parser.add_argument("--shuffle", action="store_true")
    args = parser.parse_args()
    os.environ |= {"RLPROXY_URL": args.url, "RLPROXY_BASE_URL": f"{args.url}/v1", "RLPROXY_API_KEY": "none"}
    import rlproxy_hook

    hook = rlproxy_hook.RLProxy
    if args.shuffle:
        hook.reward = later
    held = samples(args.task, args.held_out, 1000 + args.seed)
    seen = frozenset(map(asked, held))
    tokens = args.tokens or TASKS[args.task].tokens
    model = get_model(f"openai-api/rlproxy/{args.model}", config=GenerateConfig(temperature=1.0, max_tokens=tokens))
    if args.done is None:
        say(round=0, episodes=0, **look(model, held, args))
    for at in range(1 + (args.done or 0), args.rounds + 1):
        began, runs = time.time(), ended(args.url)
        tasks = samples(args.task, args.prompts, 10_000 * (1 + args.seed) + at, seen)
        os.environ["RLPROXY_SPLIT"] = "train"
        marks = attempt(model, tasks, args.members, args)
        if args.shuffle:
            deal(args.seed + at)
        asked_s = time.time() - began
        run = wait(args.url, runs)
        trained_s = time.time() - began - asked_s
        gate = {name: check.get("value") for name, check in (run["gate"] or {}).items()}
        say(
            round=at, episodes=at * args.prompts * args.members, success=first(marks), marks=marks,
            asked_s=round(asked_s, 1), trained_s=round(trained_s, 1), run=run["id"], status=run["status"],
            reason=run["reason"], base_nll=gate.get("base_nll"), metrics=run["metrics"] or {},
            **look(model, held, args),
        )  # fmt: skip


def attempt(model, tasks, epochs, args) -> dict[str, float]:
    """Shares of attempts that did right what the task marks."""
    log = eval(
        Task(dataset=MemoryDataset(tasks), solver=TASKS[args.task].solver(), scorer=reward(args.task)),
        model=model, epochs=epochs, max_connections=16, max_samples=16, display="none", log_level="error",
    )[0]  # fmt: skip
    errors = [s.error.message for s in log.samples or [] if s.error]
    if len(errors) == len(log.samples or []):
        raise SystemExit(f"No attempt could be made: {errors[0] if errors else log.error}")
    marks = [s.scores["reward"].metadata for s in log.samples or [] if s.scores]
    return {name: round(sum(one[name] for one in marks) / len(marks), 4) for name in marks[0]}


def first(marks: dict[str, float]) -> float:
    """Success: the first mark of a task."""
    return next(iter(marks.values()))


def look(model, held, args) -> dict[str, object]:
    """Success on held-out questions by what is live now; these episodes never train."""
    os.environ["RLPROXY_SPLIT"] = "eval"
    status = get(args.url, "/rl/status")
    marks = attempt(model, held, 2, args)
    return {"live": status["live"], "held_out": first(marks), "held_marks": marks, "left_out": left(status)}


def left(status) -> dict[str, int]:
    return (status["episodes"] or {}).get("left_out", {})


HELD_BACK: list[tuple[object, str, dict[str, object]]] = []


def later(hook, episode: str, said: dict[str, object]) -> None:
    """In place of posting a reward: kept until the round is over."""
    HELD_BACK.append((hook, episode, said))


def deal(seed: int) -> None:
    import rlproxy_hook

    rewards = [said["reward"] for _, _, said in HELD_BACK]
    random.Random(seed).shuffle(rewards)
    for (_, episode, said), dealt in zip(HELD_BACK, rewards, strict=True):
        rlproxy_hook.post(f"/rl/episodes/{episode}/reward", {**said, "reward": dealt})
    HELD_BACK.clear()


def wait(url: str, before: int, limit_s: float = 3600.0) -> dict[str, object]:
    """The run that ended since; one that never was where no group of this round varies."""
    began = last = time.time()
    while time.time() - began < limit_s:
        status = get(url, "/rl/status")
        if ended(url) > before and not status["training"]["run"]:
            run = get(url, "/rl/runs?limit=1")["data"][0]
            return get(url, f"/rl/runs/{run['id']}")
        if status["training"]["run"] or status["episodes"]["ready"] or status["episodes"]["forming"]:
            last = time.time()
        elif time.time() - last > NOTHING_S:
            return {"id": None, "status": "none", "reason": "no group varies", "gate": None, "metrics": None}
        time.sleep(0.5)
    raise SystemExit(f"no run came: {get(url, '/rl/status')['training']}")


def ended(url: str) -> int:
    return sum(run["ended_at"] is not None for run in get(url, "/rl/runs?limit=1000")["data"])


def get(url: str, path: str):
    with urllib.request.urlopen(url + path, timeout=60) as response:
        return json.load(response)


def say(**figures: object) -> None:
    print(json.dumps(figures), flush=True)


if __name__ == "__main__":
    sys.exit(main())
