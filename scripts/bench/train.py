"""Measure what packing saves: samples one by one against one prefix tree, and a head in chunks against a whole one.

`python -m scripts.bench.train [--quick] [--part packing|compute|memory [--way WAY]]` writes benchmarks/train.json
(`--quick`: train_quick.json, a shorter prompt and fewer samples). Forward and backward on the real small model with a
LoRA in training, one thread; seconds are of CPU, because machines are shared. All samples are computed singly, too.
Memory is measured in child processes, one a way of computing: the peak of the resident set over what it was after
loading. What is measured is in the file at once, with its own date, commit and load, so parts may be measured one
by one.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch
import transformers

from config import presets
from config.languages import DEFAULT, language
from scripts.harness.circumstances import circumstances
from trainer import mis_po
from trainer.formats import weights
from trainer.io.run_folder import Compute
from trainer.mis_po import Terms
from trainer.policy import packing
from trainer.policy.packing import Tokens
from trainer.policy.torch_policy import TorchPolicy

ROOT = Path(__file__).resolve().parents[2]
FULL = {"samples": 32, "prompt": 1500, "reply_tokens": 1024}
QUICK = {"samples": 8, "prompt": 400, "reply_tokens": 512}
PARTS = ("packing", "compute", "memory")
REPLY = 48  # tokens, give or take a few
WAYS = ("naive", "kept", "bf16", "ours", "tight")  # of computing log-probs and their gradient; see `peak`


def load(spec: str | None, compute: Compute = "float32") -> TorchPolicy:
    """The model as a run has it, one thread; B away from 0, where half of the gradients would be 0."""
    path = weights.resolve(spec).path
    policy = TorchPolicy(path, presets.resolve("balanced", {}), parent=None, threads=1, seed=0, compute=compute)
    torch.manual_seed(0)
    with torch.no_grad():
        for name, parameter in policy.trained.items():
            if "lora_B" in name:
                parameter.normal_(0, 0.02)
    return policy


def text(policy: TorchPolicy) -> list[int]:
    """Ordinary English, long enough for everything here."""
    words = language(DEFAULT).text + (ROOT / "scripts/bench/prompts.txt").read_text()
    ids: list[int] = policy.tokenizer(words * 4, add_special_tokens=False)["input_ids"]
    return ids


def samples(policy: TorchPolicy, count: int, prompt: int, reply: int) -> list[Tokens]:
    """Replies to one prompt: passages of some 48 tokens, each with another beginning."""
    ids = text(policy)
    starts = [prompt + 31 * n for n in range(count)]
    lengths = [reply - 8 + n % 17 for n in range(count)]
    return [Tokens(tuple(ids[:prompt]), tuple(ids[a : a + n]), 0.8) for a, n in zip(starts, lengths, strict=True)]


def backward(policy: TorchPolicy, rows: list[Tokens], replies: int) -> None:
    packed = packing.pack(rows)
    unit = np.ones(len(packed.target))
    share = np.repeat([1 / (len(r.reply) * replies) for r in rows], packed.lengths)
    # No ℓ_old is needed to time a gradient: with these terms the loss is −mean ℓ_θ, and the guard never speaks.
    terms = Terms(-20 * unit, -20 * unit, unit, unit, share)
    policy.backward(
        packed,
        terms,
        lambda xp, theta, t: mis_po.loss(xp, theta, t, kl_ref=0.0, guard_low=1e-30, guard_high=1e30),
    )


def gradient(policy: TorchPolicy) -> dict[str, torch.Tensor]:
    gradients = {}
    for name, parameter in policy.trained.items():
        assert parameter.grad is not None
        gradients[name] = parameter.grad
        parameter.grad = None
    return gradients


def speed(policy: TorchPolicy, count: int, prompt: int) -> dict[str, Any]:
    """One by one and packed, the packed one in the middle, so that a busy hour slows both."""
    rows = samples(policy, count, prompt, REPLY)
    backward(policy, [Tokens(r.prompt[:64], r.reply[:8]) for r in rows[:2]], count)  # warm
    gradient(policy)
    single: dict[str, torch.Tensor] = {}
    single_s = 0.0
    for n, row in enumerate(rows):
        if n == count // 2:
            packed_s, groups = packed_seconds(policy, rows)
            packed = gradient(policy)
        single_s += timed(lambda row=row: backward(policy, [row], count))  # type: ignore[misc]
        for name, tensor in gradient(policy).items():
            single[name] = single[name] + tensor if name in single else tensor
    tokens_apart = sum(len(r.computed) for r in rows)
    tokens = sum(packing.size([rows[i] for i in members], trees=True) for members in groups)
    gaps = [float((packed[n] - g).norm() / g.norm()) for n, g in single.items()]
    figures = {
        "samples": count,
        "prompt_tokens": prompt,
        "reply_tokens": [min(len(r.reply) for r in rows), max(len(r.reply) for r in rows)],
        "micro_batches": len(groups),
        "tokens_one_by_one": tokens_apart,
        "tokens_packed": tokens,
        "times_fewer_tokens": round(tokens_apart / tokens, 2),
        "cpu_seconds_one_by_one": round(single_s, 2),
        "cpu_seconds_packed": round(packed_s, 2),
        "times_faster": round(single_s / packed_s, 2),
        "max_relative_gradient_difference": max(gaps),
    }
    print(json.dumps(figures, indent=1), flush=True)
    return figures


def packed_seconds(policy: TorchPolicy, rows: list[Tokens]) -> tuple[float, list[list[int]]]:
    groups = packing.group(rows, policy.budget)

    def whole() -> None:
        for members in groups:
            backward(policy, [rows[i] for i in members], len(rows))

    return timed(whole), groups


def timed(act: Callable[[], None]) -> float:
    start = time.process_time()
    act()
    return time.process_time() - start


def peak(policy: TorchPolicy, way: str, reply_tokens: int) -> dict[str, Any]:
    """MiB above the resident set after loading, of one forward and backward pass.

    - naive: logits of every position at once, then log-softmax.
    - kept: reply tokens only and the head in chunks, with all activations.
    - bf16: the like in bfloat16.
    - ours: the policy as it is.
    - tight: as it is on a machine with little memory.
    """
    rows = samples(policy, reply_tokens // 128, 32, 128 + 8)
    rows = [Tokens(r.prompt, r.reply[:128], r.temperature) for r in rows]
    assert sum(len(r.reply) for r in rows) == reply_tokens
    rss_before = psutil.Process().memory_info().rss
    start = time.process_time()
    if way == "naive":
        ids = torch.tensor([r.prompt + r.reply for r in rows])  # (B, S), all of one length
        logits = policy.model(input_ids=ids, use_cache=False).logits.float() / rows[0].temperature
        log_probs = logits[:, :-1].log_softmax(-1).gather(-1, ids[:, 1:, None]).squeeze(-1)
        (-log_probs[:, len(rows[0].prompt) - 1 :].mean(-1).mean()).backward()
    else:
        backward(policy, rows, len(rows))
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    checksum = sum(float(g.double().pow(2).sum()) for g in gradient(policy).values()) ** 0.5
    return {
        "way": way,
        "mib": round((most - rss_before) / 2**20),
        "cpu_seconds": round(time.process_time() - start, 2),
        "gradient_norm": checksum,
    }


def memory(options: argparse.Namespace, reply_tokens: int, keep: Callable[[dict[str, Any]], None]) -> None:
    """Each way is kept as soon as it is measured; `--way` measures one of them anew."""
    for way in [options.way] if options.way else WAYS:
        command = [sys.executable, "-m", "scripts.bench.train", "--child", way, "--reply-tokens", str(reply_tokens)]
        command += ["--weights", options.weights] if options.weights else []
        line = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT).stdout.splitlines()[-1]
        row = json.loads(line)
        print(f"{way}: {row['mib']} MiB over the model, {row['cpu_seconds']} s of CPU", flush=True)
        keep(row)


def shares(part: dict[str, Any], row: dict[str, Any], reply_tokens: int) -> dict[str, Any]:
    """The memory part with this row in it."""
    rows = {old["way"]: old for old in part.get("ways", []) if part.get("reply_tokens") == reply_tokens}
    rows[row["way"]] = row
    if naive := rows.get("naive"):
        for each in rows.values():
            each["share_of_naive"] = round(each["mib"] / naive["mib"], 3)
    return {"reply_tokens": reply_tokens, "ways": [rows[way] for way in WAYS if way in rows]}


def formats(options: argparse.Namespace, reply_tokens: int) -> dict[str, Any]:
    """bf16 beside fp32: how far log-probs of the same adapter are apart, and what a step costs. Turn by turn, so that
    a busy hour slows both."""
    exact, rough = load(options.weights), load(options.weights, "bfloat16")
    rough.wear(exact.adapter())
    rows = samples(exact, 8, 64, reply_tokens // 8)
    packed = packing.pack(rows)
    gaps = rough.log_probs(packed).plain - exact.log_probs(packed).plain
    means = np.array([part.mean() for part in np.split(gaps, np.cumsum(packed.lengths)[:-1])])
    seconds: dict[str, list[float]] = {"float32": [], "bfloat16": []}
    for _ in range(3):
        for name, policy in (("float32", exact), ("bfloat16", rough)):
            seconds[name].append(timed(lambda policy=policy: backward(policy, rows[:2], 2)))  # type: ignore[misc]
    slopes = [gradient(policy) for policy in (exact, rough)]
    flat = [torch.cat([g.flatten() for g in each.values()]) for each in slopes]
    return {
        "tokens": len(gaps),
        "mean_gap_a_token": round(float(np.abs(gaps).mean()), 6),
        "largest_gap": round(float(np.abs(gaps).max()), 4),
        "mean_gap_of_a_reply_s_mean": round(float(np.abs(means).mean()), 6),
        "gradients_cosine": round(float(torch.nn.functional.cosine_similarity(flat[0], flat[1], dim=0)), 5),
        "cpu_seconds_a_step": {name: round(float(np.median(each)), 2) for name, each in seconds.items()},
        "avx512_bf16": bool(
            torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
            and "avx512_bf16" in cpu_flags()
        ),
    }


def cpu_flags() -> str:
    path = Path("/proc/cpuinfo")
    return path.read_text() if path.exists() else ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="smaller, in some 40 s")
    parser.add_argument("--weights", help="default: the small model")
    parser.add_argument("--part", choices=PARTS, help="only this one, the others stay in the JSON")
    parser.add_argument("--way", choices=WAYS, help="of the memory part only this one")
    parser.add_argument("--child", choices=WAYS, help=argparse.SUPPRESS)
    parser.add_argument("--reply-tokens", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        from trainer.policy import footprint

        if options.child in ("kept", "bf16"):
            footprint.COMFORTABLE = 1 << 50
        if options.child == "tight":
            footprint.SHARE_OF_FREE_MEMORY = 0.0
        policy = load(options.weights, "bfloat16" if options.child == "bf16" else "float32")
        print(json.dumps(peak(policy, options.child, options.reply_tokens)))
        return

    shape = QUICK if options.quick else FULL
    path = ROOT / "benchmarks" / ("train_quick.json" if options.quick else "train.json")
    result: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}

    def keep(part: str, figures: dict[str, Any]) -> None:
        result[part] = figures
        path.write_text(json.dumps(result, indent=2) + "\n")

    if options.part in (None, "memory"):
        tokens = shape["reply_tokens"]
        memory(
            options,
            tokens,
            lambda row: keep("memory", shares(result.get("memory", {}), row | conditions(options), tokens)),
        )
    if options.part in (None, "compute"):
        keep("compute", formats(options, shape["reply_tokens"] // 4) | conditions(options))
    if options.part in (None, "packing"):
        keep("packing", speed(load(options.weights), shape["samples"], shape["prompt"]) | conditions(options))


def conditions(options: argparse.Namespace) -> dict[str, Any]:
    """Describe a measurement: when, where, of which tree, with which versions and model."""
    versions = {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
    }
    about = circumstances()
    about["machine"]["threads"] = 1
    return about | {"versions": versions, "model": weights.resolve(options.weights).path.name}


if __name__ == "__main__":
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    main()
