"""Texts and words of each language: the gate's questions and passage, and words that rules look for.

Owns the data files beside this module, one a language under its ISO 639-1 code, and how a text becomes words. All texts
are ours. Not here: which languages a home's prompts are in (trainer.languages), what follows from a word (the rules).
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from importlib.resources import files
from typing import Final, NamedTuple

DEFAULT: Final = "en"  # where no prompt says otherwise
CODES: Final = ("en", "de", "es", "fr", "it", "ja", "ko", "nl", "pl", "pt", "ru", "sv", "uk", "zh")
MOST_LANGUAGES: Final = 2  # languages that a gate asks in: each needs enough questions to compare
_WORD: Final = re.compile(r"[^\W_]+")
# Scripts that are written without spaces between words, or whose words are long strings of syllables.
_UNSPACED: Final = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff\uac00-\ud7af\u0e00-\u0e7f]")


class OwnTaskWords(NamedTuple):
    """How words begin by which agents ask for a summary or a title; strong ones are hardly said of anything else."""

    strong_tasks: tuple[str, ...]
    tasks: tuple[str, ...]
    strong_talk: tuple[str, ...]
    talk: tuple[str, ...]


class Language(NamedTuple):
    """A language's data file."""

    code: str
    name: str  # in English
    questions: tuple[str, ...]  # ordinary ones, none about anybody's taste; the same in each language
    text: str  # an ordinary text of some hundred tokens
    refusals: tuple[str, ...]  # patterns of how a refusal begins
    polite: tuple[str, ...]  # words of thanks, praise and assent
    common: frozenset[str]  # words, or pairs of letters, that say nothing about a topic
    form: tuple[str, ...]  # how words begin that say how to answer, whatever is asked
    claims: tuple[str, ...]  # neighbours among them that say what is so: "answer is"
    own_tasks: OwnTaskWords
    speakers: Mapping[str, tuple[str, ...]]  # labels in transcripts: of the `person` and the `model`


@cache
def language(code: str) -> Language:
    """Raises KeyError for a code that is not one of CODES."""
    if code not in CODES:
        raise KeyError(code)
    content = tomllib.loads(files("config.languages").joinpath(f"{code}.toml").read_text(encoding="utf-8"))
    stems = content["own_tasks"]
    return Language(
        code,
        content["name"],
        tuple(content["questions"]),
        content["text"],
        tuple(content["refusals"]),
        tuple(content["polite"].split()),
        frozenset(content["common"].split()),
        _stems(content["form"]),
        _stems(content.get("claims", "")),
        OwnTaskWords(*(tuple(stems[name].casefold().split()) for name in OwnTaskWords._fields)),
        {speaker: tuple(labels.casefold().split()) for speaker, labels in content["speakers"].items()},
    )


def _stems(text: str) -> tuple[str, ...]:
    return tuple(stem.replace("_", " ") for stem in text.casefold().split())


def every() -> tuple[Language, ...]:
    """English first."""
    return tuple(map(language, CODES))


def gate_questions(codes: Sequence[str] = (DEFAULT,)) -> tuple[str, ...]:
    """The gate's questions: as many for two languages as for one, each with its own part of them, one language after
    the other."""
    total = len(language(DEFAULT).questions)
    share = total // len(codes)
    return tuple(
        question
        for index, code in enumerate(codes)
        for question in language(code).questions[index * share : (index + 1) * share]
    )


def split_words(text: str) -> Iterator[str]:
    """Words of letters and digits; of a script without spaces each pair of neighbouring letters."""
    for word in _WORD.findall(text):
        if is_unspaced(word):
            yield from (word[index : index + 2] for index in range(max(1, len(word) - 1)))
        else:
            yield word


def written_size(text: str) -> int:
    """Characters of a text, those of scripts without spaces twice: each is a syllable or a word."""
    return len(text) if text.isascii() else len(text) + len(_UNSPACED.findall(text))


def is_unspaced(text: str) -> bool:
    """Tell whether any of it is written without spaces between words."""
    return _UNSPACED.search(text) is not None
