"""Every regular expression of the product, with texts that nearly fit it: its time grows with the length of the text.

The patterns are found by import and in the source (scripts/harness/patterns.py), so a new one is here by itself. Each
is called as the product calls it. Scanners that are not patterns are in test_linear.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

import pytest

from scripts.harness import patterns
from scripts.harness.near_misses import Input, inputs, scan_with, text_of
from scripts.harness.patterns import METHODS, ROOMS, ROOT, Use
from tests.harness.growth import LONGER, MOST, cpu_s, too_slow

SHARDS: Final = 12
SHORT: Final = 800  # characters, at first
QUICK_S: Final = MOST * 20e-6  # CPU time of 16 times as many: with the square of it, it would be more
FIRST, LAST = 500, 60_000


everything = cache(patterns.everything)


class Case(NamedTuple):
    """A text, and how a pattern is called with it."""

    use: Use
    method: str
    one: Input

    def scan(self, text: str | bytes) -> object:
        return scan_with(self.use.pattern, self.method)(text)

    def make(self, size: int) -> str | bytes:
        return text_of(self.use.pattern, self.one.make(size))


def suspicious(use: Use) -> Iterator[Case]:
    """Those that are not seen to be quick at once."""
    for one in inputs(use.pattern):
        for method in sorted(use.methods or METHODS):
            case = Case(use, method, one)
            took = cpu_s(case.scan, case.make(LONGER * SHORT))
            if took > QUICK_S and took > MOST * cpu_s(case.scan, case.make(SHORT), 2):
                yield case


@pytest.mark.usefixtures("no_collector")
@pytest.mark.parametrize("shard", range(SHARDS))
def test_no_pattern_takes_more_than_the_length(shard: int) -> None:
    cases = (case for use in everything()[shard::SHARDS] for case in suspicious(use))
    assert [case for case in cases if too_slow(case.scan, case.make, FIRST, LAST)] == []


def test_every_pattern_that_is_put_together_is_tried() -> None:
    assert patterns.assembled() == set(patterns.ASSEMBLED)


def test_the_search_for_patterns_finds_them() -> None:
    """In a module, in a record of a tuple, as a bound method, and inside a function, with the methods that are used."""
    found = {use.place: use.methods for use in everything()}
    assert found["proxy.core.sse._LINE"] == {"finditer", "split"}
    assert found["proxy.conversation.secret_shapes.KEYS[0].pattern"] == {"match"}
    rules = [methods for place, methods in found.items() if place.startswith("proxy.conversation.turns._OURS[")]
    assert {"match"} in rules and {"search"} in rules
    assert found["proxy.core.upstream._is_plain"] == {"fullmatch"}
    assert found["proxy.backends.modelfile.release_of"] == {"match"}
    assert len(found) > 200


@pytest.mark.parametrize("pattern", [r"[\n\r\f][^\w\n]*x", r"^\s*(?:-|\d+[.)]) ", r"[-_.](i?q\d\w*)$", r'x".*?"$'])
def test_the_texts_show_a_slow_pattern(pattern: str) -> None:
    """Of the kinds that were in the product."""
    use = Use("here", re.compile(pattern, re.MULTILINE), frozenset({"search"}))
    assert next(suspicious(use), None) is not None


def test_no_module_calls_a_method_of_re_by_another_name() -> None:
    """The source is read for `re.search(…)`; `from re import search` would hide from it."""
    names: list[Callable[[ast.AST], bool]] = [
        lambda node: isinstance(node, ast.ImportFrom) and node.module == "re",
        lambda node: isinstance(node, ast.Import) and any(n.name == "re" and n.asname for n in node.names),
    ]
    hidden = [
        str(path.relative_to(ROOT))
        for room in ROOMS
        for path in sorted(Path(ROOT / room).rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if any(name(node) for name in names)
    ]
    assert hidden == []
