"""The languages of a run's prompts, in which its gate asks.

Owns which words of the prompts count: those that a person typed, each prompt once. Not here: how a language is told
(trainer.languages), what is asked in it (config.languages).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import structlog

from config.languages import DEFAULT
from proxy.conversation.typed_words import own_words
from proxy.conversation.user_text import words
from trainer.launch import LanguageChoice, Launcher, LaunchError

log = structlog.get_logger()

EXCERPT: Final = 400  # characters of a prompt in which nobody can tell what was typed


async def choose(launcher: Launcher, lines: Sequence[Mapping[str, Any]]) -> LanguageChoice:
    """The languages of these lines of samples.jsonl; English where that cannot be told, with the reason."""
    try:
        return await launcher.languages(typed_prompts(lines))
    except LaunchError as error:
        log.warning("the gate asks in English", why=str(error))
        return LanguageChoice((DEFAULT,), f"English, since {error}")


def typed_prompts(lines: Sequence[Mapping[str, Any]]) -> list[str]:
    """A person's last words before each reply, without code and quotes."""
    texts = (words(line["messages"]) for line in lines)
    return list(dict.fromkeys(own_words(text) or text[:EXCERPT] for text in texts if text))


def as_choice(languages: LanguageChoice) -> dict[str, Any]:
    """For the run's list of choices."""
    return {"name": "languages", "value": ", ".join(languages.codes), "why": languages.reason}
