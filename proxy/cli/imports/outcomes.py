"""Rewards that a harness has written into files, given to the episodes that were captured here.

Owns the order: read all, ask the proxy about each without storing anything, count each group's members that are here,
give the rewards, report. Bounded by one short record for each episode. Not here: a harness's files (verifiers, harbor),
what a reward may be (proxy.feedback.episodes).
"""

from __future__ import annotations

import hashlib
import json
import math
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, NamedTuple

from proxy.cli.common import some
from proxy.cli.http import HomeClient

BATCH: Final = 500  # rewards in one request
LONGEST_GROUP: Final = 200  # characters, as the proxy takes them
LONGEST_ERROR: Final = 500  # characters of a harness's own message
MOST_IN_GROUP: Final = 1024
ROUNDED: Final = 1e-9  # a sum of weighted rewards may come out that far above 1
EXAMPLES: Final = 3  # examples of each reason

SkipReason = Literal["broken", "no-reward", "not-trained", "twice", "not-captured", "refused"]
FAILS: Final[frozenset[SkipReason]] = frozenset({"broken", "twice", "refused"})


class NothingThere(Exception):
    """The folder holds none of the files that were looked for; the sentence to end with."""


class WrittenReward(NamedTuple):
    """The end of one episode, as its harness has written it down: a reward or an error."""

    position: str
    episode: str
    group: str
    reward: float | None
    error: str | None = None


class SkippedOutcome(NamedTuple):
    """A place in the files that gives no reward."""

    position: str
    episode: str | None
    kind: SkipReason
    reason: str

    def as_json(self) -> dict[str, str | None]:
        return {"where": self.position, "episode": self.episode, "kind": self.kind, "why": self.reason}


@dataclass
class ImportReport:
    dry_run: bool
    stored: int = 0
    changed: int = 0
    unchanged: int = 0
    errors: int = 0  # of all these, episodes that ended with an error
    groups: int = 0
    left_out: list[SkippedOutcome] = field(default_factory=list)

    @property
    def matched(self) -> int:
        return self.stored + self.changed + self.unchanged

    @property
    def failed(self) -> bool:
        """Tell whether something was wrong, or nothing at all matched."""
        return not self.matched or any(omission.kind in FAILS for omission in self.left_out)

    def as_json(self) -> dict[str, Any]:
        return {
            "dry_run": self.dry_run,
            "stored": self.stored,
            "changed": self.changed,
            "known": self.unchanged,
            "errors": self.errors,
            "groups": self.groups,
            "left_out": [omission.as_json() for omission in self.left_out],
        }


def give(
    client: HomeClient,
    entries: Iterable[WrittenReward | SkippedOutcome],
    report: ImportReport,
    *,
    scale: float = 1.0,
    split: str | None = None,
) -> None:
    """Give these rewards, and fill in the report. Raises Refused, Unreachable, NothingThere: what the report counts was
    taken."""
    outcomes = _sort_out(entries, scale, report.left_out)
    sizes: Counter[str] = Counter()
    captured: list[WrittenReward] = []
    check = ImportReport(dry_run=True)  # the check's own; the rewards themselves are counted below
    for written, problem in _send(client, outcomes, {}, split, check, dry_run=True):
        if problem is None:
            captured.append(written)
            sizes[written.group] += 1
        else:
            report.left_out.append(problem)
    report.groups = len(sizes)
    if report.dry_run:
        report.stored, report.changed, report.unchanged, report.errors = (
            check.stored,
            check.changed,
            check.unchanged,
            check.errors,
        )
        return
    for _, problem in _send(client, captured, sizes, split, report, dry_run=False):
        if problem is not None:
            report.left_out.append(problem)


def group_name(*parts: str) -> str:
    """One name for the attempts at one task: readable where it is short, a hash where the proxy would not take it."""
    name = ":".join(parts)
    if len(name) <= LONGEST_GROUP and name.isprintable():
        return name
    return hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()


def within(value: Any, *keys: str) -> Any:
    """A member of objects in objects; None where one of them is not there, or is something else."""
    for key in keys:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def _sort_out(
    entries: Iterable[WrittenReward | SkippedOutcome], scale: float, left_out: list[SkippedOutcome]
) -> list[WrittenReward]:
    """Each episode once, its reward scaled. One that is said twice, and differently, is left out at both places."""
    first: dict[str, WrittenReward] = {}
    differs: dict[str, list[WrittenReward]] = {}
    for entry in entries:
        if isinstance(entry, SkippedOutcome):
            left_out.append(entry)
            continue
        scaled = _scale(entry, scale)
        if isinstance(scaled, SkippedOutcome):
            left_out.append(scaled)
        elif (earlier_reward := first.setdefault(entry.episode, scaled))[1:] != scaled[1:]:
            differs.setdefault(entry.episode, [earlier_reward]).append(scaled)
    for episode, places in differs.items():
        del first[episode]
        variants = "; ".join(f"{place.position}: {_describe(place)}" for place in places[:EXAMPLES])
        left_out.append(
            SkippedOutcome(
                places[0].position, episode, "twice", f"it stands in the files more than once, and differs ({variants})"
            )
        )
    return list(first.values())


def _describe(written: WrittenReward) -> str:
    return (
        f"error, group {written.group}"
        if written.reward is None
        else f"reward {written.reward:g}, group {written.group}"
    )


def _scale(written: WrittenReward, scale: float) -> WrittenReward | SkippedOutcome:
    if written.reward is None:
        return written
    value = written.reward * scale
    if not math.isfinite(value):
        return SkippedOutcome(written.position, written.episode, "broken", "its reward is not a finite number")
    if abs(value) <= 1 + ROUNDED:
        return written._replace(reward=max(-1.0, min(1.0, value)))
    return SkippedOutcome(
        written.position, written.episode, "refused",
        f"its reward is {value:g}, and rlproxy takes -1 to 1: give `--scale {scale / abs(value):.3g}` or less",
    )  # fmt: skip


def _send(
    client: HomeClient,
    outcomes: Sequence[WrittenReward],
    sizes: Mapping[str, int],
    split: str | None,
    report: ImportReport,
    *,
    dry_run: bool,
) -> Iterator[tuple[WrittenReward, SkippedOutcome | None]]:
    """Each, with why it was not taken. Raises Refused, Unreachable."""
    for start in range(0, len(outcomes), BATCH):
        batch = outcomes[start : start + BATCH]
        lines = b"\n".join(_line(outcome, sizes.get(outcome.group), split) for outcome in batch)
        answer = client.ask("POST", "/rl/episodes/rewards" + ("?dry_run" if dry_run else ""), lines)
        refusals = {refusal["line"]: refusal for refusal in answer["refused"]}
        report.stored += answer["stored"]
        report.changed += answer["changed"]
        report.unchanged += answer["same"]
        for number, outcome in enumerate(batch, start=1):
            refusal = refusals.get(number)
            report.errors += refusal is None and outcome.error is not None
            yield outcome, None if refusal is None else _refused_outcome(outcome, refusal)
        _progress(min(start + BATCH, len(outcomes)), len(outcomes), dry_run)


def _refused_outcome(written: WrittenReward, refusal: dict[str, Any]) -> SkippedOutcome:
    if refusal["status"] == 404:
        return SkippedOutcome(
            written.position, written.episode, "not-captured", "rlproxy has captured no request of it"
        )
    return SkippedOutcome(written.position, written.episode, "refused", refusal["why"])


def _line(written: WrittenReward, size: int | None, split: str | None) -> bytes:
    fields = {
        "episode": written.episode,
        "reward": written.reward,
        "error": written.error,
        "group": written.group,
        "group_size": size and min(size, MOST_IN_GROUP),
        "split": split,
    }
    return json.dumps({name: value for name, value in fields.items() if value is not None}).encode()


def _progress(count: int, total: int, dry_run: bool) -> None:
    if total > BATCH and sys.stderr.isatty():
        end = "\n" if count == total else ""
        print(f"\r{'checked' if dry_run else 'given'}: {count:,} of {total:,}", end=end, file=sys.stderr, flush=True)


def show(report: ImportReport, noun: str) -> None:
    """The report for people: counts on stdout, what was left out on stderr."""
    would = "would be " if report.dry_run else ""
    changed = f", {report.changed} {would}changed" if report.changed else ""
    print(
        f"{some(report.stored, 'episode')} {would}rewarded{changed}, {report.unchanged} had their reward before; "
        f"{some(report.groups, 'group')}, {some(report.errors, 'episode')} with an error"
    )
    kinds: dict[SkipReason, list[SkippedOutcome]] = {}
    for omission in report.left_out:
        kinds.setdefault(omission.kind, []).append(omission)
    for kind, those in kinds.items():
        print(f"{some(len(those), noun)} left out ({kind}):", file=sys.stderr)
        for omission in those[:EXAMPLES]:
            print(
                f"  {omission.position}{f', {omission.episode}' if omission.episode else ''}: {omission.reason}",
                file=sys.stderr,
            )
        if len(those) > EXAMPLES:
            print(f"  and {len(those) - EXAMPLES:,} more; --json has all", file=sys.stderr)
    if not report.matched and kinds.get("not-captured"):
        print(
            "None of them was captured here. The harness must ask through rlproxy (its base URL) and send the id as "
            "X-Session-ID: docs/guides/episodes.md.",
            file=sys.stderr,
        )
