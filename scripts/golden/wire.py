"""One case of the wire corpus, read from its TOML file. tests/wire/README.md describes the form."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from scripts.fakes.scripted import ScriptedAnswer

FOLDER: Final = Path(__file__).resolve().parents[2] / "tests" / "wire"
DIRECT: Final = "direct"  # as `body`: what a client of the server itself sees


@dataclass(frozen=True, slots=True)
class WireRequest:
    path: str = "/v1/chat/completions"
    method: str = "POST"
    headers: Mapping[str, str] = field(default_factory=dict)
    body: str = ""
    status: int = 200
    head: Mapping[str, str] = field(default_factory=dict)
    answer: str | None = None
    contains: tuple[str, ...] = ()
    lacks: tuple[str, ...] = ()
    sent: tuple[str, ...] = ()
    unsent: tuple[str, ...] = ()
    questions: int | None = None
    stored: Mapping[str, Any] | None = None
    captured: bool = True
    rating: str | None = None


@dataclass(frozen=True, slots=True)
class WireCase:
    id: str
    about: str
    kind: str
    source: str
    backend: str
    settings: Mapping[str, Any]
    answers: tuple[ScriptedAnswer, ...]
    requests: tuple[WireRequest, ...]


def cases() -> list[WireCase]:
    """Every case of the corpus, in the order of their files."""
    return [read(path) for path in sorted(FOLDER.rglob("*.toml"))]


def read(path: Path) -> WireCase:
    """Raises TypeError or KeyError for a member that the form does not have."""
    case = tomllib.loads(path.read_text(encoding="utf-8"))
    answers = tuple(_answer(**answer) for answer in case.pop("answers"))
    requests = tuple(_request(**request) for request in case.pop("requests"))
    name = str(path.relative_to(FOLDER).with_suffix(""))
    return WireCase(id=name, settings=case.pop("settings", {}), answers=answers, requests=requests, **case)


def _answer(*, reads: list[str] | None = None, **members: Any) -> ScriptedAnswer:
    return ScriptedAnswer(reads=[_bytes(text) for text in reads or ()], **members)


def _request(**members: Any) -> WireRequest:
    lists = {name: tuple(value) for name, value in members.items() if isinstance(value, list)}
    return WireRequest(**{**members, **lists})


def _bytes(text: str) -> bytes:
    """The text as UTF-8; after `latin:`, each character is one byte, so that a case can have broken UTF-8."""
    return text[len("latin:") :].encode("latin-1") if text.startswith("latin:") else text.encode()
