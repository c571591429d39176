"""Characters that a server has cut in two, one half in each of two chunks of a chat stream.

Owns the first half until the second one comes: JSON that is written again has a place for whole characters only.
Chunks that pass through keep theirs.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any, Final

from proxy.core.json_edit import whole_characters

_TEXTS: Final = ("content", "reasoning_content", "reasoning", "refusal")


class HalfCharacters:
    def __init__(self) -> None:
        self._pending: dict[tuple[Any, ...], str] = {}  # by choice and text

    @property
    def are_held(self) -> bool:
        return bool(self._pending)

    def joined(self, chunk: Mapping[str, Any]) -> Any:
        """The chunk with whole characters. A half that ends one of its texts waits for the next chunk; where there is
        none, it becomes U+FFFD."""
        chunk = copy.deepcopy(chunk)
        for choice in chunk.get("choices") or ():
            index, ends = choice.get("index"), bool(choice.get("finish_reason"))
            delta = choice.get("delta") or choice.setdefault("delta", {})
            for key in _TEXTS:
                self._join((index, key), delta, key, ends=ends)
            for call in delta.get("tool_calls") or ():
                function = call.get("function")
                if isinstance(function, dict):
                    self._join((index, "tool_calls", call.get("index")), function, "arguments", ends=ends)
        return whole_characters(chunk)

    def _join(self, place: tuple[Any, ...], holder: dict[str, Any], key: str, *, ends: bool) -> None:
        text = holder.get(key)
        if not isinstance(text, str) and not (ends and place in self._pending):
            return
        text = self._pending.pop(place, "") + (text or "")
        if not ends and "\ud800" <= text[-1:] <= "\udbff":
            self._pending[place], text = text[-1], text[:-1]
        holder[key] = text
