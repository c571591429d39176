"""The settings in force: defaults < file < environment < flags, each value with its source.

Owns precedence, provenance and the sentence a person reads when a value is wrong. Not here: the keys of the
sections (`config.sections`).
"""

from __future__ import annotations

import json
import os
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import BaseModel, SecretStr, ValidationError
from pydantic.fields import FieldInfo
from pydantic_settings import (
    BaseSettings,
    EnvSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    TomlConfigSettingsSource,
)
from pydantic_settings import SettingsError as SourceError

from config.errors import SettingsError, nearest
from config.further_models import TABLE as MODELS
from config.further_models import FurtherModels
from config.meanings import meanings
from config.presets import resolve
from config.sections import (
    BackendSection,
    Gate,
    Images,
    Judge,
    LessonsSection,
    Log,
    Redaction,
    Rubric,
    ServerSection,
    Signals,
    StoreSection,
    TelemetrySection,
    Train,
    Turns,
    UserPath,
)
from config.webhooks import PLATFORMS, WebhooksSection, check_secrets

FILE_NAME = "rlproxy.toml"
HOME = "~/.rlproxy"
PREFIX = "RLPROXY_"
OVERRIDES = "train.overrides"
# The settings that are themselves tables.
PEOPLE = ("train.raters", *(f"webhooks.{platform}.raters" for platform in PLATFORMS))
TABLES = (OVERRIDES, MODELS, *PEOPLE)
LISTS = (
    "server.hosts", "server.origins", "server.chat_admins", "server.sso_proxies", "backend.replicas",
    "train.hours", "train.where_options", "judge.hours", "turns.rules", "rubric.criteria",
    "redaction.patterns",
    "webhooks.good", "webhooks.bad", "webhooks.stars",
    *(f"webhooks.{platform}.admins" for platform in PLATFORMS),
)  # fmt: skip
# Variables with our prefix that are no settings.
SECRETS = ("RLPROXY_STORE_KEY",)  # the database's own key (store.file.db_key)
# Flags that are not named as their keys are.
FLAGS = {
    "backend.kind": "--backend",
    "backend.url": "--backend-url",
    "log.level": "--log-level",
    "store.key_from": "--key",
}
ADDRESSES = ("backend.url", "backend.replicas", "judge.url", "telemetry.otlp")  # whose queries may be keys
HIDDEN = ("store.key_from",)  # where somebody may put a key by mistake, which no message should repeat
PARSED = {**dict.fromkeys(TABLES, "object"), **dict.fromkeys(LISTS, "array")}  # JSON in the environment


class Settings(BaseSettings):
    """All settings. Built bare it holds the defaults and reads nothing; `load` reads the sources."""

    model_config = SettingsConfigDict(
        frozen=True,
        extra="forbid",
        validate_default=True,
        env_prefix=PREFIX,
        env_nested_delimiter="__",
        env_ignore_empty=True,
    )

    home: UserPath = Path(HOME)
    """Folder that holds everything rlproxy keeps."""
    server: ServerSection = ServerSection()
    backend: BackendSection = BackendSection()
    models: FurtherModels = {}
    """Models of other servers, as `[models.coder]` with `url`, `kind`, `model` and `api_key`: never trained."""
    train: Train = Train()
    gate: Gate = Gate()
    judge: Judge = Judge()
    lessons: LessonsSection = LessonsSection()
    signals: Signals = Signals()
    turns: Turns = Turns()
    rubric: Rubric = Rubric()
    webhooks: WebhooksSection = WebhooksSection()
    store: StoreSection = StoreSection()
    images: Images = Images()
    redaction: Redaction = Redaction()
    telemetry: TelemetrySection = TelemetrySection()
    log: Log = Log()

    @property
    def adapters_dir(self) -> Path:
        return self.train.adapters_dir or self.home / "adapters_out"

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        # load() reads the others one by one, so that it knows which value came from where.
        return (init_settings,)


class Row(NamedTuple):
    key: str
    value: str
    source: str
    help: str


class SourcedSettings(NamedTuple):
    """A value as some source gave it."""

    value: Any
    source: str


@dataclass(frozen=True)
class LoadedSettings:
    settings: Settings
    sources: dict[str, str]  # "server.port" -> "default", "file /path", "env RLPROXY_…" or "flag --port"

    def describe(self) -> list[Row]:
        """One row a setting, secrets masked."""
        descriptions = meanings(Settings)
        return [
            Row(key, _as_text(_value(self.settings, key)), self.sources[key], descriptions[key]) for key in fields()
        ]


def fields(model: type[BaseModel] = Settings, prefix: str = "") -> dict[str, FieldInfo]:
    """Every setting by its dotted key, in the order of the model."""
    fields_by_key: dict[str, FieldInfo] = {}
    for name, field in model.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            fields_by_key |= fields(field.annotation, f"{prefix}{name}.")
        else:
            fields_by_key[prefix + name] = field
    return fields_by_key


def secrets() -> list[str]:
    """The settings that nobody is shown."""
    return [key for key, field in fields().items() if _is_secret(field)]


def load(
    flags: Mapping[str, Any] | None = None,
    *,
    file: Path | None = None,
    environ: Mapping[str, str] | None = None,
) -> LoadedSettings:
    """Read all sources. `flags` are dotted keys, None is a flag not given; `file` must exist if named."""
    on_top = _environment(os.environ if environ is None else environ) | _flags(flags or {})
    entries = _merged(_file(file, on_top), on_top)
    settings = _build(entries)
    try:  # a bad preset or override should stop the start, not the first run
        resolve(settings.train.preset, settings.train.overrides)
    except SettingsError as error:
        sources = {entries[key].source for key in ("train.preset", OVERRIDES) if key in entries}
        raise SettingsError(f"{error} (from {' and '.join(sorted(sources))})") from None
    check_secrets(settings.webhooks)
    return LoadedSettings(settings, {key: entries[key].source if key in entries else "default" for key in fields()})


def _merged(base: dict[str, SourcedSettings], on_top: dict[str, SourcedSettings]) -> dict[str, SourcedSettings]:
    """Both, the second first. Of one further model the file may have the address, and a variable the key."""
    entries = base | on_top
    tables = [entry.value for entry in (base.get(MODELS), on_top.get(MODELS)) if entry is not None]
    if len(tables) == 2 and all(isinstance(model, Mapping) for table in tables for model in _values(table)):
        file, variables = tables
        models = {name: {**file.get(name, {}), **variables.get(name, {})} for name in file | variables}
        entries[MODELS] = SourcedSettings(models, f"{base[MODELS].source} and {on_top[MODELS].source}")
    return entries


def _values(table: Any) -> list[Any]:
    return list(table.values()) if isinstance(table, Mapping) else [table]


def _flags(flags: Mapping[str, Any]) -> dict[str, SourcedSettings]:
    entries: dict[str, SourcedSettings] = {}
    for key, value in flags.items():
        if value is None:
            continue
        source = "flag " + FLAGS.get(key, "--" + key.rpartition(".")[2].replace("_", "-"))
        _check_known(key, source)
        entries[key] = SourcedSettings(value, source)
    return entries


def _environment(environ: Mapping[str, str]) -> dict[str, SourcedSettings]:
    names: dict[str, str] = {}  # key -> the variable as it is spelt
    for name in environ:
        if name.upper().startswith(PREFIX) and name not in SECRETS:
            key = name[len(PREFIX) :].lower().replace("__", ".")
            key = next((table for table in TABLES if key.startswith(table + ".")), key)
            _check_known(key, f"env {name}")
            names[key] = name
    source = EnvSettingsSource(Settings)
    source.env_vars = {name.lower(): value for name, value in environ.items() if value}
    try:
        values = dict(_leaves(source()))
    except SourceError:
        # Only these are parsed by the source; all other values stay text until they are checked.
        broken_key, kind = next(
            (key, kind) for key, kind in PARSED.items() if not _is_json(environ.get(names.get(key, "")))
        )
        raise SettingsError(f"{broken_key} from env {names[broken_key]} should be a JSON {kind}.") from None
    values |= _as_spelt(environ, values)
    return {key: SourcedSettings(value, f"env {names[key]}") for key, value in values.items()}


def _as_spelt(environ: Mapping[str, str], values: Mapping[str, Any]) -> dict[str, Any]:
    """Tables of people, whose names are not settings: the source lowers them with the rest of a variable's name."""
    tables: dict[str, Any] = {}
    for table in (name for name in PEOPLE if isinstance(values.get(name), Mapping)):
        start = f"{PREFIX}{table}.".replace(".", "__").upper()
        spelt = {name[len(start) :].lower(): name[len(start) :] for name in environ if name.upper().startswith(start)}
        tables[table] = {spelt.get(name, name): value for name, value in values[table].items()}
    return tables


def _is_json(text: str | None) -> bool:
    try:
        json.loads(text or "{}")
    except ValueError:
        return False
    return True


def _file(file: Path | None, on_top: Mapping[str, SourcedSettings]) -> dict[str, SourcedSettings]:
    path = file
    if path is None:
        home = on_top["home"].value if "home" in on_top else HOME
        path = Path(str(home)).expanduser() / FILE_NAME
        if not path.exists():
            return {}
    try:
        if not path.exists():
            raise FileNotFoundError(f"{path} does not exist")
        values = dict(_leaves(TomlConfigSettingsSource(Settings, path)()))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise SettingsError(
            f"The settings file {path} cannot be read: {error}; correct it, or move it away."
        ) from error
    for key in values:
        _check_known(key, f"file {path}")
        if key.startswith("webhooks.") and values[key] and _is_secret(fields()[key]):
            variable = PREFIX + key.replace(".", "__").upper()
            raise SettingsError(
                f"{key} is a secret and may not stand in {path}. Put it into {variable}, or alone into a file that "
                f"only you can read, named by {key}_file."
            )
    if file is None and "home" in values:
        raise SettingsError(f"home cannot be set in {path}, found through it; use --home or RLPROXY_HOME.")
    return {key: SourcedSettings(value, f"file {path}") for key, value in values.items()}


def _build(entries: Mapping[str, SourcedSettings]) -> Settings:
    nested: dict[str, Any] = {}
    for key, entry in entries.items():
        *sections, name = key.split(".")
        table = nested
        for section in sections:
            table = table.setdefault(section, {})
        table[name] = entry.value
    try:
        return Settings(**nested)
    except ValidationError as error:
        raise SettingsError(_sentence(error, entries)) from None


def _sentence(error: ValidationError, entries: Mapping[str, SourcedSettings]) -> str:
    first = error.errors(include_url=False)[0]
    path = ".".join(str(part) for part in first["loc"])
    reason = first["msg"][:1].lower() + first["msg"][1:]
    key = next((key for key in entries if path == key or path.startswith(key + ".")), None)
    if key is None:  # values that do not go together
        sources = {entry.source for key, entry in entries.items() if key.startswith(path + ".")}
        return f"{path}: the values from {' and '.join(sorted(sources))} are not allowed: {reason}."
    field = fields()[key]
    # A key, an address with one, or where somebody may have put one: also under a wrong name in a table of models.
    has_key = "@" in str(first["input"]) or ("?" in str(first["input"]) and key in ADDRESSES)
    hidden = _is_secret(field) or key in HIDDEN or has_key or (key == MODELS and not path.endswith(".kind"))
    key_path = path if key == MODELS else key
    value = "its value" if hidden else repr(first["input"])
    return f"{key_path}: {value} from {entries[key].source} is not allowed: {reason}."


def _leaves(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in table.items():
        key = prefix + name
        if isinstance(value, Mapping) and key not in TABLES:
            yield from _leaves(value, key + ".")
        else:
            yield key, value


def _is_secret(field: FieldInfo) -> bool:
    return "SecretStr" in str(field.annotation)


def _check_known(key: str, source: str) -> None:
    if key not in fields():
        suggestion = nearest(key, fields())
        raise SettingsError(
            f"There is no setting {key!r} ({source}); {suggestion} `rlproxy config show` lists them all."
        )


def _value(settings: Settings, key: str) -> Any:
    value: Any = settings
    for name in key.split("."):
        value = getattr(value, name)
    return value


def _as_text(value: Any) -> str:
    if value is None:
        return ""
    return "**********" if isinstance(value, SecretStr) else str(value)
