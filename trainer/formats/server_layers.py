"""Which layers of a model a server can wear in an adapter. What trains is that, and no more.

Owns the answer for each format that servers load. It follows from the model's config alone, so it is known before a
rating is spent. Not here: what the trainer itself can train (policy.autoscale), how the files are written (gguf,
merge_gguf, mlx_layout), the servers' lists (server_lists, architectures).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from trainer.formats import model_info
from trainer.formats.manifest import AdapterError
from trainer.formats.server_lists import LISTS
from trainer.io.run_folder import ServerFormat

PREFIX: Final = "base_model.model."  # of a module's name in a PEFT folder
OTHERWISE: Final = "Serve it with vLLM, SGLang or the built-in server, or rate it without training."
ELSEWHERE: Final = "docs/reference/models.md says which servers load one; or rate it without training."
IN_WORDS: Final[dict[ServerFormat, str]] = {
    "peft": "a PEFT folder",
    "vllm": "an adapter in vLLM",
    "sglang": "an adapter in SGLang",
    "gguf": "a GGUF adapter",
    "merged": "a whole GGUF model",
    "mlx": "an MLX adapter",
}


def wearable_layers(config: dict[str, Any], server_format: ServerFormat) -> Callable[[str], bool]:
    """Tell of a linear layer, by its name in the model, whether a server can wear a LoRA there. Raises AdapterError for
    a kind of model whose adapters it does not load."""
    kind = _kind_of(config)
    if server_format not in ("gguf", "merged"):
        return _listed_layers(kind, server_format)
    if find_spec("gguf") is None:
        raise AdapterError(f"{IN_WORDS[server_format]} is written with the gguf package: pip install 'rlproxy[gguf]'.")
    from trainer.formats import architectures

    if (architecture := architectures.ARCHITECTURES.get(kind)) is None:
        raise AdapterError(
            f"This model is a {kind}, and rlproxy cannot write {IN_WORDS[server_format]} for that kind "
            f"(docs/reference/models.md). {OTHERWISE}"
        )
    text = {**config, **(config.get("text_config") or {})}
    layers, merged = int(text["num_hidden_layers"]), server_format == "merged"
    return lambda name: architectures.find_tensor(name, architecture, layers, merged=merged) is not None


def _kind_of(config: dict[str, Any]) -> str:
    """The `model_type`. Mistral Small 4 is a `mistral3`, too, but servers run its text part as a kind of its own."""
    text_kind = (config.get("text_config") or {}).get("model_type")
    return text_kind if text_kind == "mistral4" else str(config.get("model_type"))


def _listed_layers(kind: str, server_format: ServerFormat) -> Callable[[str], bool]:
    """The same by the server's own list; without one it is each linear layer."""
    if (server := LISTS.get(server_format)) is None:
        return lambda name: True
    if (reason := server.refused.get(kind)) is not None:
        raise AdapterError(f"This model is a {kind}, and {server.release} {reason}. {ELSEWHERE}")
    left_out = server.left_out.get(kind, frozenset())
    listed = None if server.names is None else server.names | server.more_names.get(kind, frozenset())

    def is_listed(name: str) -> bool:
        last = name.rpartition(".")[2]
        return last not in left_out and (listed is None or last in listed)

    return is_listed


def lora_layers(adapter: Path) -> list[str]:
    """The linear layers that a PEFT folder has a LoRA on, by the head of its file. Raises AdapterError."""
    path = adapter / "adapter_model.safetensors"
    try:
        tensors = model_info.read_header(path)
    except (OSError, model_info.ProfileError) as error:
        raise AdapterError(f"{path} cannot be read: {error}.") from None
    return sorted({name.removeprefix(PREFIX).partition(".lora_")[0] for name in tensors})


def require_loadable(parent: Path, layers: Sequence[str], config: dict[str, Any], server_format: ServerFormat) -> None:
    """Raise AdapterError where a run would go on from an adapter that was made for another server: what it leaves
    would not load. `layers`: those that the parent is on."""
    is_wearable = wearable_layers(config, server_format)
    if unwearable := sorted({name.rpartition(".")[2] for name in layers if not is_wearable(name)}):
        raise AdapterError(
            f"The live version {parent.name} was made for another server: it has a LoRA on {' '.join(unwearable)}, and "
            f"{IN_WORDS[server_format]} of a {config.get('model_type')} has no place for one there. `rlproxy promote "
            "base` keeps that version, and lets the next run begin anew."
        )
