from __future__ import annotations

from hypothesis import assume, given
from hypothesis import strategies as st

from proxy.feedback.webhooks.text_match import match
from store.learning.reactions import SeenAnswer

LONG = "The quick brown fox jumps over the lazy dog, and the dog does not mind it at all. " * 3


def recent(*texts: str) -> list[SeenAnswer]:
    return [SeenAnswer(str(at), text) for at, text in enumerate(texts)]


def test_what_a_platform_makes_of_a_text_is_still_that_text() -> None:
    posted = "Use *two* spaces &amp; `a &lt; b`:\n• one\n• two"
    assert match(posted, recent("other", "Use **two** spaces & `a < b`:\n\n- one\n- two")).completion_id == "1"


def test_a_part_of_a_long_answer_is_enough() -> None:
    whole = LONG + "And here is the end of it."
    assert match(whole[:120], recent(whole, "other")).completion_id == "0"
    assert match(whole + "\n_sent by a bot_", recent("other", whole)).completion_id == "1"
    assert match("The quick brown fox", recent(whole)).completion_id is None


def test_a_number_of_no_character_keeps_nothing_from_being_found() -> None:
    said = [SeenAnswer("1", "&#" + "1" * 5000 + "; and the answer"), SeenAnswer("2", "another")]
    assert match("another", said).completion_id == "2"
    assert match("&#" + "1" * 5000, said).completion_id is None
    assert match("1 &lt; 2 &#128077;", [SeenAnswer("3", "1 < 2 👍")]).completion_id == "3"


def test_what_fits_two_fits_none() -> None:
    found = match("Hello!", recent("hello", "Hello."))
    assert found.completion_id is None and found.ambiguous and "2 recent answers" in found.reason
    assert match("Hello!", recent("hello", "hello there")).completion_id == "0"


def test_a_text_without_letters() -> None:
    assert match("👍👍", recent("👍", "👍👍")).completion_id == "1"
    assert not match("  ", recent("", "x")).ambiguous and match("", recent("")).completion_id is None


@given(st.lists(st.text(min_size=1, max_size=30), min_size=1, max_size=6, unique=True), st.data())
def test_an_answer_is_found_by_its_text_or_it_is_ambiguous(texts: list[str], data: st.DataObject) -> None:
    wanted = data.draw(st.sampled_from(texts))
    assume(wanted.strip())
    found = match(wanted, recent(*texts))
    assert found.ambiguous or found.completion_id == str(texts.index(wanted))


@given(st.text(max_size=200), st.lists(st.text(max_size=200), max_size=5))
def test_any_text_is_compared(text: str, texts: list[str]) -> None:
    found = match(text, recent(*texts))
    assert (found.completion_id is None) == bool(found.reason)
