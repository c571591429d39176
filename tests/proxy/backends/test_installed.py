"""The record of what rlproxy has put into somebody else's server."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from proxy.backends.installed import KEPT, InstalledVersion


def test_it_is_there_after_a_restart(tmp_path: Path) -> None:
    made = InstalledVersion(tmp_path / "made.json")
    made.put("a", adapter="1")
    made.put("b", adapter="2")
    made.used("a")
    made.put("c", adapter="3")
    made.drop("nobody's")
    again = InstalledVersion(tmp_path / "made.json")
    assert again.about("a") == {"adapter": "1", "home": made.mark} and again.about("x") is None
    assert again.spare([]) == ["b"] and again.spare(["b"]) == []
    again.drop("b")
    assert InstalledVersion(tmp_path / "made.json").spare([]) == []
    assert sorted(p.name for p in tmp_path.iterdir()) == ["home-mark.json", "made.json"]


@given(st.lists(st.sampled_from("abcdef"), max_size=12), st.sets(st.sampled_from("abcdef")))
def test_the_last_two_and_those_in_use_stay(tmp_path_factory, uses, in_use) -> None:  # type: ignore[no-untyped-def]
    made = InstalledVersion(tmp_path_factory.mktemp("made") / "made.json")
    for name in uses:
        if made.about(name) is None:
            made.put(name, adapter=name)
        made.used(name)
    last = list(dict.fromkeys(reversed(uses)))
    assert set(made.spare(in_use)) == set(last[KEPT:]) - in_use
