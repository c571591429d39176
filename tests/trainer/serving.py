"""What the tests of the built-in backend share: one engine over the small real model, and two adapters for it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel

from scripts.harness.lora import peft_on_transformers
from tests.harness.polling import Polls
from trainer.formats.weights import Weights
from trainer.serve.__main__ import load_model
from trainer.serve.batched_lora import BatchedAdapter
from trainer.serve.engine import Delta, Engine, GenerationRequest

QUESTIONS = (
    "What is the capital of France?",
    "Tell me about the sea.",
    "Who was Newton? Answer in one sentence, and say where he lived.",
    "Name three colours.",
)


@dataclass(frozen=True)
class Served:
    engine: Engine
    weights: Path
    adapters: tuple[BatchedAdapter, BatchedAdapter]

    def prompt(self, question: str) -> tuple[int, ...]:
        message = {"role": "user", "content": question}
        return tuple(self.engine.tokenizer.apply_chat_template([message], add_generation_prompt=True)["input_ids"])

    async def replies(self, ask: GenerationRequest, choices: int = 1) -> list[list[Delta]]:
        out: list[list[Delta]] = [[] for _ in range(choices)]
        async for choice, delta in self.engine.generate(ask, choices):
            out[choice].append(delta)
        return out

    async def reply(self, ask: GenerationRequest) -> list[Delta]:
        return (await self.replies(ask))[0]


async def until(condition: Callable[[], bool]) -> None:
    async for _ in Polls():
        if condition():
            return
    pytest.fail("waited 30 s for what did not come")


def peft_model(served: Served, adapter: BatchedAdapter | None) -> Any:
    """The same model as transformers and peft run it, to compare with."""
    model, _ = load_model(Weights(served.weights, "a test"), threads=1)
    if adapter is None:
        return model
    with peft_on_transformers():
        return PeftModel.from_pretrained(model, adapter.path).eval()


def greedy(model: Any, prompt: Sequence[int], tokens: int) -> list[int]:
    ids = torch.tensor([prompt])
    out = model.generate(
        input_ids=ids, attention_mask=torch.ones_like(ids), max_new_tokens=tokens, do_sample=False, pad_token_id=2
    )
    reply: list[int] = out[0, len(prompt) :].tolist()
    return reply


def forward_logprobs(model: Any, prompt: Sequence[int], reply: Sequence[int], temperature: float) -> torch.Tensor:
    """(R, V): the distributions that each token of `reply` was drawn from."""
    with torch.inference_mode():
        logits = model(input_ids=torch.tensor([[*prompt, *reply]])).logits[0, len(prompt) - 1 : -1]
    return torch.log_softmax(logits.float() / temperature, dim=-1)
