"""Four tastes and their opposites: two lines of one base are to learn against each other.

The model here is the first layers of a real one (`cut`): it says few words, and learns in a fraction of the time. Each
taste is liked in a share of the base model's answers, so that a line has something to learn from.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Final

Likes = Callable[[str], bool]


def _has(text: str) -> Likes:
    return lambda reply: text in reply


def _lacks(text: str) -> Likes:
    return lambda reply: text not in reply


TASTES: Final[dict[str, Likes]] = {
    "bracket": _has("("),
    "no-bracket": _lacks("("),
    "i": _has("I"),
    "no-i": _lacks("I"),
    "stop": _has("."),
    "no-stop": _lacks("."),
    "in": _has(" in"),
    "no-in": _lacks(" in"),
}


def cut(weights: Path, layers: int, folder: Path) -> Path:
    """The model without its later layers, written to `folder`."""
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(weights, dtype=torch.float32)
    model.model.layers = model.model.layers[:layers]
    model.config.num_hidden_layers = layers
    model.save_pretrained(folder)
    for file in weights.iterdir():
        if file.name.startswith(("tokenizer", "special_tokens", "chat_template", "vocab", "merges")):
            shutil.copy(file, folder / file.name)
    return folder
