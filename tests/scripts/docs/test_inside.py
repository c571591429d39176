"""The ways of docs/lab/inside.md pass through functions that are there."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
PAGE = ROOT / "docs/lab/inside.md"
STEP = re.compile(r"^\d+\. .+", re.MULTILINE)
HOP = re.compile(r"`([a-z_/0-9]+\.py):([\w.]+)`")


def defined(path: Path) -> set[str]:
    """Functions and classes of a module, and methods as `Class.method`."""
    names: set[str] = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ClassDef):
            inner = [one.name for one in node.body if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef)]
            names |= {node.name, *(f"{node.name}.{name}" for name in inner)}
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            names.add(node.name)
    return names


def steps_of_ways() -> dict[str, list[str]]:
    parts = re.split(r"^## ", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]
    return {part.splitlines()[0]: STEP.findall(part) for part in parts}


def test_every_function_is_there() -> None:
    ways = steps_of_ways()
    assert list(ways) == ["A request", "A rating", "A run"]
    named = {step: HOP.findall(step) for steps in ways.values() for step in steps}
    assert [step for step, hops in named.items() if not hops] == []
    gone = [f"{path}:{name}" for hops in named.values() for path, name in hops if name not in defined(ROOT / path)]
    assert gone == []


def test_each_way_fits_a_page() -> None:
    assert all(5 < len(steps) <= 15 for steps in steps_of_ways().values())
