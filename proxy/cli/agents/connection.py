"""Connecting an agent and taking it back: files edited, what they were kept, and put back to the byte.

Owns the record of a connection (`HOME/agents/<agent>.json`: what each file was, what rlproxy set) and the order. A file
is first brought to what it would be without rlproxy, then edited, so that connecting twice is connecting once. A file
that somebody changed since is never put back whole: only our values go, and only where they are still ours.
"""

from __future__ import annotations

import base64
import difflib
import hashlib
import json
import os
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from proxy.cli.agents import json_text, toml_text, yaml_text
from proxy.cli.agents.catalog import SettingEdit, Setup
from proxy.cli.agents.paths import MISSING, PathItem, Place, UnreadableSettings, look

FORMATS: Final[dict[str, ModuleType]] = {"json": json_text, "toml": toml_text, "yaml": yaml_text}


@dataclass
class Change:
    """One file, before and after."""

    file: Path
    now: bytes | None  # None: there is no such file
    then: bytes | None
    how: str = ""
    base: bytes | None = None  # what it is without us
    sets: list[dict[str, Any]] = field(default_factory=list)
    stuck: dict[str, Any] | None = None  # the record of what could not be taken back; `how` says why

    @property
    def changes(self) -> bool:
        return self.now != self.then

    def diff(self) -> str:
        old, new = (_lines(text) for text in (self.now, self.then))
        return "".join(
            line if line.endswith("\n") else line + "\n"
            for line in difflib.unified_diff(old, new, str(self.file), str(self.file), n=2)
        )


def connecting(setup: Setup, record: dict[str, Any] | None) -> list[Change]:
    """Changes that connecting would make. Raises UnreadableSettings."""
    changes = []
    for file in dict.fromkeys(put.file for put in setup.puts):
        now = _read(file)
        base, how, _ = _without_us(now, _recorded(record, file))
        text, sets = _decoded(file, base), []
        for put in (put for put in setup.puts if put.file == file):
            try:
                text, made = _set(text, put)
            except UnreadableSettings as error:
                raise UnreadableSettings(f"{file} was left as it is: {error}.") from None
            sets += made
        changes.append(Change(file, now, text.encode(), how, base, sets))
    left = [_back(one) for one in _files(record) if Path(one["file"]) not in {c.file for c in changes}]
    return changes + left  # a file that the agent was set up in before, and is no more


def disconnecting(record: dict[str, Any]) -> list[Change]:
    """Changes that taking it back would make."""
    return [_back(file) for file in _files(record)]


def apply(changes: list[Change]) -> list[str]:
    """Write; returns the folders that had to be made."""
    made: list[str] = []
    for change in changes:
        if not change.changes:
            continue
        target = change.file.resolve()  # a link of a dotfile keeper stays a link
        if change.then is None:
            target.unlink(missing_ok=True)
            continue
        missing = [parent for parent in target.parents if not parent.exists()]
        made += [str(parent) for parent in missing]
        target.parent.mkdir(parents=True, exist_ok=True)
        _write(target, change.then)
    return made


def connect(home: Path, agent: str, changes: list[Change], record: dict[str, Any] | None) -> None:
    """Write what connecting changes, its record first."""
    folders = list(record["folders"]) if record else []
    folders += [str(p) for c in changes for p in c.file.resolve().parents if not p.exists()]
    save(home, agent, changes, sorted(set(folders)))
    apply(changes)


def tidy(folders: list[str]) -> None:
    """Folders that connecting made go when nothing is in them."""
    for folder in sorted(folders, key=len, reverse=True):
        if Path(folder).is_dir() and not any(Path(folder).iterdir()):
            Path(folder).rmdir()


# The record


def load(home: Path, agent: str) -> dict[str, Any] | None:
    try:
        found = json.loads((home / "agents" / f"{agent}.json").read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise UnreadableSettings(f"The record of the connection to {agent} cannot be read: {error}.") from None
    return found if isinstance(found, dict) else None


def save(home: Path, agent: str, changes: list[Change], folders: list[str]) -> None:
    """Written before the files are: a crash in between can still be taken back."""
    file = home / "agents" / f"{agent}.json"
    file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    files = [
        {
            "file": str(change.file),
            "before": None if change.base is None else base64.b64encode(change.base).decode(),
            "after": _hash(change.then),
            "sets": change.sets,
        }
        for change in changes
        if change.sets
    ]
    files += [change.stuck for change in changes if change.stuck]
    _write(file, json.dumps({"files": files, "folders": folders}, indent=1).encode())


def lost(record: dict[str, Any]) -> list[str]:
    """Values that were set and are there no more, by its place in its file. Raises UnreadableSettings."""
    found = []
    for one in _files(record):
        file = Path(one["file"])
        now = _read(file)
        if now is not None and _hash(now) == one["after"]:
            continue
        text = _decoded(file, now)
        for each in one["sets"]:
            if now is None or not _still_ours(text, each):
                found.append(f"{_shown(each['place'])} in {file}")
    return found


def _still_ours(text: str, one: dict[str, Any]) -> bool:
    if one["format"] == "text":
        return bool(text == one["value"])
    try:
        return bool(look(FORMATS[one["format"]].parse(text), _unpacked(one["place"])) == one["value"])
    except UnreadableSettings:
        return False


def forget(home: Path, agent: str) -> None:
    (home / "agents" / f"{agent}.json").unlink(missing_ok=True)


def _files(record: dict[str, Any] | None) -> list[dict[str, Any]]:
    return list(record["files"]) if record else []


def _recorded(record: dict[str, Any] | None, file: Path) -> dict[str, Any] | None:
    return next((one for one in _files(record) if one["file"] == str(file)), None)


# Editing


def _back(recorded: dict[str, Any]) -> Change:
    file = Path(recorded["file"])
    now = _read(file)
    then, how, could = _without_us(now, recorded)
    return Change(file, now, then, how, stuck=None if could else recorded)


def _without_us(now: bytes | None, recorded: dict[str, Any] | None) -> tuple[bytes | None, str, bool]:
    """The file without what was set, how that was found, and whether it could be."""
    if recorded is None or now is None:
        return now, "it is gone already" if recorded else "", True
    if _hash(now) == recorded["after"]:
        before = recorded["before"]
        return (None, "removed", True) if before is None else (base64.b64decode(before), "put back as it was", True)
    kept = []
    try:
        text = now.decode()
        for one in reversed(recorded["sets"]):
            text, ours = _unset(text, one)
            if not ours:
                kept.append(_shown(one["place"]))
    except UnreadableSettings as error:
        return now, f"left as it is, since {error}", False
    except UnicodeDecodeError as error:
        return now, f"left as it is, since it is not UTF-8 ({error})", False
    how = "it was changed since, so only what rlproxy set was taken out"
    return text.encode(), how + (f"; {', '.join(kept)} was changed too and stays" if kept else ""), True


def _set(text: str, put: SettingEdit) -> tuple[str, list[dict[str, Any]]]:
    """The text with that value, and what to remember."""
    made: dict[str, Any] = {"format": put.format, "place": _packed(put.place)}
    if put.format == "text":
        return put.value, [{**made, "value": put.value, "had": bool(text), "was": text}]
    module = FORMATS[put.format]
    found = module.parse(text) if text.strip() else None
    was = look(found, put.place)
    if put.default and was is not MISSING:
        return text, []
    depth = next((i for i in range(1, len(put.place)) if look(found, put.place[:i]) is MISSING), len(put.place))
    value = put.value if put.own is None else _with_own(put.value, put.own, look(was, put.own))
    new = text if was == value else module.put(text, put.place, value)
    return new, [
        {**made, "value": value, "had": was is not MISSING, "was": None if was is MISSING else was, "made_from": depth}
    ]


def _with_own(value: Any, place: tuple[str, ...], own: Any) -> Any:
    if not place:
        return own
    return value if own is MISSING else {**value, place[0]: _with_own(value.get(place[0]), place[1:], own)}


def _unset(text: str, one: dict[str, Any]) -> tuple[str, bool]:
    """The text without that value, if it is still ours."""
    if one["format"] == "text":
        return (one["was"], True) if text == one["value"] else (text, False)
    module, place = FORMATS[one["format"]], _unpacked(one["place"])
    value = look(module.parse(text), place)
    if value is MISSING:
        return text, True
    if value != one["value"]:
        return text, False
    if one["had"]:
        return (text if one["was"] == value else module.put(text, place, one["was"])), True
    text = module.drop(text, place)
    for end in range(len(place) - 1, one["made_from"] - 1, -1):  # what we made to hold it, if it is empty now
        if look(module.parse(text), place[:end]) in ({}, [], None):
            text = module.drop(text, place[:end])
    return text, True


def _packed(place: Place) -> list[Any]:
    return [list(step) if isinstance(step, PathItem) else step for step in place]


def _unpacked(place: list[Any]) -> Place:
    return tuple(PathItem(*step) if isinstance(step, list) else step for step in place)


def _shown(place: list[Any]) -> str:
    return ".".join(step[1] if isinstance(step, list) else step for step in place) or "the file"


# Files


def _read(file: Path) -> bytes | None:
    try:
        return file.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise UnreadableSettings(f"{file} cannot be read: {error}.") from None


def _decoded(file: Path, raw: bytes | None) -> str:
    try:
        return (raw or b"").decode()
    except UnicodeDecodeError as error:
        raise UnreadableSettings(f"{file} was left as it is: it is not UTF-8 ({error}).") from None


def _write(target: Path, raw: bytes) -> None:
    """Whole or not at all, readable by the owner, or by whom it was before: there may be a key in it."""
    mode = target.stat().st_mode & 0o777 if target.exists() else 0o600
    handle, part = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    try:
        with os.fdopen(handle, "wb") as out:
            out.write(raw)
            out.flush()
            os.fsync(out.fileno())
        os.chmod(part, mode)
        os.replace(part, target)
    except BaseException:
        Path(part).unlink(missing_ok=True)
        raise


def _hash(raw: bytes | None) -> str | None:
    return None if raw is None else hashlib.sha256(raw).hexdigest()


def _lines(raw: bytes | None) -> list[str]:
    return (raw or b"").decode("utf-8", "replace").splitlines(keepends=True)
