"""Every answer, error and event that rlproxy makes itself is what the published packages say it is."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from scripts.harness.in_process import Proxy
from scripts.suites.published import EXCEPTIONS, Kind, all_faults, faults
from scripts.suites.shapes import FORMATS, Asker, Shape

# So many are checked at least, by dialect: a list of shapes that shrinks in silence checks nothing.
LEAST = {"chat": 14, "completions": 75, "responses": 280, "messages": 120, "ollama": 80, "ollama-generate": 60}

ODD: tuple[Any, ...] = ({"odd": [1]}, [[]], 0.5)


@pytest.fixture
async def shapes(proxy: Proxy) -> list[Shape]:
    proxy.backend.has_tags = False
    return [shape async for shape in Asker(proxy.http, proxy.backend).all()]


@pytest.mark.timeout(600)
async def test_every_shape_is_as_published(shapes: list[Shape]) -> None:
    found = {
        f"{shape.dialect}, {shape.case}: {fault.place}: {fault.reason}"
        for shape in shapes
        for fault in faults(shape.kind, shape.body)
    }
    assert not found, "\n".join(sorted(found))
    counts = Counter(shape.dialect for shape in shapes)
    assert {name for name, least in LEAST.items() if counts[name] < least} == set(), counts
    used = {(shape.kind, fault.place) for shape in shapes for fault in all_faults(shape.kind, shape.body)}
    assert set(EXCEPTIONS) <= used, f"exceptions that nothing needs: {set(EXCEPTIONS) - used}"


async def test_a_fault_is_seen_in_every_kind(shapes: list[Shape]) -> None:
    """A check that takes anything would pass, too."""
    seen: set[Kind] = set()
    for shape in shapes:
        if shape.kind in seen:
            continue
        seen.add(shape.kind)
        assert faults(shape.kind, {**shape.body, "surprise": 1}), shape.kind
        blind = {name for name in shape.body if not any(faults(shape.kind, {**shape.body, name: odd}) for odd in ODD)}
        assert blind <= {place for kind, place in EXCEPTIONS if kind == shape.kind}, (shape.kind, blind)
    asked: set[Any] = {kind for format_ in FORMATS for kind in (format_.whole, format_.piece, format_.error)}
    assert asked <= seen
