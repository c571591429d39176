"""Results of a sequence of tastes: each before its rounds, at its own peak, at the end, and beside itself alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

Round = dict[str, Any]  # of a course
HEADS = ("taste", "base", "before", "peak", "end", "end / peak", "alone", "peak / alone")


@dataclass(frozen=True)
class Row:
    """Liked shares of one taste."""

    taste: str
    base: float
    start: float  # before its rounds
    peak: float  # the end of its own rounds
    end: float  # of the sequence
    baseline: float | None  # after as many rounds from the base; None where that was not run

    @property
    def retained(self) -> float | None:
        return ratio(self.end, self.peak)

    @property
    def reached(self) -> float | None:
        return ratio(self.peak, self.baseline)


def ratio(share: float, of: float | None) -> float | None:
    """None where there is nothing to compare with."""
    return share / of if of else None


def rows(
    tastes: Sequence[str],
    rounds_each: int,
    base: dict[str, float],
    sequence: Sequence[Round],
    singles: dict[str, Sequence[Round]],
) -> list[Row]:
    """singles: courses of one taste from the base, by taste. The first taste's is the sequence until its peak. A taste
    that has not had all of its rounds is left out."""
    shares = [base, *(round_["marks"]["liked"] for round_ in sequence)]
    table = []
    for place, taste in enumerate(tastes):
        peak = (place + 1) * rounds_each
        if peak >= len(shares):
            break
        own_rounds = singles.get(taste, []) if place else sequence[:rounds_each]
        table.append(
            Row(
                taste,
                base[taste],
                start=shares[peak - rounds_each][taste],
                peak=shares[peak][taste],
                end=shares[-1][taste],
                baseline=own_rounds[-1]["marks"]["liked"][taste] if len(own_rounds) == rounds_each else None,
            )
        )
    return table


def markdown(table: Sequence[Row]) -> str:
    lines = [f"| {' | '.join(HEADS)} |", "|---" * len(HEADS) + "|"]
    for row in table:
        figures = (row.base, row.start, row.peak, row.end, row.retained, row.baseline, row.reached)
        cells = ["" if figure is None else f"{figure:.2f}" for figure in figures]
        lines.append(f"| {row.taste} | {' | '.join(cells)} |")
    return "\n".join(lines)


def history(base: dict[str, float], rounds: Sequence[Round]) -> str:
    """Every taste after every run, with what the run did and the gate's figure of ordinary sense."""
    heads = ("after", "good", *base, "pushed", "gate's base NLL")
    lines = [
        f"| {' | '.join(heads)} |",
        "|---" * len(heads) + "|",
        f"| base | | {' | '.join(f'{share:.2f}' for share in base.values())} | | |",
    ]
    for number, round_ in enumerate(rounds, 1):
        liked = [f"{round_['marks']['liked'][taste]:.2f}" for taste in base]
        cells = [
            f"{number}: {round_['taste']}",
            str(round_["good"]),
            *liked,
            pushed(round_["run"]),
            sense(round_["run"]),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def pushed(run: dict[str, Any]) -> str:
    way = run["choices"].get("pushed", "")
    return way if run["status"] == "passed" else f"{way} ({run['status']})".strip()


def sense(run: dict[str, Any]) -> str:
    """How much more the base is surprised by the candidate's replies than by its own, nats a token."""
    check = run["gate"].get("base_nll")
    return f"{check['value']:+.2f}" if check else ""
