"""Regular expressions that others wrote, run by RE2: each search takes time in proportion to the text.

Owns how such a pattern is read, for settings and for adapters that come from elsewhere. A search by Python's own engine
may take time with the square of the text, or never end, and the texts come from strangers. RE2 has neither look-around
nor references to groups, and reads `\\d`, `\\s`, `\\w` as ASCII: here they are Unicode's, as in Python. Patterns in our
own source are Python's, which costs a tenth on short texts; tests/attacker/test_patterns.py tries each of them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

GROUP: Final = "secret"
_CLASSES: Final = {"d": r"\p{Nd}", "s": r"\s\x0b\x1c-\x1f\x85\p{Z}", "w": r"\p{L}\p{M}\p{N}_"}
_PART: Final = re.compile(r"\\.|\[\^?\]?|\]|\{,(?=\d)|.", re.DOTALL)
_PLAIN: Final = {"{,": "{0,"}
_HALF: Final = re.compile("[\ud800-\udfff]")  # no UTF-8 has it, which RE2 reads


class TextPattern:
    def __init__(self, pattern: str) -> None:
        """Raises ValueError, with what RE2 says of the pattern."""
        import re2  # most settings have no pattern, and a command without one starts sooner

        options = re2.Options()
        options.log_errors = False
        try:
            self._pattern = re2.compile(_translated(pattern), options=options)
        except re2.error as error:
            reason = error.args[0].decode() if isinstance(error.args[0], bytes) else str(error)
            raise ValueError(f"not a regular expression of RE2: {reason}{_advice(reason)}") from None
        self._group: int = self._pattern.groupindex.get(GROUP, 0)

    def search(self, text: str) -> Any:
        """The first match, or None."""
        return self._pattern.search(_readable(text))

    def fullmatch(self, text: str) -> Any:
        """The match of all of the text, or None."""
        return self._pattern.fullmatch(_readable(text))

    def spans(self, text: str) -> Iterator[tuple[int, int]]:
        """Where each match is, or its group `secret` where it has one."""
        for match in self._pattern.finditer(_readable(text)):
            start, end = match.span(self._group)
            yield (start, end) if start >= 0 else match.span()


def _advice(reason: str) -> str:
    if "(?<" in reason or "(?=" in reason or "(?!" in reason:
        return f"; it has no look-around: put `(?P<{GROUP}>…)` around what is meant, and what must be beside it outside"
    return ""


def _readable(text: str) -> str:
    return text if text.isascii() else _HALF.sub("\ufffd", text)


def _translated(pattern: str) -> str:
    """The pattern in RE2's syntax where Python's differs in silence. Raises ValueError for what has no translation."""
    translated: list[str] = []
    in_brackets = False
    for part in _PART.findall(pattern):
        if part[0] == "[":
            in_brackets = True
        elif part == "]":
            in_brackets = False
        translated.append(_classes(part, in_brackets=in_brackets) if part[0] == "\\" else _PLAIN.get(part, part))
    return "".join(translated)


def _classes(escape: str, *, in_brackets: bool) -> str:
    """An escape, with Unicode's members where it stands for a class."""
    members = _CLASSES.get(escape[1:].lower())
    if members is None or (in_brackets and escape[1:] in ("D", "S")):  # `[\s\S]` is any character, to RE2 too
        return escape
    if in_brackets and escape[1:] == "W":
        raise ValueError("`\\W` cannot stand in brackets here: write `[^\\w]`, or `(?s:.)` for any character")
    if in_brackets:
        return members
    return f"[^{members}]" if escape[1:].isupper() else f"[{members}]"
