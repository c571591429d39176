"""Common parts of chat platforms: an event, a way to prove who sent it, an answer.

Owns the contract of a platform. `verify` is pure: headers, the raw body and the time go in, events come out. Nothing of
a body is read before its signature holds. A new platform is a module here, its section in config/webhooks.py, and its
row in proxy/web/route_table.py. Not here: what becomes of an event (`dispatch`).
"""

from __future__ import annotations

import hmac
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple

from aiohttp import web

from proxy.core.errors import Unauthorized
from proxy.core.json_edit import loads

WINDOW_S: Final = 300.0  # how far a signed time may be from ours, as Slack and Standard Webhooks have it
LONGEST: Final = 500  # characters of an id
MOST_TEXT: Final = 40_000  # characters of a message; Slack's are the longest
IN_MATRIX: Final = "matrix:"  # begins OpenClaw's names of Matrix's rooms and people

# An answer: a message that shows one. A clearing: a moderator took all people's reactions away, or all of one emoji.
EventKind = Literal["reaction", "retraction", "clearing", "command", "answer"]


@dataclass(frozen=True, slots=True)
class PlatformEvent:
    """One thing that a person did on a platform. Whoever made it has proved to be the platform."""

    platform: str
    event_id: str
    person: str
    channel: str
    message_id: str | None  # the message it is about; None: a command that names none
    kind: EventKind
    text: str  # the emoji of a reaction, what follows `/rl` of a command
    happened_at: float  # when it happened, Unix seconds
    slot: str = ""  # the one reaction that this speaks of; empty: all that the person has on the message
    message_text: str | None = None  # the text of that message, where the event carries it
    completion_id: str | None = None  # where the sender knows it
    session: str | None = None
    undoes: str = ""  # the event that this takes back, or puts another in place of
    received_at: float | None = None  # Unix seconds; its link is waited for from then on. None: from when it is taken
    shared: bool = False  # its route takes several platforms, each of which may have a person of that id

    @property
    def names(self) -> tuple[str, ...]:
        """By which settings and completions may know the person; the last one is theirs among all platforms."""
        whole = f"{self.platform}:{self.person}"
        # A bare id that begins with the name of a platform would be a person of that platform.
        prefix, colon, _ = self.person.partition(":")
        # Only on `signed`: OpenClaw's own ids have their platform, and Matrix's begin with `@`.
        only_whole = self.shared or (self.platform == "signed" and colon != "" and not prefix.startswith("@"))
        return (whole,) if only_whole else (self.person, whole)


class Forged(Unauthorized):
    code = "bad_signature"


class Stale(Unauthorized):
    code = "stale_signature"


class EventDone(NamedTuple):
    """Outcome of an event: a word for the metrics, a status for senders of our own, a line for people."""

    event: PlatformEvent
    result: str
    status: int
    line: str
    rating_id: str | None = None


Secrets = Callable[[str], str | None]  # of a platform's section, by their keys


class Platform(ABC):
    """One platform: `verify` and `answer`. Its module has a `make(name, key, secrets, section)`; `key` turns it on.

    Where its section has a `bot_token`, its module has a `text_source(http, api, token)` too (`fetch_text`).
    """

    name: str

    @abstractmethod
    def verify(self, headers: Mapping[str, str], body: bytes, now: float) -> tuple[PlatformEvent, ...]:
        """Read the event; nothing where it is none of our business. Header names are in lower case.

        Raises Forged, Stale; BadRequest for a body that is signed and still no good.
        """

    def answer(self, body: bytes, outcomes: Sequence[EventDone]) -> web.Response:
        """The answer that the platform wants. Only called for a body that was verified."""
        return web.json_response({"results": [outcome.line for outcome in outcomes]})


def check_time(signed_time: str, now: float) -> None:
    """The signed time, in seconds. Raises Forged, Stale."""
    if not (signed_time.isascii() and signed_time.isdecimal() and len(signed_time) <= 12):
        raise Forged("The request has no signed time; nothing was read of it.")
    if abs(now - int(signed_time)) > WINDOW_S:
        raise Stale("The request was signed more than five minutes from now; nothing was read of it.")


def signatures_match(signature: str, expected: str) -> bool:
    """In constant time, whatever a header holds."""
    return hmac.compare_digest(signature.encode(errors="replace"), expected.encode())


def json_object(body: bytes) -> dict[str, Any]:
    """A body as an object; anything else is an empty one: signed, but nothing that we know."""
    try:
        value = loads(body)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def value_at(value: Any, *keys: str) -> Any:
    """The member at that path; None where there is none."""
    for key in keys:
        if not isinstance(value, dict):
            return None
        value = value.get(key)
    return value


def name_at(value: Any, *keys: str) -> str | None:
    """An id at that path: text, or a whole number."""
    inner = value_at(value, *keys)
    if isinstance(inner, int) and not isinstance(inner, bool) and abs(inner) < 1 << 63:
        return str(inner)
    return inner if isinstance(inner, str) and 0 < len(inner) <= LONGEST else None


def text_at(value: Any, *keys: str) -> str | None:
    inner = value_at(value, *keys)
    return inner if isinstance(inner, str) and inner and len(inner) <= MOST_TEXT else None


def seconds_at(value: Any, *keys: str) -> float | None:
    """A time at that path, as a number or as text."""
    inner = value_at(value, *keys)
    if isinstance(inner, str) and len(inner) <= 30:
        try:
            inner = float(inner)
        except ValueError:
            return None
    if isinstance(inner, bool) or not isinstance(inner, int | float) or not 0 <= inner < 1e11:
        return None
    return float(inner)
