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
from collections.abc import Mapping
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
    original: bytes | None  # None: there is no such file
    result: bytes | None
    explanation: str = ""
    base: bytes | None = None  # what it is without us
    sets: list[dict[str, Any]] = field(default_factory=list)
    stuck: dict[str, Any] | None = None  # the record of what could not be taken back; `how` says why

    @property
    def changes(self) -> bool:
        return self.original != self.result

    def diff(self) -> str:
        old, new = (_lines(text) for text in (self.original, self.result))
        return "".join(
            line if line.endswith("\n") else line + "\n"
            for line in difflib.unified_diff(old, new, str(self.file), str(self.file), n=2)
        )


def connecting(setup: Setup, record: dict[str, Any] | None) -> list[Change]:
    """Changes that connecting would make. Raises UnreadableSettings."""
    changes = []
    for file in dict.fromkeys(edit.file for edit in setup.edits):
        original = _read(file)
        base, explanation, _ = _undo_edits(original, _find_entry(record, file))
        text, sets = _decode(file, base), []
        for edit in (edit for edit in setup.edits if edit.file == file):
            try:
                text, new_sets = _apply_edit(text, edit)
            except UnreadableSettings as error:
                raise UnreadableSettings(f"{file} was left as it is: {error}.") from None
            sets += new_sets
        changes.append(Change(file, original, text.encode(), explanation, base, sets))
    obsolete = [_undo_entry(entry) for entry in _files(record) if Path(entry["file"]) not in {c.file for c in changes}]
    return changes + obsolete  # also files of an earlier connection


def disconnecting(record: dict[str, Any]) -> list[Change]:
    """Changes that taking it back would make."""
    return [_undo_entry(file) for file in _files(record)]


def apply(changes: list[Change]) -> list[str]:
    """Write; returns the folders that had to be made."""
    created: list[str] = []
    for change in changes:
        if not change.changes:
            continue
        target = change.file.resolve()  # a link of a dotfile keeper stays a link
        if change.result is None:
            target.unlink(missing_ok=True)
            continue
        created += [str(folder) for folder in _make_folders(target)]
        _write(target, change.result)
    return created


def connect(
    home: Path,
    agent: str,
    changes: list[Change],
    record: dict[str, Any] | None,
    asks: Mapping[str, Any] | None = None,
) -> None:
    """Write what connecting changes, its record first. `asks`: what a later `connect` keeps."""
    folders = list(record["folders"]) if record else []
    folders += [str(p) for c in changes for p in c.file.resolve().parents if not p.exists()]
    save(home, agent, changes, sorted(set(folders)), asks)
    apply(changes)


def tidy(folders: list[str]) -> None:
    """Folders that connecting made go when nothing is in them."""
    for folder in sorted(folders, key=len, reverse=True):
        if Path(folder).is_dir() and not any(Path(folder).iterdir()):
            Path(folder).rmdir()


# The record


def load(home: Path, agent: str) -> dict[str, Any] | None:
    try:
        record = json.loads((home / "agents" / f"{agent}.json").read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise UnreadableSettings(f"The record of the connection to {agent} cannot be read: {error}.") from None
    return record if isinstance(record, dict) else None


def save(
    home: Path, agent: str, changes: list[Change], folders: list[str], asks: Mapping[str, Any] | None = None
) -> None:
    """Written before the files are: a crash in between can still be taken back."""
    file = home / "agents" / f"{agent}.json"
    _make_folders(file)
    files = [
        {
            "file": str(change.file),
            "before": None if change.base is None else base64.b64encode(change.base).decode(),
            "after": _hash(change.result),
            "sets": change.sets,
        }
        for change in changes
        if change.sets
    ]
    files += [change.stuck for change in changes if change.stuck]
    _write(file, json.dumps({"files": files, "folders": folders, **(asks or {})}, indent=1).encode())


def find_lost(record: dict[str, Any]) -> list[str]:
    """Values that were set and are there no more, by its place in its file. Raises UnreadableSettings."""
    missing = []
    for entry in _files(record):
        file = Path(entry["file"])
        raw = _read(file)
        if raw is not None and _hash(raw) == entry["after"]:
            continue
        text = _decode(file, raw)
        for setting in entry["sets"]:
            if raw is None or not _is_unchanged(text, setting):
                missing.append(f"{_place_text(setting['place'])} in {file}")
    return missing


def _is_unchanged(text: str, entry: dict[str, Any]) -> bool:
    if entry["format"] == "text":
        return bool(text == entry["value"])
    try:
        return bool(look(FORMATS[entry["format"]].parse(text), _unpack(entry["place"])) == entry["value"])
    except UnreadableSettings:
        return False


def forget(home: Path, agent: str) -> None:
    (home / "agents" / f"{agent}.json").unlink(missing_ok=True)


def _files(record: dict[str, Any] | None) -> list[dict[str, Any]]:
    return list(record["files"]) if record else []


def _find_entry(record: dict[str, Any] | None, file: Path) -> dict[str, Any] | None:
    return next((entry for entry in _files(record) if entry["file"] == str(file)), None)


# Editing


def _undo_entry(entry: dict[str, Any]) -> Change:
    file = Path(entry["file"])
    original = _read(file)
    result, explanation, is_undone = _undo_edits(original, entry)
    return Change(file, original, result, explanation, stuck=None if is_undone else entry)


def _undo_edits(raw: bytes | None, entry: dict[str, Any] | None) -> tuple[bytes | None, str, bool]:
    """The file without what was set, how that was found, and whether it could be."""
    if entry is None or raw is None:
        return raw, "it is gone already" if entry else "", True
    if _hash(raw) == entry["after"]:
        saved = entry["before"]
        return (None, "removed", True) if saved is None else (base64.b64decode(saved), "put back as it was", True)
    changed_places = []
    try:
        text = raw.decode()
        for setting in reversed(entry["sets"]):
            text, was_ours = _undo_edit(text, setting)
            if not was_ours:
                changed_places.append(_place_text(setting["place"]))
    except UnreadableSettings as error:
        return raw, f"left as it is, since {error}", False
    except UnicodeDecodeError as error:
        return raw, f"left as it is, since it is not UTF-8 ({error})", False
    explanation = "it was changed since, so only what rlproxy set was taken out"
    return (
        text.encode(),
        explanation + (f"; {', '.join(changed_places)} was changed too and stays" if changed_places else ""),
        True,
    )


def _apply_edit(text: str, edit: SettingEdit) -> tuple[str, list[dict[str, Any]]]:
    """The text with that value, and what to remember."""
    record: dict[str, Any] = {"format": edit.format, "place": _pack(edit.place)}
    if edit.format == "text":
        return edit.value, [{**record, "value": edit.value, "had": bool(text), "was": text}]
    module = FORMATS[edit.format]
    document = module.parse(text) if text.strip() else None
    previous = look(document, edit.place)
    if edit.default and previous is not MISSING:
        return text, []
    depth = next((i for i in range(1, len(edit.place)) if look(document, edit.place[:i]) is MISSING), len(edit.place))
    value = (
        edit.value
        if edit.own_key_place is None
        else _with_own_key(edit.value, edit.own_key_place, look(previous, edit.own_key_place))
    )
    new = text if previous == value else module.set_value(text, edit.place, value)
    return new, [
        {
            **record,
            "value": value,
            "had": previous is not MISSING,
            "was": None if previous is MISSING else previous,
            "made_from": depth,
        }
    ]


def _with_own_key(value: Any, place: tuple[str, ...], own_key: Any) -> Any:
    if not place:
        return own_key
    return value if own_key is MISSING else {**value, place[0]: _with_own_key(value.get(place[0]), place[1:], own_key)}


def _undo_edit(text: str, entry: dict[str, Any]) -> tuple[str, bool]:
    """The text without that value, if it is still ours."""
    if entry["format"] == "text":
        return (entry["was"], True) if text == entry["value"] else (text, False)
    module, place = FORMATS[entry["format"]], _unpack(entry["place"])
    value = look(module.parse(text), place)
    if value is MISSING:
        return text, True
    if value != entry["value"]:
        return text, False
    if entry["had"]:
        return (text if entry["was"] == value else module.set_value(text, place, entry["was"])), True
    text = module.drop(text, place)
    for end in range(len(place) - 1, entry["made_from"] - 1, -1):  # what we made to hold it, if it is empty now
        if look(module.parse(text), place[:end]) in ({}, [], None):
            text = module.drop(text, place[:end])
    return text, True


def _pack(place: Place) -> list[Any]:
    return [list(step) if isinstance(step, PathItem) else step for step in place]


def _unpack(place: list[Any]) -> Place:
    return tuple(PathItem(*step) if isinstance(step, list) else step for step in place)


def _place_text(place: list[Any]) -> str:
    return ".".join(step[1] if isinstance(step, list) else step for step in place) or "the file"


# Files


def _read(file: Path) -> bytes | None:
    try:
        return file.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise UnreadableSettings(f"{file} cannot be read: {error}.") from None


def _decode(file: Path, raw: bytes | None) -> str:
    try:
        return (raw or b"").decode()
    except UnicodeDecodeError as error:
        raise UnreadableSettings(f"{file} was left as it is: it is not UTF-8 ({error}).") from None


def _make_folders(file: Path) -> list[Path]:
    """Make those that a file lacks, closed to others: innermost first."""
    missing = [folder for folder in file.parents if not folder.exists()]
    for folder in reversed(missing):
        folder.mkdir(mode=0o700, exist_ok=True)
    return missing


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
