"""The tables of what was learned, from raw records to Markdown: the demo, personas, other trainers, teachers.

Not here: where they stand (tables), how a record comes about (demo, bench/learn, research).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

PHASES = {
    "start": "until the run starts",
    "beside": "its process, and writing",
    "load": "model and samples",
    "old": "reading the replies",
    "train": "steps",
    "gate": "gate",
    "swap": "swap, until its first answer is whole",
}


def demo(found: dict[str, Any]) -> str:
    base = found["versions"][0]["base_nll"]
    lines = [
        "| version | ratings | liked, held out | base NLL of replies | last rating → new version answers | the run |",
        "|---|---|---|---|---|---|",
    ]
    for v in found["versions"]:
        name = f"v{v['version']}" if v["version"] else "base"
        rise = f" ({v['base_nll'] - base:+.2f})" if v["version"] else ""
        live = f"{v['rating_to_live_s']:.0f} s" if v["rating_to_live_s"] else ""
        run = f"{v['run_s']:.0f} s" if v["run_s"] else ""
        lines.append(f"| {name} | {v['ratings']} | {v['liked']:.0%} | {v['base_nll']:.2f}{rise} | {live} | {run} |")
    lines += [
        "",
        f"{found['held_out']} held-out prompts; {found['served']} requests of a client that never stopped asking, "
        f"{len(found['failed'])} failed, {found['in_swap']} under way in the moment of a swap; "
        f"{found['seconds'] / 60:.1f} minutes in all. "
        f"{found['date'][:10]}, {found['machine']}, no GPU, commit `{found['commit']}`.",
    ]
    return "\n".join(lines)


def loop(found: dict[str, Any]) -> str:
    """The same run, by phase."""
    lines = [f"| version | {' | '.join(PHASES.values())} | in all |", "|---" * (len(PHASES) + 2) + "|"]
    for v in found["versions"][1:]:
        # A run may start before its last rating has been answered.
        each = [f"{max(v['phases'][name], 0):.1f} s" for name in PHASES]
        lines.append(f"| v{v['version']} | {' | '.join(each)} | {v['rating_to_live_s']:.0f} s |")
    return "\n".join(lines)


def taught_by(record: dict[str, Any]) -> str:
    """Name the signal that a record's runs learn from. Records of before `credit` pushed all tokens alike."""
    if any(one["run"]["metrics"].get("taught") for one in record["rounds"]):
        return "comments, and ratings"
    count = record["arguments"].get("ratings", 32)
    more = "" if count == 32 else f"; {count} a round"
    if record["arguments"].get("siblings", 1) > 1:
        return f"pairs, two answers to a question{more}"
    if any(one["run"].get("choices", {}).get("pushed") == "by leaning" for one in record["rounds"]):
        return f"ratings, leaning first{more}"
    return "ratings, " + ("what earned them" if record["preset"].get("credit", 1) < 1 else "all tokens alike") + more


def learn(found: list[dict[str, Any]]) -> str:
    heads = (
        "persona | learns from | seed | base | liked after 32 ratings | 64 | 96 | 128 | base NLL, last (highest) "
        "| fixed text | distinct-2"
    )
    lines = [f"| {heads} |", "|---" * 11 + "|"]
    for one in found:
        base, after = one["base"], [r["eval"] for r in one["rounds"]]
        liked = [f"{r['eval']['liked']:.2f}{_mark(r['run'])}" for r in one["rounds"]] + ["–"] * (4 - len(after))
        rise = [now["base_nll"] - base["base_nll"] for now in after]
        text, distinct = after[-1]["text_nll"] / base["text_nll"] - 1, after[-1]["distinct_2"]
        lines.append(
            f"| `{one['persona']}` | {taught_by(one)} | {one['seed']} | {base['liked']:.2f} | {' | '.join(liked)} "
            f"| {rise[-1]:+.2f} ({max(rise):+.2f}) | {text:+.1%} | {base['distinct_2']:.2f} → {distinct:.2f} |"
        )
    times = sorted(r["run"]["wall"] for one in found for r in one["rounds"])
    dates, threads = [one["date"][:10] for one in found], found[0]["arguments"]["threads"]
    lines += [
        "",
        f"† the gate said no: the version before it stays, and the ratings train again; = all of its ratings were "
        f"good, so there was nothing to learn from; ½ the gate said no at first, and yes half of the way back; ‡ yes "
        f"to the second try only. {len(times)} runs, median {times[len(times) // 2]:.0f} s with {threads} thread. "
        f"{days(dates)}; {machines(one['machine'] for one in found)}.",
    ]
    return "\n".join(lines)


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


def versus(found: dict[str, Any]) -> str:
    heads = (
        "trainer | seed | likely to end: base, after 32, 64, 96 | liked: base → after 96 | base NLL of replies "
        "| fixed text | CPU of the three trainings | peak memory | commit"
    )
    lines = [f"| {heads} |", "|---" * (heads.count("|") + 1) + "|"]
    dates, cpus = [], []
    for name, seeds in found["learning"].items():
        for seed, one in seeds.items():
            base, last = one["base"], one["rounds"][-1]["after"]
            ends = ", ".join(f"{state['ends']:.2f}" for state in (base, *(r["after"] for r in one["rounds"])))
            costs = [r["cost"] for r in one["rounds"]]
            cells = [
                name, seed.removeprefix("seed "), ends, f"{base['liked']:.2f} → {last['liked']:.2f}",
                f"{last['base_nll'] - base['base_nll']:+.2f}", f"{last['text_nll'] / base['text_nll'] - 1:+.1%}",
                f"{sum(cost['cpu_seconds'] for cost in costs):.0f} s",
                f"{max(cost['peak_mib'] for cost in costs):,.0f} MiB", f"`{one['commit']}`",
            ]  # fmt: skip
            lines.append(f"| {' | '.join(cells)} |")
            dates.append(one["date"][:10])
            cpus.append(one["machine"]["cpu"])
    about = f"{days(dates)}; {machines(cpus)}; 2 cores, one thread; torch"
    versions = found["versions"]
    return "\n".join([*lines, "", f"{about} {versions['torch']}, reinforceclaw {versions['reinforceclaw']}."])


def versus_cost(found: dict[str, Any]) -> str:
    heads = "trainer | samples | CPU a sample | without its gate | peak memory over the loaded model | commit"
    lines = [f"| {heads} |", "|---" * (heads.count("|") + 1) + "|"]
    for name, shapes in found["cost"].items():
        for shape, one in shapes.items():
            without = one.get("cpu_seconds_a_sample_without_gate")
            cells = [
                name, shape, f"{one['cpu_seconds_a_sample']:.1f} s", f"{without:.1f} s" if without else "has none",
                f"{one['mib_over_loaded_model']:,.0f} MiB", f"`{one['commit']}`",
            ]  # fmt: skip
            lines.append(f"| {' | '.join(cells)} |")
    dates = days([one["date"][:10] for shapes in found["cost"].values() for one in shapes.values()])
    return "\n".join([*lines, "", f"{dates}, {one['machine']['cpu']}, one thread."])


def hinted(found: dict[str, Any]) -> str:
    heads = "persona | comment | liked without → with it | base NLL with it | of first tokens | tokens | commit"
    lines = [f"| {heads} |", "|---" * (heads.count("|") + 1) + "|"]
    for name, one in found.items():
        bare, told = one["bare"], one["hinted"]
        first = f"{bare['base_nll_of_first_tokens']:.1f} → {told['base_nll_of_first_tokens']:.1f}"
        cells = [
            f"`{name}`", one["comment"].replace("\n", " ↵ "), f"{bare['liked']:.2f} → {told['liked']:.2f}",
            f"{told['base_nll'] - bare['base_nll']:+.2f}", first, f"{bare['tokens']:.0f} → {told['tokens']:.0f}",
            f"`{one['commit']}`",
        ]  # fmt: skip
        lines.append(f"| {' | '.join(cells)} |")
    dates = days([one["date"][:10] for one in found.values()])
    return "\n".join([*lines, "", f"{dates}, {one['machine']['cpu']}, {one['prompts']} prompts each."])


def days(dates: Iterable[str]) -> str:
    found = sorted(set(dates))
    return found[0] if len(found) == 1 else f"{found[0]} to {found[-1]}"


SHOWN_PAIRS = 2


def pair_tokens(found: dict[str, Any]) -> str:
    """Two pairs, an answer a line: each token with its chance before and after."""
    lines = ["| question | rated | the answer's tokens, chance before → after |", "|---|---|---|"]
    for one in found["answers"][: 2 * SHOWN_PAIRS]:
        said = ", ".join(
            f"`{token['text'].replace('|', '')}` {token['before']:.2f} → {token['after']:.2f}"
            for token in one["tokens"]
            if token["text"].strip() and not token["text"].startswith("<|")
        )
        lines.append(f"| {one['question']} | {'right' if one['reward'] > 0 else 'wrong'} | {said} |")
    return "\n".join([*lines, "", f"SmolLM2-135M-Instruct, one run of 64 ratings, {found['date'][:10]}."])
