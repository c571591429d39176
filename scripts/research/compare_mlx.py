"""mlx against torch on the real model: how far apart their numbers are over some optimiser steps, and tokens a second.

Run with the environment of `scripts/setup_mlx`: `PYTHON -m scripts.research.compare_mlx [--json benchmarks/mlx.json]`.
One thread each, one after the other in one process. On Linux preload libopenblas (as scripts/test_mlx does), or mlx is
much slower.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import time
from functools import partial
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"
import numpy as np

from config import presets
from trainer import mis_po
from trainer.formats import weights
from trainer.lessons.chat_template import Template
from trainer.mis_po import Terms
from trainer.policy import packing, policies
from trainer.policy.packing import Tokens

ROOT = Path(__file__).resolve().parents[2]
REPLIES, TOKENS, TEMPERATURE = 16, 64, 0.8


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    target = parser.parse_args().json
    path = weights.resolve().path
    preset = presets.resolve("balanced", {})
    torch_policy, mlx_policy = (
        policies.open_policy(name, path, preset, parent=None, threads=1, seed=0) for name in ("torch", "mlx")
    )
    mlx_policy.wear(torch_policy.adapter())
    template = Template(torch_policy.tokenizer)
    texts = (ROOT / "scripts/bench/prompts.txt").read_text().splitlines()[1 : REPLIES + 1]
    prompts = [template.prompt([{"role": "user", "content": text}]) for text in texts]
    speed: dict[str, dict[str, float]] = {"torch": {}, "mlx": {}}
    for name, policy in (("torch", torch_policy), ("mlx", mlx_policy)):
        start = time.perf_counter()
        replies = policy.generate(prompts, max_tokens=TOKENS, temperature=TEMPERATURE, seed=1)
        speed[name]["generate"] = sum(map(len, replies)) / (time.perf_counter() - start)
    sequences = [Tokens(p, tuple(r), TEMPERATURE) for p, r in zip(prompts, replies, strict=True)]
    batches = [
        [sequences[i] for i in part] for part in packing.group(sequences, torch_policy.budget)
    ]  # each is a step here: what matters is that both do the same
    packed = [packing.pack(batch) for batch in batches]
    tokens = sum(len(s) for s in sequences)

    old: dict[str, list[np.ndarray]] = {}
    for name, policy in (("torch", torch_policy), ("mlx", mlx_policy)):
        start = time.perf_counter()
        old[name] = [policy.log_probs(part).plain for part in packed]
        speed[name]["log_probs"] = tokens / (time.perf_counter() - start)
    gap = np.abs(np.concatenate(old["torch"]) - np.concatenate(old["mlx"]))

    loss = partial(mis_po.loss, kl_ref=preset.kl_ref, guard_low=preset.guard_low, guard_high=preset.guard_high)
    curve: list[dict[str, dict[str, float]]] = []
    spent = {"torch": 0.0, "mlx": 0.0}
    passes = 2
    for step in range(passes * len(packed)):
        part, was = packed[step % len(packed)], old["torch"][step % len(packed)]
        advantage = np.resize([1.0, -1.0], len(part.lengths)).repeat(part.lengths)
        share = np.repeat([1 / (length * len(part.lengths)) for length in part.lengths], part.lengths)
        line = {}
        for name, policy in (("torch", torch_policy), ("mlx", mlx_policy)):
            start = time.perf_counter()
            sums = policy.backward(part, Terms(was, was, np.ones_like(was), advantage, share), loss)
            norm = policy.step(preset.learning_rate, preset.max_grad_norm)
            spent[name] += time.perf_counter() - start
            line[name] = {"loss": sums["loss"], "kl_old": sums["kl_old"] / len(was), "grad_norm": norm}
        curve.append(line)
    for name in spent:
        speed[name]["train"] = passes * tokens / spent[name]
    theirs, ours = torch_policy.adapter(), mlx_policy.adapter()
    result = {
        "date": time.strftime("%Y-%m-%d"),
        "machine": f"{platform.machine()} {platform.system()}, {os.cpu_count()} cores, one thread, shared",
        "device": mlx_policy.device,
        "replies": REPLIES,
        "tokens": tokens,
        "log_probs_apart": {"max": float(gap.max()), "mean": float(gap.mean())},
        "curve": curve,
        "loss_apart_max": max(abs(x["torch"]["loss"] - x["mlx"]["loss"]) for x in curve),
        "kl_old_apart_max": max(abs(x["torch"]["kl_old"] - x["mlx"]["kl_old"]) for x in curve),
        "adapter_apart_max": max(float(np.abs(theirs[n] - ours[n]).max()) for n in theirs),
        "tokens_per_second": {n: {k: round(v, 1) for k, v in s.items()} for n, s in speed.items()},
    }
    text = json.dumps(result, indent=1)
    print(text)
    if target:
        target.write_text(text + "\n")


if __name__ == "__main__":
    main()
