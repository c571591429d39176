"""Tiny models in the built-in server's own engine, with an adapter and without: `python -m scripts.models --server
builtin`.

Owns the row of each kind: one token of a reply is generated, and the likeliest ones are reported with it.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from scripts.models import tiny
from scripts.models.reference import LIKELIEST, PROMPTS, Reference, row
from trainer.formats.weights import Weights, cache_folder
from trainer.serve.__main__ import load_model
from trainer.serve.batched_lora import read_adapter
from trainer.serve.engine import Engine, GenerationRequest
from trainer.serve.sampling import Sampling


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
    reference = Reference.make(kind, base, folder / "adapter", "peft")
    try:
        engine = Engine(*load_model(Weights(base, "a tiny one"), threads=1))
    except Exception as error:
        return row(reference, {"error": f"{type(error).__name__}: {error}"[:600]})
    try:
        adapter = read_adapter("a", folder / "adapter", engine.model)
        answer: dict[str, Any] = {
            "plain": asyncio.run(_next_tokens(engine, None)),
            "adapted": asyncio.run(_next_tokens(engine, adapter)),
        }
    except Exception as error:
        answer = {"error": f"{type(error).__name__}: {error}"[:600]}
    finally:
        engine.close()
    return row(reference, answer)


async def _next_tokens(engine: Engine, adapter: Any) -> list[dict[str, float]]:
    """The likeliest next tokens after each prompt."""
    answers = []
    for ids in PROMPTS:
        request = GenerationRequest(
            tuple(ids), 1, Sampling(temperature=0), adapter=adapter, likeliest=LIKELIEST, ignore_eos=True
        )
        async for _, delta in engine.generate(request):
            answers.append({str(token): log_prob for token, log_prob in delta.likeliest})
    return answers
