"""An answer as a line of JSON, and back: all that the store is told of one.

Bytes are base64 and tuples lists. A field that an older rlproxy did not write has its default.
"""

from __future__ import annotations

import dataclasses
from base64 import b64decode, b64encode
from typing import Any

import orjson

from store.records import ExperimentTurn, FinishedCompletion, Item, Message, NewCompletion, PromptLesson

Answer = tuple[NewCompletion, FinishedCompletion]


def encode(answer: Answer) -> bytes:
    return orjson.dumps([_fields(record) for record in answer])


def decode(text: bytes) -> Answer:
    """Raises ValueError, KeyError, TypeError."""
    new, end = orjson.loads(text)
    return _new(new), _end(end)


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


def _new(fields: dict[str, Any]) -> NewCompletion:
    read: dict[str, Any] = {name: _value(value) for name, value in fields.items() if name not in ("prompt", "lessons")}
    read["prompt"] = tuple(_message(message) for message in fields["prompt"])
    read["lessons"] = tuple(PromptLesson(**lesson) for lesson in fields["lessons"])
    if read["experiment"] is not None:
        read["experiment"] = ExperimentTurn(*read["experiment"])
    for name in ("nodes", "asides", "tool_errors", "redacted"):
        read[name] = _tuple(fields[name])
    return NewCompletion(**read)


def _end(fields: dict[str, Any]) -> FinishedCompletion:
    read: dict[str, Any] = {name: _value(value) for name, value in fields.items() if name not in ("reply", "items")}
    read["reply"] = None if fields["reply"] is None else _message(fields["reply"])
    read["items"] = tuple(Item(*item) for item in fields["items"])
    read["redacted"] = _tuple(fields["redacted"])
    return FinishedCompletion(**read)
