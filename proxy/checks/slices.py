"""Where answers got worse: prompts that share a word, a topic, a language or a tool, named.

Owns which slices there are and the test. Some prompts get worse by chance, and hundreds of words are looked at. So a
slice must stand out among as many worse prompts thrown at random over all of them. The smallest p of any slice is taken
in each of 999 throws (P. Westfall, S. Young, Resampling-Based Multiple Testing, 1993). So a slice is named wrongly in
at most 5 of 100 evaluations, however many words there are. The p of one slice is hypergeometric.

Limits: it sees where a version got worse, not whether; a decline spread evenly over all prompts has no place.
"""

from __future__ import annotations

import math
import random
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from itertools import chain
from typing import Any, Final, NamedTuple

from proxy.checks.checks_file import CheckPrompt

THROWS: Final = 999
FALSE_ALARMS: Final = 0.05  # most evaluations without any such place in which one is named
LEAST_PROMPTS: Final = 3  # of a slice, and worse ones in it
MOST_SLICES: Final = 10  # that are named
SEED: Final = 52  # the same evaluation names the same slices
WORD: Final = re.compile(r"[^\W\d_]{3,}")


class Slice(NamedTuple):
    """Prompts that share these features, all of them the same prompts."""

    features: tuple[str, ...]  # as "word: invoice", "topic: billing", "language: de", "tool: get_weather"
    prompts: int
    worse: int
    better: int
    p: float  # adjusted for all slices

    def json(self) -> dict[str, Any]:
        return {**self._asdict(), "features": list(self.features)}

    @property
    def sentence(self) -> str:
        aliases = f" (also {', '.join(self.features[1:4])})" if len(self.features) > 1 else ""
        return f"{self.worse} of the {self.prompts} prompts with {self.features[0]}{aliases} got worse"


def features(prompt: CheckPrompt) -> set[str]:
    """Features that prompts may share: words of what was asked last, its tags, its language, the tools offered."""
    last = next((m.get("content") for m in reversed(prompt.conversation) if m.get("role") == "user"), "")
    if isinstance(last, list):
        last = " ".join(str(part.get("text") or "") for part in last if isinstance(part, dict))
    names = {f"word: {word.casefold()}" for word in WORD.findall(last or "")}
    names |= {f"topic: {tag}" for tag in prompt.tags}
    names |= {f"tool: {name}" for tool in prompt.tools if (name := (tool.get("function") or tool).get("name"))}
    return names | ({f"language: {prompt.language}"} if prompt.language else set())


def worse_slices(prompts: Sequence[set[str]], changes: Sequence[int]) -> list[Slice]:
    """`prompts`: the features of each. `changes`: -1 where its answer got worse, +1 better, 0 as before."""
    members = _members(prompts)
    eligible = [[name for name in names if name in members] for names in prompts]
    counts = _counts([index for index, change in enumerate(changes) if change < 0], eligible)
    total, drawn = len(prompts), sum(change < 0 for change in changes)
    p_values = {name: tail(total, drawn, len(members[name]), count) for name, count in counts.items()}
    if not p_values:
        return []
    floors = sorted(_smallest_p(random.Random(SEED), eligible, members, drawn))  # noqa: S311  no secret
    odd_names = [name for name, p in p_values.items() if _adjusted(p, floors) <= FALSE_ALARMS]
    better = {name: sum(changes[index] > 0 for index in members[name]) for name in odd_names}
    same_prompts: defaultdict[tuple[int, ...], list[str]] = defaultdict(list)
    for name in odd_names:
        if counts[name] > better[name]:
            same_prompts[members[name]].append(name)
    slices = [
        Slice(
            tuple(sorted(names, key=_order)), len(indices), counts[names[0]], better[names[0]],
            _adjusted(p_values[names[0]], floors),
        )
        for indices, names in same_prompts.items()
    ]  # fmt: skip
    return sorted(slices, key=lambda each: (each.p, p_values[each.features[0]], each.features))[:MOST_SLICES]


def _order(feature: str) -> tuple[bool, str]:
    """Words last: a topic or a tool says more."""
    return feature.startswith("word: "), feature


def _members(prompts: Sequence[set[str]]) -> dict[str, tuple[int, ...]]:
    indices: defaultdict[str, list[int]] = defaultdict(list)
    for index, names in enumerate(prompts):
        for name in names:
            indices[name].append(index)
    return {name: tuple(each) for name, each in indices.items() if LEAST_PROMPTS <= len(each) < len(prompts)}


def _counts(worse: Iterable[int], eligible: Sequence[Sequence[str]]) -> dict[str, int]:
    """Worse prompts of each slice that has enough of them."""
    counts = Counter(chain.from_iterable(eligible[index] for index in worse))
    return {name: count for name, count in counts.items() if count >= LEAST_PROMPTS}


def _smallest_p(
    chance: random.Random, eligible: Sequence[Sequence[str]], members: Mapping[str, Sequence[int]], drawn: int
) -> Iterator[float]:
    """The smallest p of any slice, in each throw of as many worse prompts."""
    total = len(eligible)
    for _ in range(THROWS):
        counts = _counts(chance.sample(range(total), drawn), eligible)
        yield min((tail(total, drawn, len(members[name]), count) for name, count in counts.items()), default=1.0)


def _adjusted(p: float, floors: Sequence[float]) -> float:
    """Share of throws, this evaluation among them, with a slice at least as odd. Rounding tells no two apart."""
    return (1 + sum(floor <= p * (1 + 1e-9) for floor in floors)) / (1 + len(floors))


@cache
def tail(total: int, drawn: int, size: int, count: int) -> float:
    """Chance that `count` or more of `drawn` prompts out of `total` lie in a slice of `size` (hypergeometric)."""
    ways = sum(
        math.comb(size, inside) * math.comb(total - size, drawn - inside)
        for inside in range(count, min(size, drawn) + 1)
    )
    return ways / math.comb(total, drawn)
