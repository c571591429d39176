"""Settings of a benchmark's command line: `--set NAME=VALUE`."""

import pytest

from scripts.bench.version_line import overrides_of


def test_a_value_of_a_preset_is_json() -> None:
    assert overrides_of(["passes=2", 'match="token"', "balance=false"]) == {
        "passes": 2,
        "match": "token",
        "balance": False,
    }


@pytest.mark.parametrize("item", ["passes", "match=token", "=", ""])
def test_what_is_not_is_said_in_a_sentence(item: str) -> None:
    with pytest.raises(SystemExit, match=f"--set {item}: write NAME=VALUE"):
        overrides_of([item])
