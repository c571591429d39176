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


def set_value(text: str, place: Place, value: Any) -> str:
    """`text` with this value set; objects on the way are made."""
    text = text if text.strip() else "{}\n"
    node, steps = _root(text), _keys(place)
    while True:
        if not isinstance(node.value, dict):
            raise UnreadableSettings(f"`{steps[0]}` cannot be set, since what should hold it is no object")
        child = next((member for _, key, member in node.members if key == steps[0]), None)
        if child is None:
            return _insert(text, node, steps[0], _nest(steps[1:], value))
        if len(steps) == 1:
            return text[: child.start] + _dump(value, _indent_at(text, child.start)) + text[child.end :]
        node, steps = child, steps[1:]


def drop(text: str, place: Place) -> str:
    """`text` without that member and its comma; comments stay."""
    node, steps = _root(text), _keys(place)
    for step in steps[:-1]:
        node = next(member for _, key, member in node.members if key == step)
    index = next(i for i, (_, key, _) in enumerate(node.members) if key == steps[-1])
    start, _, member = node.members[index]
    cuts = [(len(text[:start].rstrip()), member.end)]
    comma = _space(text, member.end)
    if text[comma] == ",":
        cuts.append((comma, comma + 1))
    elif index:  # it was the last: the comma before it goes
        comma_before = _space(text, node.members[index - 1][2].end)
        cuts.insert(0, (comma_before, comma_before + 1))
        cuts[1] = (max(cuts[1][0], comma_before + 1), cuts[1][1])
    for first, last in reversed(cuts):
        text = text[:first] + text[last:]
    return text


def _keys(place: Place) -> list[str]:
    assert not any(isinstance(step, PathItem) for step in place), "no agent of JSON is set up by list items"
    return [str(step) for step in place]


def _nest(steps: list[str], value: Any) -> Any:
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


def _indent_at(text: str, offset: int) -> str:
    line = text[text.rfind("\n", 0, offset) + 1 : offset]
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


def _space(text: str, offset: int) -> int:
    match = _SPACE.match(text, offset)
    assert match is not None  # it may be empty
    return match.end()


def _value(text: str, offset: int) -> JsonNode:
    first = text[offset]
    if first == "{":
        return _object(text, offset)
    if first == "[":
        return _list(text, offset)
    if match := _STRING.match(text, offset):
        return JsonNode(offset, match.end(), _unquote(match[0]))
    if (word := _NAME.match(text, offset)) and word[0] in _WORDS:
        return JsonNode(offset, word.end(), _WORDS[word[0]])
    if number := _NUMBER.match(text, offset):
        plain = number[0].lstrip("+")
        value = int(plain, 16) if "x" in plain.lower() else float(plain) if re.search(r"[.eIN]", plain) else int(plain)
        return JsonNode(offset, number.end(), value)
    raise ValueError(f"no value at character {offset}")


def _object(text: str, offset: int) -> JsonNode:
    node = JsonNode(offset, offset, {})
    offset = _space(text, offset + 1)
    while text[offset] != "}":
        if key := _STRING.match(text, offset):
            name = _unquote(key[0])
        elif key := _NAME.match(text, offset):
            name = key[0]
        else:
            raise ValueError(f"no key at character {offset}")
        colon = _space(text, key.end())
        if text[colon] != ":":
            raise ValueError(f"no colon at character {colon}")
        member = _value(text, _space(text, colon + 1))
        node.members.append((offset, name, member))
        node.value[name] = member.value
        offset = _skip_comma(text, member.end, "}")
    node.end = offset + 1
    return node


def _list(text: str, offset: int) -> JsonNode:
    node = JsonNode(offset, offset, [])
    offset = _space(text, offset + 1)
    while text[offset] != "]":
        item = _value(text, offset)
        node.value.append(item.value)
        offset = _skip_comma(text, item.end, "]")
    node.end = offset + 1
    return node


def _skip_comma(text: str, offset: int, close: str) -> int:
    """Past a comma, or at the closing bracket."""
    offset = _space(text, offset)
    if text[offset] == ",":
        return _space(text, offset + 1)
    if text[offset] != close:
        raise ValueError(f"no comma at character {offset}")
    return offset


def _unquote(quoted: str) -> str:
    if quoted[0] == '"':
        return str(json.loads(quoted, strict=False))
    inner = quoted[1:-1].replace("\\'", "'").replace('"', '\\"')
    return str(json.loads(f'"{inner}"', strict=False))
