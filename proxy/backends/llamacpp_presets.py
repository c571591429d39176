"""The preset file of llama.cpp's router: a section for each version beside the person's own.

Owns the text of our sections, and that nobody else's line changes. When they are read belongs to llamacpp.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

NOTE = "; written by rlproxy, and taken out when the version is unloaded"


class PresetError(Exception):
    """One sentence: what the file lacks."""


def rewrite(path: Path, change: Callable[..., str], *about: Any) -> None:
    """Put `change(text, *about)` in place of the file, whole: the router may read it at any moment."""
    text = path.read_text(encoding="utf-8")
    changed = change(text, *about)
    if changed == text:
        return
    temporary = path.with_name(f".{path.name}.tmp")
    with temporary.open("w", encoding="utf-8") as file:
        file.write(changed)
        file.flush()
        os.fsync(file.fileno())
    temporary.chmod(path.stat().st_mode)
    temporary.replace(path)


def with_version(text: str, base: str, name: str, file: Path) -> str:
    """With a section `name` that is the one of `base` and a LoRA. Raises PresetError where there is no such base."""
    text = without_section(text, name)
    lines = [line.rstrip() for line in _lines(text, base) if not re.match(r"\s*(load-on-startup|alias)\s*=", line)]
    while lines and not lines[-1]:
        lines.pop()
    if not lines:
        raise PresetError(f"it has no section [{base}]; give the model one, with `model = FILE`.")
    if any(re.match(r"\s*lora(-scaled)?\s*=", line) for line in lines):
        raise PresetError(f"its section [{base}] has a LoRA already; versions need the base model alone.")
    section = "\n".join([f"[{name}]", NOTE, *lines, f"lora = {file}"])
    return f"{text.rstrip()}\n\n{section}\n"


def without_section(text: str, name: str) -> str:
    """With no section `name`. One that rlproxy did not write stays."""
    lines = text.splitlines(keepends=True)
    start = next((i for i, line in enumerate(lines) if line.strip() == f"[{name}]"), None)
    if start is None or start + 1 == len(lines) or lines[start + 1].strip() != NOTE:
        return text
    end = next((i for i in range(start + 1, len(lines)) if _heading(lines[i])), len(lines))
    return "".join(lines[:start] + lines[end:]).rstrip("\n") + "\n"


def lora_of(text: str, name: str) -> str | None:
    """The file that a section names as its LoRA."""
    matches = (re.match(r"\s*lora\s*=\s*(.*)", line) for line in _lines(text, name))
    return next((match[1].rstrip() for match in matches if match), None)


def _lines(text: str, name: str) -> list[str]:
    """The lines of a section, without its heading."""
    lines = text.splitlines()
    start = next((i for i, line in enumerate(lines) if line.strip() == f"[{name}]"), None)
    if start is None:
        return []
    end = next((i for i in range(start + 1, len(lines)) if _heading(lines[i])), len(lines))
    return lines[start + 1 : end]


def _heading(line: str) -> bool:
    return line.lstrip().startswith("[")
