"""The walks of docs/lab/walks.md pass through functions that are there."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
PAGE = ROOT / "docs/lab/walks.md"
HOP = re.compile(r"^\d+\. `([a-z_/0-9]+\.py):([\w.]+)`", re.MULTILINE)


def defined(path: Path) -> set[str]:
    """Functions and classes of a module, and methods as `Class.method`."""
    found: set[str] = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ClassDef):
            inner = [one.name for one in node.body if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef)]
            found |= {node.name, *(f"{node.name}.{name}" for name in inner)}
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            found.add(node.name)
    return found


def hops_of_walks() -> dict[str, list[tuple[str, str]]]:
    parts = re.split(r"^## ", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]
    return {part.splitlines()[0]: HOP.findall(part) for part in parts}


def test_every_hop_is_there() -> None:
    walks = hops_of_walks()
    assert len(walks) == 4
    gone = [f"{path}:{name}" for hops in walks.values() for path, name in hops if name not in defined(ROOT / path)]
    assert gone == []


def test_a_rating_takes_at_most_15_hops() -> None:
    assert 5 < len(hops_of_walks()["A rating"]) <= 15
