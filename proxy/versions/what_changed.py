"""A version against the one before: what it changed, in one measured sentence and in a few prompts side by side.

Owns the words. The trainer made the figures and the answers, once, after the gate had passed the version
(trainer.run.answer_pairs). Not here: where they are kept (store.learning.versions), how they look.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final

from pydantic import Field
from typing_extensions import TypedDict

from proxy.core.terminal import escape_controls
from proxy.core.version_names import label
from store.copies.read_only import ReadOnlyStore
from store.learning.versions import StoredAnswerPair
from store.records import Adapter
from store.store import Store

MOST_PAIRS: Final = 3
CLEAR: Final = 2.0  # standard errors that a change of length must have
LEAST_CHANGE: Final = 0.08  # of the length, below which nobody would see it
PARTS: Final = ((0.1, "a tenth"), (0.2, "a fifth"), (0.25, "a quarter"), (1 / 3, "a third"), (0.4, "two fifths"))
CHAT_CHARACTERS: Final = 160  # of an answer in a chat


class PairBody(TypedDict):
    completion: Annotated[str, Field(description="Whose prompt it is.")]
    question: str
    parent_answer: Annotated[str, Field(description="Of the version before, cut at `limit` tokens.")]
    answer: str


class ChangesBody(TypedDict):
    line: Annotated[str, Field(description="The measured sentence.")]
    basis: Annotated[str, Field(description="On which prompts it was measured.")]
    figures: dict[str, float]


def changes_body(adapter: Adapter) -> ChangesBody | None:
    """None for a version from elsewhere or of before this was measured."""
    figures = adapter.manifest.get("changes")
    return {"line": sentence(figures), "basis": basis(figures), "figures": figures} if figures else None


def pair_body(pair: StoredAnswerPair) -> PairBody:
    return {
        "completion": pair.completion_id,
        "question": pair.question,
        "parent_answer": pair.parent_answer,
        "answer": pair.answer,
    }


def sentence(figures: Mapping[str, Any]) -> str:
    """Like “a third shorter; ends by itself in 8 of 8 instead of 3”."""
    prompts, ended_before, ended_after = (int(figures[key]) for key in ("prompts", "ended_before", "ended_after"))
    if not figures["different"]:
        return f"the same answers to all {prompts} prompts"
    instead = "as before" if ended_after == ended_before else f"instead of {ended_before}"
    comma = "," if ended_after == ended_before else ""
    return f"{_length(figures)}; ends by itself in {ended_after} of {prompts}{comma} {instead}"


def basis(figures: Mapping[str, Any]) -> str:
    """Where the sentence comes from."""
    prompts, held_count = int(figures["prompts"]), int(figures["held_back"])
    return (
        f"{prompts} rated prompts, {held_count} of them kept from training; "
        f"answers cut at {figures['limit']:.0f} tokens, "
        f"{figures['tokens_before']:.0f} before and {figures['tokens_after']:.0f} after on average"
    )


def _length(figures: Mapping[str, Any]) -> str:
    parent_length, length = float(figures["tokens_before"]), float(figures["tokens_after"])
    ratio = length / max(parent_length, 1.0)
    if abs(length - parent_length) <= CLEAR * float(figures["tokens_error"]) or abs(ratio - 1) < LEAST_CHANGE:
        return "about as long as before"
    if ratio >= 1.9:
        return f"{'twice' if ratio < 2.5 else f'{ratio:.0f} times'} as long"
    if ratio > 1.45:
        return "half as long again"
    if ratio <= 0.55:
        return "half as long" if ratio > 0.4 else f"a {'third' if ratio > 0.29 else 'quarter'} as long"
    _, part = min(PARTS, key=lambda row: abs(row[0] - abs(ratio - 1)))
    return f"{part} {'shorter' if ratio < 1 else 'longer'}"


async def shown_pairs(store: Store | ReadOnlyStore, version: int) -> list[StoredAnswerPair]:
    """Those to show: disliked prompts before liked ones, and of those the most different answers."""
    return await store.versions.answer_pairs(version, MOST_PAIRS)


async def chat_lines(store: Store, version: int, *, with_text: bool) -> list[str]:
    """Lines on what the live version changed, for `/rl status`; `with_text` for who may read others' answers."""
    adapter = await store.versions.get(version)
    changes = changes_body(adapter) if adapter else None
    if adapter is None or changes is None:
        return []
    lines = [f"{label(version)} against {label(adapter.parent)}: {changes['line']}."]
    for pair in await shown_pairs(store, version) if with_text else ():
        lines.append(f"“{_short(pair.question)}”: {_short(pair.parent_answer)} → {_short(pair.answer)}")
    return lines


def _short(text: str) -> str:
    line = escape_controls(" ".join(text.split()))
    return line if len(line) <= CHAT_CHARACTERS else f"{line[: CHAT_CHARACTERS - 1]}…"
