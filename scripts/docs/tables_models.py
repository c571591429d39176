"""The table of docs/lab/models.md: each kind of model before a real llama-server.

Owns its rows. Not here: putting them into the page (tables), the measurement (scripts.models).
"""

from __future__ import annotations

from collections.abc import Mapping
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
