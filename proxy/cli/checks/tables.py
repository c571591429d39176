"""The table of an evaluation, for people."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from rich.table import Table

from proxy.cli.tables import console
from proxy.core.version_names import label, version_in_words

MOST_FAILURES: Final = 10


def show_evaluation(summary: Mapping[str, Any]) -> None:
    versions = summary["versions"]
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("check")
    for version in versions:
        table.add_column(label(version["version"]), justify="right")
    for name in summary["checks"]:
        table.add_row(name, *(share_text(version["checks"][name]) for version in versions))
    table.add_row("all of them", *(share_text(version["all"]) for version in versions))
    console().print(table)
    for line in lines(summary):
        console().print(line, soft_wrap=True)


def share_text(share: Mapping[str, Any]) -> str:
    """Write "12/20  60 % (39–78)", with 95 % bounds."""
    total = share["passed"] + share["failed"]
    unknown = f" +{share['unknown']} ?" if share["unknown"] else ""
    if not total:
        return f"–{unknown}"
    bounds = f"{share['low'] * 100:.0f}–{share['high'] * 100:.0f}"
    return f"{share['passed']}/{total}  {share['share']:.0%} ({bounds}){unknown}"


def lines(summary: Mapping[str, Any]) -> Iterator[str]:
    """Sentences below the table: what was asked, comparisons, slices, episodes, failures of the last version."""
    line = f"{summary['prompts']} prompts, {summary['captured']} of them captured"
    yield line + (f", and {summary['trained']} of those trained a version" if summary["trained"] else "")
    for each in summary["comparisons"]:
        second, first = version_in_words(each["second"]), version_in_words(each["first"])
        yield (
            f"{second} against {first}: better on {each['better']}, worse on {each['worse']} of {each['prompts']} "
            f"prompts (exact McNemar p = {each['p']:.3g})"
        )
        yield from (f"  {place['sentence']} (p = {place['p']:.3g})" for place in each["slices"])
    for each in summary["episodes"]:
        yield f"{version_in_words(each['version'])}: {each['success']:.0%} of {each['episodes']} eval episodes succeed"
    yield from failures(summary)


def failures(summary: Mapping[str, Any]) -> Iterator[str]:
    """Prompts on which the last version fails, or that it did not answer."""
    if not summary["versions"]:
        return
    last = summary["versions"][-1]["version"]
    failed = [row for row in summary["rows"] if row["version"] == last and (row["ok"] is False or row["problem"])]
    for row in failed[:MOST_FAILURES]:
        mark = " (trained)" if row["trained"] else ""
        reasons = [f"{name} {each['reason']}" for name, each in row["verdicts"].items() if each["ok"] is False]
        yield f"  {label(last)} on {row['prompt']}{mark}: {'; '.join(reasons) or row['problem']}"
    if len(failed) > MOST_FAILURES:
        yield f"  and {len(failed) - MOST_FAILURES} more; `--json` has all of them"
