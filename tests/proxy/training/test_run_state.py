"""The state of training has one owner."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import proxy
from proxy.training.run_state import RunState

FIELDS = {field.name for field in fields(RunState)}


def assigned(tree: ast.AST) -> Iterator[ast.Attribute]:
    """Attributes that a statement stores to."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node


def test_the_supervisor_alone_changes_the_state_of_training() -> None:
    room = Path(proxy.__file__).parent
    changes = {
        str(path.relative_to(room))
        for path in room.rglob("*.py")
        for target in assigned(ast.parse(path.read_text(encoding="utf-8")))
        if ast.unparse(target.value).endswith("state") and target.attr in FIELDS
    }
    assert changes == {"training/run_supervisor.py"}
