"""The file of `rlproxy init --answers`: TOML, or JSON by its ending. One key a question, each optional.

Owns the names and types of the keys. A key that is left out gets the default that Enter would take.
"""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from config.backend_kinds import BackendKind
from config.errors import nearest


class BadAnswers(Exception):
    """One sentence: what in the file is not an answer."""


class Answers(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, use_attribute_docstrings=True)

    backend: BackendKind | None = None
    """Kind of the server; without it the first one that was found, or the built-in one."""
    url: str | None = None
    """Its address; it need not be running."""
    model: str | None = None
    """The model's name there."""
    weights: str | None = None
    """Weights to train: a folder or a hub id; "" for none: then nothing trains."""
    own_server: bool | None = None
    """Whether rlproxy runs Ollama's llama-server itself, where a version at Ollama would be large; not without it."""
    agents: list[str] | None = None
    """Agents to connect; none without it."""
    preset: Literal["careful", "balanced", "aggressive"] | None = None
    """How far a run goes."""
    lessons: bool | None = None
    """Whether comments on bad answers act at once, as lessons in later prompts; as the settings say without it."""
    start_at_login: bool | None = None
    """Whether rlproxy becomes a service of this person; not without it."""
    install: bool | None = None
    """Whether a missing extra is installed with pip; not without it: it can be gigabytes."""


def read(file: Path) -> Answers:
    """Raises BadAnswers."""
    try:
        raw = file.read_text(encoding="utf-8")
        values = json.loads(raw) if file.suffix == ".json" else tomllib.loads(raw)
    except (OSError, ValueError) as error:
        raise BadAnswers(f"The answers in {file} cannot be read: {error}.") from None
    if not isinstance(values, dict):
        raise BadAnswers(f'The answers in {file} should be a table, as backend = "ollama".')
    for key in values:
        if key not in Answers.model_fields:
            raise BadAnswers(f"There is no answer {key!r} ({file}); {nearest(key, Answers.model_fields)}")
    try:
        return Answers(**values)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(str(part) for part in first["loc"])
        raise BadAnswers(f"{place} in {file} is not allowed: {first['msg']}.") from None
