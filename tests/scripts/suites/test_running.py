"""What the suites said, as a table and as a verdict."""

from __future__ import annotations

from pathlib import Path

from scripts.suites.__main__ import table, worse_tests
from scripts.suites.running import SUITES, _junit, _read

REPORT = """<testsuites><testsuite>
<testcase name="whole"/><testcase name="odd"><failure message="KeyError: 'x'">…</failure></testcase>
<testcase name="picture"><skipped message="no picture"/></testcase>
<testcase name="broken"><error message="no server"/></testcase>
</testsuite></testsuites>"""


def test_what_pytest_reports(tmp_path: Path) -> None:
    (tmp_path / "report.xml").write_text(REPORT)
    assert _junit(tmp_path / "report.xml") == {
        "whole": "passed",
        "odd": "failure: KeyError: 'x'",
        "picture": "skipped: no picture",
        "broken": "error: no server",
    }


def test_the_last_line_of_a_driver_counts() -> None:
    assert _read('a warning\n{"chat": "passed"}\n') == {"chat": "passed"}


def test_only_what_passes_directly_can_be_worse() -> None:
    outcomes = {
        "directly": {"a": "passed", "b": "failed: x", "c": "passed", "d": "passed"},
        "through": {"a": "passed", "b": "passed", "c": "skipped: y"},
    }
    assert worse_tests(outcomes) == ["c", "d"]
    text, worse = table({"built-in": {"sdks": outcomes}})
    assert worse == 2
    assert [line.split() for line in text.splitlines()[:2]] == [
        ["server", "suite", "directly", "through"],
        ["built-in", "sdks", "3/4", "2/3"],
    ]
    assert "fails through alone: c: skipped: y" in text and "fails through alone: d: not run" in text


def test_the_suites_of_the_issue_are_there() -> None:
    assert [name for name in SUITES if name.startswith("langchain")] == [
        "langchain-openai", "langchain-responses", "langchain-anthropic", "langchain-ollama",
    ]  # fmt: skip
    assert {"sdks", "javascript", "llamaindex", "open-responses"} <= set(SUITES)
