"""Ollama's Modelfile, as /api/show gives it: what one more model has to repeat to be like this one.

Owns its syntax. Source: Ollama's `parser/parser.go` and `server/images.go` of August 2026.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import Any, Final

# A command and its value: in three quotes, in one, or to the end of the line.
_COMMAND: Final = re.compile(
    r"^(?:(?P<name>FROM|TEMPLATE|SYSTEM|RENDERER|PARSER|LICENSE|ADAPTER|REQUIRES)"
    r"|(?P<list>PARAMETER|MESSAGE)[ \t]+(?P<key>\S+))"
    r'[ \t]+(?:"""(?P<long>.*?)"""|"(?P<quoted>[^"]*)"|(?P<rest>[^\n]*?))[ \t]*$',
    re.MULTILINE | re.DOTALL | re.IGNORECASE,
)
_ANY_PROMPT: Final = "{{ .Prompt }}"  # what Ollama says where the model has no template of its own


@dataclass(slots=True)
class Modelfile:
    files: list[str] = field(default_factory=list)  # FROM: the model first, then projectors
    create: dict[str, Any] = field(default_factory=dict)  # members of a request to /api/create
    parameters: dict[str, Any] = field(default_factory=dict)


def parse(text: str) -> Modelfile:
    found = Modelfile()
    licenses: list[str] = []
    messages: list[dict[str, str]] = []
    for match in _COMMAND.finditer(text):
        name, key = (match["name"] or match["list"]).upper(), match["key"]
        value = next(v for v in (match["long"], match["quoted"], match["rest"]) if v is not None)
        if name == "FROM":
            found.files.append(value)
        elif name == "LICENSE":
            licenses.append(value)
        elif name == "MESSAGE":
            messages.append({"role": key, "content": value})
        elif name == "PARAMETER":
            _add(found.parameters, key, value)
        elif name in ("SYSTEM", "RENDERER", "PARSER") or (name == "TEMPLATE" and value != _ANY_PROMPT):
            found.create[name.lower()] = value
    for member, values in (("license", licenses), ("messages", messages), ("parameters", found.parameters)):
        if values:
            found.create[member] = values
    return found


def _add(parameters: dict[str, Any], key: str, text: str) -> None:
    if key == "stop":
        parameters.setdefault(key, []).append(text)
        return
    try:
        parameters[key] = json.loads(text)
    except ValueError:
        parameters[key] = text
