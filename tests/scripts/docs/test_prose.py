"""The counts of scripts/docs/prose.py, each by a text that has one and a text like it that has none."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts.docs import prose

LONG = "Word and " * 13
FIGURES = f'"""Holds."""\nsaid = f"In all {{n}} {LONG[:71].lower()}; {{n}} more {LONG[:60].lower()}."'


@pytest.mark.parametrize(
    ("text", "kinds"),
    [
        ("The body is no JSON.\n", ["is no"]),
        ("There is no file, and it is no longer needed.\n", []),
        ("Of these two are kept. What is it?\n", ["opening"]),
        (f"{LONG}\n", ["long"]),
        (f"{LONG[:60]}.\n{LONG[:71]}.\n", []),
        ("A list " + "`a b c` " * 12 + "`tests/a.py::test_b` " * 30 + "\n", []),
        (f"| a | {LONG} |\n|---|---|\n| b | {LONG[:60]} |\n", ["long"]),
        (f"```\nThis is no page. {LONG}\n```\n# {LONG}\n", []),
        (f"<!-- table -->\n\n{LONG}\n\n<!-- /table -->\n", []),
        (f"Short.\n{'x' * 101}\n", ["wide"]),
        (f"{'x' * 101}\n\n- {'x' * 101}\n", []),
    ],
)
def test_pages(text: str, kinds: list[str]) -> None:
    assert [one.kind for one in prose.page("page.md", text)] == kinds


@pytest.mark.parametrize(
    ("text", "kinds"),
    [
        ('"""Whether it holds."""', ["opening"]),
        ('def f():\n    """Who asks. The body is no JSON."""', ["opening", "is no"]),
        ('"""Holds."""\nsaid = "The body is no JSON."', ["is no"]),
        ('"""Holds."""\nsaid = f"The body {x} is no JSON."', ["is no"]),
        ('"""Holds."""\nsaid = "is no text"', []),
        (f'"""Holds.\n\n    {LONG}\n\nEnds.\n"""', []),
        (f'"""Holds.\n\nCommands:\n    {LONG}\n"""', ["long"]),
        (f'"""Holds.\n\n    - {LONG}\n\nEnds.\n"""', ["long"]),
    ],
)
def test_code(text: str, kinds: list[str]) -> None:
    assert [one.kind for one in prose.code("code.py", text)] == kinds


@pytest.mark.parametrize(
    ("file", "text", "kinds"),
    [
        ("scripts/docs/tables.py", FIGURES, []),
        ("scripts/docs/tables.py", FIGURES.replace(";", ","), ["long"]),
        ("scripts/docs/tables.py", FIGURES.replace('f"', '"'), ["long"]),
        ("scripts/demo/report.py", FIGURES, ["long"]),
    ],
)
def test_a_list_of_figures_for_a_page(file: str, text: str, kinds: list[str]) -> None:
    assert [one.kind for one in prose.code(file, text)] == kinds


@pytest.mark.parametrize("package", ["config", "store", "trainer", "proxy", "scripts"])
def test_each_package_is_counted(package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "README.md").write_text("Short.\n")
    (tmp_path / package / "deep").mkdir(parents=True)
    (tmp_path / package / "deep" / "code.py").write_text('"""Whether it holds."""\n')
    monkeypatch.setattr(prose, "ROOT", tmp_path)
    assert [(one.file, one.kind) for one in prose.collect_findings()] == [(f"{package}/deep/code.py", "opening")]


@pytest.mark.parametrize(
    ("file", "kind"), [("README.md", "long"), ("proxy/app.py", "opening"), ("proxy/app.py", "long")]
)
def test_what_is_wrong_is_named(
    file: str, kind: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(prose, "collect_findings", lambda: [prose.Finding(file, 3, kind, LONG)])
    assert prose.main(["--check"]) == 1 and f"{file}:3: {kind}" in capsys.readouterr().err


def test_pages_that_are_too_long_are_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(prose, "collect_findings", list)
    monkeypatch.setattr(prose, "length", lambda: prose.MOST_WORDS)
    assert prose.main(["--check"]) == 0
    monkeypatch.setattr(prose, "length", lambda: prose.MOST_WORDS + 1)
    assert prose.main(["--check"]) == 1 and "35,001 words" in capsys.readouterr().err


def test_words_are_counted_and_bars_are_none() -> None:
    assert prose.words("| a | `b c` | – | → 3 |\n|---|---|") == 4
