"""Training presets: named sets of the numbers a run trains with.

Owns their names, types and ranges; the numbers are in presets.toml, their mathematics in `trainer`.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, ValidationInfo, field_validator
from pydantic_core import PydanticCustomError

from config.errors import SettingsError, nearest

COMPLETE = "balanced"  # the preset that has every value; the others only differ from it
REMOVED: Final = {  # values that earlier releases had, and why they are gone; run folders may still name them
    "replay_ratio": "samples of earlier runs, trained once more, taught no more and kept no more",
    "warmup_steps": "smaller first steps only put off the loss of sense to later ones",
}


class Preset(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    objective: str
    learning_rate: float = Field(gt=0, le=1)
    passes: int = Field(ge=1)
    batch: int = Field(ge=1)
    rank: int = Field(ge=1, le=1024)
    alpha: float = Field(gt=0)
    layers: Literal["auto", "attention"]
    max_grad_norm: float = Field(gt=0)
    max_seq_len: int = Field(ge=16)
    kl_ref: float = Field(ge=0)
    drift_bound: float = Field(gt=0)
    token_low: float = Field(gt=0, le=1)
    token_high: float = Field(ge=1)
    band: Literal["calibrated", "paper", "off"]
    band_low: float = Field(gt=0, le=1)
    band_high: float = Field(ge=1)
    late_moment: float = Field(ge=0)
    ema_decay: float = Field(ge=0, lt=1)
    advantage_clip: float = Field(gt=0)
    weight_good: float = Field(ge=0)
    balance: bool
    credit: float = Field(gt=0, le=1)
    rate_credited: float = Field(gt=0, le=1)
    drift_credited: float = Field(gt=0)
    drift_weak: float = Field(gt=0)
    w_stay: float = Field(ge=0)
    w_elsewhere: float = Field(ge=0)
    likely: float = Field(gt=0, le=1)
    guard_high: float = Field(ge=1)
    guard_low: float = Field(gt=0, le=1)
    w_rl: float = Field(ge=0)
    w_distill: float = Field(ge=0)
    match: Literal["distribution", "token"]
    rate_taught: float = Field(gt=0, le=1)
    steps_taught: int = Field(ge=1)
    drift_taught: float = Field(gt=0)
    teacher_k: int = Field(ge=1, le=1000)
    hinted_replies: int = Field(ge=0)
    clip_low: float = Field(gt=0, lt=1)
    clip_high: float = Field(gt=0)
    kto_beta: float = Field(gt=0)
    discount: float = Field(gt=0, le=1)
    batch_episodes: int = Field(ge=1)
    rate_episodes: float = Field(gt=0, le=10)
    pair_beta: float = Field(ge=0)
    pair_nll: float = Field(ge=0)
    max_version_gap: int = Field(ge=0)

    @field_validator("*", mode="before")
    @classmethod
    def _number(cls, value: Any, info: ValidationInfo) -> Any:
        """Refuse true where a number is needed: pydantic would read it as 1."""
        if isinstance(value, bool) and cls.model_fields[str(info.field_name)].annotation in (int, float):
            raise PydanticCustomError("number", "a number is needed")
        return value


def names() -> tuple[str, ...]:
    return tuple(_tables())


def resolve(preset: str, overrides: Mapping[str, Any]) -> Preset:
    """The preset of that name with single values replaced."""
    if preset not in _tables():
        raise SettingsError(f"There is no preset {preset!r}; {nearest(preset, _tables())}")
    for name in overrides:
        if name in REMOVED:
            raise SettingsError(
                f"Preset value {name} was removed: {REMOVED[name]}. Your ratings and versions are kept; take {name} "
                "out of train.overrides."
            )
        if name not in Preset.model_fields:
            raise SettingsError(f"No preset has a value {name!r}; {nearest(name, Preset.model_fields)}")
    try:
        return Preset.model_validate(_tables()[COMPLETE] | _tables()[preset] | dict(overrides))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        message = first["msg"][:1].lower() + first["msg"][1:]
        raise SettingsError(f"Preset value {first['loc'][0]} = {first['input']!r}: {message}.") from None


@cache
def _tables() -> dict[str, dict[str, Any]]:
    return tomllib.loads(files("config").joinpath("presets.toml").read_text(encoding="utf-8"))
