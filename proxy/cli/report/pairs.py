"""Before and after: replies of different versions to the same question, or to one that is nearly the same.

Owns what counts as the same, and which are shown. All are replies that were captured; none is made for a report.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Final, Literal, NamedTuple

from proxy.cli.report.sources import ReportedCompletion

Kind = Literal["the same prompt", "the same question", "a similar question"]

KINDS: Final[tuple[Kind, ...]] = ("the same prompt", "the same question", "a similar question")
MOST: Final = 8  # pairs in a report
LOOKED_AT: Final = 600  # newest completions among which a similar question is looked for: each is compared with each
FEWEST_WORDS: Final = 4  # of a question: "and now?" is the same words, and no same question
ALIKE: Final = 0.6  # share of the words of both that both have


class ReportPair(NamedTuple):
    kind: Kind
    old_reply: ReportedCompletion
    new_reply: ReportedCompletion  # of a later version


def pairs(completions: Sequence[ReportedCompletion]) -> list[ReportPair]:
    """The surest first: the same prompt, the same question in another conversation, a similar one. None twice."""
    main_turns = [
        completion for completion in completions if completion.version is not None and completion.text.strip()
    ]
    worded_turns = [completion for completion in main_turns if len(words(completion.question)) >= FEWEST_WORDS]
    candidates = [
        *_same(main_turns, "the same prompt"),
        *_same(worded_turns, "the same question"),
        *_similar(worded_turns),
    ]
    candidates = [pair for pair in candidates if pair.old_reply.text != pair.new_reply.text]
    candidates.sort(
        key=lambda pair: (
            KINDS.index(pair.kind),
            -_version_distance(pair),
            -pair.new_reply.created_at,
            pair.new_reply.id,
        )
    )
    chosen: list[ReportPair] = []
    used_ids: set[str] = set()
    for pair in candidates:
        if len(chosen) < MOST and used_ids.isdisjoint({pair.old_reply.id, pair.new_reply.id, pair.new_reply.prompt}):
            chosen.append(pair)
            used_ids |= {pair.old_reply.id, pair.new_reply.id, pair.new_reply.prompt}
    return chosen


def words(text: str) -> frozenset[str]:
    return frozenset(re.findall(r"\w+", text.casefold()))


def _same(completions: Iterable[ReportedCompletion], kind: Kind) -> list[ReportPair]:
    """For each group, the newest reply of its earliest version, and of its latest."""
    groups: dict[str, list[ReportedCompletion]] = {}
    for completion in completions:
        key = completion.prompt if kind == "the same prompt" else " ".join(completion.question.casefold().split())
        groups.setdefault(key, []).append(completion)
    version_pairs = []
    for group in groups.values():
        first, last = (
            min(_version(completion) for completion in group),
            max(_version(completion) for completion in group),
        )
        if first != last:
            earliest, latest = (
                max((o for o in group if o.version == v), key=lambda o: o.created_at) for v in (first, last)
            )
            version_pairs.append(ReportPair(kind, earliest, latest))
    return version_pairs


def _similar(completions: Sequence[ReportedCompletion]) -> list[ReportPair]:
    """For each later reply to a question that stood alone, the likest such question to an earlier version."""
    first_turns = [
        (completion, words(completion.question)) for completion in completions[-LOOKED_AT:] if completion.is_first_turn
    ]
    likest_pairs = []
    for later_reply, later_words in first_turns:
        similar_replies = [
            (len(later_words & earlier_words) / len(later_words | earlier_words), earlier_reply)
            for earlier_reply, earlier_words in first_turns
            if _version(earlier_reply) < _version(later_reply) and earlier_reply.prompt != later_reply.prompt
        ]
        alike, best = max(similar_replies, key=lambda pair: (pair[0], pair[1].created_at), default=(0.0, later_reply))
        if alike >= ALIKE:
            likest_pairs.append(ReportPair("a similar question", best, later_reply))
    return likest_pairs


def _version(completion: ReportedCompletion) -> int:
    return completion.version or 0


def _version_distance(pair: ReportPair) -> int:
    return _version(pair.new_reply) - _version(pair.old_reply)
