"""`rlproxy doctor --bundle FILE`: what a bug report needs, without anybody's words.

Owns what goes in: versions, settings without secrets, the doctor's lines, the status, and numbers of the database. Of
each line of rlproxy's own log it has the time, the level, and the event. It has values only where they are known to be
no text of others. What servers and trainers print is left out altogether, since prompts stand in it; only the places of
exceptions are kept.
"""

from __future__ import annotations

import io
import json
import os
import platform
import re
import sqlite3
import sys
import tarfile
import tempfile
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, Final

from config.settings import LoadedSettings, load
from proxy.cli.doctor.facts import DoctorCheck, DoctorFacts
from proxy.conversation.redaction import Redactor
from store.file import schema
from store.file.schema_report import outline

LINES: Final = 400  # of each log, before what is left out
OURS: Final = ("serve.log", "service.log")  # that rlproxy itself writes
LOGGED: Final = re.compile(
    r"(?P<at>\S+) \[(?P<level>\w+)\s*\] (?P<event>.*?)(?P<values>(?:(?<!\s)\s+\w+=.*)?)", re.DOTALL
)
VALUE: Final = re.compile(r"(?<!\w)(\w++)=('(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"|\S+)")
FRAME: Final = re.compile(r'\s*File "([^"]+)", line (\d+), in (\S+)')
RAISED: Final = re.compile(r"([A-Za-z_][\w.]*(?:Error|Exception|Down|Broke|Failed|Refused|Conflict))(?::|$)")
# Whose values are numbers, or words of ours.
SAFE: Final = {"run", "status", "version", "live", "previous", "kind", "task", "code", "dialect", "restart_in_s",
               "again_in_s", "waiting", "completions", "ratings", "completion", "seconds", "free_gb"}  # fmt: skip
# Settings of other people's names and of own secrets: only whether they are set.
PERSONAL: Final = ("raters", "admins", "chat_admins", "patterns", "rules", "command")
COLOURS: Final = re.compile(r"\x1b\[[0-9;]*m")


class NotBundled(Exception):
    """One sentence: why there is no bundle."""


def write(to: Path, facts: DoctorFacts, checks: Sequence[DoctorCheck]) -> list[str]:
    """The names of what is in it. Whole or not there, readable by its owner only. Raises NotBundled."""
    if to.exists():
        raise NotBundled(f"{to} exists already, nothing was written; choose another name.")
    parts = _parts(facts, checks)
    part = None
    try:
        handle, part = tempfile.mkstemp(dir=to.absolute().parent, prefix=f".{to.name}.")  # mode 0600
        with os.fdopen(handle, "wb") as out, tarfile.open(fileobj=out, mode="w:gz") as tar:
            for name, text in parts.items():
                info = tarfile.TarInfo(f"rlproxy-report/{name}")
                raw = text.encode("utf-8", "replace")
                info.size, info.mtime, info.mode = len(raw), int(time.time()), 0o600
                tar.addfile(info, io.BytesIO(raw))
        os.replace(part, to)
    except OSError as error:
        if part is not None:
            Path(part).unlink(missing_ok=True)
        raise NotBundled(f"{to} could not be written ({error}); nothing is left of it.") from None
    return list(parts)


def _parts(facts: DoctorFacts, checks: Sequence[DoctorCheck]) -> dict[str, str]:
    home = facts.settings.home
    contents: dict[str, Any] = {
        "versions.json": versions(),
        "settings.json": settings(load({"home": home})),
        "doctor.json": [check._asdict() for check in checks],
        "status.json": facts.status or {"error": facts.unreachable_reason},
        "database.json": outline(home / schema.NAME),
        "logs.json": {file.name: file.stat().st_size for file in sorted((home / "logs").glob("*.log"))},
    }
    clean = Redactor(facts.settings.redaction)
    names = _names(facts.status or {})
    parts = {
        name: _anonymous(json.dumps(clean.value(value), indent=1), home, names) for name, value in contents.items()
    }
    for file in (home / "logs" / name for name in OURS):
        if file.is_file():
            parts[f"logs/{file.name}"] = _anonymous(clean.text("\n".join(log_lines(file))), home, names)
    return parts


def versions() -> dict[str, Any]:
    packages: dict[str, str | None] = {}
    for package in ("rlproxy", "aiohttp", "aiosqlite", "pydantic", "torch", "transformers", "peft", "mlx-lm", "gguf"):
        try:
            packages[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            packages[package] = None
    system = {"python": sys.version, "platform": platform.platform(), "sqlite": sqlite3.sqlite_version}
    return {**system, "packages": packages, "written_at": time.strftime("%Y-%m-%dT%H:%M:%S%z")}


def settings(loaded: LoadedSettings) -> list[dict[str, str]]:
    """Print `rlproxy config show`, where keys are masked already; other people's names and own patterns are, too."""
    rows = []
    for key, value, source, _ in loaded.describe():
        hide = key.rpartition(".")[2] in PERSONAL and value not in ("", "{}", "()", "[]")
        rows.append({"key": key, "value": "set, left out" if hide else value, "source": source})
    return rows


def log_lines(file: Path) -> Iterator[str]:
    """Our own log, line by line, without what others said."""
    with file.open(encoding="utf-8", errors="replace") as stream:
        last = deque(stream, LINES)
    for line in (COLOURS.sub("", line.rstrip("\n")) for line in last):
        if line.startswith("{"):
            yield from _json_line(line)
        elif match := LOGGED.fullmatch(line):
            values = dict(VALUE.findall(match["values"]))
            yield _line(match["at"], match["level"], match["event"].strip(), values)
        elif match := FRAME.match(line):
            yield f"  File {match[1]}, line {match[2]}, in {match[3]}"
        elif match := RAISED.match(line):
            yield f"  {match[1]}"


def _json_line(line: str) -> Iterator[str]:
    try:
        entry = json.loads(line)
        timestamp, level, event = (str(entry.pop(key)) for key in ("timestamp", "level", "event"))
    except (ValueError, KeyError, AttributeError):
        return
    trace = str(entry.pop("exception", "")).splitlines()
    yield _line(timestamp, level, event, entry)
    for part in trace:
        if match := FRAME.match(part):
            yield f"  File {match[1]}, line {match[2]}, in {match[3]}"


def _line(timestamp: str, level: str, event: str, values: Mapping[str, Any]) -> str:
    pairs = [f"{k}={v}" if k in SAFE else f"{k}=<{len(str(v))} characters>" for k, v in values.items()]
    return " ".join([timestamp, f"[{level}]", event, *pairs])


def _names(status: Mapping[str, Any]) -> list[str]:
    return sorted((status.get("ratings") or {}).get("dampened") or {}, key=len, reverse=True)


def _anonymous(text: str, home: Path, names: Sequence[str]) -> str:
    """Without the person's name in paths, and raters by number."""
    text = text.replace(str(home), "HOME").replace(str(Path.home()), "~")
    for number, name in enumerate(names, 1):
        text = re.sub(rf"(?<!\w){re.escape(name)}(?!\w)", f"rater {number}", text)
    return text
