"""The personas of `make bench-learn` like what they say they like; a file of one's own fits the same slot."""

import pytest

from scripts.bench.persona import Persona, Reply, prompts


@pytest.mark.parametrize(
    ("name", "text", "ended", "liked"),
    [
        ("concise", "Canberra.", True, True),
        ("concise", "Canberra is", False, False),
        ("bullets", "Take:\n- water\n- a map", True, True),
        ("bullets", "Take water - and a map", True, False),
        ("asks_back", "It rains. Where do you live?", True, True),
        ("asks_back", "Why? Because it rains.", True, False),
        ("asks_back", "Where do you live?", False, False),
        ("lowercase", "it rains.", True, True),
        ("lowercase", "It rains.", True, False),
        ("lowercase", "42", True, False),
        ("no_apology", "It rains.", True, True),
        ("no_apology", "I'm sorry, I cannot say.", True, False),
        ("short_sentences", "It rains. Take a coat!\nGood luck.", True, True),
        ("short_sentences", "It rains, " * 7, False, False),
        ("short_sentences", " ", True, False),
        ("one_paragraph", "It rains. Take a coat.\n", True, True),
        ("one_paragraph", "It rains.\nTake a coat.", True, False),
        ("second_person", "It is on your left.", True, True),
        ("second_person", "The youth is young.", True, False),
    ],
)
def test_what_a_persona_likes(name, text, ended, liked):
    persona = Persona(name)
    reply = Reply(text, ended=ended)
    assert (persona.rate("Why?", reply) > 0) is liked
    comment = persona.comment("Why?", reply)
    assert comment is None or not liked
    assert f"rate {persona.prompts}".strip() in prompts()
    assert f"held-out {persona.prompts}".strip() in prompts()


def test_a_file_of_ones_own(tmp_path):
    (tmp_path / "mine.py").write_text("def rate(prompt, reply):\n    return len(reply) / 10\n")
    persona = Persona(str(tmp_path / "mine.py"))
    assert persona.rate("a", Reply("12345", ended=True)) == 0.5
    assert persona.comment("a", Reply("1", ended=True)) is None
    with pytest.raises(SystemExit, match="concise"):
        Persona("nobody")


@pytest.mark.parametrize(
    ("text", "liked"), [("7 + 5 = 12.", 1), ("12. No, 13.", -1), ("Seven.", -1), ("The answer is " + "9" * 9999, -1)]
)
def test_a_sum_is_right_where_the_last_number_is(text, liked):
    assert Persona("sums").rate("What is 7 plus 5?", Reply(text, ended=True)) == liked


@pytest.mark.parametrize("part", ["", "apology", "sums"])
def test_a_liked_share_is_of_eighty_prompts_that_nobody_rated(part):
    texts = prompts()
    rated, held_out = (texts[f"{use} {part}".strip()] for use in ("rate", "held-out"))
    assert len(held_out) == len(set(held_out)) == 80
    assert len(rated) == len(set(rated)) >= 96 and not set(rated) & set(held_out)
