"""The page of the wire corpus counts the cases that are there."""

from __future__ import annotations

from scripts.docs.wire_table import COLUMNS, PAGE, filled, table
from scripts.golden.wire import cases


def test_the_page_counts_the_corpus() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert filled(text) == text, "run `python -m scripts.docs.wire_table`"


def test_every_case_is_counted_once() -> None:
    corpus = cases()
    *_, last = table(corpus).splitlines()
    counts = [int(cell or 0) for cell in last.strip("| ").split(" | ")[1:]]
    assert counts[-1] == sum(counts[:-1]) == len(corpus) and len(counts) == len(COLUMNS) + 1
