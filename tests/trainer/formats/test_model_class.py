"""Which class of transformers loads a model."""

from __future__ import annotations

import pytest
from transformers import AutoModelForCausalLM, AutoModelForImageTextToText

from trainer.formats import model_class


@pytest.mark.parametrize("kind", ["mistral3", "qwen3_vl"])
def test_a_kind_that_also_sees_and_is_no_causal_model(kind: str) -> None:
    assert model_class.of_kind(kind) is AutoModelForImageTextToText


@pytest.mark.parametrize("kind", ["llama", "gemma3", "qwen3_5", "a kind of its own"])
def test_all_others_are_causal_models(kind: str) -> None:
    """One with code of its own is found by its config's auto_map, which is under this class."""
    assert model_class.of_kind(kind) is AutoModelForCausalLM
