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
from collections.abc import Mapping, Sequence
from typing import Any, Final

GB, MB = 1e9, 1e6
WAYS: Final = {
    "whole": "Ollama since 0.34.1: a whole model",
    "lora": "Ollama before 0.34.1: a LoRA file",
    "llama-server": "its llama-server, run by rlproxy",
}
_SAMPLES: Final = re.compile(r"on (\d+) samples?")  # in a run's result
SIZES: Final = {"1B": 1.07e9, "3B": 2.97e9, "8B": 7.18e9}  # parameters, with the small model's vocabulary


def faults(found: Mapping[str, Any]) -> str:
    names = list(dict.fromkeys(name for one in found.values() for name in one["faults"]))
    lines = [f"| fault | {' | '.join(found)} |", "|---" * (len(found) + 1) + "|"]
    for name in names:
        cells = [_met(one["faults"].get(name)) for one in found.values()]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    every = [fault for one in found.values() for fault in one["faults"].values()]
    wrong, lost = (sum(len(fault[key]) for fault in every) for key in ("wrong", "lost"))
    lines += [
        "",
        f"{sum(fault['answers'] for fault in every)} answers in all: {wrong} wrong, {lost} lost. {_when(found)}",
    ]
    return "\n".join(lines)


def _met(fault: Mapping[str, Any] | None) -> str:
    if fault is None:
        return "–"
    live = "base" if fault["live_after"] == 0 else f"v{fault['live_after']}"
    bad = f"{len(fault['wrong'])} wrong, {len(fault['lost'])} lost"
    return f"{fault['answers']} answers, {bad}, {fault['failed']} told why not; then {live}"


def token_shares(found: Mapping[str, Any]) -> str:
    """The table of each kind of text: which share of the ids, and of the log-probs, is the server's own."""
    kinds = list(dict.fromkeys(kind for one in found.values() for kind in one["shares"]))
    lines = [f"| ids, log-probs | {' | '.join(found)} |", "|---" * (len(found) + 1) + "|"]
    for kind in sorted(kinds, key=lambda kind: (kind in ("whole", "stream", "all"), kind == "all", kind)):
        cells = [_share(one["shares"].get(kind)) for one in found.values()]
        lines.append(f"| {kind} | {' | '.join(cells)} |")
    tokens = ", ".join(f"{name}: {one['shares']['all']['tokens']:,}" for name, one in found.items())
    return "\n".join([*lines, "", f"Tokens of {tokens}. {_when(found)}"])


def version_size(found: Mapping[str, Any]) -> str:
    """The table of what is left of a run in files of several sizes."""
    heads = "weights in | stored in | nats off | liked over disliked, nats"
    lines = [f"| {heads} |", "|---" * (heads.count("|") + 1) + "|"]
    for kind, one in found["types"].items():
        lines.append(f"| {kind} | the adapter apart, exact | 0 | {one['margin']:.2f} |")
        for way, row in one["ways"].items():
            lines.append(f"| {kind} | {way} | {row['off']:.2f} | {row['margin']:.2f} |")
    first = next(iter(found["types"].values()))
    runs = ", ".join(f"{kind} {one['run']:.2f}" for kind, one in found["types"].items())
    lines += ["", f"{first['tokens']:,} tokens. The run moved them by {runs} nats. {_when({'': found})}"]
    return "\n".join(lines)


def _share(one: Mapping[str, Any] | None) -> str:
    return "–" if one is None else f"{one['ids_share']:.0%}, {one['log_probs_share']:.0%}"


def templates(found: Mapping[str, Any]) -> str:
    heads = "server | template | seed | good of 32 | prompts of the run | trained | run | liked, held out: base | after"
    lines = [f"| {heads} |", "|---" * (heads.count("|") + 1) + "|"]
    flat = {}
    for server, by_template in found.items():
        for template, by_seed in by_template.items():
            for seed, one in by_seed.items():
                flat[f"{server} {template} {seed}"] = one
                asked = ", asked with a tool" if one["tools"] else ""
                lines.append(f"| {server} | {template}{asked} | {seed} | {one['good']} | {_learned(one)} |")
    counts = sorted({one["held_out"] for one in flat.values()})
    held = " or ".join(map(str, counts))
    error = 0.5 / counts[0] ** 0.5
    return "\n".join([*lines, "", f"{held} held-out prompts: a standard error of {error:.2f} at most. {_when(flat)}"])


def _learned(one: Mapping[str, Any]) -> str:
    before = f"{one['base']['liked']:.2f}"
    if (run := one["run"]) is None:
        return f"– | – | none starts: {one['match']['line']} | {before} | –"
    prompts = (run.get("choices") or {}).get("prompts", ["–"])[0]
    counted = _SAMPLES.search(str(run["reason"])) if run["status"] == "done" else None
    after = "–" if one["after"] is None else f"{one['after']['liked']:.2f}"
    ended = f"v{one['live']} is live" if one["live"] else f"{run['status']}: {run['reason']}"
    return f"{prompts} | {counted[1] if counted else 0} | {ended}, {run['seconds']:.0f} s | {before} | {after}"


def yielding(found: Mapping[str, Any]) -> str:
    """Answer times during a run over those without, before and after runs yielded."""
    heads = (
        "server | runs yield | alone, median | slowest | asked all the while, median | slowest | a question every 10 s"
    )
    heads += " | a run: nobody asks, every 10 s, all the while"
    lines = [f"| {heads} |", "|---" * (heads.count("|") + 1) + "|"]
    rows = sorted(found["rows"], key=lambda row: (row["backend"], row["yields"]))
    for row in rows:
        alone, every, light = row["alone"], row["all"], row.get("light")
        cells = [
            row["backend"], "yes" if row["yields"] else "no", f"{alone['median_s']:.2f} s",
            f"{alone['slowest_s']:.2f} s", f"× {every['median_ratio']:.2f}", f"× {every['slowest_ratio']:.2f}",
            f"× {light['median_ratio']:.2f}, × {light['slowest_ratio']:.2f}" if light else "–",
            ", ".join(_seconds(row["run_s"], way, row["runs"]) for way in ("nobody", "a question", "asked")),
        ]  # fmt: skip
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, "", _when({str(at): row for at, row in enumerate(rows)})])


def _seconds(spent: Mapping[str, float], way: str, ended: Sequence[str]) -> str:
    found = {name: (seconds, end) for (name, seconds), end in zip(spent.items(), ended, strict=False)}
    seconds, end = next((each for name, each in found.items() if name.startswith(way)), (None, ""))
    return "–" if seconds is None else f"{'over ' if end == 'cut short' else ''}{seconds:.0f} s"


def versions(found: Mapping[str, Any]) -> str:
    heads = (
        "model | a version as | processor, rlproxy + server | wall, busy machine | disk while it is made | disk of one"
    )
    lines = [f"| {heads} |", "|---" * (heads.count("|") + 1) + "|"]
    for model, ways in found.items():
        for way, words in WAYS.items():
            if (one := ways.get(way)) is not None:
                spent = one["processor_s"]
                lines.append(
                    f"| {model}, {one['model_bytes'] / GB:.1f} GB | {words} | {spent['rlproxy']:.0f} + "
                    f"{spent['server']:.0f} s | {one['all_s']:.0f} s | {_size(one['most_bytes'])} "
                    f"| {_size(one['bytes_of_one'])} |"
                )
            elif (guess := _extrapolated(model, way, found)) is not None:
                lines.append(f"| {model} | {words}, **extrapolated** | {guess} |")
    flat = {f"{model} {way}": one for model, ways in found.items() for way, one in ways.items()}
    return "\n".join([*lines, "", _when(flat)])


def _extrapolated(model: str, way: str, found: Mapping[str, Any]) -> str | None:
    """By the parameters, from the largest that was measured in this type."""
    size, kind = model.split()
    known = [name for name in found if name.endswith(kind) and way in found[name]]
    if not known:
        return None
    last = max(known, key=lambda name: SIZES[name.split()[0]])
    one, factor = found[last][way], SIZES[size] / SIZES[last.split()[0]]
    spent = one["processor_s"]
    return (
        f"{spent['rlproxy'] * factor:.0f} + {spent['server'] * factor:.0f} s | – | {_size(one['most_bytes'] * factor)} "
        f"| {_size(one['bytes_of_one'] * factor)}"
    )


def _size(count: float) -> str:
    return f"{count / GB:.1f} GB" if count >= GB else f"{count / MB:.0f} MB"


def _when(found: Mapping[str, Any]) -> str:
    each = list(found.values())
    dates = sorted({one["date"][:10] for one in each})
    loads = sorted(one["machine"]["load_before"] for one in each)
    commits = ", ".join(dict.fromkeys(f"`{one['commit']}`" for one in each))
    machine = each[0]["machine"]
    return (
        f"{' to '.join(dict.fromkeys((dates[0], dates[-1])))}, {machine['cpu']}, {machine['cores']} cores, load "
        f"{loads[0]:.0f} to {loads[-1]:.0f} by other programs, {commits}."
    )
