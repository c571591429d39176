"""How often does a rule retire a lesson, by how much of it is left? Simulated from the replies of recorded versions.

    python -m scripts.bench.lessons retirement [--times 20000]

Reads the gaps of each reply in gaps.json and runs-*.json. Compares trainer.run.lesson_gaps with the rule before it, and
with two that were not taken: a bound of 95 %, and the replies of two runs together. Needs no model, and some seconds.
Writes benchmarks/lessons/retirement.json.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping, Sequence
from itertools import product
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from scripts.bench.lessons.told import FOLDER, write
from scripts.harness.circumstances import circumstances
from store.learning.lessons import SMALL_REMAINDER
from trainer.run.lesson_gaps import FEWEST_REPLIES, MOST_PROMPTS, remainder_bound

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
Rule = Callable[[Floats], Bools]
Draw = Callable[[float, tuple[int, int], np.random.Generator], Floats]

TARGET: Final = FOLDER / "retirement.json"
SEED: Final = 20261129
REMAINDERS: Final = (0.0, 0.02, 0.03, 0.04, 0.05, 0.06, 0.08, 0.1, 0.12, 0.14, 0.2, 0.3)
REPLIES: Final = (1, 2, 3, 4, 6, 8)  # that tell
SPREAD: Final = 0.12  # of the shares of one lesson, the same whatever is left
DULL_GAPS: Final = (1.0, 4.0)  # nats that the base tells of a lesson that it hardly follows
T_95: Final = (2.920, 2.353, 2.132, 2.015, 1.943, 1.895)  # of Student's t, by replies from the fewest on
POOLED_T_99: Final = 2.602  # of the replies of two runs
EARLIER_REMAINDERS: Final = (0.0, 0.02, 0.04, 0.06, 0.2)  # left in the version before


class RecordedReplies(NamedTuple):
    """Replies of one version, and how much a lesson changed them."""

    shares: Floats  # of what is left, with a mean of 1 in each version
    base_gaps: Floats  # nats


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--times", type=int, default=20_000, help="simulated runs of each kind")


def run(arguments: argparse.Namespace) -> None:
    dice = np.random.default_rng(SEED)
    draws = noises(recorded())
    rows: list[dict[str, Any]] = [
        {"noise": name, "replies": count, "rule": rule, "retired": dict(zip(map(str, REMAINDERS), shares, strict=True))}
        for name, draw in draws.items()
        for count in REPLIES
        for rule, shares in retired(draw, count, arguments.times, dice).items()
    ]
    pairs = pooled(draws["recorded"], arguments.times, dice)
    report = {**circumstances(), "seed": SEED, "times": arguments.times, "bound": SMALL_REMAINDER}
    write(TARGET, report | {"rows": rows, "two_runs": pairs})
    print("left".ljust(40), *(f"{remainder:5}" for remainder in REMAINDERS))
    for row in rows:
        name = f"{row['noise']}, {row['replies']} replies, {row['rule']}"
        print(name.ljust(40), *(f"{share:5.2f}" for share in row["retired"].values()))
    for pair in pairs:
        print(pair)


def retired(draw: Draw, count: int, times: int, dice: np.random.Generator) -> dict[str, list[float]]:
    """The share of simulated runs that retire a lesson, by each rule and by how much of it is left."""
    runs = [draw(remainder, (times, count), dice) for remainder in REMAINDERS]
    return {name: [round(float(rule(shares).mean()), 4) for shares in runs] for name, rule in RULES.items()}


def pooled(draw: Draw, times: int, dice: np.random.Generator) -> list[dict[str, float]]:
    """Lessons that are measured in two runs: how often the second retires one alone, and how often both together."""
    rows: list[dict[str, float]] = []
    for earlier_remainder, remainder in product(EARLIER_REMAINDERS, REMAINDERS):
        second_run = draw(remainder, (times, MOST_PROMPTS), dice)
        both_runs = np.concatenate([draw(earlier_remainder, second_run.shape, dice), second_run], axis=-1)
        verdicts = bounds(both_runs, POOLED_T_99) <= SMALL_REMAINDER
        rows.append({
            "earlier": earlier_remainder, "left": remainder, "second": round(float(by_bound(second_run).mean()), 4),
            "together": round(float(verdicts.mean()), 4),
        })  # fmt: skip
    return rows


def recorded() -> list[RecordedReplies]:
    """Read the replies of each trained version that were written down."""
    rows = [row for row in json.loads((FOLDER / "gaps.json").read_bytes()) if row["version"] != "base"]
    for file in sorted(FOLDER.glob("runs-*.json")):
        rows += [each["lesson"] for each in json.loads(file.read_bytes())["runs"] if "gaps_by_reply" in each["lesson"]]
    versions: list[RecordedReplies] = []
    for row in rows:
        base_gaps = np.array(row["base_gaps_by_reply"])
        shares = np.array(row["gaps_by_reply"]) / base_gaps
        versions.append(RecordedReplies(shares / shares.mean(), base_gaps))
    return versions


def noises(versions: Sequence[RecordedReplies]) -> dict[str, Draw]:
    """Ways in which replies of one lesson may differ. Each draws shares with this mean, (times, replies)."""
    widest = max(versions, key=lambda replies: float(replies.shares.std()))
    pooled = RecordedReplies(*(np.concatenate(arrays) for arrays in zip(*versions, strict=True)))
    return {
        "recorded": lambda remainder, size, dice: sampled(*drawn(pooled, size, dice), remainder, dice),
        "widest": lambda remainder, size, dice: sampled(*drawn(widest, size, dice), remainder, dice),
        "recorded, unsampled": lambda remainder, size, dice: remainder * drawn(pooled, size, dice)[0],
        "widest, unsampled": lambda remainder, size, dice: remainder * drawn(widest, size, dice)[0],
        "dull": lambda remainder, size, dice: sampled(np.ones(size), dice.uniform(*DULL_GAPS, size), remainder, dice),
        "even": lambda remainder, size, dice: dice.normal(remainder, SPREAD, size),
    }


def drawn(replies: RecordedReplies, size: tuple[int, int], dice: np.random.Generator) -> tuple[Floats, Floats]:
    rows = dice.integers(len(replies.shares), size=size)
    return replies.shares[rows], replies.base_gaps[rows]


def sampled(shares: Floats, base_gaps: Floats, remainder: float, dice: np.random.Generator) -> Floats:
    """A reply is one draw: a log-likelihood ratio with a small mean has about twice that as its variance."""
    shares = np.clip(shares, 0.0, None)  # the expectation of no prompt is below 0
    gaps = remainder * shares / shares.mean() * base_gaps
    noisy: Floats = dice.normal(gaps, np.sqrt(2 * gaps)) / base_gaps
    return noisy


def by_mean(shares: Floats) -> Bools:
    """The mean alone, of one reply, too."""
    verdicts: Bools = np.clip(shares, 0.0, 1.0).mean(-1) <= SMALL_REMAINDER
    return verdicts


def by_bound(shares: Floats) -> Bools:
    """The rule that runs go by."""
    verdicts: Bools = remainder_bound(shares) <= SMALL_REMAINDER
    return verdicts


def by_bound_95(shares: Floats) -> Bools:
    """The same with a bound of 95 %."""
    count = shares.shape[-1]
    if count < FEWEST_REPLIES:
        return np.zeros(shares.shape[:-1], np.bool_)
    verdicts: Bools = bounds(shares, T_95[count - FEWEST_REPLIES]) <= SMALL_REMAINDER
    return verdicts


def bounds(shares: Floats, quantile: float) -> Floats:
    upper: Floats = shares.mean(-1) + quantile * shares.std(-1, ddof=1) / np.sqrt(shares.shape[-1])
    return upper


RULES: Final[Mapping[str, Rule]] = {"before": by_mean, "now": by_bound, "95 %": by_bound_95}
