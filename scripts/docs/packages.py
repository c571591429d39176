"""Packages, modules, lines, and who imports whom: a table, JSON, or the picture in the architecture page.

    python -m scripts.docs.packages           a line for each package
    python -m scripts.docs.packages --json    the same, with the imports between packages
    python -m scripts.docs.packages --write   the picture into the page; `--check` only compares

Owns how the code is counted. Not here: which imports are allowed (pyproject.toml, import-linter).
"""

from __future__ import annotations

import ast
import json
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path
from typing import Final

from scripts.docs.filling import fill_place, settle

ROOT: Final = Path(__file__).resolve().parents[2]
ROOMS: Final = ("config", "store", "trainer", "proxy", "scripts")
PICTURED_ROOMS: Final = ("config", "store", "trainer", "proxy")  # in the picture
NAME: Final = "packages"
NARROW: Final = 100  # columns of the picture


@dataclass
class Package:
    """A folder with its own modules; those of a package in it are counted there."""

    name: str
    modules: int = 0
    lines: int = 0
    imports: Counter[str] = field(default_factory=Counter)  # other packages, by the number of modules that import them


def page() -> Path:
    """It is the only one of its name, wherever the pages are kept."""
    (path,) = (ROOT / "docs").rglob("architecture.md")
    return path


@cache
def packages() -> dict[str, Package]:
    """Every package of every room, by its dotted name."""
    files = {file: file.relative_to(ROOT) for room in ROOMS for file in sorted((ROOT / room).rglob("*.py"))}
    names = {".".join(path.parent.parts) for path in files.values() if path.name == "__init__.py"}
    by_name = {name: Package(name) for name in sorted(names)}
    for file, path in files.items():
        if (name := ".".join(path.parent.parts)) not in by_name:
            continue  # a person's own file, as scripts/bench/personas has
        text = file.read_text(encoding="utf-8")
        by_name[name].modules += path.name != "__init__.py"
        by_name[name].lines += text.count("\n")
        by_name[name].imports.update({owner for owner in _owners(text, names) if owner != name})
    return by_name


def _owners(text: str, names: set[str]) -> Iterator[str]:
    """The packages that own what is imported, but for types alone."""
    for module in _imported(ast.parse(text)):
        parts = module.split(".")
        for end in range(len(parts), 0, -1):
            if (owner := ".".join(parts[:end])) in names:
                yield owner
                break


def _imported(node: ast.AST) -> Iterator[str]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            continue
        if isinstance(child, ast.Import):
            yield from (alias.name for alias in child.names)
        elif isinstance(child, ast.ImportFrom) and child.module and not child.level:
            yield from (f"{child.module}.{alias.name}" for alias in child.names)
        else:
            yield from _imported(child)


def picture(by_name: dict[str, Package]) -> str:
    """Layers of each room as text: a package imports only from lines below its own, in its room and in others."""
    lines = ["```"]
    for room in reversed(PICTURED_ROOMS):
        parts = _parts(by_name, room)
        total = [by_name[name] for name in by_name if name == room or name.startswith(f"{room}.")]
        modules, size = sum(p.modules for p in total), sum(p.lines for p in total)
        imported_rooms = sorted({_room(o) for p in total for o in p.imports} - {room})
        imports = f"imports {', '.join(imported_rooms)}" if imported_rooms else "imports no other room"
        lines += [f"{room}: {modules} modules, {_thousands(size)} lines; {imports}"]
        for layer in _layers(parts):
            lines += _wrapped(
                " ⇄ ".join(f"{n} {_thousands(parts[n].lines)}" for n in box.split(" ⇄ ")) for box in layer
            )
        lines += [""]
    return "\n".join([*lines[:-1], "```"])


def _parts(by_name: dict[str, Package], room: str) -> dict[str, Package]:
    """The packages directly in a room, each with all that is in it. The room's own modules stand by themselves."""
    parts: dict[str, Package] = {}
    for name, package in by_name.items():
        if name.startswith(f"{room}."):
            part = parts.setdefault(name.split(".")[1], Package(name.split(".")[1]))
            part.modules += package.modules
            part.lines += package.lines
            part.imports.update(o.split(".")[1] for o in package.imports if o.startswith(f"{room}."))
    return parts


def _layers(parts: dict[str, Package]) -> list[list[str]]:
    """From packages that nobody imports down to those that import nobody; those that import each other share a box."""
    reach = {name: _reached(parts, name) for name in parts}
    circles = {name: " ⇄ ".join(sorted({o for o in reach[name] if name in reach[o]} | {name})) for name in parts}
    sorter = TopologicalSorter({circles[name]: {circles[o] for o in reach[name]} - {circles[name]} for name in parts})
    sorter.prepare()
    layers: list[list[str]] = []
    while ready := sorter.get_ready():
        layers.append(sorted(ready))
        sorter.done(*ready)
    return layers[::-1]


def _reached(parts: dict[str, Package], name: str) -> set[str]:
    reachable: set[str] = set()
    queue = [name]
    while queue:
        new = {imported for imported in parts[queue.pop()].imports if imported in parts} - reachable
        reachable |= new
        queue += new
    return reachable


def _wrapped(words: Iterable[str]) -> list[str]:
    lines = ["   "]
    for word in words:
        if len(lines[-1]) + len(word) + 2 > NARROW:
            lines.append("   ")
        lines[-1] += f" [{word}]"
    return lines


def _room(name: str) -> str:
    return name.partition(".")[0]


def _thousands(lines: int) -> str:
    """Rounded, so that the picture stays when a module grows by a line."""
    return f"{lines / 1000:.1f}k" if lines >= 1000 else f"{round(lines, -2) or 100}"


def filled(text: str) -> str:
    return fill_place(text, NAME, picture(packages()))


def main() -> int:
    by_name = packages()
    if "--json" in sys.argv:
        print(json.dumps({name: vars(package) for name, package in by_name.items()}, indent=1))
        return 0
    if "--write" in sys.argv or "--check" in sys.argv:
        return settle({page(): filled(page().read_text(encoding="utf-8"))})
    for name, package in by_name.items():
        imports = ", ".join(sorted(package.imports))
        print(f"{name:28} {package.modules:3} modules {package.lines:6} lines  → {imports or '–'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
