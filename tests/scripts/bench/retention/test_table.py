"""Peaks, ends and ratios of a sequence, and what is left out while it runs."""

import pytest

from scripts.bench.retention.table import history, markdown, rows

BASE = {"a": 0.4, "b": 0.2, "sums": 0.0}


def round_(taste, a, b, *, status="passed", nll=0.1):
    gate = {} if nll is None else {"base_nll": {"value": nll}}
    run = {"status": status, "choices": {"pushed": "even"}, "gate": gate}
    return {"taste": taste, "good": 9, "run": run, "marks": {"liked": {"a": a, "b": b, "sums": 0.0}}}


SEQUENCE = [round_("a", 0.5, 0.1), round_("a", 0.8, 0.3), round_("b", 0.7, 0.4), round_("b", 0.6, 0.45)]


def test_each_taste_before_at_its_peak_and_at_the_end():
    alone = {"b": [round_("b", 0.4, 0.9), round_("b", 0.4, 0.5)]}
    first, second = rows(["a", "b"], 2, BASE, SEQUENCE, alone)
    assert (first.start, first.peak, first.end, first.baseline) == (0.4, 0.8, 0.6, 0.8)
    assert (second.start, second.peak, second.end, second.baseline) == (0.3, 0.45, 0.45, 0.5)
    assert first.retained == pytest.approx(0.75) and first.reached == 1
    assert second.retained == 1 and second.reached == pytest.approx(0.9)
    assert markdown([second]).endswith("| b | 0.20 | 0.30 | 0.45 | 0.45 | 1.00 | 0.50 | 0.90 |")


def test_a_taste_without_all_its_rounds_is_left_out():
    assert [row.taste for row in rows(["a", "b"], 2, BASE, SEQUENCE[:3], {})] == ["a"]
    assert rows(["a", "b"], 2, BASE, SEQUENCE[:1], {}) == []


def test_no_ratio_without_a_share_to_compare_with():
    half = {"b": [round_("b", 0.4, 0.9)]}
    _, second = rows(["a", "b"], 2, BASE, SEQUENCE, half)
    assert second.baseline is second.reached is None
    silent = [round_("a", 0.0, 0.0)] * 4
    assert [row.retained for row in rows(["a", "b"], 2, BASE, silent, {})] == [None, None]


def test_every_run_is_a_line():
    empty = round_("b", 0.6, 0.45, status="empty", nll=None)
    lines = history(BASE, [*SEQUENCE, empty]).splitlines()
    assert lines[2] == "| base | | 0.40 | 0.20 | 0.00 | | |"
    assert lines[3] == "| 1: a | 9 | 0.50 | 0.10 | 0.00 | even | +0.10 |"
    assert lines[-1] == "| 5: b | 9 | 0.60 | 0.45 | 0.00 | even (empty) |  |"
