from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from config.webhooks import WebhooksSection
from proxy.feedback.webhooks.emoji import Meaning, plain

MEANING = Meaning(WebhooksSection())


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("👍", 1.0), ("👍🏽", 1.0), ("+1", 1.0), (":+1:", 1.0), ("+1::skin-tone-2", 1.0), ("thumbsup_tone3", 1.0),
        ("❤️", 1.0), ("❤", 1.0), ("heart", 1.0), ("tada", 1.0), ("✅", 1.0), ("100", 1.0), ("👎🏿", -1.0), ("-1", -1.0),
        ("hankey", -1.0), ("x", -1.0), ("❌", -1.0), ("1️⃣", -1.0), ("3️⃣", 0.0), ("4⃣", 0.5), ("five", 1.0),
        ("👍 🔥", 1.0), ("👍 🤔", 1.0), ("👍 👎", None), ("🤔", None), ("", None), ("good", None), ("1", None),
    ],
)  # fmt: skip
def test_what_emoji_mean(text: str, value: float | None) -> None:
    found = MEANING.of(text)
    assert (None if found is None else found[0]) == value


def test_numbers_are_stars() -> None:
    assert [MEANING.of(one) for one in WebhooksSection().stars] == [(at / 2 - 1, "stars") for at in range(5)]


def test_the_settings_decide() -> None:
    ours = Meaning(WebhooksSection(good=("shipit", "🚀"), bad=("🤔",), stars=()))
    assert ours.of(":shipit:") == (1.0, "thumb") and ours.of("🤔") == (-1.0, "thumb")
    assert ours.of("👍") is None and ours.of("1️⃣") is None


@given(st.text())
def test_any_text_has_one_spelling(text: str) -> None:
    MEANING.of(text)
    assert plain(text).strip(":") == plain(text).strip(":").strip(":")
