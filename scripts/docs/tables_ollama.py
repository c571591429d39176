"""The tables of docs/lab/ollama.md, and one of docs/lab/operations.md.

- what clients met while things happened
- what was learned after other templates than the weights'
- what a version of a large model costs
- the shares of exact tokens
- what is left of a run in files of several sizes (docs/lab/backends.md)
- answer times during a run (docs/lab/operations.md)

Owns their rows. Not here: putting them into the page (tables), the measurements (ollama_faults,
bench.ollama_templates, bench.versions, bench.yielding).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

GB, MB = 1e9, 1e6
WAYS: Final = {
    "whole": "Ollama since 0.34.1: a whole model",
    "lora": "Ollama before 0.34.1: a LoRA file",
    "llama-server": "its llama-server, run by rlproxy",
}
_SAMPLES: Final = re.compile(r"on (\d+) samples?")  # in a run's result
SIZES: Final = {"1B": 1.07e9, "3B": 2.97e9, "8B": 7.18e9}  # parameters, with the small model's vocabulary


def faults(by_server: Mapping[str, Any]) -> str:
    names = list(dict.fromkeys(name for result in by_server.values() for name in result["faults"]))
    lines = [f"| fault | {' | '.join(by_server)} |", "|---" * (len(by_server) + 1) + "|"]
    for name in names:
        cells = [_encounters(result["faults"].get(name)) for result in by_server.values()]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    rows = [fault for result in by_server.values() for fault in result["faults"].values()]
    wrong, lost = (sum(len(fault[key]) for fault in rows) for key in ("wrong", "lost"))
    lines += [
        "",
        f"{sum(fault['answers'] for fault in rows)} answers in all: {wrong} wrong, {lost} lost. "
        f"{_circumstances(by_server.values())}",
    ]
    return "\n".join(lines)


def _encounters(fault: Mapping[str, Any] | None) -> str:
    if fault is None:
        return "–"
    live = "base" if fault["live_after"] == 0 else f"v{fault['live_after']}"
    bad = f"{len(fault['wrong'])} wrong, {len(fault['lost'])} lost"
    return f"{fault['answers']} answers, {bad}, {fault['failed']} told why not; then {live}"


def token_shares(by_server: Mapping[str, Any]) -> str:
    """The table of each kind of text: which share of the ids, and of the log-probs, is the server's own."""
    kinds = list(dict.fromkeys(kind for result in by_server.values() for kind in result["shares"]))
    lines = [f"| ids, log-probs | {' | '.join(by_server)} |", "|---" * (len(by_server) + 1) + "|"]
    for kind in sorted(kinds, key=lambda kind: (kind in ("whole", "stream", "all"), kind == "all", kind)):
        cells = [_share(result["shares"].get(kind)) for result in by_server.values()]
        lines.append(f"| {kind} | {' | '.join(cells)} |")
    tokens = ", ".join(f"{name}: {result['shares']['all']['tokens']:,}" for name, result in by_server.items())
    return "\n".join([*lines, "", f"Tokens of {tokens}. {_circumstances(by_server.values())}"])


def version_size(report: Mapping[str, Any]) -> str:
    """The table of what is left of a run in files of several sizes."""
    heads = "weights in | stored in | nats off | liked over disliked, nats"
    lines = [f"| {heads} |", "|---" * (heads.count("|") + 1) + "|"]
    for kind, result in report["types"].items():
        lines.append(f"| {kind} | the adapter apart, exact | 0 | {result['margin']:.2f} |")
        for way, row in result["ways"].items():
            lines.append(f"| {kind} | {way} | {row['off']:.2f} | {row['margin']:.2f} |")
    first = next(iter(report["types"].values()))
    runs = ", ".join(f"{kind} {result['run']:.2f}" for kind, result in report["types"].items())
    lines += ["", f"{first['tokens']:,} tokens. The run moved them by {runs} nats. {_circumstances([report])}"]
    return "\n".join(lines)


def _share(row: Mapping[str, Any] | None) -> str:
    return "–" if row is None else f"{row['ids_share']:.0%}, {row['log_probs_share']:.0%}"


def templates(by_server: Mapping[str, Any]) -> str:
    heads = "server | template | seed | good of 32 | prompts of the run | trained | run | liked, held out: base | after"
    lines = [f"| {heads} |", "|---" * (heads.count("|") + 1) + "|"]
    results = []
    for server, by_template in by_server.items():
        for template, by_seed in by_template.items():
            for seed, result in by_seed.items():
                results.append(result)
                tool_note = ", asked with a tool" if result["tools"] else ""
                lines.append(f"| {server} | {template}{tool_note} | {seed} | {result['good']} | {_learned(result)} |")
    counts = sorted({result["held_out"] for result in results})
    prompts = " or ".join(map(str, counts))
    error = 0.5 / counts[0] ** 0.5
    return "\n".join(
        [*lines, "", f"{prompts} held-out prompts: a standard error of {error:.2f} at most. {_circumstances(results)}"]
    )


def _learned(result: Mapping[str, Any]) -> str:
    base_liked = f"{result['base']['liked']:.2f}"
    if (run := result["run"]) is None:
        return f"– | – | none starts: {result['match']['line']} | {base_liked} | –"
    prompts = (run.get("choices") or {}).get("prompts", ["–"])[0]
    samples = _SAMPLES.search(str(run["reason"])) if run["status"] == "done" else None
    liked = "–" if result["after"] is None else f"{result['after']['liked']:.2f}"
    ended = f"v{result['live']} is live" if result["live"] else f"{run['status']}: {run['reason']}"
    return f"{prompts} | {samples[1] if samples else 0} | {ended}, {run['seconds']:.0f} s | {base_liked} | {liked}"


def yielding(report: Mapping[str, Any]) -> str:
    """Answer times during a run over those without, before and after runs yielded."""
    heads = (
        "server | runs yield | alone, median | slowest | asked all the while, median | slowest | a question every 10 s"
    )
    heads += " | a run: nobody asks, every 10 s, all the while"
    lines = [f"| {heads} |", "|---" * (heads.count("|") + 1) + "|"]
    rows = sorted(report["rows"], key=lambda row: (row["backend"], row["yields"]))
    for row in rows:
        idle, busy, light = row["alone"], row["all"], row.get("light")
        cells = [
            row["backend"], "yes" if row["yields"] else "no", f"{idle['median_s']:.2f} s",
            f"{idle['slowest_s']:.2f} s", f"× {busy['median_ratio']:.2f}", f"× {busy['slowest_ratio']:.2f}",
            f"× {light['median_ratio']:.2f}, × {light['slowest_ratio']:.2f}" if light else "–",
            ", ".join(_seconds(row["run_s"], way, row["runs"]) for way in ("nobody", "a question", "asked")),
        ]  # fmt: skip
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, "", _circumstances(rows)])


def _seconds(spent: Mapping[str, float], way: str, ended: Sequence[str]) -> str:
    by_way = {name: (seconds, end) for (name, seconds), end in zip(spent.items(), ended, strict=False)}
    seconds, end = next((pair for name, pair in by_way.items() if name.startswith(way)), (None, ""))
    return "–" if seconds is None else f"{'over ' if end == 'cut short' else ''}{seconds:.0f} s"


def versions(by_model: Mapping[str, Any]) -> str:
    heads = (
        "model | a version as | processor, rlproxy + server | wall, busy machine | disk while it is made | disk of one"
    )
    lines = [f"| {heads} |", "|---" * (heads.count("|") + 1) + "|"]
    for model, ways in by_model.items():
        for way, words in WAYS.items():
            if (result := ways.get(way)) is not None:
                spent = result["processor_s"]
                lines.append(
                    f"| {model}, {result['model_bytes'] / GB:.1f} GB | {words} | {spent['rlproxy']:.0f} + "
                    f"{spent['server']:.0f} s | {result['all_s']:.0f} s | {_size(result['most_bytes'])} "
                    f"| {_size(result['bytes_of_one'])} |"
                )
            elif (guess := _extrapolated(model, way, by_model)) is not None:
                lines.append(f"| {model} | {words}, **extrapolated** | {guess} |")
    results = [result for ways in by_model.values() for result in ways.values()]
    return "\n".join([*lines, "", _circumstances(results)])


def _extrapolated(model: str, way: str, by_model: Mapping[str, Any]) -> str | None:
    """By the parameters, from the largest that was measured in this type."""
    size, kind = model.split()
    candidates = [name for name in by_model if name.endswith(kind) and way in by_model[name]]
    if not candidates:
        return None
    last = max(candidates, key=lambda name: SIZES[name.split()[0]])
    result, factor = by_model[last][way], SIZES[size] / SIZES[last.split()[0]]
    spent = result["processor_s"]
    return (
        f"{spent['rlproxy'] * factor:.0f} + {spent['server'] * factor:.0f} s | – "
        f"| {_size(result['most_bytes'] * factor)} | {_size(result['bytes_of_one'] * factor)}"
    )


def _size(count: float) -> str:
    return f"{count / GB:.1f} GB" if count >= GB else f"{count / MB:.0f} MB"


def _circumstances(results: Iterable[Mapping[str, Any]]) -> str:
    results = list(results)
    dates = sorted({result["date"][:10] for result in results})
    loads = sorted(result["machine"]["load_before"] for result in results)
    commits = ", ".join(dict.fromkeys(f"`{result['commit']}`" for result in results))
    machine = results[0]["machine"]
    return (
        f"{' to '.join(dict.fromkeys((dates[0], dates[-1])))}, {machine['cpu']}, {machine['cores']} cores, load "
        f"{loads[0]:.0f} to {loads[-1]:.0f} by other programs, {commits}."
    )
