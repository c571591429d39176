"""Every regular expression of the product, with texts that nearly fit it: its time grows with the length of the text.

The patterns are found by import and in the source (scripts/harness/patterns.py), so a new one is here by itself. Each
is called as the product calls it. Scanners that are not patterns are in test_linear.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any, Final

import pytest

from scripts.harness import patterns
from scripts.harness.near_misses import Input, inputs, scan_with, text_of
from scripts.harness.patterns import METHODS, ROOMS, ROOT, Use
from tests.attacker.test_linear import no_collector  # noqa: F401
from tests.harness.growth import LONGER, MOST, cpu_s, too_slow

SHARDS: Final = 12
SHORT: Final = 800  # characters, at first
QUICK_S: Final = MOST * 20e-6  # CPU time of 16 times as many: with the square of it, it would be more
FIRST, LAST = 2_000, 60_000


everything = cache(patterns.everything)


def slow(use: Use) -> list[str]:
    """The methods and texts that are too slow. Nearly all are seen to be quick at once; few need to be measured."""
    found = []
    for one in inputs(use.pattern):
        short, long = made(use, one, SHORT), made(use, one, LONGER * SHORT)
        for method in sorted(use.methods or METHODS):
            scan = scan_with(use.pattern, method)
            took = cpu_s(scan, long)
            if took > QUICK_S and took > MOST * cpu_s(scan, short, 2):
                found += [f"{use.place}: {method} {one} {times}" for times in [measured(scan, use, one)] if times]
    return found


def measured(scan: Callable[[Any], object], use: Use, one: Input) -> list[float]:
    return too_slow(scan, partial(made, use, one), FIRST, LAST)


def made(use: Use, one: Input, size: int) -> str | bytes:
    return text_of(use.pattern, one.make(size))


@pytest.mark.usefixtures("no_collector")
@pytest.mark.parametrize("shard", range(SHARDS))
def test_no_pattern_takes_more_than_the_length(shard: int) -> None:
    assert [row for use in everything()[shard::SHARDS] for row in slow(use)] == []


def test_every_pattern_that_is_put_together_is_tried() -> None:
    assert patterns.assembled() == set(patterns.ASSEMBLED)


def test_the_search_for_patterns_finds_them() -> None:
    """In a module, in a record of a tuple, as a bound method, and inside a function, with the methods that are used."""
    found = {use.place: use.methods for use in everything()}
    assert found["proxy.core.sse._LINE"] == {"finditer", "split"}
    assert found["proxy.conversation.secret_shapes.KEYS[0].rest"] == {"match"}
    rules = [methods for place, methods in found.items() if place.startswith("proxy.conversation.turns._OURS[")]
    assert {"match"} in rules and {"search"} in rules
    assert found["proxy.core.upstream._is_plain"] == {"fullmatch"}
    assert found["proxy.backends.ollama._look"] == {"match"}
    assert len(found) > 200


@pytest.mark.parametrize(
    "pattern", [r"\n[^\w\n]*x", r"^\s*(?:-|\d+[.)]) ", r"(a|ab)*c", r"[-_.](i?q\d\w*)$", r'x".*?"$']
)
def test_the_texts_show_a_slow_pattern(pattern: str) -> None:
    """Of the kinds that were in the product."""
    use = Use("here", re.compile(pattern, re.MULTILINE), frozenset({"search"}))
    assert slow(use)


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
