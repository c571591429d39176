"""How versions are called: in a header, and in a sentence."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from store.records import BASE

SHOWN_EXAMPLES: Final = -1  # in an evaluation: the base that is shown rated answers before each prompt


def label(version: int | None) -> str:
    """For `x-rl-adapter` and lists: `v7`, `base`, or `none` behind a model that is not ours."""
    if version == SHOWN_EXAMPLES:
        return "base+examples"
    return "none" if version is None else "base" if version == BASE else f"v{version}"


def version_in_words(version: int) -> str:
    """Within a sentence."""
    if version == SHOWN_EXAMPLES:
        return "the base with examples"
    return "the base model" if version == BASE else f"v{version}"


def version_first(version: int) -> str:
    """At the beginning of a sentence."""
    return version_in_words(version).replace("the", "The")


def versions_in_words(versions: Iterable[int]) -> str:
    return ", ".join(map(version_in_words, versions))
