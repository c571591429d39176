"""The gate of a run asks in the languages of its prompts, as a person typed them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from proxy.training.prompt_languages import as_choice, choose, typed_prompts
from scripts.fakes.launcher import FakeLauncher
from trainer.launch import LanguageChoice, LaunchError


def line(*messages: tuple[str, Any]) -> dict[str, Any]:
    return {"messages": [{"role": role, "content": content} for role, content in messages]}


def test_only_what_a_person_typed_last_counts_and_each_prompt_once() -> None:
    lines = [
        line(("system", "You are helpful."), ("user", "Warum?\n```\nfor x in y:\n```\n> quoted")),
        line(("user", "Warum?"), ("assistant", "Darum."), ("user", "Und wie?")),
        line(("user", "Und wie?")),
        line(("user", [{"type": "text", "text": "Wo?"}])),
        line(("system", "no person")),
    ]
    assert typed_prompts(lines) == ["Warum?", "Und wie?", "Wo?"]


def test_of_a_pasted_page_the_beginning_counts() -> None:
    (text,) = typed_prompts([line(("user", "Lies das: " + "wort " * 1000))])
    assert text.startswith("Lies das") and len(text) == 400


async def test_where_nobody_can_tell_it_is_english_with_the_reason() -> None:
    class Broken(FakeLauncher):
        async def languages(self, texts: Sequence[str]) -> LanguageChoice:
            raise LaunchError("there is no detector")

    choice = await choose(Broken(), [line(("user", "Warum?"))])
    assert as_choice(choice) == {"name": "languages", "value": "en", "why": "English, since there is no detector"}
