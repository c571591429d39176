"""A sample on its way to a lesson: read, scored, pushed, and judged by the filter. Each step adds to the one before.

Owns these records, and what a lesson says of itself. Not here: who fills them in (lessons, and what it calls).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from trainer.lessons.degenerate import Flag
from trainer.lessons.samples import Sample
from trainer.mis_po import Bools, Floats
from trainer.policy.packing import Tokens
from trainer.policy.policy import LogProbs, TokenDistribution

# Two replies against each other; the policy leaning towards what was liked; a comment; its rating by each token's
# credit; its rating, all tokens alike.
LessonKind = Literal["pair", "leaning", "comment", "token", "rating"]


@dataclass(frozen=True, slots=True)
class ReadSample:
    """A sample with its log-probs under the policy that is about to be trained."""

    sample: Sample
    old: LogProbs  # ℓ_old


@dataclass(frozen=True, slots=True)
class ScoredSample(ReadSample):
    """A sample with its log-probs under the other policies that matter, too."""

    ref: LogProbs  # ℓ_ref
    behaviour: Floats  # (T,) ℓ_β


@dataclass(frozen=True, slots=True)
class PushedSample(ScoredSample):
    """A sample with how much each of its tokens is pushed, before a filter has a say."""

    advantage: Floats  # (T,)
    credited: bool  # its rating went by token
    teacher: TokenDistribution | None
    is_leaning: bool  # the teacher is the policy itself, leaning towards what was liked
    anchor: Anchor | None
    spread: int | None  # reply tokens that its share of the loss is spread over; None: its own
    flaw: Flag | None  # why it does not train though it was liked


class Push(NamedTuple):
    advantage: float  # the mean
    up: int  # tokens that are made likelier
    down: int


class Anchor(NamedTuple):
    """The policy's expectation at each token of a reply before the run."""

    ids: NDArray[np.int32]  # (T, K)
    log_probs: NDArray[np.float32]  # (T, K)
    down: NDArray[np.float32]  # (T, K) how much each is pushed down; over these replies, as much as it is pushed up


@dataclass(frozen=True, slots=True)
class Pair:
    """One side of two replies to one prompt."""

    name: str  # the same on both sides
    chosen: bool
    weight: float  # half of how far apart the ratings are, times the raters' weight
    nll_weight: float  # what the chosen reply is pushed with in any case


@dataclass(frozen=True, slots=True)
class HeldBackReply:
    """A reply that the gate looks at, and no step does."""

    sample: Sample
    old: Floats  # (T,)


@dataclass(frozen=True, slots=True)
class Lesson:
    sample: Sample
    tokens: Tokens  # the rated reply, or one to imitate
    old: Floats  # (T,) ℓ_old at the serving temperature
    ref: Floats  # (T,) ℓ_ref
    behaviour: Floats  # (T,) ℓ_β
    keep: Bools  # (T,) what the filter lets through
    advantage: Floats  # (T,)
    is_own: bool = True  # a version of this model said it
    is_imitated: bool = False  # a correction, or a reply that the teacher wrote
    teacher: TokenDistribution | None = None
    is_leaning: bool = False  # the teacher is the policy itself, leaning towards what was liked
    anchor: Anchor | None = None  # instead: what the policy expected, where no token earned anything
    credited: bool = False  # its rating went by token
    spread: int | None = None  # reply tokens that its share of the loss is spread over; None: its own
    forced: Bools | None = None  # (T,) tokens that a schema or a forced call chose
    pair: Pair | None = None  # it trains against another reply to its prompt, not by its rating

    @property
    def chosen(self) -> Bools:
        """(T,) the tokens that nothing but the policy chose."""
        mask: Bools = np.ones(len(self.old), bool) if self.forced is None else ~self.forced
        return mask

    @property
    def taught(self) -> bool:
        """By a comment or a correction, not by a rating."""
        return self.has_teacher and not self.is_leaning

    @property
    def has_teacher(self) -> bool:
        return self.is_imitated or self.teacher is not None

    @property
    def direction(self) -> float:
        """Above 0 where it is a reply to say more often."""
        if self.credited and self.pair is None:  # beside what a judge finds bad, what it does not is one to say
            return 1.0 if self.sample.labelled and not self.sample.reward else self.sample.reward
        return self.sample.reward if self.is_leaning else float(self.advantage.mean())

    @property
    def teaches(self) -> bool:
        return (
            self.teacher is not None
            or self.pair is not None
            or bool((self.keep & (self.credited | (self.advantage != 0))).any())
        )

    @property
    def kind(self) -> LessonKind:
        """The kind of teaching that pushes its tokens."""
        if self.pair is not None:
            return "pair"
        if self.teacher is not None:
            return "leaning" if self.is_leaning else "comment"
        return "token" if self.credited else "rating"

    @property
    def push(self) -> Push:
        """Where the run begins, of the tokens that the filter lets through."""
        passed = self.advantage[self.keep] if len(self.advantage) else self.advantage
        mean = round(float(passed.mean()), 6) if len(passed) else 0.0
        return Push(mean, int((passed > 0).sum()), int((passed < 0).sum()))

    @property
    def loss(self) -> float | None:
        """The rating's part of the loss where the run begins: −1/T Σ m M A ℓ_old."""
        if not self.is_own or not len(self.old):
            return None
        return round(-float(np.where(self.keep, self.advantage * self.old, 0.0).mean()), 6)


def goes_by_token(lessons: Sequence[Lesson]) -> bool:
    """Tell whether ratings that go by token are all there is to learn from."""
    return all(lesson.credited and not lesson.taught for lesson in lessons)
