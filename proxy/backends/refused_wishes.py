"""Our own wishes that servers have refused, so that not every request is asked twice.

Owns what is remembered, for a while and until a server there is gone. Its key is model, format, members, and the
request's shape: what else it has. Log-probs that are refused beside tools are asked for where there are none. What one
version refuses, all do. A wish that is refused by a status of its own is told from a server that fails for another
reason. Which wishes there are is codecs', and when a request is asked again is asking's.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from typing import Any, Final, NamedTuple

REFUSED_S: Final = 600.0  # after which a server is asked with our wishes again
UNRELATED_S: Final = 60.0  # after which a 500 may be about our wishes again
MOST: Final = 1000  # entries; a client chooses the names of models
REFUSES: Final = frozenset((400, 422, 501))  # statuses of a server that says no to a member
BREAKS: Final = 500  # some fail over a member instead; so do all others when something else is wrong
# Members of a request beside which servers refuse log-probs that they give elsewhere: llama.cpp beside tools in
# streams, Ollama with a template of the GGUF's own beside tools.
SHAPING: Final = ("tools", "functions", "response_format", "format", "n", "think", "reasoning_effort")
_NAMES: Final = ("logprob", "token_id", "response_messages")  # what each of our wishes has in its name


class Wishes(NamedTuple):
    """Members that we add to a request."""

    model: str  # whichever version of it answers
    dialect: str
    members: frozenset[str]
    shape: frozenset[str] = frozenset()  # members of the request that may be why they are refused


def shape_of(body: Mapping[str, Any], *, streams: bool) -> frozenset[str]:
    """Find the members of a request that may be why a server refuses our wishes."""
    names = frozenset([name for name in SHAPING if body.get(name)])
    return names | {"stream"} if streams else names


class RefusedWishes:
    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._refused: dict[Wishes, tuple[float, str]] = {}  # until when, and what the server said
        self._granted: set[Wishes] = set()
        self._unrelated: dict[Wishes, float] = {}  # until when a 500 is not about these

    def refusal(self, wishes: Wishes) -> str | None:
        """The server's message to these wishes; None where they may be said."""
        until, message = self._refused.get(wishes, (0.0, ""))
        return message if self._now() < until else None

    def is_granted(self, wishes: Wishes) -> bool:
        return wishes in self._granted

    def may_refuse(self, wishes: Wishes, status: int, message: str) -> bool:
        """Tell whether an answer with this status may be about these wishes."""
        if status != BREAKS:
            return status in REFUSES
        if any(name in message.lower() for name in _NAMES):
            return True
        return wishes not in self._granted and self._now() >= self._unrelated.get(wishes, 0.0)

    def grant(self, wishes: Wishes) -> None:
        self._make_room(self._granted)
        self._granted.add(wishes)

    def refuse(self, wishes: Wishes, message: str) -> None:
        """The server has answered without these wishes what it refused with them."""
        self._make_room(self._refused)
        self._granted.discard(wishes)
        self._refused[wishes] = (self._now() + REFUSED_S, message)

    def acquit(self, wishes: Wishes) -> None:
        """The server fails without these wishes, too."""
        self._make_room(self._unrelated)
        self._unrelated[wishes] = self._now() + UNRELATED_S

    def forget(self) -> None:
        """A server was gone: the next one may be another."""
        self._refused.clear()
        self._granted.clear()
        self._unrelated.clear()

    def _make_room(self, entries: Collection[Wishes]) -> None:
        if len(entries) >= MOST:
            self.forget()
