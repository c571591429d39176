"""The tables of what was learned, from raw records to Markdown: the demo, personas, other trainers, teachers.

Not here: where they stand (tables), how a record comes about (demo, bench/learn, research).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

SMALL = "SmolLM2-135M-Instruct"  # most records are of it, asked 80 prompts
PHASES = {
    "start": "until the run starts",
    "beside": "its process, and writing",
    "load": "model and samples",
    "old": "reading the replies",
    "train": "steps",
    "gate": "gate",
    "swap": "swap, until its first answer is whole",
}


def demo(report: dict[str, Any]) -> str:
    base = report["versions"][0]["base_nll"]
    lines = [
        "| version | ratings | liked, held out | base NLL of replies | last rating → new version answers | the run |",
        "|---|---|---|---|---|---|",
    ]
    for v in report["versions"]:
        name = f"v{v['version']}" if v["version"] else "base"
        rise = f" ({v['base_nll'] - base:+.2f})" if v["version"] else ""
        live = f"{v['rating_to_live_s']:.0f} s" if v["rating_to_live_s"] else ""
        run = f"{v['run_s']:.0f} s" if v["run_s"] else ""
        lines.append(f"| {name} | {v['ratings']} | {v['liked']:.0%} | {v['base_nll']:.2f}{rise} | {live} | {run} |")
    lines += [
        "",
        f"{report['held_out']} held-out prompts; {report['served']} requests of a client that never stopped asking, "
        f"{len(report['failed'])} failed, {report['in_swap']} under way in the moment of a swap; "
        f"{report['seconds'] / 60:.1f} minutes in all. "
        f"{report['date'][:10]}, {report['machine']}, no GPU, commit `{report['commit']}`.",
    ]
    return "\n".join(lines)


def loop(report: dict[str, Any]) -> str:
    """The same run, by phase."""
    lines = [f"| version | {' | '.join(PHASES.values())} | in all |", "|---" * (len(PHASES) + 2) + "|"]
    for v in report["versions"][1:]:
        # A run may start before its last rating has been answered.
        cells = [f"{max(v['phases'][name], 0):.1f} s" for name in PHASES]
        lines.append(f"| v{v['version']} | {' | '.join(cells)} | {v['rating_to_live_s']:.0f} s |")
    return "\n".join(lines)


def taught_by(record: dict[str, Any]) -> str:
    """Name the signal that a record's runs learn from. Records of before `credit` pushed all tokens alike."""
    if any(row["run"]["metrics"].get("taught") for row in record["rounds"]):
        return "comments, and ratings"
    count = record["arguments"].get("ratings", 32)
    suffix = "" if count == 32 else f"; {count} a round"
    if record["arguments"].get("siblings", 1) > 1:
        return f"pairs, two answers to a question{suffix}"
    if any(row["run"].get("choices", {}).get("pushed") == "by leaning" for row in record["rounds"]):
        return f"ratings, leaning first{suffix}"
    return "ratings, " + ("what earned them" if record["preset"].get("credit", 1) < 1 else "all tokens alike") + suffix


def learn(records: list[dict[str, Any]]) -> str:
    heads = (
        "persona | learns from | seed | base | liked after 32 ratings | 64 | 96 | 128 | base NLL, last (highest) "
        "| fixed text | distinct-2"
    )
    lines = [f"| {heads} |", "|---" * 11 + "|"]
    for record in sorted(records, key=lambda record: record["model"] != SMALL):
        base, evals = record["base"], [r["eval"] for r in record["rounds"]]
        liked = [f"{r['eval']['liked']:.2f}{_mark(r['run'])}" for r in record["rounds"]] + ["–"] * (4 - len(evals))
        rise = [evaluation["base_nll"] - base["base_nll"] for evaluation in evals]
        text, distinct = evals[-1]["text_nll"] / base["text_nll"] - 1, evals[-1]["distinct_2"]
        lines.append(
            f"| `{record['persona']}` | {taught_by(record)}{_circumstance(record)} | {record['seed']} "
            f"| {base['liked']:.2f} "
            f"| {' | '.join(liked)} | {rise[-1]:+.2f} ({max(rise):+.2f}) "
            f"| {text:+.1%} | {base['distinct_2']:.2f} → {distinct:.2f} |"
        )
    times = sorted(r["run"]["wall"] for record in records for r in record["rounds"])
    dates, threads = [record["date"][:10] for record in records], records[0]["arguments"]["threads"]
    lines += [
        "",
        f"† the gate said no: the version before it stays, and the ratings train again; = all of its ratings were "
        f"good, so there was nothing to learn from; ½ the gate said no at first, and yes half of the way back; ‡ yes "
        f"to the second try only. {len(times)} runs, median {times[len(times) // 2]:.0f} s with {threads} thread. "
        f"{days(dates)}; {machines(record['machine'] for record in records)}.",
    ]
    return "\n".join(lines)


def _circumstance(record: dict[str, Any]) -> str:
    """The model and the number of prompts, where it is not the one that most are of."""
    return "" if record["model"] == SMALL else f"; {record['model']}, {record['arguments']['eval']} prompts"


def machines(names: Iterable[str]) -> str:
    """Each once, in the order in which they come."""
    return "; ".join(dict.fromkeys(names))


def _mark(run: dict[str, Any]) -> str:
    """How the gate came to its verdict, where it did not say yes at once."""
    if run["status"] == "empty":
        return " ="
    if run["status"] != "passed":
        return " †"
    if run.get("retried"):
        return " ‡"
    return " ½" if "half of the way back" in run["reason"] else ""


def versus(report: dict[str, Any]) -> str:
    heads = (
        "trainer | seed | likely to end: base, after 32, 64, 96 | liked: base → after 96 | base NLL of replies "
        "| fixed text | CPU of the three trainings | peak memory | commit"
    )
    lines = [f"| {heads} |", "|---" * (heads.count("|") + 1) + "|"]
    dates, cpus = [], []
    for name, seeds in report["learning"].items():
        for seed, record in seeds.items():
            base, last = record["base"], record["rounds"][-1]["after"]
            ends = ", ".join(f"{state['ends']:.2f}" for state in (base, *(r["after"] for r in record["rounds"])))
            costs = [r["cost"] for r in record["rounds"]]
            cells = [
                name, seed.removeprefix("seed "), ends, f"{base['liked']:.2f} → {last['liked']:.2f}",
                f"{last['base_nll'] - base['base_nll']:+.2f}", f"{last['text_nll'] / base['text_nll'] - 1:+.1%}",
                f"{sum(cost['cpu_seconds'] for cost in costs):.0f} s",
                f"{max(cost['peak_mib'] for cost in costs):,.0f} MiB", f"`{record['commit']}`",
            ]  # fmt: skip
            lines.append(f"| {' | '.join(cells)} |")
            dates.append(record["date"][:10])
            cpus.append(record["machine"]["cpu"])
    about = f"{days(dates)}; {machines(cpus)}; 2 cores, one thread; torch"
    versions = report["versions"]
    return "\n".join([*lines, "", f"{about} {versions['torch']}, reinforceclaw {versions['reinforceclaw']}."])


def versus_cost(report: dict[str, Any]) -> str:
    heads = "trainer | samples | CPU a sample | without its gate | peak memory over the loaded model | commit"
    lines = [f"| {heads} |", "|---" * (heads.count("|") + 1) + "|"]
    for name, shapes in report["cost"].items():
        for shape, row in shapes.items():
            without = row.get("cpu_seconds_a_sample_without_gate")
            cells = [
                name, shape, f"{row['cpu_seconds_a_sample']:.1f} s", f"{without:.1f} s" if without else "has none",
                f"{row['mib_over_loaded_model']:,.0f} MiB", f"`{row['commit']}`",
            ]  # fmt: skip
            lines.append(f"| {' | '.join(cells)} |")
    dates = days([row["date"][:10] for shapes in report["cost"].values() for row in shapes.values()])
    return "\n".join([*lines, "", f"{dates}, {row['machine']['cpu']}, one thread."])


def hinted(by_persona: dict[str, Any]) -> str:
    heads = "persona | comment | liked without → with it | base NLL with it | of first tokens | tokens | commit"
    lines = [f"| {heads} |", "|---" * (heads.count("|") + 1) + "|"]
    for name, row in by_persona.items():
        without, with_it = row["bare"], row["hinted"]
        first = f"{without['base_nll_of_first_tokens']:.1f} → {with_it['base_nll_of_first_tokens']:.1f}"
        cells = [
            f"`{name}`", row["comment"].replace("\n", " ↵ "), f"{without['liked']:.2f} → {with_it['liked']:.2f}",
            f"{with_it['base_nll'] - without['base_nll']:+.2f}", first,
            f"{without['tokens']:.0f} → {with_it['tokens']:.0f}", f"`{row['commit']}`",
        ]  # fmt: skip
        lines.append(f"| {' | '.join(cells)} |")
    dates = days([row["date"][:10] for row in by_persona.values()])
    return "\n".join([*lines, "", f"{dates}, {row['machine']['cpu']}, {row['prompts']} prompts each."])


def days(dates: Iterable[str]) -> str:
    ordered = sorted(set(dates))
    return ordered[0] if len(ordered) == 1 else f"{ordered[0]} to {ordered[-1]}"


SHOWN_PAIRS = 2


def pair_tokens(report: dict[str, Any]) -> str:
    """Two pairs, an answer a line: each token with its chance before and after."""
    lines = ["| question | rated | the answer's tokens, chance before → after |", "|---|---|---|"]
    for answer in report["answers"][: 2 * SHOWN_PAIRS]:
        tokens = ", ".join(
            f"`{token['text'].replace('|', '')}` {token['before']:.2f} → {token['after']:.2f}"
            for token in answer["tokens"]
            if token["text"].strip() and not token["text"].startswith("<|")
        )
        lines.append(f"| {answer['question']} | {'right' if answer['reward'] > 0 else 'wrong'} | {tokens} |")
    return "\n".join([*lines, "", f"SmolLM2-135M-Instruct, one run of 64 ratings, {report['date'][:10]}."])
