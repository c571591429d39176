"""The run folder: the boundary between proxy and trainer, as plain files.

Owns the names in it, reading run.json, writing atomically, the lock. Not here: what a sample means (samples), what a
checkpoint holds (loop). The format is in trainer/CONTRACT.md.
"""

from __future__ import annotations

import fcntl
import io
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

from config.languages import CODES, DEFAULT, MOST_LANGUAGES
from config.presets import REMOVED
from trainer.io.encrypted_files import IN_THE_CLEAR, Seal

FORMAT = 1
SAMPLES = "samples.jsonl"
PICTURES = "pictures.jsonl"  # of prompts in SAMPLES, each once
OWN_LOSS = "loss.py"  # the copy of the user's own loss
Framework = Literal["auto", "torch", "mlx"]
Compute = Literal["auto", "float32", "bfloat16"]
# A folder as PEFT writes it, for the built-in server, vLLM or SGLang; a GGUF file beside the model; a whole model with
# the adapter in it; mlx-lm's folder.
ServerFormat = Literal["peft", "vllm", "sglang", "gguf", "merged", "mlx"]


class RunError(Exception):
    """This run cannot be done. One sentence: what, where, what to do."""


class FolderLocked(RunError):
    """Another trainer holds the folder."""


@dataclass(frozen=True, slots=True)
class LossSpec:
    """A loss of the user's own (trainer.own_loss); its code is OWN_LOSS."""

    file: str  # where it came from, for errors
    function: str
    sha256: str
    timeout_s: float  # of one call

    @property
    def name(self) -> str:
        return f"{self.file}:{self.function}"


@dataclass(frozen=True, slots=True)
class RunSpec:
    """run.json."""

    run: int
    model: str
    weights: str
    version: int
    parent: int  # 0: the base
    out: Path
    adapters: dict[int, Path] = field(default_factory=dict)
    baseline: float = 0.0
    episode_baseline: float = 0.0  # of episodes outside any group
    seed: int = 0
    threads: int = 0  # 0: as many as the environment gives
    framework: Framework = "auto"  # auto: mlx on Apple silicon where it is installed, else torch
    compute: Compute = "auto"  # what the base model computes in
    load_in_4bit: bool = False
    trust_remote_code: bool = False  # code in the folder of the weights may run
    gpus: int = 1  # processes that hold the model together, a GPU each
    offload: bool = False  # frozen layers and the optimiser's state stay in the machine's memory
    server_format: ServerFormat = "peft"  # in which the server loads what trains
    preset: str = "balanced"
    overrides: dict[str, Any] = field(default_factory=dict)
    tune: Literal[False, True, "anew"] = False  # look for the learning rate, where no sweep has; or in any case
    tuned: float | None = None  # what a sweep found before, for a version or none
    gate: dict[str, float] = field(default_factory=dict)
    tensorboard: Path | None = None  # folder for scalars
    languages: tuple[str, ...] = (DEFAULT,)  # that the gate asks in, the most frequent first
    neutral: dict[str, dict[str, Any]] = field(default_factory=dict)  # the gate's questions as the server renders them
    lessons: bool = False  # comments are in later prompts: what they still change there is measured
    loss: LossSpec | None = None  # None: that of the preset
    # Noise of the log-probs as the proxy compared the server with the weights: mean, deviation (nats), tokens.
    comparison: dict[str, float] | None = None
    choices: list[dict[str, Any]] = field(default_factory=list)  # made before this run began: name, value, why


def read_spec(folder: Path) -> RunSpec:
    path = folder / "run.json"
    try:
        raw = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise RunError(f"{folder} is not a run folder: it has no run.json.") from None
    except ValueError as error:
        raise RunError(f"{path} is not JSON: {error}.") from None
    if not isinstance(raw, dict) or raw.get("format") != FORMAT:
        raise RunError(f"{path} has format {raw.get('format') if isinstance(raw, dict) else raw!r}, not {FORMAT}.")
    try:
        spec = RunSpec(
            run=int(raw["run"]),
            model=str(raw["model"]),
            weights=str(raw["weights"]),
            version=int(raw["version"]),
            parent=int(raw["parent"]),
            out=Path(raw["out"]),
            adapters={int(version): Path(folder_name) for version, folder_name in raw.get("adapters", {}).items()},
            baseline=float(raw.get("baseline", 0.0)),
            episode_baseline=float(raw.get("episode_baseline", 0.0)),
            seed=int(raw.get("seed", 0)),
            threads=int(raw.get("threads", 0)),
            framework=raw.get("framework", "auto"),
            compute=raw.get("compute", "auto"),
            lessons=bool(raw.get("lessons", False)),
            load_in_4bit=bool(raw.get("load_in_4bit", False)),
            trust_remote_code=raw.get("trust_remote_code") is True,
            gpus=int(raw.get("gpus", 1)),
            offload=bool(raw.get("offload", False)),
            server_format=raw.get("server_format", "peft"),
            preset=str(raw.get("preset", "balanced")),
            overrides={name: value for name, value in raw.get("overrides", {}).items() if name not in REMOVED},
            tune="anew" if raw.get("tune") == "anew" else bool(raw.get("tune", False)),
            tuned=None if raw.get("tuned") is None else float(raw["tuned"]),
            gate={name: float(value) for name, value in raw.get("gate", {}).items()},
            tensorboard=Path(raw["tensorboard"]) if raw.get("tensorboard") else None,
            languages=tuple(raw.get("languages") or (DEFAULT,)),
            neutral={str(question): dict(prompt) for question, prompt in (raw.get("neutral") or {}).items()},
            loss=None if raw.get("loss") is None else _loss(raw["loss"]),
            comparison=None if raw.get("comparison") is None else _comparison(raw["comparison"]),
            choices=[
                *({key: choice[key] for key in ("name", "value", "why")} for choice in raw.get("choices", ())),
                *_removed_values(raw.get("overrides", {})),
            ],
        )
    except KeyError as error:
        raise RunError(f"{path} lacks {error}.") from None
    except (TypeError, ValueError, AttributeError) as error:
        raise RunError(f"{path} is wrong: {error}.") from None
    if spec.parent and spec.parent not in spec.adapters:
        raise RunError(f"{path} names version {spec.parent} as the parent but not its folder in `adapters`.")
    if not set(spec.languages) <= set(CODES) or len(set(spec.languages)) != len(spec.languages):
        raise RunError(f"{path} asks for the languages {list(spec.languages)}; there are {', '.join(CODES)}.")
    if len(spec.languages) > MOST_LANGUAGES:
        raise RunError(f"{path} asks for {len(spec.languages)} languages; a gate asks in {MOST_LANGUAGES} at most.")
    if spec.framework not in get_args(Framework):
        raise RunError(f"{path} asks for the framework {spec.framework!r}; there is {', '.join(get_args(Framework))}.")
    if spec.compute not in get_args(Compute):
        raise RunError(f"{path} asks to compute in {spec.compute!r}; there is {', '.join(get_args(Compute))}.")
    if spec.gpus < 1:
        raise RunError(f"{path} asks for {spec.gpus} GPUs; 1 is the least.")
    if not -1 <= spec.baseline <= 1 or not -1 <= spec.episode_baseline <= 1 or spec.threads < 0:
        raise RunError(f"{path}: baseline must be within -1..1 and threads not below 0.")
    return spec


def _removed_values(overrides: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Choices that say which preset values of an earlier release this run does without: it goes on after an upgrade."""
    names = [name for name in overrides if name in REMOVED]
    return [{"name": name, "value": "left out", "why": f"removed by an upgrade: {REMOVED[name]}"} for name in names]


def _comparison(raw: dict[str, Any]) -> dict[str, float]:
    return {name: float(raw[name]) for name in ("mean", "deviation", "tokens")}


def _loss(raw: dict[str, Any]) -> LossSpec:
    return LossSpec(str(raw["file"]), str(raw["function"]), str(raw["sha256"]), float(raw["timeout_s"]))


def read_lines(path: Path, seal: Seal = IN_THE_CLEAR) -> Iterator[tuple[int, dict[str, Any] | None]]:
    """(line number, object) of a JSON-lines file; None for a line that is not an object. A missing file is empty."""
    if not path.exists():
        return
    for number, line in enumerate(io.BytesIO(seal.read(path)), 1):
        if not line.strip():
            continue
        try:
            value = json.loads(line)
        except ValueError:
            value = None
        yield number, value if isinstance(value, dict) else None


def write_atomic(path: Path, data: bytes) -> None:
    """Whole and on disk, or not there."""
    temporary = path.with_name(f".{path.name}.tmp")
    with temporary.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def lock(folder: Path) -> Iterator[None]:
    """One trainer a folder. The kernel lets go of it however this process ends."""
    with (folder / "lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise FolderLocked(f"another trainer is at work in {folder}.") from None
        yield
