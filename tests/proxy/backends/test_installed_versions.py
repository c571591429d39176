"""The record of what rlproxy has put into somebody else's server."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from proxy.backends.installed_versions import SPARES, InstalledVersions


def test_it_is_there_after_a_restart(tmp_path: Path) -> None:
    made = InstalledVersions(tmp_path / "made.json")
    made.record("a", adapter="1")
    made.record("b", adapter="2")
    made.mark_used("a")
    made.record("c", adapter="3")
    made.drop("nobody's")
    again = InstalledVersions(tmp_path / "made.json")
    assert again.entry("a") == {"adapter": "1", "home": made.mark} and again.entry("x") is None
    assert again.spare([]) == ["b"] and again.spare(["b"]) == []
    again.drop("b")
    assert InstalledVersions(tmp_path / "made.json").spare([]) == []
    assert sorted(p.name for p in tmp_path.iterdir()) == ["home-mark.json", "made.json"]


@given(st.lists(st.sampled_from("abcdef"), max_size=12), st.sets(st.sampled_from("abcdef")))
def test_the_last_two_and_those_in_use_stay(tmp_path_factory, uses, in_use) -> None:  # type: ignore[no-untyped-def]
    made = InstalledVersions(tmp_path_factory.mktemp("made") / "made.json")
    for name in uses:
        if made.entry(name) is None:
            made.record(name, adapter=name)
        made.mark_used(name)
    last = list(dict.fromkeys(reversed(uses)))
    assert set(made.spare(in_use)) == set(last[SPARES:]) - in_use
