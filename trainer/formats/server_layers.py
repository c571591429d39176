"""Which layers of a model a server can wear in an adapter. What trains is that, and no more.

Owns the answer for each format that servers load. It follows from the model's config alone, so it is known before a
rating is spent. Not here: what the trainer itself can train (policy.autoscale), how the files are written (gguf,
merge_gguf, mlx_layout).
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from typing import Any, Final

from trainer.formats.manifest import AdapterError
from trainer.io.run_folder import ServerFormat

OTHERWISE: Final = "Serve it with vLLM, SGLang or the built-in server, or rate it without training."
IN_WORDS: Final[dict[ServerFormat, str]] = {
    "peft": "a PEFT folder",
    "gguf": "a GGUF adapter",
    "merged": "a whole GGUF model",
    "mlx": "an MLX adapter",
}


def wearable_layers(config: dict[str, Any], server_format: ServerFormat) -> Callable[[str], bool]:
    """Tell of a linear layer, by its name in the model, whether a server can wear a LoRA there. Raises AdapterError for
    a kind of model of which nothing is known."""
    if server_format not in ("gguf", "merged"):
        return lambda name: True
    if find_spec("gguf") is None:
        raise AdapterError(f"{IN_WORDS[server_format]} is written with the gguf package: pip install 'rlproxy[gguf]'.")
    from trainer.formats import architectures

    kind = str(config.get("model_type"))
    if (architecture := architectures.ARCHITECTURES.get(kind)) is None:
        raise AdapterError(
            f"This model is a {kind}, and rlproxy cannot write {IN_WORDS[server_format]} for that kind "
            f"(docs/reference/models.md). {OTHERWISE}"
        )
    text = {**config, **(config.get("text_config") or {})}
    layers, merged = int(text["num_hidden_layers"]), server_format == "merged"
    return lambda name: architectures.find_tensor(name, architecture, layers, merged=merged) is not None
