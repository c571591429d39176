"""Text for a terminal: no text of a model, a person or another server moves its cursor or names its window.

Owns which characters are spelt out before they are shown, and the streams that do so with all that a command prints.
Our own colours and cursor go past that, through `styled`. Not here: what is shown, and how it is laid out.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from typing import Any, Final, TextIO, cast

# C0 but tab and newline, DEL, C1; what turns the order of a line around; halves of characters, which nothing encodes.
# One by one: of a sequence that comes in pieces, each piece is harmless by itself.
_CONTROLS: Final = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def escape_controls(text: str) -> str:
    """With control characters spelt as Python spells them: `\\x1b`."""
    return _CONTROLS.sub(_spelt, text)


def in_json(text: str) -> str:
    """The same of a JSON text. It says what it said: they stand in strings only, and JSON can spell them."""
    return _CONTROLS.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def _spelt(match: re.Match[str]) -> str:
    number = ord(match[0])
    return f"\\x{number:02x}" if number < 0x100 else f"\\u{number:04x}"


class Plain:
    """A stream that writes plain text; in all else it is the one below."""

    def __init__(self, styled: TextIO) -> None:
        self.styled = styled

    def write(self, text: str) -> int:
        self.styled.write(escape_controls(text))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.styled, name)


def guard() -> None:
    """From now on everything that this process prints is plain, errors and tracebacks too."""
    sys.stdout, sys.stderr = (cast(TextIO, Plain(stream)) for stream in (sys.stdout, sys.stderr))


def styled(stream: TextIO) -> TextIO:
    """The stream below, for rlproxy's own colours around text that is plain already."""
    return stream.styled if isinstance(stream, Plain) else stream
