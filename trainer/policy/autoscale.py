"""A preset fitted to one model: which of its numbers change with size and experts, and which layers train.

Owns the rules and the sentence that goes with each of them. Pure; torch's policy and mlx's take the same answers. What
a person sets always stands. Not here: the preset's own numbers (config/presets.toml), how a model is measured
(model_info).
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from config import presets
from config.presets import Preset
from trainer.formats import model_info
from trainer.formats.manifest import AdapterError
from trainer.formats.model_info import Profile, billions, picks_or_is_expert
from trainer.formats.server_layers import (
    ELSEWHERE,
    IN_WORDS,
    lora_layers,
    require_loadable,
    wearable_layers,
)
from trainer.io.run_folder import ServerFormat
from trainer.policy import senses

MEASURED = 135e6  # parameters: SmolLM2-135M, where the presets' learning rates were measured
PUBLISHED = 45e9  # active parameters from which on ReinforceClaw's table is taken as it is
AT_PUBLISHED = 5e-6 / 1e-3  # its rate there, as a share of the measured one
BEYOND = 0.8  # its factor above that size
RANK_BEYOND = 8
SPARSITY = ((4, 0.95), (10, 0.85), (20, 0.70), (math.inf, 0.55))  # parameters a working one -> rate ×
TOTAL = ((100e9, 1.0), (250e9, 0.6), (500e9, 0.45), (math.inf, 0.35))  # parameters -> rate ×
MORE_RANK = 8  # of a mixture of experts: only its attention trains
LESS_PULL = 0.5  # its kl_ref ×
ALL_LINEAR = "all-linear"  # peft's word for every linear layer but the head
SET = "set in run.json (train.overrides)"
NOT_WORN = "the server that will load this adapter has no place for it there"
STATE_SPACES = ("falcon_h1", "falcon_mamba", "mamba", "mamba2", "nemotron_h")  # on whose out_proj PEFT puts no LoRA
ATTENTION = ("attn", "attention")  # what models call the block around q, k, v and o


class ScaleChoice(NamedTuple):
    value: Any
    reason: str


def fit(preset: Preset, name: str, fixed: Collection[str], profile: Profile) -> tuple[Preset, dict[str, ScaleChoice]]:
    """The preset for this model, and each of its values with the reason. `fixed` are values that a person set."""
    fitted = _fitted(presets.resolve(name, {}), profile)
    choices, changes = {}, {}
    for key, preset_value in preset.model_dump().items():
        value, reason = fitted.get(key, (preset_value, ""))
        if key in fixed:
            reason = f"{SET}; this model would get {value:.3g}" if value != preset_value else SET
            choices[key] = ScaleChoice(preset_value, reason)
        elif key in fitted and not (key == "alpha" and "rank" in fixed):  # alpha follows the rank that was fitted
            choices[key] = ScaleChoice(value, f"preset {name}; {reason}")
            changes[key] = value
        else:
            choices[key] = ScaleChoice(preset_value, f"preset {name}")
    return preset.model_copy(update=changes), choices


def _fitted(preset: Preset, profile: Profile) -> Mapping[str, tuple[Any, str]]:
    rate, reason = rate_factor(profile)
    values: dict[str, tuple[Any, str]] = {"learning_rate": (preset.learning_rate * rate, reason)}
    rank = min(preset.rank, RANK_BEYOND) if profile.active > PUBLISHED else preset.rank
    reasons = [f"{RANK_BEYOND} above {billions(int(PUBLISHED))} active parameters"] if rank != preset.rank else []
    if profile.mixture:
        rank += MORE_RANK
        reasons.append(f"{MORE_RANK} more than a dense model, for only attention trains")
        pull = f"× {LESS_PULL:g} for a mixture of experts, most of which stays as it is (ReinforceClaw's; not measured)"
        values["kl_ref"] = preset.kl_ref * LESS_PULL, pull
    if 0 < profile.context < preset.max_seq_len:
        values["max_seq_len"] = profile.context, "more tokens this model cannot read at once"
    if reasons:
        values["rank"] = rank, f"{', '.join(reasons)} (ReinforceClaw's; not measured)"
        values["alpha"] = preset.alpha * rank / preset.rank, "in proportion to the rank"
    return values


def rate_factor(profile: Profile) -> tuple[float, str]:
    """Factor of the preset's learning rate. Between the two sizes that somebody has tried, a straight
    line of log rate over log size."""
    active = billions(profile.active)
    if profile.active <= MEASURED:
        factor, reason = 1.0, f"measured on SmolLM2-135M, and {active} parameters are no more"
    elif profile.active <= PUBLISHED:
        factor = (profile.active / MEASURED) ** (math.log(AT_PUBLISHED) / math.log(PUBLISHED / MEASURED))
        reason = (
            f"× {factor:.3g} for {active} active parameters, between the rate measured at 135 M and ReinforceClaw's "
            "at 45 B; not measured at this size"
        )
    else:
        factor = AT_PUBLISHED * BEYOND
        reason = f"× {factor:.3g} for {active} active parameters: ReinforceClaw's; not measured"
    if profile.mixture:
        ratio = profile.total / profile.active
        sparse, whole = _row(SPARSITY, ratio), _row(TOTAL, profile.total)
        factor *= sparse * whole
        reason += f"; × {sparse:g} for {ratio:.3g} parameters to each active one"
        reason += f"; × {whole:g} for {billions(profile.total)} in all" if whole != 1 else ""
    return factor, reason


def _row(table: Sequence[tuple[float, float]], value: float) -> float:
    return next(factor for bound, factor in table if value <= bound)


# --- which layers -------------------------------------------------------------------------------------------------


class LayerPlan(NamedTuple):
    """Last names of a model's linear layers, as `q_proj`."""

    kind: str  # config.json's model_type
    trained: tuple[str, ...]
    left_out: tuple[str, ...]  # that could be trained, and have no place in the server's format

    def __str__(self) -> str:
        omitted = f"; without {' '.join(self.left_out)}, which its server cannot wear" if self.left_out else ""
        return f"{self.kind}: {' '.join(self.trained)}{omitted}"


def layer_plan(weights: Path, server_format: ServerFormat, setting: str, parent: Path | None = None) -> LayerPlan:
    """The layers that a run will train, from the files of the model and of the adapter that it goes on from. Raises
    AdapterError, in one sentence, where nothing that trains could be loaded."""
    config = json.loads((weights / "config.json").read_bytes())
    kind = str(config.get("model_type"))
    if parent is not None:
        layers = lora_layers(parent)
        require_loadable(parent, layers, config, server_format)
        return LayerPlan(kind, tuple(last_names(layers).split()), ())
    linears = [name for name in model_info.linear_shapes(weights) if "layers." in name]
    trainable, _ = trained_layers(linears, setting, model_info.read(weights))
    trained, left_out = worn_layers(trainable, config, server_format)
    return LayerPlan(kind, tuple(last_names(trained).split()), tuple(last_names(left_out).split()))


def targets(
    linears: Sequence[str], setting: str, profile: Profile, config: dict[str, Any], server_format: ServerFormat
) -> tuple[str | list[str], list[tuple[str, Any, str]]]:
    """The layers that get a LoRA, as peft names them; and choices with their reasons."""
    layers, reason = trained_layers(linears, setting, profile)
    layers, left_out = worn_layers(layers, config, server_format)
    choices: list[tuple[str, Any, str]] = [("layers", last_names(layers), reason)]
    if left_out:
        choices.append(("layers left out", last_names(left_out), NOT_WORN))
    if len(layers) == len(linears) and not profile.mixture:
        return ALL_LINEAR, choices
    return short_names(layers, linears), choices


def worn_layers(
    layers: Sequence[str], config: dict[str, Any], server_format: ServerFormat
) -> tuple[list[str], list[str]]:
    """Those that the server can wear, and the others. Raises AdapterError where there are none that it can."""
    is_wearable = wearable_layers(config, server_format)
    worn = [name for name in layers if is_wearable(name)]
    if not worn:
        raise AdapterError(
            f"This model is a {config.get('model_type')}, and none of its layers that train ({last_names(layers)}) has "
            f"a place in {IN_WORDS[server_format]}. {ELSEWHERE}"
        )
    return worn, [name for name in layers if not is_wearable(name)]


def trained_layers(linears: Collection[str], setting: str, profile: Profile) -> tuple[list[str], str]:
    """The linear layers of a model (without the head) that get a LoRA, and why. Never a router or an expert, and
    nothing that reads pictures or sound: ratings are of text, and servers wear no LoRA there. Raises AdapterError for a
    model of which none would be left."""
    writing = _text_layers(linears)
    if profile.architecture in STATE_SPACES:
        writing = [name for name in writing if not name.endswith(".out_proj")]
    if setting == "auto" and not profile.mixture:
        omitted = " and what reads pictures or sound" if len(_text_layers(linears)) < len(linears) else ""
        omitted += ", and out_proj, on which PEFT puts none" if profile.architecture in STATE_SPACES else ""
        return writing, f"dense: every linear layer but the head{omitted}"
    attention = [name for name in writing if any(word in part for part in _enclosing_parts(name) for word in ATTENTION)]
    attention = [name for name in attention if not picks_or_is_expert(name)]
    if not attention:
        raise AdapterError(
            f"This {profile.architecture} has no linear layers in a block that is called attention, and of a mixture "
            "of experts nothing else is trained. Serve another model, or rate it without training."
        )
    if profile.mixture:
        return attention, "a mixture of experts: attention only, for few ratings would unbalance routers and experts"
    return attention, f"{SET}: attention only"


def _text_layers(linears: Collection[str]) -> list[str]:
    text = [name for name in linears if any(part in senses.TEXT for part in name.split("."))]
    return text or [name for name in linears if not senses.is_sense(name)]


def _enclosing_parts(name: str) -> list[str]:
    return name.lower().split(".")[:-1]


def last_names(layers: Collection[str]) -> str:
    return " ".join(sorted({name.rsplit(".", 1)[-1] for name in layers}))


def short_names(layers: Collection[str], linears: Collection[str]) -> list[str]:
    """q_proj, o_proj, …: what servers expect in an adapter, unless such a name would take in layers not meant."""
    ends = {name.rsplit(".", 1)[-1] for name in layers}
    other_ends = {name.rsplit(".", 1)[-1] for name in linears if name not in set(layers)}
    return sorted(layers if ends & other_ends else ends)
