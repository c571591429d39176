"""The picture of the packages in the architecture page is that of the code, and no package has grown too large."""

from __future__ import annotations

import ast
import json
import re
from collections import Counter, defaultdict
from graphlib import TopologicalSorter
from pathlib import Path

import grimp
import pytest

from scripts.docs.packages import Package, filled, main, packages, page, picture

ROOT = Path(__file__).resolve().parents[3]
ROOMS = ("config", "store", "trainer", "proxy")
SAME_THING = {"Rating"}  # the store's, and the same as programs see it (`rlproxy.Rating`)


def structure(text: str) -> str:
    """Without the counts, which change with every commit."""
    return re.sub(r"\d[\d.]*k?", "N", text)


def test_the_picture_is_current() -> None:
    text = page().read_text(encoding="utf-8")
    assert structure(filled(text)) == structure(text), "run `python -m scripts.docs.packages --write`"


def test_no_package_has_more_than_25_modules() -> None:
    large = {name: package.modules for name, package in packages().items() if package.modules > 25}
    assert large == {}, "move what belongs together into a package of its own"


def test_who_imports_whom() -> None:
    found = packages()
    assert found["config"].modules > 3 and found["config"].imports.keys() == set()
    assert not any(name.startswith(("proxy", "store", "scripts")) for name in found["trainer"].imports)
    assert found["scripts.docs"].imports["scripts.harness"] >= 1


def test_programs_read_the_same_as_json(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.argv", ["packages", "--json"])
    assert main() == 0
    said = json.loads(capsys.readouterr().out)
    assert said["trainer"] == vars(packages()["trainer"])


def test_packages_that_import_each_other_share_a_box() -> None:
    low, one, two = (Package(f"store.{name}", 1, 1200) for name in ("low", "one", "two"))
    one.imports, two.imports = Counter({"store.two": 1, "store.low": 2}), Counter({"store.one": 1})
    drawn = picture({package.name: package for package in (low, one, two)})
    assert "    [one 1.2k ⇄ two 1.2k]\n    [low 1.2k]\n" in drawn


def test_no_module_imports_itself_through_others() -> None:
    """Not even inside a function; annotations are free to."""
    graph = grimp.build_graph(*ROOMS, exclude_type_checking_imports=True)
    imports = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    TopologicalSorter(imports).prepare()  # raises CycleError, with the modules


def product() -> list[Path]:
    return [path for room in ROOMS for path in sorted((ROOT / room).rglob("*.py"))]


def test_no_module_has_more_than_500_lines() -> None:
    lines = {str(path.relative_to(ROOT)): len(path.read_text(encoding="utf-8").splitlines()) for path in product()}
    long = {path: count for path, count in lines.items() if count > 500}
    assert long == {}, "split what has two concerns"


def test_a_public_class_name_has_one_meaning() -> None:
    where: dict[str, set[str]] = defaultdict(set)
    for path in product():
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                where[node.name].add(str(path.relative_to(ROOT)))
    twice = {name: paths for name, paths in where.items() if len(paths) > 1}
    assert twice.keys() <= SAME_THING, "give each its own name"


def test_a_docstring_points_to_modules_that_are_there() -> None:
    """As `Not here: the options (command)`; a bracket of several words is prose."""
    names = {part.removesuffix(".py") for path in product() for part in path.relative_to(ROOT).parts}
    names |= {"stay", "elsewhere", "m", "torch", "mlx", "numpy"}  # functions, figures and libraries
    gone = []
    for path in product():
        said = " ".join((ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or "").split())
        for bracket in re.findall(r"\(([a-z`][\w.,` ]*)\)", said.partition("Not here:")[2]):
            words = [word.strip("` ") for word in bracket.split(",")]
            if not any(" " in word for word in words):
                gone += [f"{path}: {word}" for word in words if not set(word.split(".")) <= names]
    assert gone == []
