"""YAML: top-level values and list items set and taken out; every other line stays as it is.

PyYAML says where a value stands; the text itself is edited, since no YAML writer keeps what a person wrote.
"""

from __future__ import annotations

import json
from typing import Any

import yaml

from proxy.cli.agents.paths import MISSING, PathItem, Place, UnreadableSettings, look


def parse(text: str) -> Any:
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise UnreadableSettings(f"it is not YAML ({' '.join(str(error).split())})") from None


def set_value(text: str, place: Place, value: Any) -> str:
    """Set `(key,)`, or put an item first into the list at `(key, Item)` or `(Item,)`."""
    if look(parse(text), place) is not MISSING and isinstance(place[-1], PathItem):
        text = drop(text, place)
    if not isinstance(place[-1], PathItem):
        new = _put_value(text, str(place[0]), value)
    else:
        new = _put_item(text, place[0] if isinstance(place[0], str) else None, value)
    if look(parse(new), place) != value:
        raise UnreadableSettings("it is written in a way that rlproxy cannot extend; set it by hand")
    return new


def drop(text: str, place: Place) -> str:
    if isinstance(place[-1], PathItem):
        return _drop_item(text, place[0] if isinstance(place[0], str) else None, place[-1])
    key, value = _member(text, str(place[0]))
    return text[: _line_start(text, key.start_mark.index)] + text[_line_end(text, _last(value)) :]


def _put_value(text: str, name: str, value: Any) -> str:
    if parse(text) is None or name not in parse(text):
        return _end_line(text) + f"{name}: {_scalar(value)}\n"
    _, old = _member(text, name)
    is_block = isinstance(old, yaml.CollectionNode) and not old.flow_style
    start, end = old.start_mark.index, _last(old) if is_block else old.end_mark.index
    tail = "\n" if text[start:end].endswith("\n") else ""
    gap = "" if text[start - 1].isspace() else " "
    return text[:start] + gap + _scalar(value) + tail + text[end:]


def _put_item(text: str, name: str | None, value: dict[str, Any]) -> str:
    document = parse(text)
    if name is None:
        items = None if document is None else yaml.compose(text)
    else:
        if document is None or name not in document:
            return _end_line(text) + f"{name}:\n" + _item(value, "  ")
        key, items = _member(text, name)
    if items is None:
        return _end_line(text) + _item(value, "")
    if isinstance(items, yaml.SequenceNode) and items.value and not items.flow_style:
        first = items.start_mark.index
        offset = _line_start(text, first) if name is None else _line_end(text, key.end_mark.index)
        return text[:offset] + _item(value, " " * items.start_mark.column) + text[offset:]
    if not items.value:  # an empty list, or nothing after the colon
        end = _line_end(text, items.end_mark.index)
        remark = text[items.end_mark.index : end].strip()
        head = text[: items.start_mark.index].rstrip(" ") + (f"  {remark}" if remark else "")
        return _end_line(head) + _item(value, "  " if name else "") + text[end:]
    raise UnreadableSettings("its list is written on one line; set it by hand")


def _drop_item(text: str, name: str | None, item: PathItem) -> str:
    node = yaml.compose(text) if name is None else _member(text, name)[1]
    for entry in node.value:
        if yaml.safe_load(yaml.serialize(entry)).get(item.key) == item.value:
            break
    else:
        raise UnreadableSettings(f"there is no {item.value} in it")
    if node.flow_style:
        raise UnreadableSettings("its list is written on one line; take it out by hand")
    start = _line_start(text, entry.start_mark.index)
    remaining_text = text[:start] + text[_line_end(text, _last(entry)) :]
    if len(node.value) > 1 or name is None:
        return remaining_text
    offset = text.index(":", _member(text, name)[0].end_mark.index) + 1
    return text[:offset] + " []" + remaining_text[offset:]


def _member(text: str, name: str) -> tuple[Any, Any]:
    root = yaml.compose(text)
    if not isinstance(root, yaml.MappingNode):
        raise UnreadableSettings("it is not a mapping")
    return next((key, value) for key, value in root.value if key.value == name)


def _last(node: yaml.Node) -> int:
    """Where the last thing written in this node ends: a block's own end is where the next thing begins."""
    while isinstance(node, yaml.CollectionNode) and not node.flow_style and node.value:
        last = node.value[-1]
        node = last[1] if isinstance(last, tuple) else last
    block = isinstance(node, yaml.ScalarNode) and node.style in ("|", ">")
    return int(node.end_mark.index) - block


def _item(value: dict[str, Any], indent: str) -> str:
    lines = [f"{key}: {_scalar(member)}\n" for key, member in value.items()]
    return f"{indent}- " + f"{indent}  ".join(lines)


def _scalar(value: Any) -> str:
    """JSON is YAML; a plain word needs no quotes."""
    if isinstance(value, str) and value.replace("-", "").isalnum() and isinstance(yaml.safe_load(value), str):
        return value
    return json.dumps(value, ensure_ascii=False)


def _end_line(text: str) -> str:
    return text if not text or text.endswith("\n") else text + "\n"


def _line_start(text: str, offset: int) -> int:
    return text.rfind("\n", 0, offset) + 1


def _line_end(text: str, offset: int) -> int:
    end = text.find("\n", offset)
    return len(text) if end < 0 else end + 1
