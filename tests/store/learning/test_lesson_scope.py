"""Which comments hold for every question: those on the form of answers, in each language."""

import pytest

from config.languages import every
from scripts.bench.lessons.comments import comments
from store.learning.lesson_scope import is_about_form
from tests.store.learning.lesson_comments import FACTS, FORMS, LATER_FACTS, LATER_FORMS

AUSTRALIA = "What is the capital of Australia?"
FORM = {
    "de": "kürzer bitte, und duze mich",
    "en": "write everything in lower case",
    "es": "responde en español",
    "fr": "sois plus concis",
    "it": "rispondi in italiano",
    "ja": "もっと短くして",
    "ko": "더 짧게",
    "nl": "antwoord in het Nederlands",
    "pl": "odpowiadaj krótko",
    "pt": "respostas curtas, por favor",
    "ru": "отвечай короче, без эмодзи",
    "sv": "svara på svenska",
    "uk": "відповідай українською",
    "zh": "请用中文回答",
}


def test_each_language_has_words_of_form():
    assert FORM.keys() == {language.code for language in every()}
    assert all(language.form for language in every())


@pytest.mark.parametrize(
    "comment",
    [
        *FORM.values(),
        "too long",
        "call me Ada",
        "end with a question",
        "no code fences",
        "lower case, no capital letters",
    ],
)
def test_a_form_holds_for_every_question(comment):
    assert is_about_form(comment, AUSTRALIA)


@pytest.mark.parametrize(
    ("comment", "question"),
    [
        ("it is Canberra", AUSTRALIA),
        ("Sydney is not the capital", AUSTRALIA),
        ("list the ingredients first", "How do I make a soup with leeks?"),
        ("use metric units", "Give me a recipe for bread"),
        ("a short summary of the war is enough", "Tell me about the Punic war"),
        ("say how long it takes", "How do I boil an egg?"),
        ("lower the heat first", "How do I fry an egg?"),
        ("", AUSTRALIA),
    ],
)
def test_what_is_about_the_question_holds_for_its_topic(comment, question):
    assert not is_about_form(comment, question)


def test_comments_on_form_are_told_from_facts_with_a_word_of_form():
    assert all(is_about_form(comment, AUSTRALIA) for comment in (*FORMS, *LATER_FORMS))
    assert sum(is_about_form(*fact) for fact in FACTS) <= 10, "36 of 38 before claims were known"
    assert sum(is_about_form(*fact) for fact in LATER_FACTS) <= 2, "15 of 15 before"


@pytest.mark.parametrize("comment", comments().values(), ids=lambda comment: comment.name)
def test_the_measured_comments_hold_for_every_question(comment):
    assert is_about_form(comment.text, AUSTRALIA)
    questions = (*comment.rated_questions, *comment.held_out)
    assert (
        sum(is_about_form(comment.text, question) for question in questions) >= len(questions) - 5
    )  # that share a word with it
