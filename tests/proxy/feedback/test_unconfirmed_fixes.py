"""Corrections of several lines wait for a word of the person: for a while, and not without bound."""

from __future__ import annotations

from proxy.feedback.unconfirmed_fixes import KEPT_S, MOST, UnconfirmedFixes


def test_the_newest_one_waits_for_a_while() -> None:
    now = 0.0
    fixes = UnconfirmedFixes(lambda: now)
    fixes.keep(("c", "ann"), "one")
    fixes.keep(("c", "bob"), "other")
    now = KEPT_S - 1
    fixes.keep(("c", "ann"), "two")
    assert (fixes.of(("c", "ann")), fixes.of(("c", "bob")), fixes.of(("d", "ann"))) == ("two", "other", None)
    now = KEPT_S + 1
    assert (fixes.of(("c", "ann")), fixes.of(("c", "bob"))) == ("two", None)
    now = 2 * KEPT_S
    assert fixes.of(("c", "ann")) is None


def test_so_many_wait_at_once() -> None:
    fixes = UnconfirmedFixes(lambda: 0.0)
    for n in range(MOST + 1):
        fixes.keep((f"c{n}", "ann"), "x")
    assert fixes.of(("c0", "ann")) is None and fixes.of((f"c{MOST}", "ann")) == "x"
