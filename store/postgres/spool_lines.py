"""An answer as a line of JSON, and back: all that the store is told of one.

Bytes are base64 and tuples lists. A field that an older rlproxy did not write has its default.
"""

from __future__ import annotations

import dataclasses
from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping
from typing import Any, Final

import orjson

from store.records import ExperimentTurn, FinishedCompletion, Item, Message, NewCompletion, PromptLesson

Answer = tuple[NewCompletion, FinishedCompletion]


def encode(answer: Answer) -> bytes:
    return orjson.dumps([_fields(record) for record in answer])


def decode(text: bytes) -> Answer:
    """Raises ValueError, KeyError, TypeError."""
    new, end = orjson.loads(text)
    return NewCompletion(**_members(new)), FinishedCompletion(**_members(end))


def _fields(record: NewCompletion | FinishedCompletion) -> dict[str, Any]:
    return {field.name: _plain(getattr(record, field.name)) for field in dataclasses.fields(record)}


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return {"base64": b64encode(value).decode()}
    if isinstance(value, Message):
        return [value.role, _plain(value.body)]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: _plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, dict):
        return {"members": [[key, _plain(item)] for key, item in value.items()]}
    if isinstance(value, (list, tuple)) or hasattr(value, "tolist"):
        return [_plain(item) for item in value]
    return value


def _value(value: Any) -> Any:
    if isinstance(value, dict):
        if "base64" in value:
            return b64decode(value["base64"])
        return {key: _value(item) for key, item in value["members"]}
    return [_value(item) for item in value] if isinstance(value, list) else value


def _message(value: Any) -> Message:
    role, body = value
    return Message(role, _value(body))


def _tuple(value: Any) -> tuple[Any, ...] | None:
    return None if value is None else tuple(_value(value))


def _experiment(value: Any) -> ExperimentTurn | None:
    return None if value is None else ExperimentTurn(*_value(value))


_READERS: Final[Mapping[str, Callable[[Any], Any]]] = {
    "prompt": lambda value: tuple(map(_message, value)),
    "lessons": lambda value: tuple(PromptLesson(**lesson) for lesson in value),
    "experiment": _experiment,
    "reply": lambda value: None if value is None else _message(value),
    "items": lambda value: tuple(Item(*item) for item in value),
    **dict.fromkeys(("nodes", "asides", "tool_errors", "redacted"), _tuple),
}


def _members(fields: dict[str, Any]) -> dict[str, Any]:
    return {name: _READERS.get(name, _value)(value) for name, value in fields.items()}
