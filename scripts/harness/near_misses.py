"""Texts that nearly fit a regular expression, over and over: what makes a search begin anew at each place.

Owns how such texts are made of a pattern. Parts are its literals, a member and a stranger of each character class, all
beginnings of its matches, and the body of each repeat. To these come separators, digits, quotes, brackets,
and spinner frames, which scanners of conversations read. Not here: which patterns there are (`patterns`).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from re import _constants, _parser  # type: ignore[attr-defined]
from typing import Any, Final, NamedTuple

Text = str | bytes

LINE_ENDS: Final = ("\n", "\r", "\r\n", "\v", "\f", "\x1c", "\x1d", "\x1e", "\x85", "\u2028", "\u2029")
SPACES: Final = (" ", "\t", "\xa0", "\u2003", "\u200b", "\u200d", "\ufeff", "\x00", "\x1f", "\x7f")
SIGNS: Final = (
    "0", "1", "a", "A", "_", "-", ".", ":", "=", "/", "\\", '"', "'", "`", "<", ">", "(", "[", "{", "}", "|", "@", "#",
    "&", "%", ",", ";", "*", "+", "?", "!", "$", "~", "é", "ß", "Ä", "İ", "中", "👍", "\u0301", "\ud800", "\x1b[",
)  # fmt: skip
SPINNERS: Final = ("⠋", "⠙", "⣾", "◐", "▁█", "|/-\\", "⠋\r", "█░")
COMMON: Final = (
    *LINE_ENDS,
    *SPACES,
    *SIGNS,
    *SPINNERS,
    "a ",
    "a\n",
    "\n ",
    " \n",
    "\r ",
    "a=",
    "a.",
    "a-",
    "''",
    '\\"',
)
_LONGEST: Final = 160  # characters of a sample
_SAMPLES: Final = 6  # of one part
_PAIRED: Final = 14  # units of a pattern's own that stand beside each other
_BEGINNINGS: Final = 8
_NO_MATCH: Final = "\x00!\n\x00!"  # no match goes on to its end, or ends before it at the end of a line


class Input(NamedTuple):
    """A text made of a unit, over and over, behind a beginning and before an end."""

    head: str
    unit: str
    tail: str

    def make(self, size: int) -> str:
        return self.head + self.unit * (size // len(self.unit)) + self.tail


def inputs(pattern: re.Pattern[Any]) -> list[Input]:
    """Each unit alone and behind each beginning of what the pattern matches, and pairs of the pattern's own."""
    units = _units(pattern)
    single = list(dict.fromkeys((*COMMON, *units)))
    pairs = [first + second for first in units[:_PAIRED] for second in units[:_PAIRED] if first != second]
    pairs += [first + second for first in units[:6] for second in (*LINE_ENDS[:4], " ", "0", "a", "-", ".")]
    texts = [Input("", unit, tail) for unit in single for tail in ("", _NO_MATCH)]
    texts += [Input("", unit, _NO_MATCH) for unit in dict.fromkeys(pairs)]
    texts += [Input(head, unit, _NO_MATCH) for head in _beginnings(pattern) for unit in single]
    return [text for text in texts if _fits(text.head + text.unit + text.tail, pattern)]


def text_of(pattern: re.Pattern[Any], text: str) -> Text:
    """The text as this pattern reads it."""
    return text.encode("latin-1") if isinstance(pattern.pattern, bytes) else text


def scan_with(pattern: re.Pattern[Any], method: str) -> Callable[[Text], object]:
    """Call a pattern as the product does, to the end of the text."""
    empty = text_of(pattern, "")
    match method:
        case "finditer":
            return lambda text: [None for _ in pattern.finditer(text)]
        case "sub" | "subn":
            return lambda text: pattern.sub(empty, text)
        case _:
            return getattr(pattern, method)  # type: ignore[no-any-return]


def _fits(text: str, pattern: re.Pattern[Any]) -> bool:
    return isinstance(pattern.pattern, str) or all(ord(letter) < 256 for letter in text)


def _tree(pattern: re.Pattern[Any]) -> Any:
    return _parser.parse(
        pattern.pattern, pattern.flags & ~re.DEBUG & ~(re.UNICODE if isinstance(pattern.pattern, bytes) else 0)
    )


def _beginnings(pattern: re.Pattern[Any]) -> list[str]:
    """A few beginnings of what it matches, the longest last."""
    beginnings: list[str] = []
    for sample in _samples(_tree(pattern))[:3]:
        steps = max(1, len(sample) // 4)
        beginnings += [sample[:end] for end in (1, *range(steps, len(sample) + 1, steps), len(sample) - 1) if end > 0]
    return list(dict.fromkeys(beginnings))[:_BEGINNINGS]


def _units(pattern: re.Pattern[Any]) -> list[str]:
    tree = _tree(pattern)
    units: list[str] = []
    for sample in _samples(tree):
        units += [sample, sample[:-1], sample[1:]]
    units += _parts(tree)
    units = [unit for unit in dict.fromkeys(units) if unit]
    short = [unit for unit in units if len(unit) <= 12]
    return [*short, *(unit for unit in units if len(unit) > 12)]


def _parts(tree: Any) -> list[str]:
    """Literals, members and strangers of classes, and what each repeat repeats, from the whole tree."""
    parts: list[str] = []
    run = ""
    for op, argument in tree:
        if op is _constants.LITERAL:
            run += chr(argument)
            continue
        if run:
            parts += [run, run[:-1]]
        run = ""
        parts += _letters(op, argument)
        for part in _inner(op, argument):
            parts += _samples(part)[:3]
            parts += _parts(part)
    return [*parts, run, run[:-1]] if run else parts


def _inner(op: Any, argument: Any) -> list[Any]:
    if op is _constants.SUBPATTERN:
        return [argument[3]]
    if op in (_constants.MAX_REPEAT, _constants.MIN_REPEAT, _constants.POSSESSIVE_REPEAT):
        return [argument[2]]
    if op is _constants.BRANCH:
        return list(argument[1])
    if op in (_constants.ASSERT, _constants.ASSERT_NOT):
        return [argument[1]]
    if op is _constants.ATOMIC_GROUP:
        return [argument]
    if op is _constants.GROUPREF_EXISTS:
        return [part for part in argument[1:] if part is not None]
    return []


def _letters(op: Any, argument: Any) -> list[str]:
    if op is _constants.NOT_LITERAL:
        return [chr(argument), "a" if argument != 97 else "b"]
    if op is _constants.ANY:
        return ["a"]
    if op is _constants.IN:
        return [*_members(argument), *_strangers(argument)]
    return []


_CATEGORY: Final = {
    "CATEGORY_DIGIT": ("0", "a"), "CATEGORY_NOT_DIGIT": ("a", "0"), "CATEGORY_SPACE": (" \n", "a"),
    "CATEGORY_NOT_SPACE": ("a", " \n"), "CATEGORY_WORD": ("a0_", "-"), "CATEGORY_NOT_WORD": ("- ", "a"),
}  # fmt: skip


def _class_letters(items: Any) -> tuple[str, str, bool]:
    """Letters that the items of a class name, letters that they leave out, and whether the class is the others."""
    inside, outside, negated = "", "", False
    for op, argument in items:
        if op is _constants.NEGATE:
            negated = True
        elif op is _constants.LITERAL:
            inside += chr(argument)
        elif op is _constants.RANGE:
            inside += chr(argument[0]) + chr(argument[1])
        elif op is _constants.CATEGORY:
            members, strangers = _CATEGORY[str(argument)]
            inside, outside = inside + members, outside + strangers
    return inside, outside, negated


def _members(items: Any) -> list[str]:
    inside, outside, negated = _class_letters(items)
    if not negated:
        return list(inside[:8])
    every = outside + "a0 \n\r-.é\x00b!"
    return [letter for letter in dict.fromkeys(every) if letter not in inside][:8]


def _strangers(items: Any) -> list[str]:
    inside, outside, negated = _class_letters(items)
    return list(inside[:4]) if negated else [c for c in outside + "!\x00" if c not in inside][:2]


def _samples(tree: Any) -> list[str]:
    """A few texts that the pattern matches, or nearly: look-arounds are left out."""
    samples = [""]
    for op, argument in tree:
        choices = _choices(op, argument)
        samples = [
            (samples[i % len(samples)] + choices[i % len(choices)])[:_LONGEST]
            for i in range(max(len(samples), len(choices)))
        ]
        samples = samples[:_SAMPLES]
    return list(dict.fromkeys(samples))


def _choices(op: Any, argument: Any) -> list[str]:
    if op is _constants.LITERAL:
        return [chr(argument)]
    if op in (_constants.NOT_LITERAL, _constants.ANY, _constants.IN):
        letters = _members(argument) if op is _constants.IN else _letters(op, argument)[-1:]
        return letters or ["a"]
    if op in (_constants.MAX_REPEAT, _constants.MIN_REPEAT, _constants.POSSESSIVE_REPEAT):
        least, most, part = argument
        counts = [max(least, 1), least, min(least + 3, 40)]
        return [sample * min(count, most) for sample in _samples(part)[:3] for count in counts]
    if op is _constants.BRANCH:
        return [sample for part in argument[1] for sample in _samples(part)[:2]][:_SAMPLES]
    if op in (_constants.ASSERT, _constants.ASSERT_NOT, _constants.AT, _constants.GROUPREF):
        return [""]
    return [sample for part in _inner(op, argument) for sample in _samples(part)] or [""]
