"""`rlproxy answers`: the newest answers, with what was said of each; `rlproxy why`: what became of one.

Owns their lines for people. Not here: the panel that rates answers (watch).
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from typing import Any, Final

from rich.table import Table
from rich.text import Text

from proxy.cli.common import some
from proxy.cli.tables import console
from proxy.conversation.first_words import first_words
from proxy.core.version_names import label, version_in_words
from store.line_records import COMMON

STYLES: Final = {"good": "green", "bad": "red"}
USES: Final = {"train": "to train on", "held": "held back for the gate", "replay": "trained once more"}
WAYS: Final = {
    "token": ", each by what it earned",
    "comment": "; a comment taught it",
    "pair": ", against another answer to its prompt",
    "leaning": "; the model leaned towards what was liked",
}


def print_answers(answers: Iterable[dict[str, Any]]) -> None:
    grid = Table.grid(padding=(0, 2))
    for column in ("when", "rated", "version", "answer", "id"):
        grid.add_column(column, no_wrap=column != "answer", style="dim" if column == "id" else "")
    now = time.time()
    for answer in answers:
        rated = rated_as(answer)
        grid.add_row(
            ago(now - answer["created_at"]), Text(rated or "–", style=STYLES.get(rated, "")),
            "–" if answer["version"] is None else label(answer["version"]), text_of(answer), answer["id"],
        )  # fmt: skip
    console().print(grid)


def rated_as(answer: dict[str, Any], rater: str | None = None) -> str:
    """The newest rating in a word, of this rater where one is named; empty where there is none."""
    ratings = [rating for rating in answer["ratings"] if rater in (None, rating["rater"])]
    return "" if not ratings else name_value(ratings[0]["value"], ratings[0]["scale"])


def name_value(value: float, scale: str) -> str:
    if scale == "stars":
        return f"{value * 2 + 3:.0f}/5"
    return "good" if value > 0 else "bad" if value < 0 else "neutral"


def text_of(answer: dict[str, Any]) -> str:
    if words := first_words(answer["text"] or ""):
        return f"[{some(answer['images'], 'picture')}] {words}" if answer["images"] else words
    return first_words(answer["error"]) if answer["error"] else "no words" if answer["status"] != "pending" else "…"


def ago(seconds: float) -> str:
    """Roughly, in one unit: "40 s", "3 min", "5 h", "2 d"."""
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{seconds / length:.0f} {unit}"
    return f"{max(seconds, 0):.0f} s"


def explanation_lines(explanation: dict[str, Any]) -> Iterator[str]:
    """A line for each link of the chain."""
    version = explanation["version"]
    answered = "another model" if version is None else version_in_words(version)
    about = f", about {some(explanation['images'], 'picture')}" if explanation["images"] else ""
    yield f"answer {explanation['completion']}, by {answered}{about}"
    if explanation["line"] != COMMON:
        yield f"  in the line {explanation['line']}"
    yield f"  weights: {_weights_text(explanation['weights'])}"
    if explanation["flag"]:
        yield f"  flagged by your own check: {explanation['flag']}"
    for rating in explanation["ratings"]:
        yield f"  rating {rating['id']}: {_rating_text(rating)}"
    if explanation["waiting"] is not None:
        yield f"  no run has taken it: {explanation['waiting']}"
    for run in explanation["runs"]:
        yield f"run {run['run']}, {run['status']}: {USES[run['split']]}"
        yield from (f"  {line}" for line in _run_lines(run))
    for missing in explanation["not_kept"]:
        yield f"not kept: {missing}"


def _weights_text(weights: dict[str, Any]) -> str:
    if weights["state"] in ("base", "not ours"):
        return f"{weights['model']}, no adapter"
    words = {
        "intact": "and the file is as the run wrote it",
        "changed": "and the file is another one by now, or damaged",
        "gone": "and the file is gone",
    }
    digest = f", sha256 {weights['sha256']}" if weights["sha256"] else ""
    run = f" of run {weights['run']}" if weights["run"] else ""
    return f"{weights['model']}{run}{digest}, {words[weights['state']]}"


def _rating_text(rating: dict[str, Any]) -> str:
    words = [f"{rating['value']:+g}", f"by {rating['rater']}"]
    words += [] if rating["human"] else ["(not a person)"]
    words += ["with a comment"] if rating["has_comment"] else []
    words += ["with a correction"] if rating["has_correction"] else []
    return " ".join(words) + ("" if rating["state"] == "live" else f", {rating['state']}")


def _run_lines(run: dict[str, Any]) -> Iterator[str]:
    push, gate, version = run["push"], run["gate"], run["version"]
    if run["reward"] is not None:
        yield f"reward     {run['reward']:+g}, weight {run['weight']:g}"
    if push is not None and run["split"] != "held":
        yield from _push_lines(push)
    if run["reason"]:
        yield f"ended      {run['reason']}"
    if gate:
        failed = [name for name, check in gate.items() if not check["ok"]]
        passed = f"{len(gate) - len(failed)} of {some(len(gate), 'check')} passed"
        yield f"gate       {passed}{'; failed: ' + ', '.join(failed) if failed else ''}"
    if version is not None:
        reason = f": {version['reason']}" if version["reason"] else ""
        yield f"version    v{version['version']}, {version['state']}{reason}"
    for missing in run["not_kept"]:
        yield f"not kept   {missing}"


def _push_lines(push: dict[str, Any]) -> Iterator[str]:
    cause = f", {push['cause']}" if push["cause"] else ""
    unused = "" if push["used"] else "; no step used it"
    yield f"filter     {push['accepted']} of {some(push['tokens'], 'token')} accepted{cause}{unused}"
    if push["advantage"] is not None:
        yield f"advantage  {push['advantage']:+.3g} on average"
        yield f"pushed     {some(push['up'], 'token')} up, {push['down']} down{WAYS.get(push['taught_by'], '')}"
