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


@pytest.mark.parametrize("part", ["", "apology"])
def test_a_liked_share_is_of_eighty_prompts_that_nobody_rated(part):
    texts = prompts()
    rated, held_out = (texts[f"{use} {part}".strip()] for use in ("rate", "held-out"))
    assert len(held_out) == len(set(held_out)) == 80
    assert len(rated) == len(set(rated)) >= 96 and not set(rated) & set(held_out)
