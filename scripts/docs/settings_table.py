"""Write the tables of docs/reference/settings.md from the settings classes and presets.toml. `--check` compares.

Each stands between `<!-- settings-SECTION -->` and `<!-- /settings-SECTION -->`. The meaning of a key is said once,
beside the key. It is in the docstrings of `config.sections`, or for the values of a preset in the comments of
presets.toml.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

from pydantic import SecretStr
from pydantic.fields import FieldInfo

from config.further_models import TABLE as MODELS
from config.further_models import FurtherModel, FurtherModels
from config.meanings import meanings
from config.presets import Preset, names, resolve
from config.sections import Criterion, TurnRule
from config.settings import Settings, fields
from scripts.docs.filling import fill_place, settle

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs/reference/settings.md"
PRESETS = ROOT / "config" / "presets.toml"
WORDS = {bool: "boolean", int: "integer", float: "number", str: "text", Path: "path", SecretStr: "key"}
EVERY_PLATFORM = ("raters", "admins")
BOUNDS = (("ge", "≥"), ("gt", ">"), ("le", "≤"), ("lt", "<"))


def sections() -> list[str]:
    """List the sections in the order of the file; a setting outside all sections is `home`."""
    return list(dict.fromkeys(key.rpartition(".")[0] or key for key in fields()))


def table(section: str) -> str:
    """The rows of a section; what every platform's section has is said once, in that of all platforms."""
    shared = {f"webhooks.PLATFORM.{name}": f"webhooks.slack.{name}" for name in EVERY_PLATFORM}
    keys = {key: key for key in fields() if key not in _repeated() and (key.rpartition(".")[0] or key) == section}
    rows = [_row(name, key) for name, key in (keys | (shared if section == "webhooks" else {})).items()]
    if section == MODELS:
        rows += [
            _cells(f"{MODELS}.NAME.{name}", field, meanings(FurtherModel)[name])
            for name, field in FurtherModel.model_fields.items()
        ]
    return "\n".join(["| key | default | allowed | meaning |", "|---|---|---|---|", *rows])


def _repeated() -> set[str]:
    return {key for key in fields() if key.startswith("webhooks.") and key.rpartition(".")[2] in EVERY_PLATFORM}


def _row(name: str, key: str) -> str:
    return _cells(name, fields()[key], meanings(Settings)[key])


def _cells(name: str, field: FieldInfo, meaning: str) -> str:
    cells = [f"`{name}`", default(field.default), _plain(allowed_values(field)), _plain(meaning)]
    return f"| {' | '.join(cells)} |"


def default(value: Any) -> str:
    if value is None or value in ("", (), [], {}):
        return "unset" if value in (None, "") else "none"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, tuple):
        return " ".join(str(item) for item in value)
    return f"`{value:g}`" if isinstance(value, float) else f"`{value}`"


def allowed_values(field: FieldInfo) -> str:
    bounds = [f"{word} {bound:.10g}" for name, word in BOUNDS if (bound := _bound(field.metadata, name)) is not None]
    return ", ".join([kind(field.annotation), *bounds])


def _bound(metadata: list[Any], name: str) -> float | None:
    return next((getattr(constraint, name) for constraint in metadata if hasattr(constraint, name)), None)


def kind(annotation: Any) -> str:
    """The type in words."""
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return kind(inner[0])
    if origin is Literal:
        return " or ".join([", ".join(f"`{value}`" for value in inner[:-1]), f"`{inner[-1]}`"])
    if annotation == FurtherModels:
        return "tables, by name"
    if annotation in (list[TurnRule], list[Criterion], dict[str, bool | int | float | str]):
        return "tables" if origin is list else "table, of names and values"
    if origin in (tuple, list):
        return f"list of {'words: ' if get_origin(inner[0]) is Literal else ''}{kind(inner[0])}"
    if origin is dict:
        return f"table, {kind(inner[0])} = {kind(inner[1])}"
    if inner:  # one that may be left unset
        return kind(next(argument for argument in inner if argument is not type(None)))
    return WORDS[annotation]


def presets() -> str:
    """The table of values that `train.overrides` may replace."""
    comments = dict(
        re.findall(r"(?m)^(\w+) = \S+ +# (.*)$", PRESETS.read_text(encoding="utf-8").partition("\n[careful]")[0])
    )
    rows = [
        f"| `{key}` | {_values(key)} | {_plain(allowed_values(field))} | {_plain(comments.get(key, ''))} |"
        for key, field in Preset.model_fields.items()
    ]
    return "\n".join(["| name | value | allowed | meaning |", "|---|---|---|---|", *rows])


def _values(key: str) -> str:
    """The default preset's value, and those of other presets where they differ."""
    (_, value), *alternatives = ((name, getattr(resolve(name, {}), key)) for name in names())
    differing = [f"{name} {default(other_value)}" for name, other_value in alternatives if other_value != value]
    return ", ".join([default(value), *differing])


def _plain(text: str) -> str:
    """One line that no `|` or `<` of it breaks."""
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")


def filled(page: str) -> str:
    tables = {f"settings-{section}": table(section) for section in sections()} | {"settings-presets": presets()}
    for name, text in tables.items():
        page = fill_place(page, name, text)
    return page


def main() -> int:
    return settle({PAGE: filled(PAGE.read_text(encoding="utf-8"))})


if __name__ == "__main__":
    sys.exit(main())
