"""The plan of `rlproxy init`, shown before it is written: the settings file, and agents' own settings.

Owns the text of the settings (an existing file keeps its comments and its other keys) and the check that rlproxy can
read it. Then come the backup and the order of writing. Each file is replaced whole or not at all. Not here: how agents
are told (proxy.cli.agents), the service (proxy.cli.service).
"""

from __future__ import annotations

import os
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import tomlkit

from config.errors import SettingsError
from config.further_models import TABLE as MODELS
from config.settings import FILE_NAME, PREFIX, LoadedSettings, Settings, load, secrets
from proxy.backends import make_backend
from proxy.backends.modelfile import format_of, release_of
from proxy.cli import plan as sizes
from proxy.cli.agents import connection
from proxy.cli.agents.catalog import AGENTS, OWN_KEY, AgentLink, Home
from proxy.cli.agents.connection import Change
from proxy.cli.agents.paths import MISSING, UnreadableSettings, look
from proxy.cli.agents.toml_text import drop, parse, set_value
from proxy.cli.init.questions import Choices
from proxy.core.errors import BadRequest
from trainer.launch import AdapterError, LocalLauncher, adapter_layers

HEAD: Final = "# rlproxy's settings, as `rlproxy init` found them; `rlproxy config show` has all others.\n\n"


class NotWritable(Exception):
    """One sentence: what keeps this from being written. Nothing was."""


@dataclass(frozen=True, slots=True)
class InitPlan:
    settings: Settings  # as they will be in force
    file: Change
    backup: Change | None
    agents: dict[str, tuple[list[Change], dict[str, Any] | None]]  # with the record of an earlier connection
    notes: list[str]

    @property
    def keys(self) -> list[str]:
        """Secrets in these changes, which nobody is shown."""
        tables = [parse(text.decode()) for text in (self.file.original, self.file.result) if text]
        candidates = [look(table, tuple(key.split("."))) for table in tables for key in secrets()]
        models = [look(table, (MODELS,)) for table in tables]
        candidates += [look(row, ("api_key",)) for rows in models if isinstance(rows, dict) for row in rows.values()]
        if self.settings.server.api_key:  # from the environment, and told to agents
            candidates.append(self.settings.server.api_key.get_secret_value())
        return sorted({key for key in candidates if isinstance(key, str) and key}, key=len, reverse=True)

    @property
    def changes(self) -> list[Change]:
        """The plan as a person sees it."""
        agent_changes = [change for changes, _ in self.agents.values() for change in changes]
        return [change for change in (self.file, *agent_changes) if change.changes]


def make(home: Path, choices: Choices) -> InitPlan:
    """Raises NotWritable. Reads files, and writes none that stays."""
    path = home / FILE_NAME
    try:
        raw = path.read_bytes()
    except FileNotFoundError:
        raw = None
    except OSError as error:
        raise NotWritable(f"{path} cannot be read: {error}.") from None
    try:
        text = settings_text((raw or b"").decode("utf-8"), choices)
    except (UnicodeDecodeError, UnreadableSettings) as error:
        raise NotWritable(f"{path} was left as it is: {error}.") from None
    loaded = _check(home, text)
    change = Change(path, raw, text.encode())
    backup = None
    if raw is not None and change.changes:
        backup = Change(path.with_name(f"{FILE_NAME}.{time.strftime('%Y%m%dT%H%M%S')}.bak"), None, raw)
    link = _link(loaded.settings, choices)
    agents = {name: _connecting(loaded.settings, name, link) for name in choices.agents}
    notes = _find_overruled(loaded, choices) + ([OWN_KEY] if agents and link.own_key else [])
    notes += [note for note in (choices.offer_note, choices.folder_note) if note]
    notes += [note] if (note := learning_note(loaded.settings, choices.weights, choices.release)) else []
    notes += [note] if (note := size_note(loaded.settings, choices.weights)) else []
    return InitPlan(loaded.settings, change, backup, agents, notes)


def learning_note(settings: Settings, weights: str, release: str = "") -> str | None:
    """Which layers this model can train for this server, or why none; None where its weights are not here yet.
    `release`: of the server, where it tells."""
    if not weights:
        return None
    try:
        server_format = make_backend(settings, LocalLauncher()).server_format
        if settings.backend.kind == "ollama" and release:
            server_format = format_of(release_of(release))
        layers = adapter_layers(weights, server_format, settings.train.preset, settings.train.overrides)
    except BadRequest:  # the settings lack the server's address, and are refused for that elsewhere
        return None
    except AdapterError as error:
        return f"Answers are kept and rated, and nothing can train. {error}"
    return None if layers is None else f"What trains: {layers}."


def size_note(settings: Settings, weights: str) -> str | None:
    """Say what a run takes here, and a version; None where the weights are not here yet, or cannot train."""
    if not weights or (estimate := sizes.estimate_here(settings, weights)) is None or estimate.obstacle:
        return None
    version = estimate.version
    size = f"; a version is {version.form} of {sizes.size_text(version.served)}" if version else ""
    return f"{sizes.short(estimate, sentence=True)}{size}."


def settings_text(text: str, choices: Choices) -> str:
    """The settings with these choices."""
    document = parse(text) if text.strip() else {}
    text = text if text.strip() else HEAD
    for key, value in values(choices).items():
        place = tuple(key.split("."))
        current = look(document, place)
        if current == value or (current is MISSING and value in ("", False)):
            continue
        text = set_value(text, place, value)
    for key in choices.stale:
        if look(document, place := tuple(key.split("."))) is not MISSING:
            text = drop(text, place)
    return _space_tables(text)


def values(choices: Choices) -> dict[str, Any]:
    settings = {
        "backend.kind": choices.kind, "backend.url": choices.url, "backend.model": choices.model,
        "train.weights": choices.weights, "train.preset": choices.preset,
    }  # fmt: skip
    optional = {
        "backend.presets": choices.presets,
        "backend.command": choices.command,
        "backend.models_dir": choices.models_dir,
    }
    return settings | {key: value for key, value in optional.items() if value} | {"lessons.enabled": choices.lessons}


def write(plan: InitPlan) -> None:
    """Raises NotWritable, with what was written until then."""
    progress = "nothing was written"
    try:
        home = plan.file.file.parent
        home.mkdir(parents=True, exist_ok=True, mode=0o700)
        if plan.backup is not None:
            connection.apply([plan.backup])
        connection.apply([plan.file])
        progress = "the settings are written, the agents' are not"
        for agent, (changes, record) in plan.agents.items():
            connection.connect(home, agent, changes, record)
            progress = f"the settings and {agent}'s are written"
    except OSError as error:
        raise NotWritable(f"Writing stopped ({error}); {progress}.") from None


def _check(home: Path, text: str) -> LoadedSettings:
    """Read it as `serve` will. Raises NotWritable."""
    handle, name = tempfile.mkstemp(suffix=f"-{FILE_NAME}")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as out:
            out.write(text)
        return load({"home": home}, file=Path(name))
    except SettingsError as error:
        raise NotWritable(str(error).replace(name, str(home / FILE_NAME))) from None
    finally:
        Path(name).unlink(missing_ok=True)


def _find_overruled(loaded: LoadedSettings, choices: Choices) -> list[str]:
    """Where the environment would go before what is written."""
    return [
        f"{key} is set by {loaded.sources[key]}, which goes before the file: unset it."
        for key in (*values(choices), *choices.stale)
        if loaded.sources[key].startswith(f"env {PREFIX}")
    ]


def _link(settings: Settings, choices: Choices) -> AgentLink:
    server = settings.server
    host = "127.0.0.1" if server.host in ("0.0.0.0", "::") else server.host  # noqa: S104  agents here need one
    url = f"http://{f'[{host}]' if ':' in host else host}:{server.port}"
    key = server.api_key.get_secret_value() if server.api_key else None
    own_key = choices.kind == "openai" and not (key or settings.backend.api_key)
    return AgentLink(url, choices.model, key, choices.window, own_key)


def _connecting(settings: Settings, agent: str, link: AgentLink) -> tuple[list[Change], dict[str, Any] | None]:
    try:
        record = connection.load(settings.home, agent)
        return connection.connecting(AGENTS[agent](link, Home(Path.home(), os.environ)), record), record
    except UnreadableSettings as error:
        raise NotWritable(str(error)) from None


def _space_tables(text: str) -> str:
    """tomlkit puts a new table right under the line before it."""
    lines: list[str] = []
    for line in text.rstrip("\n").split("\n"):  # splitlines knows more ends of a line than TOML does
        if line.startswith("[") and lines and lines[-1].strip() and not lines[-1].startswith("#"):
            lines.append("")
        lines.append(line)
    spaced = "\n".join(lines) + "\n"
    return spaced if tomlkit.parse(spaced).unwrap() == tomlkit.parse(text).unwrap() else text
