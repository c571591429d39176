"""The shapes of a model: its linear layers, its vocabulary, and what a token leaves in the cache of a server.

Owns reading them. Where weights are in the folder, the headers of their files say it. Where there is only a
config.json, transformers makes the model of it without memory for the weights (torch's meta device). Not here: how many
parameters that is (model_info), what it takes in memory and on disk (policy.footprint).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from trainer.formats import model_info
from trainer.formats.model_info import Profile, ProfileError

Shapes = Mapping[str, tuple[int, int]]
ONE_CONFIG = "name a model's folder, its config.json, or a hub id"
MOST_BYTES = 1 << 22  # of a config.json
SIZES = ("hidden_size", "num_hidden_layers", "vocab_size", "intermediate_size", "num_attention_heads", "head_dim")
MOST_OF_A_SIZE = 10**8


class CacheLayer(NamedTuple):
    """Keys and values of one layer."""

    numbers: int  # a token
    window: int  # tokens that it looks back; 0: all


@dataclass(frozen=True, slots=True)
class ModelShape:
    profile: Profile
    config: Mapping[str, Any]  # config.json
    linears: Shapes  # (out, in) of each linear layer but the head, by its name in the model
    depth: int  # layers
    hidden: int
    width: int  # of the MLP; the widest where layers differ
    vocabulary: int
    tied: bool  # the head is the embeddings
    has_weights: bool  # in the folder, next to config.json

    @property
    def text(self) -> Mapping[str, Any]:
        return text_of(self.config)

    @property
    def head(self) -> int:
        """Parameters of the head."""
        return self.vocabulary * self.hidden

    @property
    def cache(self) -> list[CacheLayer]:
        """Numbers a token in each layer whose cache grows; that of linear attention and state spaces does not."""
        keys: dict[str, int] = {}
        values: dict[str, int] = {}
        for name, (rows, _) in self.linears.items():
            block, _, last = name.rpartition(".")
            if last == "kv_a_proj_with_mqa":  # a narrow vector, of which keys and values are made again
                keys[block] = rows
                values[block] = 0
            elif last in ("qkv_proj", "Wqkv", "query_key_value", "c_attn"):
                keys[block] = values[block] = self._fused_width(rows)
            elif last == "k_proj":
                keys[block] = rows
            elif last == "v_proj":
                values[block] = rows
        # Where values have no layer of their own, they are the keys, and servers keep both.
        return [
            CacheLayer(rows + values.get(block, rows), self._window(_index(block)))
            for block, rows in keys.items()
            if "layers." in block
        ]

    def _fused_width(self, rows: int) -> int:
        heads = int(self.text["num_attention_heads"])
        groups = int(self.text.get("num_key_value_heads") or heads)
        return rows * groups // (heads + 2 * groups)

    def _window(self, index: int) -> int:
        window = self.text.get("sliding_window")
        kinds = self.text.get("layer_types")
        if not isinstance(window, int) or self.text.get("use_sliding_window") is False:
            return 0
        if isinstance(kinds, list) and index < len(kinds):
            return window if kinds[index] == "sliding_attention" else 0
        return window


def text_of(config: Mapping[str, Any]) -> dict[str, Any]:
    """The part that writes, of a model that also sees."""
    return {**config, **(config.get("text_config") or {})}


def read(path: Path) -> ModelShape:
    """`path`: a model's folder, or a config.json. Raises ProfileError, in one sentence."""
    file = path / "config.json" if path.is_dir() else path
    config = _config(file)
    weights = file.parent if path.is_dir() and model_info.weight_files(file.parent) else None
    if weights is not None:
        profile = model_info.read(weights)
        if profile.source == model_info.BY_HEADERS:
            return _shape(config, profile, _decoder_shapes(weights), has_weights=True)
    return _from_config(config, file, has_weights=weights is not None)


def _config(file: Path) -> dict[str, Any]:
    try:
        size = file.stat().st_size
        raw = file.read_bytes() if size <= MOST_BYTES else b""
    except FileNotFoundError:
        reason = f"{file.parent} has no {file.name}" if file.parent.is_dir() else f"there is no {file}"
        raise ProfileError(f"{reason[0].upper()}{reason[1:]}: {ONE_CONFIG}.") from None
    except OSError as error:
        raise ProfileError(f"{file} cannot be read: {error.strerror or error}.") from None
    try:
        config = json.loads(raw)
    except (ValueError, RecursionError):
        raise ProfileError(f"{file} is not a config.json: {ONE_CONFIG}.") from None
    if not isinstance(config, dict) or not isinstance(config.get("model_type"), str):
        raise ProfileError(f"{file} does not say its model_type, as each model's config.json does: {ONE_CONFIG}.")
    _check_sizes(text_of(config), file)
    return config


def _check_sizes(text: Mapping[str, Any], file: Path) -> None:
    """Sizes that no model has, and that a computation would take for one's."""
    for name in SIZES:
        value = text.get(name)
        numbers = value if isinstance(value, list) else [value]
        for number in numbers:
            if number is not None and not (type(number) is int and 0 < number < MOST_OF_A_SIZE):
                raise ProfileError(f"{file} says {name} = {number!r}, which is not a size: the file is damaged.")


def _decoder_shapes(weights: Path) -> Shapes:
    return {name: shape for name, shape in model_info.linear_shapes(weights).items() if "layers." in name}


def _from_config(config: dict[str, Any], file: Path, *, has_weights: bool) -> ModelShape:
    """Read the model that transformers makes of it, on no device. Custom code is not run."""
    if find_spec("torch") is None or find_spec("transformers") is None:
        raise ProfileError(
            "Where no unpacked weights are here, transformers tells the shapes, and it is not installed: "
            "pip install 'rlproxy[train]', or load the weights first."
        )
    import torch
    import transformers
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING
    from transformers.pytorch_utils import Conv1D

    from trainer.formats import model_class

    kind = config["model_type"]
    if kind not in CONFIG_MAPPING:
        raise ProfileError(
            f"This model is a {kind}, a kind that transformers {transformers.__version__} does not know: "
            "nothing can train it here. Update transformers, or serve another model."
        )
    values = {name: value for name, value in config.items() if name != "quantization_config"}
    try:
        with torch.device("meta"):
            model = model_class.of_kind(kind).from_config(CONFIG_MAPPING[kind].from_dict(values))
        head = model.get_output_embeddings()
        linears = {
            name: (module.nf, module.nx) if isinstance(module, Conv1D) else tuple(module.weight.shape)
            for name, module in model.named_modules()
            if isinstance(module, torch.nn.Linear | Conv1D) and module is not head and "layers." in name
        }
        tensors = {name: ("F32", parameter.numel()) for name, parameter in model.named_parameters()}
        profile = model_info.measure(config, tensors)
    except Exception as error:  # each kind checks its sizes in its own way
        first_line = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise ProfileError(f"{file} does not make a {kind}: {first_line}") from None
    profile = replace(profile, source="counted in the model that transformers makes of config.json")
    return _shape(config, profile, linears, has_weights=has_weights)


def _shape(config: dict[str, Any], profile: Profile, linears: Shapes, *, has_weights: bool) -> ModelShape:
    text = text_of(config)
    if not linears:
        raise ProfileError(f"This {profile.architecture} has no linear layers in its decoder: nothing can train there.")
    try:
        hidden, vocabulary = int(text["hidden_size"]), int(text["vocab_size"])
        depth = int(text["num_hidden_layers"])
    except KeyError as error:
        raise ProfileError(f"config.json does not say {error}, without which nothing can be computed.") from None
    tied = bool(config.get("tie_word_embeddings", text.get("tie_word_embeddings", True)))
    return ModelShape(profile, config, linears, depth, hidden, mlp_width(text), vocabulary, tied, has_weights)


def mlp_width(text: Mapping[str, Any]) -> int:
    """The width of the MLP that one token goes through, where it is widest; some models have a width for each layer."""
    width = text.get("intermediate_size")
    dense = max(width) if isinstance(width, list) else width or 4 * text["hidden_size"]
    of_expert, count = text.get("moe_intermediate_size"), model_info.first_number(text, model_info.PER_TOKEN)
    return max(dense, of_expert * count) if isinstance(of_expert, int) else int(dense)


def _index(block: str) -> int:
    """The number of the layer in a module's name: 7 of `model.layers.7.self_attn`."""
    parts = block.split(".")
    index = parts[parts.index("layers") + 1] if "layers" in parts[:-1] else "0"
    return int(index) if index.isdecimal() else 0
