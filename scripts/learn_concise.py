"""Does it learn, and stay sane? A programmatic rater who likes replies that end by themselves, on the small model.

Rounds of ratings become real run folders and real trainer processes; only the chat is in this process. Prints a table
and writes everything to benchmarks/learn_concise/. `python scripts/learn_concise.py --seed 1 --set learning_rate=2e-4`
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import numpy as np  # noqa: E402

from config import presets  # noqa: E402
from trainer import packing, weights  # noqa: E402
from trainer.packing import Tokens  # noqa: E402
from trainer.samples import Template  # noqa: E402
from trainer.torch_policy import TorchPolicy  # noqa: E402

TEMPERATURE, MAX_TOKENS, BATCH = 0.8, 96, 20


def prompts() -> dict[str, list[str]]:
    sections: dict[str, list[str]] = {}
    current: list[str] = []
    for line in (ROOT / "scripts/prompts.txt").read_text(encoding="utf-8").splitlines():
        if line.startswith("# "):
            current = sections.setdefault(line[2:], [])
        elif line:
            current.append(line)
    return sections


class Chat:
    """The model as a server would have it: replies with exact ids and log-probs of the sampling distribution."""

    def __init__(self, path: Path, threads: int) -> None:
        self.policy = TorchPolicy(path, presets.resolve("balanced", {}), parent=None, threads=threads, seed=0)
        self.template = Template(self.policy.tokenizer)

    def ask(self, texts: list[str], adapter: Path | None, seed: int) -> list[Tokens]:
        replies: list[Tokens] = []
        with self.policy.wearing(adapter):
            for first in range(0, len(texts), BATCH):
                asked = [self.template.prompt([{"role": "user", "content": t}]) for t in texts[first : first + BATCH]]
                out = self.policy.generate(asked, max_tokens=MAX_TOKENS, temperature=TEMPERATURE, seed=seed + first)
                replies += [Tokens(p, tuple(r), TEMPERATURE) for p, r in zip(asked, out, strict=True)]
        return replies

    def score(self, replies: list[Tokens], adapter: Path | None, temperature: float) -> list[np.ndarray]:
        scored: list[np.ndarray] = [np.empty(0)] * len(replies)
        with self.policy.wearing(adapter):
            for members in packing.group(replies, self.policy.budget):
                packed = packing.pack([Tokens(replies[i].prompt, replies[i].reply, temperature) for i in members])
                parts = np.split(self.policy.log_probs(packed).plain, np.cumsum(packed.lengths)[:-1])
                for i, part in zip(members, parts, strict=True):
                    scored[i] = part
        return scored

    def liked(self, reply: Tokens) -> bool:
        return reply.reply[-1] == self.template.end

    def evaluate(self, texts: list[str], adapter: Path | None, seed: int) -> dict[str, Any]:
        start = time.monotonic()
        replies = self.ask(texts, adapter, seed)
        nll = -np.concatenate(self.score(replies, None, 1.0)).mean()
        said = [self.template.text(r.reply) for r in replies]
        pairs = [pair for r in replies for pair in zip(r.reply, r.reply[1:], strict=False)]
        return {
            "liked": sum(map(self.liked, replies)) / len(replies),
            "base_nll": float(nll),
            "distinct_2": len(set(pairs)) / len(pairs),
            "tokens": float(np.mean([len(r.reply) for r in replies])),
            "seconds": time.monotonic() - start,
            "replies": said[:12],
        }


def rate(
    chat: Chat, texts: list[str], adapter: Path | None, version: int, seed: int, held: int
) -> list[dict[str, Any]]:
    replies = chat.ask(texts, adapter, seed)
    behaviour = chat.score(replies, adapter, TEMPERATURE)
    lines = []
    for i, (text, reply, logprobs) in enumerate(zip(texts, replies, behaviour, strict=True)):
        liked = chat.liked(reply)
        lines.append(
            {
                "rating": f"rt-{version}-{i}",
                "completion": f"rl-{version}-{i}",
                "split": "train",
                "version": version,
                "reward": 1.0 if liked else -1.0,
                "weight": 1.0,
                "human": True,
                "finish_reason": "stop" if liked else "length",
                "sampling": {"temperature": TEMPERATURE, "top_p": 1.0},
                "exact": True,
                "prompt_token_ids": list(reply.prompt),
                "token_ids": list(reply.reply),
                "logprobs": logprobs.tolist(),
                "messages": [{"role": "user", "content": text}],
                "text": chat.template.text(reply.reply),
            }
        )
    for i in random.Random(seed).sample(range(len(lines)), held):
        lines[i]["split"] = "held"
    return lines


def train(folder: Path, spec: dict[str, Any], lines: list[dict[str, Any]]) -> dict[str, Any]:
    folder.mkdir(parents=True)
    (folder / "run.json").write_text(json.dumps(spec))
    (folder / "samples.jsonl").write_text("\n".join(map(json.dumps, lines)))
    (folder / "calibration.jsonl").write_text("")
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    start = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "trainer", str(folder)], env=env, stdout=subprocess.DEVNULL, check=False
    )
    result: dict[str, Any] = json.loads((folder / "result.json").read_bytes())
    steps = [json.loads(line) for line in (folder / "progress.jsonl").read_text().splitlines()]
    del result["samples"]
    return result | {
        "exit": done.returncode,
        "wall": time.monotonic() - start,
        "steps": [e for e in steps if e["event"] == "step"],
        "warnings": [e["message"] for e in steps if e["event"] == "warning"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--ratings", type=int, default=32, help="a round")
    parser.add_argument("--held", type=int, default=4, help="of them, kept back for the gate")
    parser.add_argument("--eval", type=int, default=80, help="held-out prompts")
    parser.add_argument("--search", action="store_true", help="evaluate the last version only")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--name", default="default")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="override a preset value")
    asked = parser.parse_args()
    overrides = {name: json.loads(value) for name, value in (item.split("=", 1) for item in asked.set)}

    texts = prompts()
    found = weights.resolve(None)
    chat = Chat(found.path, asked.threads)
    order = random.Random(asked.seed).sample(texts["rate"], len(texts["rate"]))
    home = Path(tempfile.mkdtemp(prefix="learn-"))
    held_out = texts["held-out"][: asked.eval]
    live: Path | None = None
    held_before: list[dict[str, Any]] = []
    version, baseline = 0, 0.0
    record: dict[str, Any] = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": f"{os.cpu_count()} cores, {platform.processor() or platform.machine()}, {asked.threads} threads",
        "model": found.path.name,
        "seed": asked.seed,
        "arguments": vars(asked),
        "preset": presets.resolve("balanced", overrides).model_dump(),
        "base": chat.evaluate(held_out, None, seed=1000),
        "rounds": [],
    }
    base = record["base"]
    print(f"base: liked {base['liked']:.2f}, nll {base['base_nll']:.3f}", flush=True)
    for number in range(1, asked.rounds + 1):
        start = time.monotonic()
        texts_now = order[(number - 1) * asked.ratings : number * asked.ratings]
        lines = rate(chat, texts_now, live, version, asked.seed * 100 + number, asked.held)
        rating_seconds = time.monotonic() - start
        out = home / f"adapters/v{number:04}"
        spec = {
            "format": 1,
            "run": number,
            "model": "smollm2",
            "weights": str(found.path),
            "version": number,
            "parent": version,
            "out": str(out),
            "adapters": {str(version): str(live)} if live else {},
            "baseline": baseline,
            "seed": asked.seed * 10 + number,
            "threads": asked.threads,
            "preset": "balanced",
            "overrides": overrides,
        }
        result = train(home / f"runs/r{number:05}", spec, lines + held_before)
        held_before = [line for line in lines if line["split"] == "held"] + held_before  # as the proxy does
        if result["status"] == "passed":
            live, version, baseline = out, number, result["baseline_after"]
        elif (home / f"runs/r{number:05}/rejected").exists():
            result["rejected_eval"] = chat.evaluate(held_out, home / f"runs/r{number:05}/rejected", seed=1000)
        skip = asked.search and number < asked.rounds
        now = base if skip else chat.evaluate(held_out, live, seed=1000)
        good = sum(line["reward"] > 0 for line in lines)
        record["rounds"].append({"good": good, "rating_seconds": rating_seconds, "run": result, "eval": now})
        gates = {name: check["value"] for name, check in result["gate"].items()}
        metrics = result["metrics"]
        print(
            f"{number * asked.ratings} ratings ({good} good): {result['status']}, liked {now['liked']:.2f}, "
            f"nll {now['base_nll'] - base['base_nll']:+.3f}, distinct-2 {now['distinct_2']:.2f}, "
            f"tokens {now['tokens']:.0f}, run {result['wall']:.0f} s, kl_old {metrics.get('kl_old')}, "
            f"kl_ref {metrics.get('kl_ref')}, steps {metrics.get('steps')}, {gates}, {result['reason']}",
            flush=True,
        )
    target = ROOT / "benchmarks/learn_concise" / f"{asked.name}-seed{asked.seed}.json"
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(json.dumps(record, indent=1, ensure_ascii=False))
    for text, reply in zip(held_out[:6], record["rounds"][-1]["eval"]["replies"], strict=False):
        print("-", text, "=>", reply[:200].replace("\n", " "))


if __name__ == "__main__":
    main()
