"""Weights that read pictures: can answers about these train? Told from a folder's files, without loading it.

Owns the kinds of models that were shown to read a picture here as they do by themselves. Each run proves it again
(policy.torch_pictures). Free of torch and transformers: the proxy asks, too.
"""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Final

# config.json's model_type; SmolVLM-256M and -500M are "idefics3". Qwen's are not here: their pictures have positions of
# their own.
KINDS: Final = ("gemma3", "idefics3")
_PROCESSORS: Final = ("processor_config.json", "preprocessor_config.json")
NO_PILLOW: Final = "pictures are not read without Pillow: pip install 'rlproxy[images]'"


def refusal(weights: Path) -> str | None:
    """Why no answer about a picture can train on these weights, as a clause; None where it can."""
    try:
        config = json.loads((weights / "config.json").read_bytes())
    except (OSError, ValueError):
        return f"{weights} has no config.json that says what it reads"
    if not isinstance(config, dict) or not config.get("vision_config"):
        return "the weights read text alone"
    kind = str(config.get("model_type"))
    if kind not in KINDS:
        return f"pictures train with models of {' and '.join(KINDS)}; the weights are of {kind}"
    if not any((weights / name).is_file() for name in _PROCESSORS):
        return f"{weights} has no {' or '.join(_PROCESSORS)}, by which pictures become tokens"
    return None if find_spec("PIL") is not None else NO_PILLOW
