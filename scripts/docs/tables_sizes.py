"""The tables of docs/lab/sizes.md: plans beside whole runs, and plans of published models.

Owns their rows. Not here: putting them into the page (tables), the measurement (scripts.models.plan_check).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

GB: Final = 2**30
SHORT: Final = {"bfloat16": "bfloat16", "4 bits": "4 bits", "frozen layers on the CPU": "offload"}
SERVERS: Final = {"vllm": "vLLM, 16 bits", "ollama": "Ollama, 4.9 bits"}


def plan_check(report: Mapping[str, Any]) -> str:
    lines = [
        "| model | memory, predicted | measured | ratio | processor, predicted | measured | ratio | adapter, ratio |",
        "|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for name, result in report["models"].items():
        predicted, measured, ratios = result["predicted"], result["measured"], result["ratios"]
        lines.append(
            f"| {name} | {predicted['gb']:.2f} GB | {measured['gb']:.2f} GB | {ratios['memory']:.2f} "
            f"| {predicted['seconds']:.0f} s | {measured['cpu_s']:.0f} s | {ratios['time']:.2f} "
            f"| {ratios['adapter']:.2f} |"
        )
    results = list(report["models"].values())
    loads = [result["machine"]["load_before"] for result in results]
    machine = results[0]["machine"]
    commits = ", ".join(dict.fromkeys(f"`{result['commit']}`" for result in results))
    lines += [
        "",
        f"{results[-1]['date'][:10]}, {machine['cpu']}, {machine['cores']} cores, one thread, load {min(loads):.0f} to "
        f"{max(loads):.0f} by other programs, {commits}.",
    ]
    return "\n".join(lines)


def plan_published(report: Mapping[str, Any]) -> str:
    rows: Sequence[Mapping[str, Any]] = report["published"]
    cards = sorted({row["card_gb"] for row in rows})
    heads = [f"on {card} GB" for card in cards]
    lines = [
        f"| model | server | it takes | a version | {' | '.join(heads)} |",
        "|---|---|---:|---:" + "|---" * len(cards) + "|",
    ]
    for key in dict.fromkeys((row["model"], row["server"]) for row in rows):
        group = {row["card_gb"]: row for row in rows if (row["model"], row["server"]) == key}
        first = group[cards[0]]
        cells = " | ".join(_advice(group[card]) for card in cards)
        version = first["version"] / 1e9
        size = f"{version:.1f} GB" if version >= 1 else f"{version * 1000:.0f} MB"
        lines.append(f"| {key[0]} | {SERVERS[key[1]]} | {first['serving'] / GB:.1f} GB | {size} | {cells} |")
    return "\n".join(lines)


def _advice(row: Mapping[str, Any]) -> str:
    if row["advised"] is None:
        return "no run fits"
    name = row["advised"]
    size = f"{SHORT[name]}, {row['ways'][name] / GB:.1f} GB"
    if not row["serves"]:
        return f"{size}, alone: the server does not fit"
    return size if row["beside"] else f"{size} (share_gpu)"
