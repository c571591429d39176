"""The summary of an evaluation: shares by version and check, versions compared on the same prompts, slices.

Owns the form of a summary, which is what `--json`, the page and the files of a home have. It has names of prompts, ids
of completions and reasons, and no text of a prompt or an answer; only slices tell a shared word. Not here: the formulas
(statistics, slices).
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

from proxy.checks.checks_file import Suite
from proxy.checks.evaluation import EvaluationRow
from proxy.checks.slices import features, worse_slices
from proxy.checks.statistics import mcnemar, wilson
from proxy.core.version_names import label

FORMAT: Final = 1
ALL: Final = "all checks"


def summarise(
    suite: Suite, versions: Sequence[int], rows: Sequence[EvaluationRow], episodes: Sequence[Mapping[str, Any]] = ()
) -> dict[str, Any]:
    """`episodes`: counts of the versions in episodes that never train."""
    by_version = {version: [row for row in rows if row.version == version] for version in versions}
    pairs = itertools.combinations(versions, 2)
    return {
        "format": FORMAT,
        "file": suite.name,
        "digest": suite.digest,
        "created_at": time.time(),
        "prompts": len(suite.prompt),
        "captured": sum(prompt.completion is not None for prompt in suite.prompt),
        "trained": sum(prompt.trained for prompt in suite.prompt),
        "checks": [check.name for check in suite.check],
        "versions": [_of_version(suite, version, by_version[version]) for version in versions],
        "comparisons": [_compared(by_version[first], by_version[second], first, second) for first, second in pairs],
        "episodes": [dict(each) for each in episodes],
        "rows": [_row(row) for row in rows],
    }


def _of_version(suite: Suite, version: int, rows: Sequence[EvaluationRow]) -> dict[str, Any]:
    by_check = {name: [row.verdicts[name].ok for row in rows if name in row.verdicts] for name in _names(suite)}
    return {
        "version": version,
        "name": label(version),
        "all": _share([row.ok for row in rows]),
        "checks": {name: _share(results) for name, results in by_check.items()},
        "unanswered": sum(row.answer is None for row in rows),
        "cached": sum(row.is_cached for row in rows),
    }


def _names(suite: Suite) -> list[str]:
    return [check.name for check in suite.check]


def _share(results: Sequence[bool | None]) -> dict[str, Any]:
    """`unknown`: could not be made, and counts on neither side."""
    passed, failed = results.count(True), results.count(False)
    interval = wilson(passed, passed + failed)
    bounds = {"share": None, "low": None, "high": None} if interval is None else interval._asdict()
    return {"passed": passed, "failed": failed, "unknown": results.count(None), **bounds}


def _compared(
    first_rows: Sequence[EvaluationRow], second_rows: Sequence[EvaluationRow], first: int, second: int
) -> dict[str, Any]:
    """Prompts on which the second is better or worse than the first, of those that both have a result for."""
    paired = [(a, b) for a, b in zip(first_rows, second_rows, strict=True) if a.ok is not None and b.ok is not None]
    changes = [int(b.ok or 0) - int(a.ok or 0) for a, b in paired]
    better, worse = changes.count(1), changes.count(-1)
    slices = worse_slices([features(a.prompt) for a, _ in paired], changes)
    return {
        "first": first,
        "second": second,
        "prompts": len(paired),
        "better": better,
        "worse": worse,
        "p": mcnemar(better, worse),
        "slices": [each.json() | {"sentence": each.sentence} for each in slices],
    }


def _row(row: EvaluationRow) -> dict[str, Any]:
    return {
        "version": row.version,
        "prompt": row.prompt.name,
        "completion": row.prompt.completion,
        "trained": row.prompt.trained,
        "ok": row.ok,
        "problem": row.problem,
        "verdicts": {name: {"ok": verdict.ok, "reason": verdict.reason} for name, verdict in row.verdicts.items()},
    }
