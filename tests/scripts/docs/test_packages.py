"""The picture of the packages in the architecture page is that of the code, and no package has grown too large."""

from __future__ import annotations

import re
from collections import Counter

from scripts.docs.packages import Package, filled, packages, page, picture


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


def test_packages_that_import_each_other_share_a_box() -> None:
    low, one, two = (Package(f"store.{name}", 1, 1200) for name in ("low", "one", "two"))
    one.imports, two.imports = Counter({"store.two": 1, "store.low": 2}), Counter({"store.one": 1})
    drawn = picture({package.name: package for package in (low, one, two)})
    assert "    [one 1.2k ⇄ two 1.2k]\n    [low 1.2k]\n" in drawn
