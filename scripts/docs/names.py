"""Count names that are participles, pronouns, or adverbs instead of nouns, by package.

`python -m scripts.docs.names` prints each package's share, `--show FOLDER` each such name in a folder. `--check` ends
with 1 where a package has more of them than `MOST` allows; `scripts/lint` runs that. A bound only ever goes down.

Arguments, targets of assignments, loops, and `except`, functions, classes, and attributes that are set are counted. A
name counts where each of its words, at most two, is in WORDS.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
PACKAGES: Final = ("proxy", "store", "trainer", "config")
LISTED: Final = (
    "found said told asked why at kept came known heard begun made meant named taken given shown left seen held "
    "lent done gone put got wanted allowed believed counted who whose whom what where when which there "
    "here else other others both own one ones more less rest so such again aside beside above below before after "
    "behind earlier later lately still yet also too alone together apart "
)
WORDS: Final = frozenset(LISTED.split())
# How many names of a folder may be such; a folder that is not here: none.
MOST: Final[dict[str, int]] = {
    "config": 1,  # train.where, as the setting is named
    "proxy": 2,
    "proxy/cli": 4,
    "proxy/cli/imports": 1,
    "proxy/core": 1,  # Gone, as HTTP calls it
    "proxy/signals": 10,
    "proxy/training": 8,
    "proxy/web": 1,
    "proxy/web/openapi": 13,
    "store": 9,
    "store/captured": 1,
    "store/learning": 2,
    "trainer": 2,
    "trainer/lessons": 2,
}


def bound_names(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Yield each name that a module binds, with its line."""
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                yield node.name, node.lineno
            case ast.arg():
                yield node.arg, node.lineno
            case ast.Name(ctx=ast.Store()):
                yield node.id, node.lineno
            case ast.Attribute(ctx=ast.Store()):
                yield node.attr, node.lineno
            case ast.ExceptHandler(name=str(name)):
                yield name, node.lineno


def is_odd(name: str) -> bool:
    words = name.strip("_").lower().split("_")
    return len(words) <= 2 and all(word in WORDS for word in words)


def counts() -> dict[str, tuple[int, int]]:
    """How many names of each folder are odd, and how many it binds."""
    by_folder: dict[str, tuple[int, int]] = {}
    for path in sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py")):
        folder = str(path.parent.relative_to(ROOT))
        names = [name for name, _ in bound_names(ast.parse(path.read_text(encoding="utf-8")))]
        odd, bound = by_folder.get(folder, (0, 0))
        by_folder[folder] = (odd + sum(map(is_odd, names)), bound + len(names))
    return by_folder


def show(folder: Path) -> None:
    for path in sorted(folder.glob("*.py")):
        for name, line in bound_names(ast.parse(path.read_text(encoding="utf-8"))):
            if is_odd(name):
                print(f"{path}:{line} {name}")


def main(arguments: list[str]) -> int:
    if arguments[:1] == ["--show"]:
        show(Path(arguments[1]))
        return 0
    by_folder = counts()
    if arguments == ["--check"]:
        excess = [
            f"{folder}: {odd} names are not nouns, at most {MOST.get(folder, 0)} may be; see `--show {folder}`"
            for folder, (odd, _) in by_folder.items()
            if odd > MOST.get(folder, 0)
        ]
        print(*excess, sep="\n", end="\n" if excess else "")
        return bool(excess)
    for folder, (odd, bound) in sorted(by_folder.items(), key=lambda item: -item[1][0] / max(item[1][1], 1)):
        print(f"{odd / max(bound, 1):6.1%} {odd:5} of {bound:5}  {folder}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
