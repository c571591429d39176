"""Tiny models in mlx-lm on a CPU, with an adapter and without: `python -m scripts.models --server mlx`.

Owns the row of each kind. It is loaded by the functions that mlx_lm.server loads with. Run by the Python of
scripts/setup_mlx, which has mlx beside torch.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from scripts.models import tiny
from scripts.models.reference import LIKELIEST, PROMPTS, Reference, row
from trainer.formats.mlx_layout import convert
from trainer.formats.weights import cache_folder
from trainer.policy.mlx_model import rope_settings


def rows(kinds: Sequence[str]) -> Iterator[dict[str, Any]]:
    """One for each kind, in the order in which they are done."""
    for kind in kinds:
        with tempfile.TemporaryDirectory() as name:
            try:
                yield _row(kind, Path(name))
            except Exception as error:  # of one kind; the others are still to be tried
                yield {"kind": kind, "error": f"{type(error).__name__}: {error}"[:600]}


def _row(kind: str, folder: Path) -> dict[str, Any]:
    tokenizer = cache_folder() / "models" / "SmolLM2-135M-Instruct"
    base = tiny.make(kind, folder / "base", tokenizer=tokenizer)
    reference = Reference.make(kind, base, folder / "adapter", "mlx")
    config = json.loads((base / "config.json").read_bytes())
    (base / "config.json").write_text(json.dumps(config | rope_settings(config)))  # as the models on the hub have it
    try:
        answer: dict[str, Any] = {"plain": _next_tokens(base, None)}
    except Exception as error:
        return row(reference, {"error": f"{type(error).__name__}: {error}"[:600]})
    try:
        convert(folder / "adapter", folder / "mlx")
        answer["adapted"] = _next_tokens(base, folder / "mlx")
    except Exception as error:
        answer["refusal"] = f"{type(error).__name__}: {error}"[:600]
    return row(reference, answer)


def _next_tokens(base: Path, adapter: Path | None) -> list[dict[str, float]]:
    import mlx.core as mx
    import numpy as np
    from mlx_lm import load

    model, _ = load(str(base), adapter_path=None if adapter is None else str(adapter))
    model.set_dtype(mx.float32)
    answers = []
    for ids in PROMPTS:
        logits = np.array(model(mx.array([ids]))[0, -1].astype(mx.float32)).astype(np.float64)
        log_probs = logits - logits.max() - np.log(np.exp(logits - logits.max()).sum())
        likeliest = np.argsort(-log_probs)[:LIKELIEST]
        answers.append({str(token): float(log_probs[token]) for token in likeliest})
    return answers
