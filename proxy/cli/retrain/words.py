"""The plan of a retrain and what it came to, in words.

Owns these words, and the time that a plan expects. Not here: what a retrain takes (proxy.training.retraining).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from proxy.cli.common import some
from store.line_records import COMMON

if TYPE_CHECKING:
    from config.settings import Settings

TOKENS: Final = 300  # of a prompt with its answer, where no server counted
# Why a rating never reaches a round.
FATES: Final = {
    "label": "of judges and programs, which rate the new base's own answers",
    "left_out": "that you leave out",
    "flagged": "of liked answers that your own check has flagged",
    "no_answer": "of answers that were cut before they had words",
    "raw_text": "of completions of raw text, which have no chat to render",
    "neutral": "that say neither good nor bad, with no correction",
    "further_model": "of further models' answers, which never train",
    "has_image": "of prompts with pictures, of which training sees only text",
    "remote_image": "of prompts with pictures, of which training sees only text",
}
# Why a sample of a round did not train.
CAUSES: Final = {
    "held": "held back for the gate",
    "rejected": "in rounds that the gate refused",
    "empty": "in rounds that had nothing to compare",
    "failed": "in rounds that failed",
    "cancelled": "in rounds that were cancelled",
    "too-long": "longer than max_seq_len",
    "unusable": "that the new base cannot render",
    "pushes_nothing": "whose rating pushes nothing",
}


def expected_seconds(plan: Mapping[str, Any], settings: Settings) -> float | None:
    """How long its rounds take on this machine with nothing else to do; None where that cannot be told."""
    from proxy.cli.plan import hardware_of
    from trainer.launch import EstimateRequest, LaunchError, Workload, estimate_run, run_seconds

    if not plan["rounds"] or settings.train.where != "local":
        return None
    train = settings.train
    workload = Workload(max(1, plan["completions"] // plan["rounds"]), max(2, round(plan["tokens"] or TOKENS)))
    request = EstimateRequest("builtin", hardware_of(settings), workload, 4096, train.preset, train.overrides)
    try:
        duration = run_seconds(estimate_run(plan["weights"], request), train.threads)
    except LaunchError:
        return None
    if duration is None:
        return None
    return (duration.seconds_now or duration.seconds) * int(plan["rounds"])


def describe_plan(plan: Mapping[str, Any], seconds: float | None) -> str:
    of_line = "" if plan["of_line"] == COMMON else f" of the line {plan['of_line']}"
    lines = [
        f"{some(plan['ratings'], 'rating')}{of_line} of {some(plan['completions'], 'answer')} can train on "
        f"{plan['model']}: {plan['liked']} good, {plan['disliked']} bad, {plan['stars']} in stars, "
        f"{some(plan['comments'], 'comment')}, {some(plan['corrections'], 'correction')}, "
        f"{plan['paired']} answers in pairs.",
        *_left_out(plan["exclusions"]),
        f"{some(plan['rounds'], 'round')}, {_time(seconds)}",
        "The answers are another model's: their words train, off-policy (KTO); comments teach as ever.",
        "Versions of the base before stay as they are. No version of the new one goes live by itself.",
    ]
    return "\n".join(lines)


def describe_outcome(report: Mapping[str, Any]) -> str:
    lines = [report["line"] + "."]
    for each in report["rounds"]:
        result = f"v{each['version']}" if each["version"] else each["status"]
        lines.append(f"  run {each['run']}: {result}, {each['trained']} of {each['samples']} answers trained")
        if not each["version"] and each["reason"]:
            lines.append(f"    {each['reason']}")
    lines += [f"  {count} {CAUSES.get(cause, cause)}" for cause, count in sorted(report["causes"].items())]
    lines += _left_out(report["exclusions"])
    if report["state"] == "over" and report["versions"]:
        newest = report["versions"][-1]
        lines.append(
            f"To use it: start its server (`rlproxy serve --weights {report['weights']}`, or your own), then "
            f"`rlproxy promote v{newest}`. With the server of the base before, the version that was live answers again."
        )
    return "\n".join(lines)


def _left_out(fates: Mapping[str, int]) -> list[str]:
    counts: dict[str, int] = {}
    for fate, count in fates.items():
        text = FATES.get(fate, f"of prompts that hold more than text ({fate})")
        counts[text] = counts.get(text, 0) + count
    return [f"{some(count, 'rating')} cannot train: {text}." for text, count in counts.items()]


def _time(seconds: float | None) -> str:
    if seconds is None:
        return "for a time that cannot be told beforehand."
    return f"about {seconds / 3600:.1f} h." if seconds > 5400 else f"about {max(1, round(seconds / 60))} min."
