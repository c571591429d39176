"""TOML: single values set and taken out; comments, order and spaces stay (tomlkit keeps them)."""

from __future__ import annotations

from typing import Any

import tomlkit
from tomlkit.exceptions import TOMLKitError

from proxy.cli.agents.paths import Place, UnreadableSettings


def parse(text: str) -> Any:
    return _read(text).unwrap()


def set_value(text: str, place: Place, value: Any) -> str:
    document = _read(text)
    table: Any = document
    for step in place[:-1]:
        if step not in table:
            table[step] = tomlkit.table(is_super_table=step != place[-2])
        table = table[step]
        if not isinstance(table, dict):
            raise UnreadableSettings(f"`{step}` in it is no table")
    table[place[-1]] = value
    return tomlkit.dumps(document)


def drop(text: str, place: Place) -> str:
    document = _read(text)
    table: Any = document
    for step in place[:-1]:
        table = table[step]
    del table[place[-1]]
    return tomlkit.dumps(document)


def _read(text: str) -> tomlkit.TOMLDocument:
    try:
        return tomlkit.parse(text)
    except TOMLKitError as error:
        raise UnreadableSettings(f"it is not TOML ({error})") from None
