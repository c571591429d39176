"""The sections of the settings: every key with its default, its range and its meaning.

Not here: how they are put together and where values come from (`config.settings`), the numbers of a training
preset (`config.presets`).
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, SecretStr

UserPath = Annotated[Path, AfterValidator(Path.expanduser)]
# An empty key must never count as a key, and TOML has no null.
_unset = BeforeValidator(lambda value: None if value == "" else value)
Key = Annotated[SecretStr | None, _unset]
Override = bool | int | float | str


class Section(BaseModel):
    model_config = ConfigDict(
        frozen=True, extra="forbid", validate_default=True, allow_inf_nan=False, use_attribute_docstrings=True
    )


class Server(Section):
    host: str = Field(default="127.0.0.1", min_length=1)
    """Address to listen on; any other than loopback needs `server.api_key`."""
    port: int = Field(default=8484, ge=0, le=65535)
    """Port to listen on; 0 takes a free one."""
    max_body_bytes: int = Field(default=32 * 1024 * 1024, ge=1024)
    """Largest request body taken, in bytes."""
    api_key: Key = None
    """Key that clients must send; needed to listen off loopback."""
    admin_key: Key = None
    """Key for admin acts: train, pause, rollback, promote, reset, forget."""


class Backend(Section):
    kind: Literal["builtin", "vllm", "openai"] = "builtin"
    """Server that runs the model; "openai" is any OpenAI-compatible one."""
    url: str = ""
    """Its address; empty with the built-in one, which rlproxy starts itself."""
    model: str = ""
    """Model name to ask it for; empty takes the only model it has."""
    api_key: Key = None
    """Key that the backend wants from rlproxy."""
    threads: int = Field(default=0, ge=0, le=1024)
    """CPU threads of the built-in backend; 0 chooses by the machine."""
    connect_timeout_s: float = Field(default=5.0, gt=0)
    """Seconds to wait for a connection to the backend."""
    read_timeout_s: float = Field(default=600.0, gt=0)
    """Seconds of silence allowed between two reads from the backend."""
    ready_timeout_s: float = Field(default=60.0, ge=0)
    """Seconds a request waits for a backend that is still starting."""


class Train(Section):
    weights: str = ""
    """Weights to train, a path or a hub id; empty takes what the built-in backend serves."""
    enabled: bool = True
    """Whether runs start by themselves."""
    start_at: int = Field(default=32, ge=1)
    """Fresh ratings that start a run."""
    min_each: int = Field(default=0, ge=0)
    """Fewest fresh ratings of each sign that a run needs."""
    quiet_s: float = Field(default=0.0, ge=0)
    """Seconds without a request before a run starts."""
    max_samples: int = Field(default=256, ge=1, le=10_000)
    """Most samples in one run; the newest are taken."""
    held_share: float = Field(default=0.125, ge=0, le=0.5)
    """Share of the samples kept back for the gate."""
    max_version_gap: int = Field(default=8, ge=0)
    """Versions a completion may be away from the live one and still train."""
    preset: str = "balanced"
    """Values of the training objective: careful, balanced or aggressive."""
    min_free_memory_gb: float = Field(default=2.0, ge=0)
    """Free memory, in GB, without which no run starts."""
    threads: int = Field(default=0, ge=0, le=1024)
    """CPU threads of a run; 0 chooses by the machine."""
    nice: int = Field(default=10, ge=0, le=19)
    """How far a run steps back for other processes; 19 is furthest."""
    adapters_dir: Annotated[UserPath | None, _unset] = None
    """Folder the adapters are written to; unset is `adapters_out` in the home folder."""
    overrides: dict[str, Override] = {}
    """Single values that replace those of the preset, by their names in presets.toml."""
    max_attempts: int = Field(default=3, ge=1, le=100)
    """Times a run that crashed is started before it fails."""
    calibration: int = Field(default=16, ge=0, le=1000)
    """Unrated completions handed to a run, to measure the noise between serving and training."""


class Gate(Section):
    margin_slack: float = Field(default=0.05, ge=0)
    """Margin between good and bad held samples, in nats a token, that a candidate may lose to its parent."""
    base_nll_rise: float = Field(default=0.3, ge=0)
    """Rise allowed, in nats a token, of how unlikely the base model finds the candidate's replies."""
    text_nll_rise: float = Field(default=0.05, ge=0)
    """Rise allowed of the loss on a fixed text, as a share of what the base model has there."""
    min_length_ratio: float = Field(default=0.5, ge=0, le=1)
    """Shortest that the candidate's answers may be, as a share of its parent's."""
    max_length_ratio: float = Field(default=2.0, ge=1)
    """Longest that the candidate's answers may be, as a share of its parent's."""
    max_looping: int = Field(default=1, ge=0)
    """Probe answers that may loop."""
    repetition_rise: float = Field(default=0.15, ge=0)
    """Rise allowed of the share of word sequences that an answer repeats."""
    min_entropy_ratio: float = Field(default=0.4, ge=0)
    """Least variety of the next token that a candidate must keep, as a share of the base model's."""
    more_refusals: int = Field(default=1, ge=0)
    """Probe questions that a candidate may refuse beyond its parent."""


class StoreSection(Section):
    retention_days: float = Field(default=7.0, gt=0)
    """Days an unrated completion is kept; rated ones stay until forgotten."""


class Log(Section):
    level: Literal["debug", "info", "warning", "error"] = "info"
    """Least serious message that is written."""
    format: Literal["text", "json"] = "text"
    """Lines for people or for machines."""
