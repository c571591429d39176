"""Patterns that somebody else wrote: as in Python where RE2 agrees, refused in words where it does not."""

from __future__ import annotations

import re

import pytest

from config.re2_patterns import TextPattern
from tests.harness.growth import too_slow

TEXT = "Kunde: Müller 12 ١٢ a_b\u00a0x\u2003y [z] \\ ]^- CUSTOMER-12345678 é\n\x1c中文 aab https://ann:pw@h.org/"


@pytest.mark.parametrize(
    "pattern",
    [r"Kunde: \w+", r"\d+", r"\s+", r"\W+", r"\D+", r"\S+", r"[\w.]+", r"[^\s:@/]+:", r"[]\w]+", r"[^]\w]+", r"a{,2}b",
     r"\[z\]", r"\\", r"CUSTOMER-\d{8}", r"(?i)kunde", r"[a-c\d]+", r"[\s\S]+", r"(?s)K.*f", r"^K", r"x|y", r"[\]\w]+",
     r"[\\\w]+", r"(?:\w{2})+?"],
)  # fmt: skip
def test_what_re2_finds_is_what_python_finds(pattern: str) -> None:
    assert list(TextPattern(pattern).spans(TEXT)) == [match.span() for match in re.finditer(pattern, TEXT)]


@pytest.mark.parametrize(
    ("pattern", "said"),
    [
        (r"(?<=://)\w+", "look-around: put `(?P<secret>…)` around what is meant"),
        (r"\w+(?=@)", "look-around"), (r"a(?!b)", "look-around"), (r"(a)\1", r"\1"), (r"a++", "++"),
        (r"(", "missing )"),
        (r"[^\W_]", r"write `[^\w]`"), (r"\Z", r"\Z"), (r"a{1,2000}", "{1,2000}"),
    ],
)  # fmt: skip
def test_what_re2_does_not_take_is_refused_in_words(pattern: str, said: str) -> None:
    with pytest.raises(ValueError, match=re.escape(said)):
        TextPattern(pattern)


def test_the_group_secret_is_what_is_meant() -> None:
    url = TextPattern(r"://(?P<secret>[^/\s:@]+:[^/\s:@]+)@")
    assert [TEXT[start:end] for start, end in url.spans(TEXT)] == ["ann:pw"]
    either = TextPattern(r"key=(?P<secret>\w+)|token")
    assert list(either.spans("key=ab token")) == [(4, 6), (7, 12)]


def test_half_a_character_is_no_obstacle() -> None:
    """JavaScript writes half of an emoji where it cut a text; no UTF-8 has it."""
    assert list(TextPattern("b").spans("\ud800b")) == [(1, 2)]
    assert TextPattern("b").search("\ud800b") is not None and TextPattern("b").fullmatch("\ud800b") is None


@pytest.mark.parametrize("pattern", [r"\w+@example", r"(a|ab)*c", r"(?:.*)*x", r"\n[^\w\n]*x", r"[\w.]+@corp\.example"])
@pytest.mark.parametrize("unit", ["a", "ab", "\n", "a@"])
def test_no_text_makes_one_slow(pattern: str, unit: str) -> None:
    found = TextPattern(pattern)
    assert not too_slow(lambda text: list(found.spans(text)), lambda size: unit * (size // len(unit)), 2_000, 60_000)
