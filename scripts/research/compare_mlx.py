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
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"
import numpy as np

from config import presets
from trainer import mis_po
from trainer.formats import weights
from trainer.lessons.chat_template import Template
from trainer.mis_po import Terms
from trainer.policy import packing, policies
from trainer.policy.packing import Packed, Tokens
from trainer.policy.policy import Policy

ROOT = Path(__file__).resolve().parents[2]
REPLIES, TOKENS, TEMPERATURE, PASSES = 16, 64, 0.8, 2


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    target = parser.parse_args().json
    path = weights.resolve().path
    preset = presets.resolve("balanced", {})
    models = {
        name: policies.open_policy(name, path, preset, parent=None, threads=1, seed=0) for name in ("torch", "mlx")
    }
    models["mlx"].wear(models["torch"].adapter())
    sequences, generated = sampled(models)
    # Each batch is a step here: what matters is that both do the same.
    batches = [[sequences[i] for i in part] for part in packing.group(sequences, models["torch"].budget)]
    packed = [packing.pack(batch) for batch in batches]
    old, scored = log_probs(models, packed)
    curve, trained = train(models, packed, old["torch"], preset)
    speed = {name: {"generate": generated[name], "log_probs": scored[name], "train": trained[name]} for name in models}
    gap = np.abs(np.concatenate(old["torch"]) - np.concatenate(old["mlx"]))
    theirs, ours = models["torch"].adapter(), models["mlx"].adapter()
    result = {
        "date": time.strftime("%Y-%m-%d"),
        "machine": f"{platform.machine()} {platform.system()}, {os.cpu_count()} cores, one thread, shared",
        "device": models["mlx"].device,
        "replies": REPLIES,
        "tokens": sum(len(s) for s in sequences),
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


def sampled(models: Mapping[str, Policy]) -> tuple[list[Tokens], dict[str, float]]:
    """The replies of mlx, and tokens a second of each framework."""
    template = Template(models["torch"].tokenizer)
    texts = (ROOT / "scripts/bench/prompts.txt").read_text().splitlines()[1 : REPLIES + 1]
    prompts = [template.prompt([{"role": "user", "content": text}]) for text in texts]
    speed = {}
    for name, policy in models.items():
        start = time.perf_counter()
        replies = policy.generate(prompts, max_tokens=TOKENS, temperature=TEMPERATURE, seed=1)
        speed[name] = sum(map(len, replies)) / (time.perf_counter() - start)
    return [Tokens(p, tuple(r), TEMPERATURE) for p, r in zip(prompts, replies, strict=True)], speed


def log_probs(models: Mapping[str, Policy], packed: list[Packed]) -> tuple[dict[str, list[Any]], dict[str, float]]:
    """Log-probs of each batch by framework, and tokens a second of each."""
    tokens, old, speed = _tokens(packed), {}, {}
    for name, policy in models.items():
        start = time.perf_counter()
        old[name] = [policy.log_probs(part).plain for part in packed]
        speed[name] = tokens / (time.perf_counter() - start)
    return old, speed


def train(
    models: Mapping[str, Policy], packed: list[Packed], old: list[Any], preset: presets.Preset
) -> tuple[list[dict[str, dict[str, float]]], dict[str, float]]:
    """Loss, KL, and gradient norm at each optimiser step by framework, and tokens a second of each."""
    loss = partial(mis_po.loss, kl_ref=preset.kl_ref, guard_low=preset.guard_low, guard_high=preset.guard_high)
    curve: list[dict[str, dict[str, float]]] = []
    spent = dict.fromkeys(models, 0.0)
    for part, behaviour in list(zip(packed, old, strict=True)) * PASSES:
        advantage = np.resize([1.0, -1.0], len(part.lengths)).repeat(part.lengths)
        share = np.repeat([1 / (length * len(part.lengths)) for length in part.lengths], part.lengths)
        terms = Terms(behaviour, behaviour, np.ones_like(behaviour), advantage, share)
        line = {}
        for name, policy in models.items():
            start = time.perf_counter()
            sums = policy.backward(part, terms, loss)
            norm = policy.step(preset.learning_rate, preset.max_grad_norm)
            spent[name] += time.perf_counter() - start
            line[name] = {"loss": sums["loss"], "kl_old": sums["kl_old"] / len(behaviour), "grad_norm": norm}
        curve.append(line)
    return curve, {name: PASSES * _tokens(packed) / seconds for name, seconds in spent.items()}


def _tokens(packed: Sequence[Packed]) -> int:
    return sum(len(sequence) for part in packed for sequence in part.sequences)


if __name__ == "__main__":
    main()
