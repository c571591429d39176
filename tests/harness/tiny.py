"""A model small enough to train in milliseconds: two layers, bytes for tokens, the ChatML template."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from config import presets
from scripts.harness.tiny_model import TEMPLATE as TEMPLATE
from scripts.harness.tiny_model import byte_tokenizer as tokenizer
from trainer.io.cache import Cache
from trainer.io.progress import Stop
from trainer.io.run_folder import Compute, read_spec
from trainer.lessons.chat_template import Template
from trainer.lessons.lesson import Lesson, ScoredSample
from trainer.lessons.samples import Sample, load
from trainer.lessons.scoring import Scorer
from trainer.policy import packing
from trainer.policy.packing import Tokens
from trainer.policy.torch_policy import TorchPolicy


def make_model(folder: Path, seed: int = 0, *, stored: torch.dtype = torch.float32, **changes: Any) -> Path:
    torch.manual_seed(seed)
    sizes: dict[str, Any] = {
        "vocab_size": 259, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 2048,
        "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 2, "tie_word_embeddings": True,
        "initializer_range": 0.2,  # at the usual 0.02 every token is as likely as the next
    }  # fmt: skip
    config = LlamaConfig(**(sizes | changes))
    LlamaForCausalLM(config).to(stored).save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    return folder


def policy(model: Path, parent: Path | None = None, *, compute: Compute = "auto", **overrides: Any) -> TorchPolicy:
    preset = presets.resolve("balanced", {"rank": 4, "alpha": 8} | overrides)
    return TorchPolicy(model, preset, parent=parent, threads=1, seed=0, compute=compute)


def sample_lines(
    model: Path, count: int = 12, *, version: int = 0, adapter: Path | None = None, seed: int = 0, tokens: int = 12
) -> list[dict[str, Any]]:
    """Rated completions of the tiny model with exact log-probs; liked where the first reply token is even."""
    served = policy(model)
    template = Template(served.tokenizer)
    texts = [f"q{seed}{i}" for i in range(count)]
    prompts = [template.prompt([{"role": "user", "content": text}]) for text in texts]
    with served.wearing(adapter):
        replies = served.generate(prompts, max_tokens=tokens, temperature=0.8, seed=seed)
        rows = [Tokens(p, tuple(r), 0.8) for p, r in zip(prompts, replies, strict=True)]
        packed = packing.pack(rows)
        logprobs = np.split(served.log_probs(packed).sampled, np.cumsum(packed.lengths)[:-1])
    return [
        {
            "rating": f"rt-{version}-{seed}-{i}",
            "completion": f"rl-{version}-{seed}-{i}",
            "split": "held" if i % 6 == 5 else "train",
            "version": version,
            "reward": 1.0 if i % 2 else -1.0,
            "weight": 1.0,
            "human": True,
            "finish_reason": "stop" if row.reply[-1] == template.end else "length",
            "sampling": {"temperature": 0.8, "top_p": 1.0},
            "exact": True,
            "prompt_token_ids": list(row.prompt),
            "token_ids": list(row.reply),
            "logprobs": part.tolist(),
            "messages": [{"role": "user", "content": text}],
            "text": template.text(row.reply),
        }
        for i, (text, row, part) in enumerate(zip(texts, rows, logprobs, strict=True))
    ]


def lesson(sample: Sample, old: np.ndarray) -> Lesson:
    """The rating of a fresh exact sample, as it passes the filter."""
    whole = np.ones(len(old))
    return Lesson(sample, sample.tokens, old, old, old, whole.astype(bool), sample.reward * whole)


LOOSE = {
    "base_nll_rise": 100.0,
    "text_nll_rise": 100.0,
    "margin_slack": 100.0,
    "topic_fall": 100.0,
    "max_looping": 100,
    "max_chance": 1.0,
}


def run_folder(folder: Path, model: Path, lines: list[dict[str, Any]], **spec: Any) -> Path:
    """A run folder as the proxy writes it, for a tiny model: the gate's bounds are wide unless given."""
    folder.mkdir(parents=True)
    order = {
        "format": 1,
        "run": 1,
        "model": "tiny",
        "weights": str(model),
        "version": 1,
        "parent": 0,
        "out": str(folder.parent / "out" / "v0001"),
        "adapters": {},
        "baseline": 0.0,
        "seed": 7,
        "threads": 1,
        "preset": "balanced",
        "gate": LOOSE,
    } | spec
    small = {"rank": 4, "alpha": 8, "batch": 4, "passes": 2, "learning_rate": 2e-4}  # whatever the preset says
    order["overrides"] = small | order.get("overrides", {})
    (folder / "run.json").write_text(json.dumps(order))
    (folder / "samples.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (folder / "calibration.jsonl").write_text("")
    return folder


def scorer(folder: Path, model: Path) -> Scorer:
    """Of the base of this model, with a cache of its own."""
    spec = read_spec(run_folder(folder / "run", model, []))
    return Scorer(policy(model), spec, Cache(folder / "cache"), Stop())


def read(scorer: Scorer, samples: list[Sample]) -> list[ScoredSample]:
    """As the base scores them, which gave them."""
    scored = scorer.score_old([s.tokens for s in samples])
    return [ScoredSample(s, now, now, now.plain) for s, now in zip(samples, scored, strict=True)]


def rated(model: Path, count: int, *, tell: bool = True, liked: float = 0.25, seed: int = 0) -> list[Sample]:
    """Samples of ten random tokens; where `tell`, an eleventh one says how they are rated."""
    rng, template = np.random.default_rng(seed), Template(tokenizer())
    folder = model.parent / f"rated-{count}-{tell}-{liked}-{seed}"
    folder.mkdir(exist_ok=True)
    lines: list[dict[str, Any]] = []
    for i in range(count):
        reward = 1.0 if i < count * liked else -1.0
        reply = rng.integers(40, 48 if tell else 90, 10).tolist() + ([100 if reward > 0 else 120] if tell else [])
        lines.append(
            {
                "rating": f"rt-{i}", "completion": f"rl-{i}", "split": "train", "version": 0, "reward": reward,
                "weight": 1.0, "human": True, "finish_reason": "length", "sampling": {"temperature": 1.0},
                "exact": True, "token_ids": reply, "logprobs": [-1.0] * len(reply), "text": template.text(reply),
                "prompt_token_ids": list(template.prompt([{"role": "user", "content": f"q{i}"}])),
                "messages": [{"role": "user", "content": f"q{i}"}],
            }
        )  # fmt: skip
    (folder / "samples.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    samples, unusable = load(folder / "samples.jsonl", template, max_seq_len=4096)
    assert not unusable
    return samples
