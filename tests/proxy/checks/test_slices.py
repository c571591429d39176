"""Slices on which answers got worse are named, and chance is not."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from proxy.checks.checks_file import CheckPrompt
from proxy.checks.slices import features, tail, worse_slices
from scripts.research.slice_errors import KINDS, ROOT, evaluated


def frequencies() -> Counter[str]:
    from proxy.checks.slices import WORD

    return Counter(WORD.findall((ROOT / "scripts/bench/prompts.txt").read_text().casefold()))


def test_what_a_prompt_shares_with_others() -> None:
    prompt = CheckPrompt.model_validate({
        "name": "a",
        "messages": [
            {"role": "user", "content": "never mind"},
            {"role": "assistant", "content": "fine"},
            {"role": "user", "content": [{"type": "text", "text": "Book the Zug to Köln at 12"}]},
        ],
        "tags": ["travel"],
        "language": "de",
        "tools": [{"type": "function", "function": {"name": "book"}}, {"name": "search"}],
    })  # fmt: skip
    assert features(prompt) == {
        "word: book", "word: the", "word: zug", "word: köln", "topic: travel", "language: de", "tool: book",
        "tool: search",
    }  # fmt: skip


def test_the_tail_is_hypergeometric() -> None:
    assert tail(300, 14, 5, 5) == pytest.approx(1.0219e-07, rel=1e-3)  # R: phyper(4, 5, 295, 14, lower = FALSE)
    assert tail(10, 3, 4, 0) == 1.0


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_a_planted_slice_is_named(kind: str) -> None:
    chance, words = random.Random(7), frequencies()
    runs = [evaluated(chance, words, kind, 0.02, 0.02) for _ in range(10)]
    named = [next((each for each in slices if KINDS[kind] in each.features), None) for slices in runs]
    assert sum(each is not None for each in named) >= 9
    slice_ = next(each for each in named if each is not None)
    assert (slice_.prompts, slice_.worse, slice_.better) == (5, 5, 0)
    assert slice_.sentence.startswith("5 of the 5 prompts with ") and slice_.p <= 0.05


@pytest.mark.parametrize(("worse", "better"), [(0.05, 0.05), (0.3, 0.0)])
def test_chance_is_seldom_named(worse: float, better: float) -> None:
    """60 evaluations with a rate of 5 %: more than 9 happen once in 1,000 times, and the draws are fixed."""
    chance, words = random.Random(8), frequencies()
    runs = [evaluated(chance, words, None, worse, better) for _ in range(60)]
    assert sum(map(bool, runs)) <= 9


def test_the_same_prompts_are_one_slice() -> None:
    prompts = [{f"word: w{n}"} for n in range(100)]
    for index in range(6):
        prompts[index] = {"word: vat", "word: invoice", "topic: billing"}
    (slice_,) = worse_slices(prompts, [-1] * 6 + [0] * 94)
    assert slice_.features == ("topic: billing", "word: invoice", "word: vat")
    assert slice_.sentence == ("6 of the 6 prompts with topic: billing (also word: invoice, word: vat) got worse")


def test_as_many_better_is_no_slice() -> None:
    prompts = [{"tool: x"} if n < 12 else {f"word: w{n}"} for n in range(100)]
    assert worse_slices(prompts, [-1] * 6 + [1] * 6 + [0] * 88) == []


def test_nothing_got_worse() -> None:
    assert worse_slices([{"word: a"}] * 5, [0, 0, 1, 0, 0]) == [] == worse_slices([], [])
