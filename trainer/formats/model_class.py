"""The class of transformers that loads a model: the causal one, or that of pictures and text.

Owns the choice. transformers has causal classes for some models that also see (Gemma 3, Qwen3.5), and none for others
(Mistral 3, Qwen3-VL). Either way text alone goes through them. Imports transformers. Not here: code in a model's folder
(model_code).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from transformers import AutoModelForCausalLM, AutoModelForImageTextToText
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES,
)


def of_kind(kind: str) -> Any:
    """`kind`: config.json's `model_type`."""
    also_sees = kind in MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES and kind not in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    return AutoModelForImageTextToText if also_sees else AutoModelForCausalLM


def of(weights: Path) -> Any:
    """`weights`: a model's folder."""
    return of_kind(str(json.loads((weights / "config.json").read_bytes()).get("model_type")))
