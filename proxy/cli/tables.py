"""Tables that the CLI prints for people, with rich. For programs there is `--json`."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from config.gate_checks import question
from config.settings import Row
from proxy.core.terminal import escape_controls, styled
from proxy.core.version_names import label
from store.line_records import COMMON

if TYPE_CHECKING:
    from proxy.cli.doctor.facts import DoctorCheck

REJECTED = {
    "rejected_fresh_mismatch": "the server computes them otherwise than the trainer",
    "rejected_stale": "of earlier versions, moved on since",
    "rejected_token": "drifted one by one",
}


MARKS: Final = {"ok": ("✓", "green"), "note": ("!", "yellow"), "problem": ("✗", "red"), "unknown": ("?", "dim")}


class _Console(Console):
    """Cells are text: no markup, and nothing that a terminal would act on. Styles are added to it later."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(escape_controls(segment.text), segment.style)


def console() -> Console:
    return _Console(file=styled(sys.stdout), markup=False, emoji=False)


def error_console() -> Console:
    return _Console(file=styled(sys.stderr), markup=False, emoji=False)


def panel_console() -> Console:
    """A console as large as its terminal: COLUMNS and LINES may be those of the shell that opened its pane."""
    size_free = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
    return _Console(file=styled(sys.stdout), markup=False, emoji=False, _environ=size_free)


def show_checks(checks: Iterable[DoctorCheck]) -> None:
    """A line each, and the fix below it. What cannot be known for one reason is one line."""
    grid = Table.grid(padding=(0, 2))
    by_line: dict[str, list[str]] = {}
    for check in (checks := list(checks)):
        if check.state == "unknown" and not check.fix:
            by_line.setdefault(check.line, []).append(check.name)
    for check in checks:
        if len(alike := by_line.get(check.line, [])) > 1 and check.name in alike:
            continue
        mark, style = MARKS[check.state]
        grid.add_row(Text(mark, style=style), Text(check.name), Text(check.line))
        if check.fix:
            grid.add_row("", "", Text(f"→ {check.fix}", style="bold"))
    mark, style = MARKS["unknown"]
    for line, names in by_line.items():
        if len(names) > 1:
            grid.add_row(Text(mark, style=style), Text(f"{len(names)} more"), Text(f"{line}: {', '.join(names)}"))
    console().print(grid)


def acceptance(metrics: dict[str, Any]) -> str:
    """Which share of the reply tokens trained, and what kept out the rest."""
    if metrics.get("acceptance") is None:
        return ""
    causes = ", ".join(
        f"{metrics[key]:.1%} ({words})" for key, words in REJECTED.items() if (metrics.get(key) or 0.0) >= 0.0005
    )
    text = f"{metrics['acceptance']:.1%} of the rated tokens can train" + (f"; left out {causes}" if causes else "")
    if late_count := metrics.get("late"):
        noun = "turns" if metrics.get("episodes") else "ratings"
        text += f"; {metrics.get('late_trained', 0):.0f} of {late_count:.0f} late {noun} trained"
    return text


def show_adapters(listing: dict[str, Any]) -> None:
    if not listing["data"]:
        print("There is no version yet: the base model answers. `rlproxy status` says what the first run waits for.")
        return
    table = table_of("version", "parent", "run", "made", "live", "gate", "changed", long=2)
    for a in listing["data"]:
        mark = (
            "live"
            if a["live"]
            else "gone"
            if not a["path"]
            else "rolled back"
            if a["withdrawn"]
            else "previous"
            if a["previous"]
            else ""
        )
        table.add_row(
            f"v{a['version']}" if a["line"] == COMMON else f"v{a['version']} ({a['line']})",
            label(a["parent"]),
            str(a["run"] or ""),
            format_time(a["created_at"]),
            mark,
            gate(a),
            (a["changes"] or {}).get("line", ""),
        )
    console().print(table)
    print("`rlproxy adapters VERSION` shows what one changed, in three prompts.")


def show_changes(adapter: dict[str, Any]) -> None:
    """Print what a version changed: a sentence, and prompts with both answers."""
    changes, name, parent = adapter["changes"], label(adapter["version"]), label(adapter["parent"])
    if changes is None:
        print(f"What {name} changed was not measured: it came from elsewhere, or no rated prompt could be asked.")
        return
    print(f"{name} against {parent}: {changes['line']}")
    print(f"({changes['basis']})")
    for pair in adapter["pairs"]:
        table = Table(parent, name, title=Text(pair["question"]), title_justify="left", expand=True)
        table.add_row(Text(pair["parent_answer"]), Text(pair["answer"]))
        console().print(table)
    if not adapter["pairs"]:
        print("Its prompts were forgotten since.")


def show_runs(runs: list[dict[str, Any]]) -> None:
    if not runs:
        print("There was no run yet. `rlproxy status` says what the first one waits for.")
        return
    table = table_of("run", "status", "version", "samples", "seconds", "gate", "reason", long=2)
    for r in runs:
        seconds = f"{r['ended_at'] - r['started_at']:.0f}" if r["ended_at"] and r["started_at"] else ""
        version = f"v{r['version']}" if r["version"] else ""
        samples = f"{r['samples']}, {r['held']} held"
        # A reason that only says what the gate said is in the column before.
        reason = "" if r["status"] in ("rejected", "done") and r["gate"] else r["reason"] or ""
        table.add_row(str(r["id"]), r["status"], version, samples, seconds, gate(r), reason)
    console().print(table)


def show_run(r: dict[str, Any]) -> None:
    """All there is to know of one run."""
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim")
    grid.add_column()
    grid.add_row(
        "run", f"{r['id']}, {r['status']}, from {label(r['parent'])}" + (f" to v{r['version']}" * bool(r["version"]))
    )
    grid.add_row("reason", Text(r["reason"] or ""))
    if r["retried"]:
        grid.add_row("first try", Text(f"dropped by rlproxy: {r['retried']}; the numbers below are of the second"))
    if r["back"]:
        line = f"too far: {r['back']}; so half of it was taken back, and the numbers below are of that"
        grid.add_row("at its end", Text(line))
    grid.add_row("samples", f"{r['samples']}, {r['held']} of them held back for the gate")
    if accepted := acceptance(r["metrics"] or {}):
        grid.add_row("tokens", accepted)
    for message in r["warnings"]:
        grid.add_row("note", Text(message, style="yellow"))
    grid.add_row("folder", Text(r["folder"]))
    console().print(grid)
    if r["gate"]:
        table = table_of("gate", "value", "bound", "", "what it asks")
        for name, c in r["gate"].items():
            skipped = c["ok"] and c["value"] is None
            sign, style = ("–", "dim") if skipped else ("✓", "green") if c["ok"] else ("✗", "red")
            mark = Text(sign, style=style)
            note = f"; {c['note']}" if c.get("note") else ""
            table.add_row(name, number(c["value"]), number(c["bound"]), mark, f"{question(name)}{note}")
        console().print(table)
    odd_samples = [sample for sample in r["account"] if sample.get("flags") or sample["cause"]]
    if odd_samples:
        table = table_of("completion", "odd", "trained", "kept out as", "why")
        for sample in odd_samples:
            flags = ", ".join(sample.get("flags") or ())
            trained = "yes" if sample["used"] else "no"
            table.add_row(sample["completion"] or "", flags, trained, sample["cause"] or "", sample.get("reason") or "")
        console().print(table)
    if r["choices"]:
        own_choices = [choice for choice in r["choices"] if not str(choice["why"]).startswith("preset ")]
        table = table_of("choice", "value", "why", long=2)
        for choice in own_choices:
            table.add_row(choice["name"], number(choice["value"]), choice["why"])
        console().print(table)
        if preset_count := len(r["choices"]) - len(own_choices):
            print(
                f"{preset_count} more settings are as the preset has them; `rlproxy runs {r['id']} --json` lists them."
            )


def table_of(*columns: str, long: int = 1) -> Table:
    """The last columns, `long` of them, give way where the terminal is narrow; the others stay on one line."""
    table = Table()
    for index, column in enumerate(columns, long):
        table.add_column(column, no_wrap=index < len(columns))
    return table


def show_settings(rows: Iterable[Row]) -> None:
    table = Table("setting", "value", "from", "meaning")
    for row in rows:
        table.add_row(row.key, row.value, row.source, row.help)
    console().print(table)


def show_keys(keys: list[dict[str, Any]]) -> None:
    if not keys:
        print("No key was ever handed out.")
        return
    table = table_of("key", "name", "role", "made", "last used", "")
    for key in keys:
        used = format_time(key["last_used"]) if key["last_used"] else "never"
        ended = Text(f"revoked {format_time(key['revoked_at'])}", style="yellow") if key["revoked_at"] else ""
        role = key["role"] if key.get("line") is None else f"{key['role']}, line {key['line']}"
        table.add_row(key["id"], key["name"], role, format_time(key["created_at"]), used, ended)
    console().print(table)


def show_audit(lines: list[dict[str, Any]]) -> None:
    if not lines:
        print("Nobody has changed anything yet.")
        return
    table = table_of("time", "actor", "act", "detail")
    for line in lines:
        detail = ", ".join(f"{name} {value}" for name, value in line["detail"].items())
        table.add_row(format_time(line["created_at"]), line["actor"], line["act"], detail)
    console().print(table)


def gate(row: dict[str, Any]) -> str:
    """In one line: passed, or the first check that refused a run. A version is one that passed."""
    checks = row["gate"] or {}
    failed_check = next((name for name, c in checks.items() if not c["ok"]), None)
    if failed_check and row.get("status", "done") != "done":
        c = checks[failed_check]
        side = "<" if c["value"] < c["bound"] else ">"
        return f"rejected: {failed_check} {number(c['value'])} {side} {number(c['bound'])}"
    retry_note = " at the second try" if row.get("retried") else ""
    retry_note += ", half of the way back" if row.get("back") else ""
    comments_note = "; only comments taught" if failed_check else ""  # what judges the ratings stops none but them
    return f"passed{retry_note}{comments_note}" if checks else ""


def verdict(row: dict[str, Any]) -> str:
    """Do `gate` with what the check asks."""
    text = gate(row)
    check = text.removeprefix("rejected: ").partition(" ")[0] if text.startswith("rejected: ") else ""
    return f"{text} (the gate asks: {question(check)})" if check else text


def number(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else "–" if value is None else str(value)


def format_time(timestamp: float) -> str:
    try:
        return time.strftime("%Y-%m-%d %H:%M", time.localtime(timestamp))
    except (OverflowError, ValueError, OSError):  # no calendar has it
        return "–"
