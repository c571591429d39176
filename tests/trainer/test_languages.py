"""Prompts tell which languages a gate asks in; what nobody can tell is asked in English, and said."""

from __future__ import annotations

import sys

import pytest

from config.languages import CODES, language
from trainer import child_process
from trainer.languages import choose, language_shares
from trainer.launch import LaunchError, LocalLauncher


@pytest.mark.parametrize("code", CODES)
def test_the_questions_of_a_language_are_told_to_be_in_it(code: str) -> None:
    shares = language_shares(language(code).questions)
    assert choose(shares).codes == (code,), shares


def test_code_and_addresses_do_not_count() -> None:
    shares = language_shares(
        ["Warum gibt `return None if not value else 0` hier nichts?", "https://example.com/the/a", "```"]
    )
    assert max(shares, key=lambda code: shares[code]) == "de"
    assert language_shares(["42", "", "`x`"]) == {}


def test_two_languages_share_the_questions_and_a_rare_one_has_none() -> None:
    assert choose({"de": 0.55, "en": 0.4, "fr": 0.05}).codes == ("de", "en")
    assert choose({"en": 0.4, "de": 0.35, "fr": 0.25}).codes == ("en", "de")
    assert choose({"de": 0.9, "en": 0.1}) == (("de",), "of the prompts 90% de, 10% en, by py3langid")


def test_a_language_without_questions_is_asked_in_english_and_named() -> None:
    choice = choose({"sw": 0.8, "en": 0.1})
    assert choice.codes == ("en",) and "there are no questions in sw" in choice.reason
    assert choose({"tr": 0.5, "de": 0.5}).codes == ("de",)
    assert choose({}).codes == ("en",)


async def test_a_process_of_its_own_tells() -> None:
    choice = await LocalLauncher().languages(
        ["Warum ist der Himmel blau?", "Wie koche ich Reis?", "Was ist ein Notar?"]
    )
    assert choice.codes == ("de",) and "de" in choice.reason


async def test_a_detector_that_is_missing_is_an_error_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child_process, "PYTHON", (sys.executable, "-P", "-S"))  # no installed packages
    with pytest.raises(LaunchError, match=r"the languages of the prompts cannot be told: .*No module named"):
        await LocalLauncher().languages(["Warum?"])
