"""The version or the line that a request names by its model: `MODEL`, `MODEL@LINE`, `MODEL@base`, `MODEL@v7`.

Owns what such a name means, and which names a line may have. Not here: which version that is at this moment
(live_version), which line a request gets that names none (lines).
"""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Final, NamedTuple

from proxy.backends.base import Capabilities
from proxy.core.errors import BadRequest, NotFound
from store.line_records import COMMON
from store.records import BASE

LINE: Final = re.compile(r"[a-z0-9][a-z0-9._-]{0,39}")
_VERSION: Final = re.compile(r"v?[0-9]+")
# A version by the name that a server has for it, of any home: `MODEL@v7-1a2b3c`, at Ollama `MODEL-rl:v7-1a2b3c`.
AT_SERVER: Final = re.compile(r"(@|-rl:)v[0-9]", re.IGNORECASE)
_RESERVED: Final = frozenset({COMMON, "base", "none", "all", "latest"})


class NamedVersion(NamedTuple):
    """The version that a request names by its model."""

    model: str  # as the request has it
    ours: str  # the name of the model that it was compared with
    is_ours: bool
    pinned: int | None = None  # None: the live one
    line: str | None = None  # None: it names none


def parse_name(model: str, ours: str, capabilities: Capabilities, lines: Collection[str]) -> NamedVersion:
    """`MODEL` and `MODEL@LINE` are a live version, `MODEL@base` and `MODEL@vN` pin one. Another name is passed on as it
    is: a model that is not ours to train. `lines`: those that answer, the common one among them."""
    if capabilities.is_foreign:
        return NamedVersion(model, ours, is_ours=False)
    bare = model.removesuffix(capabilities.implied_tag)
    if bare in ("", ours):
        return NamedVersion(model, ours, is_ours=True)
    name, separator, pin = bare.rpartition("@")
    if not separator or name != ours:  # a server's model has no name until it was reached
        return NamedVersion(model, ours, is_ours=False)
    if pin == "base":
        return NamedVersion(model, ours, True, BASE)
    if pin in lines and len(lines) > 1:
        return NamedVersion(model, ours, True, line=pin)
    is_version = pin.startswith("v") and pin[1:].isdecimal() and len(pin) < 12
    return NamedVersion(model, ours, is_version, int(pin[1:]) if is_version else None)


def unknown_line(name: str) -> NotFound:
    return NotFound(f"The line {name} does not exist; `rlproxy line list` shows all lines.", param="line")


def check_line_name(name: str, model: str) -> None:
    """`model`: the name of the served one. Raises BadRequest where a line cannot be called so."""
    if not LINE.fullmatch(name):
        raise BadRequest(
            "A line's name is 1 to 40 small letters, digits or `._-`, the first a letter or a digit. Nothing was made.",
            param="name",
        )
    tag = model.rpartition(":")[2]
    if name in _RESERVED or _VERSION.fullmatch(name) or name == tag:
        raise BadRequest(
            f"`{name}` means something else behind a model's name, so no line can be called so. Nothing was made.",
            param="name",
        )
