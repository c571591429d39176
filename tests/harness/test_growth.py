"""The check of growth sees a square, and takes a length."""

from __future__ import annotations

from tests.harness.growth import too_slow


def by_length(text: str) -> None:
    sum(1 for _ in text)


def by_square(text: str) -> None:
    for at in range(0, len(text), 4):  # a copy of the rest, for each few characters
        text[at:].count("b")


def test_only_a_square_is_too_slow() -> None:
    assert not too_slow(by_length, "a".__mul__, 2_000, 60_000)
    assert too_slow(by_square, "a".__mul__, 8_000, 8_000)
