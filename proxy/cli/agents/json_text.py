"""JSON, with comments, trailing commas and the rest of JSON5: single values set and taken out, all else as it is.

Owns the text of such a file. Agents' own parsers are lenient in different ways; this one takes what any of them takes.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import Any, Final

from proxy.cli.agents.paths import PathItem, Place, UnreadableSettings

_SPACE: Final = re.compile(r"(?:[\s\ufeff]+|//[^\n]*|/\*.*?\*/)*", re.DOTALL)
_STRING: Final = re.compile(r'"(?:[^"\\\n]|\\.)*"|\'(?:[^\'\\\n]|\\.)*\'', re.DOTALL)
_NAME: Final = re.compile(r"[A-Za-z_$][\w$]*")
_NUMBER: Final = re.compile(r"[+-]?(?:0[xX][0-9a-fA-F]+|Infinity|NaN|(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)")
_WORDS: Final = {"true": True, "false": False, "null": None}
INDENT: Final = "  "


@dataclass
class JsonNode:
    """A value and where its text is."""

    start: int
    end: int
    value: Any
    members: list[tuple[int, str, JsonNode]] = field(default_factory=list)  # of an object: where the key is, key, value


def parse(text: str) -> Any:
    return _root(text).value


def put(text: str, place: Place, value: Any) -> str:
    """`text` with this value set; objects on the way are made."""
    text = text if text.strip() else "{}\n"
    node, steps = _root(text), _keys(place)
    while True:
        if not isinstance(node.value, dict):
            raise UnreadableSettings(f"`{steps[0]}` cannot be set, since what should hold it is no object")
        found = next((member for _, key, member in node.members if key == steps[0]), None)
        if found is None:
            return _insert(text, node, steps[0], _nested(steps[1:], value))
        if len(steps) == 1:
            return text[: found.start] + _dump(value, _indent_at(text, found.start)) + text[found.end :]
        node, steps = found, steps[1:]


def drop(text: str, place: Place) -> str:
    """`text` without that member and its comma; comments stay."""
    node, steps = _root(text), _keys(place)
    for step in steps[:-1]:
        node = next(member for _, key, member in node.members if key == step)
    at = next(i for i, (_, key, _) in enumerate(node.members) if key == steps[-1])
    start, _, member = node.members[at]
    cuts = [(len(text[:start].rstrip()), member.end)]
    comma = _space(text, member.end)
    if text[comma] == ",":
        cuts.append((comma, comma + 1))
    elif at:  # it was the last: the comma before it goes
        before = _space(text, node.members[at - 1][2].end)
        cuts.insert(0, (before, before + 1))
        cuts[1] = (max(cuts[1][0], before + 1), cuts[1][1])
    for first, last in reversed(cuts):
        text = text[:first] + text[last:]
    return text


def _keys(place: Place) -> list[str]:
    assert not any(isinstance(step, PathItem) for step in place), "no agent of JSON is set up by list items"
    return [str(step) for step in place]


def _nested(steps: list[str], value: Any) -> Any:
    for step in reversed(steps):
        value = {step: value}
    return value


def _insert(text: str, node: JsonNode, key: str, value: Any) -> str:
    outer = _indent_at(text, node.start)
    if not node.members:
        inner = outer + INDENT
        inside = text[node.start + 1 : node.end - 1].rstrip()  # a comment, perhaps
        new = f"{inside}\n{inner}{json.dumps(key)}: {_dump(value, inner)}\n{outer}"
        return text[: node.start + 1] + new + text[node.end - 1 :]
    first, last = node.members[0], node.members[-1][2]
    one_line = "\n" not in text[node.start : first[0]]
    inner = outer + INDENT if one_line else _indent_at(text, first[0])
    gap = " " if one_line else f"\n{inner}"
    dumped = json.dumps(value, ensure_ascii=False) if one_line else _dump(value, inner)
    new = f"{gap}{json.dumps(key)}: {dumped}"
    comma = _space(text, last.end)
    if text[comma] == ",":  # a trailing one
        return text[: comma + 1] + new + "," + text[comma + 1 :]
    return text[: last.end] + "," + new + text[last.end :]


def _dump(value: Any, indent: str) -> str:
    return json.dumps(value, indent=INDENT, ensure_ascii=False).replace("\n", "\n" + indent)


def _indent_at(text: str, at: int) -> str:
    line = text[text.rfind("\n", 0, at) + 1 : at]
    return line[: len(line) - len(line.lstrip())]


# Reading


def _root(text: str) -> JsonNode:
    try:
        node = _value(text, _space(text, 0))
        if _space(text, node.end) != len(text):
            raise ValueError(f"there is more after its end, at character {node.end}")
    except (ValueError, IndexError, RecursionError) as error:
        raise UnreadableSettings(f"it is not JSON ({error})") from None
    return node


def _space(text: str, at: int) -> int:
    found = _SPACE.match(text, at)
    assert found is not None  # it may be empty
    return found.end()


def _value(text: str, at: int) -> JsonNode:
    first = text[at]
    if first == "{":
        return _object(text, at)
    if first == "[":
        return _list(text, at)
    if found := _STRING.match(text, at):
        return JsonNode(at, found.end(), _unquoted(found[0]))
    if (word := _NAME.match(text, at)) and word[0] in _WORDS:
        return JsonNode(at, word.end(), _WORDS[word[0]])
    if number := _NUMBER.match(text, at):
        plain = number[0].lstrip("+")
        value = int(plain, 16) if "x" in plain.lower() else float(plain) if re.search(r"[.eIN]", plain) else int(plain)
        return JsonNode(at, number.end(), value)
    raise ValueError(f"no value at character {at}")


def _object(text: str, at: int) -> JsonNode:
    node = JsonNode(at, at, {})
    at = _space(text, at + 1)
    while text[at] != "}":
        if key := _STRING.match(text, at):
            name = _unquoted(key[0])
        elif key := _NAME.match(text, at):
            name = key[0]
        else:
            raise ValueError(f"no key at character {at}")
        colon = _space(text, key.end())
        if text[colon] != ":":
            raise ValueError(f"no colon at character {colon}")
        member = _value(text, _space(text, colon + 1))
        node.members.append((at, name, member))
        node.value[name] = member.value
        at = _after(text, member.end, "}")
    node.end = at + 1
    return node


def _list(text: str, at: int) -> JsonNode:
    node = JsonNode(at, at, [])
    at = _space(text, at + 1)
    while text[at] != "]":
        item = _value(text, at)
        node.value.append(item.value)
        at = _after(text, item.end, "]")
    node.end = at + 1
    return node


def _after(text: str, at: int, close: str) -> int:
    """Past a comma, or at the closing bracket."""
    at = _space(text, at)
    if text[at] == ",":
        return _space(text, at + 1)
    if text[at] != close:
        raise ValueError(f"no comma at character {at}")
    return at


def _unquoted(quoted: str) -> str:
    if quoted[0] == '"':
        return str(json.loads(quoted, strict=False))
    inner = quoted[1:-1].replace("\\'", "'").replace('"', '\\"')
    return str(json.loads(f'"{inner}"', strict=False))
