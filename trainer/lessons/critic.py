"""Can the ratings be told from what the model itself makes of the replies? A critic that knows when it knows nothing.

Owns the judge of whole replies: logistic regression with a ridge on the mean and the last hidden state of each. Some
tens of labels are enough for that (arXiv 2408.03414, 2505.12225). Its own grouped cross-validation says whether it is
to be trusted. It decides how far a run may move (trainer.run.reach) and never feeds the gate. Its weights say how a
reply is going, too. Ratings are evidence for the taste they were given for, and people change theirs. Of earlier runs
it takes the newest that tell this run's ratings apart best (`relevant`). Pure numpy. Not here: which token earned a
rating (credit_assignment), where states come from (scoring).
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from trainer.formats.sidecar_files import Arrays
from trainer.io.progress import Progress
from trainer.lessons.samples import Sample
from trainer.lessons.scoring import Scorer
from trainer.mis_po import Floats
from trainer.policy.packing import States

RIDGES = (0.3, 3.0, 30.0, 300.0)  # on features that are scaled to length 1 a reply; the larger, the flatter
FOLDS = 5
LEAST = 6  # replies of each sign, below which nothing is fitted
MOST = 192  # labels that go with a version, the newest
NEWTON = 6  # steps; from 0, the ridge makes them few
SHUFFLES = 19  # of the labels
BY_CHANCE = 0.05
FLOOR = 0.6  # of the lower bound of its AUC
ONE_SIDED = 1.64  # deviations, 95 %


class Labels(NamedTuple):
    """Rated replies as the critic sees them, the newest last."""

    features: NDArray[np.float32]  # (R, F) mean and last state
    length: Floats  # (R,) log of the tokens
    sign: Floats  # (R,) 1 or -1
    group: NDArray[np.int64]  # (R,) of one conversation the same
    run: NDArray[np.int64]  # (R,) which run took it; of the newest the largest

    def rows(self, chosen: slice | NDArray[np.bool_] | NDArray[np.int64]) -> Labels:
        features, length, sign, group, run = self
        return Labels(features[chosen], length[chosen], sign[chosen], group[chosen], run[chosen])

    def arrays(self) -> Arrays:
        return {
            "critic_features": self.features.astype(np.float16), "critic_length": self.length,
            "critic_sign": self.sign, "critic_group": self.group,
            "critic_run": self.run,
        }  # fmt: skip


class Critic(NamedTuple):
    auc: float  # of replies of other conversations than those it was made of; 0.5 where nothing was fitted
    lower: float  # its lower bound, one-sided, 95 %
    of_length: float  # the same of a critic that knows only how long a reply is
    by_chance: float  # how often one of shuffled labels is as good
    labels: int
    scores: Floats  # (R,) log-odds of each label's reply by a critic that has not seen its conversation

    @property
    def trusted(self) -> bool:
        return self.lower > FLOOR and self.by_chance <= BY_CHANCE and self.auc >= self.of_length

    @property
    def reason(self) -> str:
        if not self.labels:
            return f"fewer than {LEAST} liked or disliked replies, or all of one conversation"
        return (
            f"AUC {self.auc:.2f}, at least {self.lower:.2f}, on {self.labels} ratings of conversations that it has not "
            f"seen; length alone {self.of_length:.2f}; shuffled ratings are as good in {self.by_chance:.0%}"
        )


class CriticReading(NamedTuple):
    """A critic of a run, and what it leaves behind."""

    critic: Critic
    labels: Arrays  # of this run and earlier ones, for the next critic
    guesses: dict[str, float]  # of unrated answers, where it is trusted
    relevant: Labels | None = None  # those of earlier runs that say something about this run's
    starts_anew: bool = False  # there are earlier ones, and none says anything about this run's

    @property
    def trusted(self) -> bool:
        return self.critic.trusted


UNTRUSTED = Critic(0.5, 0.0, 0.5, 1.0, 0, np.empty(0))
NO_CRITIC = CriticReading(UNTRUSTED, {}, {})


def label_replies(states: Sequence[States], values: Sequence[float], group: Sequence[int], run: int = 0) -> Labels:
    """Data of rated replies; `states` (T + 1, H) each, before every token and after the last. `values` have the
    opinion's sign, `group` is the same for replies of one conversation. `run` took them."""
    return Labels(
        np.array([_features(reply_states) for reply_states in states], np.float32),
        np.log([len(reply_states) for reply_states in states]),
        np.sign(values),
        np.array(group, np.int64),
        np.full(len(states), run, np.int64),
    )


def _features(states: States) -> Floats:
    """(F,) the mean and the last state of a reply."""
    return np.concatenate([states[1:].mean(0), states[-1]])


def conversation(sample: Sample) -> int:
    """The same for the replies of one conversation: by how it begins."""
    question = next((m for m in sample.messages if m.get("role") == "user"), None)
    return zlib.crc32(repr(question if question else sample.tokens.prompt).encode())


def read(arrays: Mapping[str, NDArray[Any]], width: int) -> Labels | None:
    """Read what `Labels.arrays` gave; None where it is of other states, or nothing."""
    names = ("critic_features", "critic_length", "critic_sign", "critic_group")
    features, length, sign, group = (arrays.get(name) for name in names)
    if features is None or length is None or sign is None or group is None:
        return None
    if features.ndim != 2 or features.shape[1] != width or not len(features) == len(length) == len(sign) == len(group):
        return None
    run = arrays.get("critic_run", np.zeros(len(sign)))  # versions of before have none: all is of one run
    return Labels(
        features.astype(np.float32),
        length.astype(float),
        sign.astype(float),
        group.astype(np.int64),
        run.astype(np.int64),
    )


def read_run(scorer: Scorer, samples: Sequence[Sample], unrated: Sequence[Sample], progress: Progress) -> CriticReading:
    """Fit a critic to the ratings of these samples, and ask it about unrated answers where it is trusted."""
    current = label_run(scorer, samples)
    if current is None:
        return CriticReading(UNTRUSTED, scorer.critic_arrays(), {})
    earlier_labels = read(scorer.critic_arrays(), current.features.shape[1])
    newest = relevant(earlier_labels, current, scorer.spec.seed)
    labels = join(newest, current)
    critic = evaluate(labels, scorer.spec.seed)
    reason = critic.reason
    if earlier_labels is not None and (
        left_out := len(earlier_labels.sign) - (0 if newest is None else len(newest.sign))
    ):
        reason += f"; {left_out} older ones say nothing about these"
    progress.choice("critic", "trusted" if critic.trusted else "not trusted", reason)
    guesses = guess(labels, critic, scorer, unrated)
    starts_anew = earlier_labels is not None and newest is None
    return CriticReading(critic, join(earlier_labels, current).arrays(), guesses, newest, starts_anew)


def label_run(scorer: Scorer, samples: Sequence[Sample]) -> Labels | None:
    """People's ratings of this run, the newest last."""
    rated = [s for s in samples if s.human and s.reward][::-1]  # the newest came first
    if not rated:
        return None
    states = scorer.states([s.tokens for s in rated])
    return label_replies(states, [s.reward for s in rated], [conversation(s) for s in rated], scorer.spec.run)


def relevant(earlier_labels: Labels | None, current: Labels, seed: int) -> Labels | None:
    """The newest of the earlier runs that tell these ratings apart best; None where they are told apart better alone.

    Asked of conversations that a critic was not made of. Where one side has too few to ask, all earlier ones stay.
    """
    if earlier_labels is None or min((current.sign > 0).sum(), (current.sign < 0).sum()) < LEAST:
        return earlier_labels
    # Of equally good ones the longest, which comes first.
    histories = [*(_since(earlier_labels, run) for run in np.unique(earlier_labels.run)), None]
    return max(histories, key=lambda history: _auc_of(current, history, seed))


def _since(labels: Labels, run: int) -> Labels:
    return labels.rows(labels.run >= run)


def _auc_of(current: Labels, history: Labels | None, seed: int) -> float:
    """AUC of a critic of both on these replies, each without its conversation."""
    labels = join(history, current)
    fold = assign_folds(labels.group, seed)
    scores = _cross_validated(kernel_of(standardise(labels.features)), labels.sign, fold)
    return auc(scores[-len(current.sign) :], current.sign)


def guess(labels: Labels | None, critic: Critic, scorer: Scorer, unrated: Sequence[Sample]) -> dict[str, float]:
    """Log-odds that people like each of these answers, by its completion: near 0 where a rating would say most. Empty
    where the critic is not trusted."""
    if labels is None or not critic.trusted or not unrated:
        return {}
    states = scorer.states([s.tokens for s in unrated])
    odds = predict(labels, np.array([_features(reply_states) for reply_states in states], np.float32), scorer.spec.seed)
    return {s.rating: round(float(value), 4) for s, value in zip(unrated, odds, strict=True)}


def join(earlier_labels: Labels | None, current: Labels) -> Labels:
    """Both, the newest last and at most MOST."""
    if earlier_labels is None:
        return current.rows(slice(-MOST, None))
    return Labels(
        np.concatenate([earlier_labels.features, current.features]),
        np.concatenate([earlier_labels.length, current.length]),
        np.concatenate([earlier_labels.sign, current.sign]),
        np.concatenate([earlier_labels.group, current.group]),
        np.concatenate([earlier_labels.run, current.run]),
    ).rows(slice(-MOST, None))


def evaluate(labels: Labels, seed: int) -> Critic:
    """How well a critic of these labels would do on others."""
    y = labels.sign
    if min((y > 0).sum(), (y < 0).sum()) < LEAST or len(np.unique(labels.group)) < FOLDS:
        return UNTRUSTED
    fold = assign_folds(labels.group, seed)
    kernel = kernel_of(standardise(labels.features))
    scores = _cross_validated(kernel, y, fold)
    area = auc(scores, y)
    length_kernel = kernel_of(standardise(np.stack([labels.length, np.ones(len(y))], 1).astype(np.float32)))
    of_length = auc(_cross_validated(length_kernel, y, fold), y)
    shuffle = np.random.default_rng(seed)
    count = 0
    for _ in range(SHUFFLES):
        shuffled = deal(y, labels.group, shuffle)
        count += auc(_cross_validated(kernel, shuffled, fold), shuffled) >= area
    chance = (1 + count) / (1 + SHUFFLES)
    return Critic(area, area - ONE_SIDED * deviation(area, y), of_length, chance, len(y), scores)


def predict(labels: Labels, features: NDArray[np.float32], seed: int) -> Floats:
    """(N,) log-odds that replies with these features (N, F) are liked; the ridge is that of cross-validation."""
    count = len(labels.sign)
    kernel = kernel_of(standardise(np.concatenate([labels.features, features])))
    inside = kernel[:count, :count]
    ridge = likeliest_ridge(inside, labels.sign, assign_folds(labels.group, seed))
    weight, bias = fit(inside, labels.sign, ridge)
    log_odds: Floats = kernel[count:, :count] @ weight + bias
    return log_odds


def assign_folds(group: NDArray[np.int64], seed: int) -> NDArray[np.int64]:
    """(R,) which part a reply is left out with: conversations whole, the largest first into the smallest part."""
    names, counts = np.unique(group, return_counts=True)
    order = np.random.default_rng(seed).permutation(len(names))
    order = order[np.argsort(-counts[order], kind="stable")]
    sizes, fold_of = np.zeros(FOLDS, int), {}
    for index in order:
        part = int(sizes.argmin())
        fold_of[names[index]], sizes[part] = part, sizes[part] + counts[index]
    return np.array([fold_of[name] for name in group], np.int64)


def separate_if_few(group: NDArray[np.int64]) -> NDArray[np.int64]:
    """(R,) the same groups, each reply by itself where there are few conversations: none can be left out whole then."""
    return group if len(np.unique(group)) >= min(FOLDS, len(group)) else np.arange(len(group))


def deal(y: Floats, group: NDArray[np.int64], dice: np.random.Generator) -> Floats:
    """(R,) the ratings dealt out anew, those of one conversation together. They are often alike; shuffled one by one
    they would be easier to beat than chance is."""
    names, member = np.unique(group, return_inverse=True)
    if len(names) == len(y):
        return dice.permutation(y)
    result = np.empty_like(y)
    order = np.concatenate([np.flatnonzero(member == name) for name in dice.permutation(len(names))])
    result[np.argsort(member, kind="stable")] = y[order]
    return result


def auc(scores: Floats, y: Floats) -> float:
    """How often a liked reply is above a disliked one; a tie is half."""
    liked, disliked = scores[y > 0], scores[y < 0]
    gap = liked[:, None] - disliked[None, :]
    return float(((gap > 0) + 0.5 * (gap == 0)).mean())


def deviation(area: float, y: Floats) -> float:
    """Standard error of an AUC (Hanley and McNeil, Radiology 143, 1982)."""
    up, down = float((y > 0).sum()), float((y < 0).sum())
    q1, q2 = area / (2 - area), 2 * area * area / (1 + area)
    spread = area * (1 - area) + (up - 1) * (q1 - area * area) + (down - 1) * (q2 - area * area)
    # A critic without a mistake has an error all the same: half a pair's.
    return max(math.sqrt(max(spread, 0.0) / (up * down)), 0.5 / math.sqrt(up * down))


def standardise(features: NDArray[np.float32]) -> Floats:
    """(R, F) features centred, each of deviation 1."""
    x = features.astype(np.float64)
    x = x - x.mean(0)
    result: Floats = x / (x.std(0) + 1e-6)
    return result


def kernel_of(x: Floats) -> Floats:
    """(R, R) of scaled features (R, F): a reply's length is about 1."""
    gram: Floats = x @ x.T / x.shape[1]
    return gram


def likeliest_ridge(kernel: Floats, y: Floats, fold: NDArray[np.int64]) -> float:
    """The one of RIDGES under which labels that were left out are likeliest."""
    return min(RIDGES, key=lambda ridge: _surprise(_held_out_scores(kernel, y, fold, ridge), y))


def _cross_validated(kernel: Floats, y: Floats, fold: NDArray[np.int64]) -> Floats:
    """(R,) log-odds of each reply without its fold, at the likeliest ridge."""
    return _held_out_scores(kernel, y, fold, likeliest_ridge(kernel, y, fold))


def _held_out_scores(kernel: Floats, y: Floats, fold: NDArray[np.int64], ridge: float) -> Floats:
    scores = np.zeros(len(y))
    for part in np.unique(fold):
        held_out, fitted = fold == part, fold != part
        if not fitted.any():
            continue
        weight, bias = fit(kernel[np.ix_(fitted, fitted)], y[fitted], ridge)
        scores[held_out] = kernel[np.ix_(held_out, fitted)] @ weight + bias
    return scores


def _surprise(scores: Floats, y: Floats) -> float:
    """Mean negative log-likelihood, nats a label."""
    return float(np.logaddexp(0.0, -y * scores).mean())


def fit(kernel: Floats, y: Floats, ridge: float) -> tuple[Floats, float]:
    """Kernel logistic regression by Newton's method, both signs weighing one half: dual weights (R,) and a bias.

    It minimises Σ_i c_i log(1 + exp(−y_i f_i)) · R + ridge/2 · αᵀKα with f = Kα + b.
    """
    count = len(y)
    cost = np.where(y > 0, 0.5 / max((y > 0).sum(), 1), 0.5 / max((y < 0).sum(), 1)) * count
    weight, bias = np.zeros(count), 0.0
    for _ in range(NEWTON):
        f = kernel @ weight + bias
        p = 1 / (1 + np.exp(np.clip(y * f, -30, 30)))  # of the other label
        curve = np.maximum(cost * p * (1 - p), 1e-6)
        target = f + cost * y * p / curve
        # (K + ridge W⁻¹) α + b 1 = target, 1ᵀα = 0: the weighted least-squares step.
        system = np.ones((count + 1, count + 1))
        system[:count, :count] = kernel + np.diag(ridge / curve)
        system[count, count] = 0.0
        solved = np.linalg.solve(system, np.append(target, 0.0))
        moved = float(np.abs(solved[:count] - weight).max())
        weight, bias = solved[:count], float(solved[count])
        if moved < 1e-6:
            break
    return weight, bias
