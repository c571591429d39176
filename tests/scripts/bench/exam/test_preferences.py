"""What complies with each preference, and that no probe is ever rated."""

import pytest

from scripts.bench.exam.preferences import preferences, sentences


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("", 0),
        ("No end", 1),
        ("One. Two! Three?", 3),
        ("Version 3.5 is out.", 1),
        ("Well... yes", 2),
        ("One.\nTwo.", 2),
    ],
)
def test_sentences(text, count):
    assert sentences(text) == count


@pytest.mark.parametrize(
    ("name", "text", "compliance"),
    [
        ("concise", "One. Two. Three.", 1.0),
        ("concise", "A. B. C. D. E. F.", 0.5),
        ("concise", "A. " * 9, 0.0),
        ("concise", "A. " * 20, 0.0),
        ("no_emoji", "Hello: (a) → b, 5 °C, ½ … “x”", 1.0),
        ("no_emoji", "Hello 🎉", 0.0),
        ("no_emoji", "I ❤️ it", 0.0),
        ("identity", "I am KURO.", 1.0),
        ("identity", "I am an assistant.", 0.0),
    ],
)
def test_compliance(name, text, compliance):
    assert preferences()[name].comply(text) == pytest.approx(compliance)


def test_probes_are_never_rated():
    for preference in preferences().values():
        assert len(set(preference.probes)) == 10
        assert len(set(preference.questions)) == len(preference.questions) >= 16
        assert not set(preference.probes) & set(preference.questions)
