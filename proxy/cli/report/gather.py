"""The report's data: counts, shares, versions, runs and replies, as plain JSON.

Owns what is in a report and what is not. Without `text` nothing in it was said or written by a person or a model, and
raters other than the owner have numbers for names. Not here: where it comes from (sources), how it looks (page).
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from proxy.cli.report.pairs import pairs
from proxy.cli.report.sources import ReportData, ReportedCompletion
from proxy.web.pages.filters import verdict, wilson
from store.learning.rater_quota import OWNER
from store.records import BASE, Rating

FORMAT: Final = 1
COMMENTS: Final = 12  # the newest
TAUGHT: Final = 60  # ratings shown of one version
QUESTION_CHARACTERS: Final = 300  # characters of a question
REPLY_CHARACTERS: Final = 2000  # of a reply
HOUR, DAY, WEEK = 3600.0, 86400.0, 7 * 86400.0

Json = dict[str, Any]


def report(data: ReportData, *, text: bool, now: float, offset: float) -> Json:
    """`offset` is what the local clock is ahead of UTC, in seconds."""
    rated = [completion for completion in data.completions if completion.ratings]
    names = _names(rated, with_names=text)
    return {
        "format": FORMAT,
        "made_at": now,
        "text": text,
        "model": _model(data, rated, whole=text),
        "live": data.live,
        "previous": data.previous,
        "counts": _counts(rated),
        "times": _times(rated, offset),
        "raters": _raters(rated, names),
        "comments": _comments(rated, names) if text else [],
        "versions": _versions(data, names, text=text),
        "runs": [_run(run, text=text) for run in data.runs],
        "replies": _replies(data.completions) if text else [],
    }


def _model(data: ReportData, rated: Sequence[ReportedCompletion], *, whole: bool) -> str | None:
    """By the name that it is asked for, which some servers make of the path of a file on their machine."""
    names = [*(completion.model for completion in rated), *(adapter["model"] for adapter in data.adapters)]
    if not names:
        return None
    name: str = names[-1]
    return name if whole else re.split(r"[/\\]", name)[-1]


def _counts(rated: Sequence[ReportedCompletion]) -> Json:
    ratings = [rating for completion in rated for rating in completion.ratings]
    return {
        "completions": len(rated),
        **_kinds(ratings),
        "comments": sum(rating.comment is not None for rating in ratings),
        "corrections": sum(rating.correction is not None for rating in ratings),
    }


def _kinds(ratings: Iterable[Rating]) -> Json:
    values = [rating.value for rating in ratings]
    return {"ratings": len(values), "good": sum(v > 0 for v in values), "bad": sum(v < 0 for v in values)}


def _times(rated: Sequence[ReportedCompletion], offset: float) -> Json:
    """Ratings by local hour, day or week: whichever makes a curve of the time that they span."""
    ratings = [rating for completion in rated for rating in completion.ratings]
    if not ratings:
        return {"each": DAY, "rows": []}
    times = [rating.created_at for rating in ratings]
    span = max(times) - min(times)
    each = HOUR if span < 3 * DAY else DAY if span < 200 * DAY else WEEK
    groups: dict[int, list[Rating]] = {}
    for rating in ratings:
        groups.setdefault(int((rating.created_at + offset) // each), []).append(rating)
    return {"each": each, "rows": [{"at": key * each - offset, **_kinds(groups[key])} for key in sorted(groups)]}


def _names(rated: Iterable[ReportedCompletion], *, with_names: bool) -> dict[str, str]:
    """Names of the raters, those with most ratings first."""
    counts: dict[str, int] = {}
    for completion in rated:
        for rating in completion.ratings:
            counts[rating.rater] = counts.get(rating.rater, 0) + 1
    raters = sorted(counts, key=lambda rater: (-counts[rater], rater))
    if with_names:
        return {rater: rater for rater in raters}
    guests = [rater for rater in raters if rater != OWNER]
    return {rater: OWNER if rater == OWNER else f"rater {guests.index(rater) + 1}" for rater in raters}


def _raters(rated: Sequence[ReportedCompletion], names: dict[str, str]) -> list[Json]:
    rows = []
    for rater, name in names.items():
        ratings = [rating for completion in rated for rating in completion.ratings if rating.rater == rater]
        comments = sum(rating.comment is not None for rating in ratings)
        rows.append({"rater": name, **_kinds(ratings), "comments": comments})
    return rows


def _comments(rated: Iterable[ReportedCompletion], names: dict[str, str]) -> list[Json]:
    commented = [(rating, completion) for completion in rated for rating in completion.ratings if rating.comment]
    commented.sort(key=lambda pair: pair[0].created_at, reverse=True)
    return [
        {
            "at": rating.created_at,
            "rater": names[rating.rater],
            "verdict": verdict(rating),
            "value": rating.value,
            "comment": _shorten(rating.comment or "", QUESTION_CHARACTERS),
            "asked": _shorten(completion.question, QUESTION_CHARACTERS),
            "version": completion.version,
        }
        for rating, completion in commented[:COMMENTS]
    ]


# Versions


def _versions(data: ReportData, names: dict[str, str], *, text: bool) -> list[Json]:
    """Newest first, the base last."""
    shares = _shares(data.completions)
    runs = {run["id"]: run for run in data.runs}
    completions = {completion.id: completion for completion in data.completions}
    rows = []
    for a in reversed(data.adapters):
        run = runs.get(a["run"])
        gate = a["gate"] or (run or {}).get("gate") or {}
        rows.append(
            {
                "version": a["version"],
                "parent": a["parent"],
                "run": a["run"],
                "made_at": a["created_at"],
                "state": _state(data, a["version"], a),
                "withdrawn": a["withdrawn"],
                "share": shares.get(a["version"]),
                "gate": gate,
                "changes": a.get("changes"),
                "pairs": [
                    {key: _shorten(pair[key], REPLY_CHARACTERS) for key in ("question", "parent_answer", "answer")}
                    for pair in (a["pairs"] if text else ())
                ],
                "base_nll": (gate.get("base_nll") or {}).get("value"),
                "samples": run and run["samples"],
                "held": run and run["held"],
                "taught": _taught(run["account"], completions, names, text=text) if run else None,
            }
        )
    nothing = dict.fromkeys(
        ("parent", "run", "made_at", "withdrawn", "base_nll", "samples", "held", "taught", "changes")
    )
    base = {"version": BASE, "state": _state(data, BASE), "share": shares.get(BASE), "gate": {}, "pairs": []}
    return [*rows, nothing | base]


def _state(data: ReportData, version: int, adapter: Json | None = None) -> str:
    if version == data.live:
        return "live"
    if adapter and not adapter["path"]:
        return "gone"
    if adapter and adapter["withdrawn"]:
        return "withdrawn"
    return "previous" if version == data.previous else ""


def _shares(completions: Iterable[ReportedCompletion]) -> dict[int, Json]:
    """By version, its rated main turns that people found good; one on which they cancel out is neither."""
    counts: dict[int, list[int]] = {}
    for completion in completions:
        opinion = sum(rating.value for rating in completion.ratings)
        if completion.version is not None and completion.turn == "main" and opinion:
            counts.setdefault(completion.version, []).append(opinion > 0)
    shares = {}
    for version, goods in counts.items():
        interval = wilson(sum(goods), len(goods))
        assert interval is not None  # there is at least one
        shares[version] = {"good": sum(goods), "rated": len(goods), **interval._asdict()}
    return shares


def _taught(
    account: Sequence[Json], completions: dict[str, ReportedCompletion], names: dict[str, str], *, text: bool
) -> Json:
    """The ratings that a version was made of, newest first, and how many of each kind."""
    rows, used = list[Json](), [outcome for outcome in account if outcome.get("used")]
    for outcome in account:
        completion = completions.get(outcome["completion"] or "")
        rating = next((r for r in completion.ratings if r.id == outcome["rating"]), None) if completion else None
        row: Json = {
            "at": rating.created_at if rating else 0.0,
            "rater": names[rating.rater] if rating else None,
            "verdict": verdict(rating) if rating else None,  # taken back or forgotten since
            "value": rating.value if rating else None,
            "commented": bool(rating and rating.comment),
            "corrected": bool(rating and rating.correction),
            "used": bool(outcome.get("used")),
            "cause": outcome.get("cause"),
            "tokens": outcome.get("tokens"),
            "accepted": outcome.get("accepted"),
            "loss": outcome.get("loss"),
        }
        if text:
            row["asked"] = _shorten(completion.question, QUESTION_CHARACTERS) if completion else None
            row["comment"] = _shorten(rating.comment, QUESTION_CHARACTERS) if rating and rating.comment else None
        rows.append(row)
    rows.sort(key=lambda row: (row["used"], row["at"]), reverse=True)
    values = [row["value"] for row in rows if row["value"] is not None]
    return {
        "samples": len(rows),
        "used": len(used),
        "good": sum(v > 0 for v in values),
        "bad": sum(v < 0 for v in values),
        "comments": sum(row["commented"] for row in rows),
        "corrections": sum(row["corrected"] for row in rows),
        "rows": rows[:TAUGHT],
    }


# Runs and replies


def _run(run: Mapping[str, Any], *, text: bool) -> Json:
    """Without its folder. Why a run failed may name files of its machine: that is not for others either."""
    columns = ("id", "status", "version", "parent", "samples", "held", "created_at", "metrics", "gate")
    seconds = run["ended_at"] - run["started_at"] if run["ended_at"] and run["started_at"] else None
    reason = run["reason"] if text or run["status"] != "failed" else None
    return {key: run[key] for key in columns} | {
        "seconds": seconds,
        "reason": reason,
        "retried": run["retried"],
        "back": run["back"],
        "steps": [
            {key: step.get(key) for key in ("step", "loss", "acceptance", "kl_ref", "kl_old")} for step in run["steps"]
        ],
    }


def _replies(completions: Sequence[ReportedCompletion]) -> list[Json]:
    return [
        {"kind": pair.kind, "before": _reply(pair.old_reply), "after": _reply(pair.new_reply)}
        for pair in pairs(completions)
    ]


def _reply(completion: ReportedCompletion) -> Json:
    opinion = sum(rating.value for rating in completion.ratings)
    return {
        "version": completion.version,
        "at": completion.created_at,
        "asked": _shorten(completion.question, QUESTION_CHARACTERS),
        "text": _shorten(completion.text, REPLY_CHARACTERS),
        "verdict": ("good" if opinion > 0 else "bad" if opinion < 0 else "undecided") if completion.ratings else None,
    }


def _shorten(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 1].rstrip() + "…"


def local_offset(now: float) -> float:
    return float(time.localtime(now).tm_gmtoff)
