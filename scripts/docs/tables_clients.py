"""The table of docs/lab/agents.md: which client was driven through rlproxy, and what each cell came to.

Of benchmarks/clients.json; names, formats, and reasons are those at the heads of the drivers.
"""

from __future__ import annotations

from typing import Any, Final

from scripts.clients.drivers import FOLDER, Driver, read

CELLS: Final = ("whole", "streamed", "tools", "rated", "last", "id")
FORMATS: Final = {"chat": "chat", "responses": "Responses", "messages": "Messages", "ollama": "Ollama"}
MARKS: Final = {"right": "✓", "cannot": "–"}


def clients(results: dict[str, Any]) -> str:
    lines = ["| client | version | format | whole | streamed | tools | `/rl good` | `last` | id | what it cannot do |"]
    lines.append("|---" * 10 + "|")
    rows = [(read(FOLDER / result["file"]), result) for result in results.values()]
    for driver, result in sorted(rows, key=lambda pair: pair[0].name.lower()):
        for format in driver.formats:
            lines.append(_row(driver, format, result["cells"]))
    machines = sorted(
        {f"{result['machine']['cpu']}, {result['machine']['cores']} cores" for result in results.values()}
    )
    days = sorted({result["date"][:10] for result in results.values()})
    right, cannot, failed = (_count(results, kind) for kind in ("right", "cannot", "failed"))
    counts = f"{right} right, {cannot} that the client cannot, {failed} failed"
    totals = f"{len(results)} clients, {right + cannot + failed} cells: {counts}."
    lines += ["", f"{totals} {' to '.join(dict.fromkeys((days[0], days[-1])))}, {'; '.join(machines)}."]
    return "\n".join(lines)


def side_turns(results: dict[str, Any]) -> str:
    """List what clients ask for themselves, and the rules by which it was told."""
    lines = ["| client | version | format | asks for itself | requests | known by | rated right |", "|---" * 7 + "|"]
    rows = [(read(FOLDER / result["file"]), result) for result in results.values()]
    for driver, result in sorted(rows, key=lambda pair: pair[0].name.lower()):
        for format in driver.formats if driver.side else ():
            texts = [driver.name, driver.version, FORMATS[format], driver.side["asks"], *_side(format, result)]
            lines.append(f"| {' | '.join(texts)} |")
    return "\n".join(lines)


def _side(format: str, result: dict[str, Any]) -> tuple[str, str, str]:
    """The number of requests, the rules, and the outcome."""
    ways = [way for way in result["cells"] if way.split()[0] == format]
    outcomes = dict.fromkeys(result["cells"][way].get("side", "not run") for way in ways)
    marks = " / ".join(MARKS.get(outcome, outcome) for outcome in outcomes)
    counts = [result.get("side", {}).get(way, {}) for way in ways]
    rules = sorted({rule.removeprefix("side ") for count in counts for rule in count})
    return str(sum(sum(count.values()) for count in counts)), ", ".join(rules), marks


def _row(driver: Driver, format: str, cells: dict[str, dict[str, str]]) -> str:
    ways = [outcome_by_cell for way, outcome_by_cell in cells.items() if way.split()[0] == format]
    texts = []
    for cell in CELLS:
        outcomes = dict.fromkeys(outcome_by_cell.get(cell, "failed") for outcome_by_cell in ways)
        texts.append(" / ".join(MARKS.get(outcome, outcome) for outcome in outcomes) or "failed")
    lacks = {cell: driver.lack(cell, format) for cell in CELLS}
    reasons = "; ".join(dict.fromkeys(f"{_label(cell)}: {reason}" for cell, reason in lacks.items() if reason))
    command = driver.rate.strip() + ("" if driver.rate.endswith(":") else " ")
    if driver.rate != "/rl " and not driver.lack("rated", format):
        texts[3] = f"`{' ' if driver.rate.startswith(' ') else ''}{command}good`"
    return f"| {driver.name} | {driver.version} | {FORMATS[format]} | {' | '.join(texts)} | {reasons} |"


def _label(cell: str) -> str:
    return {"rated": "`/rl`"}.get(cell, cell)


def _count(results: dict[str, Any], kind: str) -> int:
    ways = [way for result in results.values() for way in result["cells"].values()]
    outcomes = [way.get(cell, "failed") for way in ways for cell in CELLS]
    return sum(outcome == kind or (kind == "right" and outcome.endswith("only")) for outcome in outcomes)
