"""Which wire formats the backend speaks: what it declares, and what asking it has shown.

Owns the choice between passing a request through and translating it, what tells that a route is not there, and the
memory of it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Literal

from proxy.backends.base import Capabilities
from proxy.core.json_edit import loads


class Formats:
    def __init__(self, capabilities: Capabilities, translate: Collection[str] = ()) -> None:
        """`translate`: what is to be translated though the backend has it."""
        self._capabilities = capabilities
        self._translate = frozenset(translate)
        self._shown: dict[str, bool] = {}

    def native(self, dialect: str) -> bool:
        """Tell whether to ask in this dialect; if not, chat completions, which every backend has, say it."""
        if dialect in self._translate:
            return False
        return self._shown.get(dialect, self._capabilities.tries or dialect in self._capabilities.dialects)

    def has(self, dialect: str) -> None:
        self._shown[dialect] = True

    def shown(self, dialect: str) -> bool:
        """Tell whether it has answered in this dialect."""
        return self._shown.get(dialect, False)

    def lacks(self, dialect: str) -> None:
        """From now on it is translated, unless it has answered in it; a backend that learns it is asked again after a
        restart of rlproxy."""
        self._shown.setdefault(dialect, False)

    def table(self, dialects: Iterable[str]) -> dict[str, Literal["native", "translated", "untried"]]:
        """For `status`: how a request in each dialect reaches the backend."""
        return {
            name: "translated" if not self.native(name)
            else "native" if name in self._shown or name in self._capabilities.dialects
            else "untried"
            for name in dialects
        }  # fmt: skip

    def inexact(self, dialects: Iterable[str]) -> list[str]:
        """Those that are passed through and whose answers have no token ids, though the backend has them in others."""
        wishes = self._capabilities
        if not (wishes.token_ids and wishes.logprobs):
            return []
        return [name for name in dialects if self.native(name) and name not in wishes.asks]


def about_what_was_asked(answer: bytes, model: str, path: str) -> bool:
    """Tell if a 404 names a parameter or the model, so that the route is there. Else only asking elsewhere tells."""
    try:
        body = loads(answer)
        error = body.get("error") or body
        if isinstance(error.get("param"), str):
            return True
        said = str(error["message"])
    except (ValueError, KeyError, AttributeError):
        return False
    return bool(model) and path not in said and _names(said, model)


def _names(said: str, model: str) -> bool:
    """Tell if the model's name stands in it, and not as a part of a longer word. Each place is looked at once: as a
    regular expression a name of a megabyte takes a second to compile."""
    at = said.find(model)
    while at >= 0:
        end = at + len(model)
        if not (_is_word(said[at - 1 : at]) or _is_word(said[end : end + 1])):
            return True
        at = said.find(model, end)
    return False


def _is_word(letter: str) -> bool:
    return letter.isalnum() or letter == "_"
