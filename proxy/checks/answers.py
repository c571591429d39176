"""An answer that was asked for, and the cache of answers by what they depend on.

Owns the form of an answer out of a chat completion, and files of a cache. A file is whole or not there, so an
evaluation that was killed goes on where it was. Answers to captured prompts lie in a folder of their completion: they
go when that is forgotten. Not here: who is asked (evaluation).
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import orjson

FOLDER: Final = "checks"  # in a home
CACHE: Final = "answers"
PROMPTS_OF_FILES: Final = "given"  # the folder of answers to prompts that a file has


class ToolCall(NamedTuple):
    name: str
    arguments: Any  # the value, or the text where it is not JSON


class CheckedAnswer(NamedTuple):
    text: str
    tool_calls: tuple[ToolCall, ...] = ()
    finish_reason: str | None = None
    tokens: int | None = None

    def json(self) -> dict[str, Any]:
        return {**self._asdict(), "tool_calls": [call._asdict() for call in self.tool_calls]}


class NotAnAnswer(Exception):
    """Raised for a body that is not a chat completion; says what it was."""


def parse(body: Any) -> CheckedAnswer:
    """The first choice of a chat completion. Raises NotAnAnswer."""
    try:
        choice = body["choices"][0]
        message = choice["message"]
        calls = tuple(_call(call["function"]) for call in message.get("tool_calls") or ())
        content = message.get("content")
        text = content if isinstance(content, str) else "".join(part.get("text") or "" for part in content or ())
        usage = body.get("usage") or {}
        return CheckedAnswer(text, calls, choice.get("finish_reason"), usage.get("completion_tokens"))
    except (KeyError, IndexError, TypeError, AttributeError) as error:
        raise NotAnAnswer(f"it is not a chat completion ({type(error).__name__}: {error})") from None


def _call(function: Mapping[str, Any]) -> ToolCall:
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        with contextlib.suppress(orjson.JSONDecodeError):
            arguments = orjson.loads(arguments or "{}")
    return ToolCall(str(function["name"]), arguments)


class AnswerCache:
    """Files in HOME/checks/answers. `home`: None keeps nothing. `reads`: whether what is there is taken."""

    def __init__(self, home: Path | None, *, reads: bool = True) -> None:
        self._folder = None if home is None else home / FOLDER / CACHE
        self._reads = reads

    def get(self, key: str, completion: str | None) -> CheckedAnswer | None:
        """A file that is damaged counts as missing: its prompt is asked again."""
        if self._folder is None or not self._reads:
            return None
        try:
            stored = orjson.loads(self._path(key, completion).read_bytes())
            calls = tuple(ToolCall(**call) for call in stored["tool_calls"])
            return CheckedAnswer(**{**stored, "tool_calls": calls})
        except (OSError, orjson.JSONDecodeError, TypeError, KeyError):
            return None

    def keep(self, key: str, completion: str | None, answer: CheckedAnswer) -> None:
        """Raises OSError (disk full)."""
        if self._folder is None:
            return
        path = self._path(key, completion)
        for folder in (self._folder.parent, self._folder, path.parent):
            folder.mkdir(exist_ok=True, mode=0o700)
        write_whole(path, orjson.dumps(answer.json()))

    def _path(self, key: str, completion: str | None) -> Path:
        assert self._folder is not None
        return self._folder / (PROMPTS_OF_FILES if completion is None else folder_name(completion)) / f"{key}.json"


def folder_name(completion: str) -> str:
    """A client may have chosen the id, so it is not a name of a file."""
    return f"of-{hashlib.sha256(completion.encode()).hexdigest()[:32]}"


def key_of(model: str, body: Mapping[str, Any]) -> str:
    """Hash of what an answer depends on. `model` tells these weights from all others."""
    content = orjson.dumps([model, body], option=orjson.OPT_SORT_KEYS)
    return hashlib.sha256(content).hexdigest()


def write_whole(path: Path, content: bytes) -> None:
    """All of it, or what was there. Raises OSError."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with open(temporary, "wb", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
            file.write(content)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def forget(home: Path, completions: Iterable[str]) -> None:
    """Delete answers to the prompts of these completions. Raises OSError."""
    for completion in completions:
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(home / FOLDER / CACHE / folder_name(completion))


def expire(home: Path, limit: float) -> None:
    """Delete answers to captured prompts that are older than this moment (Unix seconds). Raises OSError."""
    for folder in _captured(home):
        with contextlib.suppress(FileNotFoundError):
            if folder.stat().st_mtime < limit:
                shutil.rmtree(folder)


def _captured(home: Path) -> Iterator[Path]:
    yield from (home / FOLDER / CACHE).glob("of-*")
