"""The tables of docs/lab/models.md: kinds of models before real servers, and the whole loop with two real models.

Owns their rows. Not here: putting them into the page (tables), the measurements (scripts.models).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def models(report: Mapping[str, Any]) -> str:
    kinds = report["kinds"]
    lines = ["| kind | layers | left out | difference, plain | with adapter | effect |", "|---|---|---|---:|---:|---:|"]
    lines += [_row(kinds[kind]) for kind in sorted(kinds)]
    tried = [result for result in kinds.values() if "error" not in result]
    exact = sum(max(result["base"], result["adapter"]) <= 2e-3 for result in tried)
    dates = sorted({result["date"][:10] for result in kinds.values()})
    return "\n".join(
        [
            *lines,
            "",
            f"{len(kinds)} kinds: {exact} within 0.002 nats, {len(tried) - exact} further, "
            f"{len(kinds) - len(tried)} not run. {' and '.join(dates)}, on {report['machine']}.",
        ]
    )


def _row(result: Mapping[str, Any]) -> str:
    if "error" in result:
        return f"| {result['kind']} | not run | {' '.join(result['error'].split())[-120:]} | | | |"
    layers, left_out = " ".join(result["layers"]), " ".join(result["left_out"])
    numbers = " | ".join(f"{result[name]:.1g}" for name in ("base", "adapter", "served_effect"))
    return f"| {result['kind']} | {layers} | {left_out} | {numbers} |"


def at_ollama(report: Mapping[str, Any]) -> str:
    """Eight kinds before real Ollamas: a version as an adapter, and as a whole model."""
    lines = [
        "| kind | Ollama | a version is | difference, plain | version | effect | left out |",
        "|---|---|---|---:|---:|---:|---|",
    ]
    for kind in sorted({kind for kinds in report.values() for kind in kinds}):
        for server, kinds in sorted(report.items()):
            if kind in kinds:
                lines.append(f"| {kind} | {server} | {_at_ollama(kinds[kind])} |")
    results = [result for kinds in report.values() for result in kinds.values()]
    return "\n".join([*lines, "", _circumstances(results)])


def _at_ollama(result: Mapping[str, Any]) -> str:
    if "error" in result:
        return f"not run: {result['error'][-120:]} | | | | "
    left_out = " ".join(result["left_out"])
    if "base" in result:
        numbers = " | ".join(f"{result[name]:.1g}" for name in ("base", "version", "served_effect"))
        return f"{result['way']} | {numbers} | {left_out}"
    equal = (f"{result[name]} of 3 texts equal" for name in ("greedy_base", "greedy_version"))
    return f"{result['way']} | {' | '.join(equal)} | {result['greedy_moved']} of 3 texts changed | {left_out}"


def whole_loop(report: Mapping[str, Any]) -> str:
    """Rounds of ratings with each model before each server: what they came to, and what they cost."""
    lines = [
        "| model | server | doctor's comparison | round | good | run | base NLL, of its bound | liked, held out "
        "| run, of it gate | version's bytes |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    swaps = [
        "| model | server | rollback | promotion | most memory: trainer, server |",
        "|---|---|---|---|---|",
    ]
    for model, servers in report.items():
        for server, result in servers.items():
            distance = (result["status"]["match"].get("apart") or {}) if result.get("status") else {}
            liked = result["base"]["liked"]
            for number, row in enumerate(result["rounds"], 1):
                lines.append(f"| {model} | {server} | {_distance(distance)} | {number} | {_round(row, liked)} |")
                liked = (row.get("after") or {"liked": liked})["liked"]
            if result.get("swaps"):
                swaps.append(f"| {model} | {server} | {_swaps(result)} |")
    results = [result for servers in report.values() for result in servers.values()]
    return "\n".join([*lines, "", *([*swaps, ""] if len(swaps) > 2 else ()), _circumstances(results)])


def _distance(distance: Any) -> str:
    return f"{distance:.3f} nats" if isinstance(distance, float) else "–"


def _round(row: Mapping[str, Any], liked: float) -> str:
    good = f"{sum(answer['liked'] for answer in row['answers'])} of {len(row['answers'])}"
    run, evaluation = row["run"], row.get("after")
    if run is None:
        return f"{good} | none | – | {liked:.2f} | – | – "
    check = (run["gate"] or {}).get("base_nll") or {}
    nll = f"{check['value']:+.3f} of {check['bound']:.2f}" if check.get("value") is not None else "–"
    moved = f"{liked:.2f} → {evaluation['liked']:.2f}" if evaluation else f"{liked:.2f} → not asked"
    gate_s = (run["metrics"] or {}).get("seconds_gate")
    seconds = f"{run['seconds']:.0f} s" + (f", {gate_s:.0f} s" if gate_s else "")
    return f"{good} | {run['status']} | {nll} | {moved} | {seconds} | {row['bytes'] / 1e6:.0f} MB"


def _swaps(result: Mapping[str, Any]) -> str:
    seconds = (f"{result['swaps'][name]['seconds']:.1f} s" for name in ("rollback", "promote"))
    memory = ", ".join(f"{result['most_bytes'].get(kind, 0) / 1e9:.1f} GB" for kind in ("trainer", "server"))
    return f"{' | '.join(seconds)} | {memory}"


def _circumstances(results: Sequence[Mapping[str, Any]]) -> str:
    dates = " and ".join(sorted({result["date"][:10] for result in results}))
    machine, loads = results[0]["machine"], sorted(result["machine"]["load_before"] for result in results)
    commits = ", ".join(sorted({f"`{result['commit']}`" for result in results}))
    load = f"{loads[0]:.0f} to {loads[-1]:.0f}" if len(loads) > 1 else f"{loads[0]:.0f}"
    return f"{dates}, {machine['cpu']}, {machine['cores']} cores, load {load} by other programs, {commits}."
