"""Ollama's Modelfile, as /api/show gives it: what one more model has to repeat to be like this one.

Owns its syntax, and in which form a release takes a version. Source: Ollama's `parser/parser.go`
and `server/images.go` of August 2026.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from trainer.launch import ServerFormat

NO_ADAPTERS: Final = (0, 34, 1)  # the first release that takes no LoRA

_COMMAND: Final = re.compile(
    r"^(?:(?P<name>FROM|TEMPLATE|SYSTEM|RENDERER|PARSER|LICENSE|ADAPTER|REQUIRES)"
    r"|(?P<list>PARAMETER|MESSAGE)[ \t]+(?P<key>\S+))[ \t]+",
    re.MULTILINE | re.IGNORECASE,
)
_LONG_END: Final = re.compile(r'"""[ \t]*$', re.MULTILINE)
_LINE_END: Final = re.compile(r"[ \t]*$", re.MULTILINE)
_ANY_PROMPT: Final = "{{ .Prompt }}"  # what Ollama says where the model has no template of its own
_SAMPLING: Final = {"repeat_penalty": "repetition_penalty"} | {
    name: name for name in ("temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty")
}  # its parameters, and the members of a chat request that say the same


@dataclass(slots=True)
class Modelfile:
    files: list[str] = field(default_factory=list)  # FROM: the model first, then projectors
    create: dict[str, Any] = field(default_factory=dict)  # members of a request to /api/create
    parameters: dict[str, Any] = field(default_factory=dict)

    @property
    def sampling(self) -> dict[str, float]:
        """Its parameters that sample, by the names of a chat request."""
        numbers = {key: value for key, value in self.parameters.items() if type(value) in (int, float)}
        return {_SAMPLING[key]: float(value) for key, value in numbers.items() if key in _SAMPLING}


def parse(text: str) -> Modelfile:
    modelfile = Modelfile()
    licenses: list[str] = []
    messages: list[dict[str, str]] = []
    for name, key, value in _commands(text):
        if name == "FROM":
            modelfile.files.append(value)
        elif name == "LICENSE":
            licenses.append(value)
        elif name == "MESSAGE":
            messages.append({"role": key, "content": value})
        elif name == "PARAMETER":
            _add(modelfile.parameters, key, value)
        elif name in ("SYSTEM", "RENDERER", "PARSER") or (name == "TEMPLATE" and value != _ANY_PROMPT):
            modelfile.create[name.lower()] = value
    for member, values in (("license", licenses), ("messages", messages), ("parameters", modelfile.parameters)):
        if values:
            modelfile.create[member] = values
    return modelfile


def _commands(text: str) -> Iterator[tuple[str, str, str]]:
    """Each command, its key where it has one, and its value: in three quotes, in one, or to the end of the line.

    One pass: an end of three quotes that is not there is looked for once.
    """
    position, closes = 0, True
    while (command := _COMMAND.search(text, position)) is not None:
        start, end = command.end(), None
        if closes and text.startswith('"""', start):
            end = _LONG_END.search(text, start + 3)
            closes = end is not None
        if end is not None:
            value, position = text[start + 3 : end.start()], end.end()
        else:
            value, position = _short_value(text, start)
        yield (command["name"] or command["list"]).upper(), command["key"] or "", value


def _short_value(text: str, start: int) -> tuple[str, int]:
    """The value in one pair of quotes or on one line that begins here, and where it ends."""
    if text.startswith('"', start) and (close := text.find('"', start + 1)) > 0:
        end = _LINE_END.match(text, close + 1)
        if end is not None:
            return text[start + 1 : close], end.end()
    newline = text.find("\n", start)
    stop = len(text) if newline < 0 else newline
    return text[start:stop].rstrip(" \t"), stop


def _add(parameters: dict[str, Any], key: str, text: str) -> None:
    if key == "stop":
        parameters.setdefault(key, []).append(text)
        return
    try:
        parameters[key] = json.loads(text)
    except (ValueError, RecursionError):  # a stranger's brackets may go deeper than Python follows
        parameters[key] = text


def release_of(version: str) -> tuple[int, ...] | None:
    """The numbers of a release; None for a build that does not say them, which calls itself 0.0.0."""
    numbers = re.match(r"(\d+)\.(\d+)\.(\d+)", version)
    return tuple(map(int, numbers.groups())) if numbers and any(map(int, numbers.groups())) else None


def format_of(release: tuple[int, ...] | None) -> ServerFormat:
    """In which it takes a version; of a build that does not say its release as the newest do."""
    return "merged" if release is None or release >= NO_ADAPTERS else "gguf"
