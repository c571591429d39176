"""Before and after: replies of different versions to the same question, or to one that is nearly the same.

Owns what counts as the same, and which are shown. All are replies that were captured; none is made for a report.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Final, Literal, NamedTuple

from proxy.cli.report.sources import ToldCompletion

Kind = Literal["the same prompt", "the same question", "a similar question"]

KINDS: Final[tuple[Kind, ...]] = ("the same prompt", "the same question", "a similar question")
MOST: Final = 8  # pairs in a report
LOOKED_AT: Final = 600  # newest completions among which a similar question is looked for: each is compared with each
FEWEST_WORDS: Final = 4  # of a question: "and now?" is the same words, and no same question
ALIKE: Final = 0.6  # share of the words of both that both have


class ReportPair(NamedTuple):
    kind: Kind
    before: ToldCompletion
    after: ToldCompletion  # of a later version


def pairs(completions: Sequence[ToldCompletion]) -> list[ReportPair]:
    """The surest first: the same prompt, the same question in another conversation, a similar one. None twice."""
    told = [completion for completion in completions if completion.version is not None and completion.text.strip()]
    spoken = [one for one in told if len(words(one.asked)) >= FEWEST_WORDS]
    found = [*_same(told, "the same prompt"), *_same(spoken, "the same question"), *_similar(spoken)]
    found = [pair for pair in found if pair.before.text != pair.after.text]
    found.sort(key=lambda pair: (KINDS.index(pair.kind), -_apart(pair), -pair.after.at, pair.after.id))
    shown: list[ReportPair] = []
    seen: set[str] = set()
    for pair in found:
        if len(shown) < MOST and seen.isdisjoint({pair.before.id, pair.after.id, pair.after.prompt}):
            shown.append(pair)
            seen |= {pair.before.id, pair.after.id, pair.after.prompt}
    return shown


def words(text: str) -> frozenset[str]:
    return frozenset(re.findall(r"\w+", text.casefold()))


def _same(told: Iterable[ToldCompletion], kind: Kind) -> list[ReportPair]:
    """For each group, the newest reply of its earliest version, and of its latest."""
    groups: dict[str, list[ToldCompletion]] = {}
    for one in told:
        key = one.prompt if kind == "the same prompt" else " ".join(one.asked.casefold().split())
        groups.setdefault(key, []).append(one)
    found = []
    for group in groups.values():
        first, last = min(_version(one) for one in group), max(_version(one) for one in group)
        if first != last:
            before, after = (max((o for o in group if o.version == v), key=lambda o: o.at) for v in (first, last))
            found.append(ReportPair(kind, before, after))
    return found


def _similar(told: Sequence[ToldCompletion]) -> list[ReportPair]:
    """For each later reply to a question that stood alone, the likest such question to an earlier version."""
    looked = [(one, words(one.asked)) for one in told[-LOOKED_AT:] if one.alone]
    found = []
    for after, said in looked:
        near = [
            (len(said & other) / len(said | other), before)
            for before, other in looked
            if _version(before) < _version(after) and before.prompt != after.prompt
        ]
        alike, best = max(near, key=lambda pair: (pair[0], pair[1].at), default=(0.0, after))
        if alike >= ALIKE:
            found.append(ReportPair("a similar question", best, after))
    return found


def _version(one: ToldCompletion) -> int:
    return one.version or 0


def _apart(pair: ReportPair) -> int:
    return _version(pair.after) - _version(pair.before)
