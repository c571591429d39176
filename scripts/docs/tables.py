"""Puts the measured tables into the documentation, from the raw JSON in benchmarks/. `--check` only compares.

Each table stands between `<!-- NAME -->` and `<!-- /NAME -->`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from scripts.docs import (
    relay_goals,
    tables_agent,
    tables_capacity,
    tables_clients,
    tables_experiments,
    tables_languages,
    tables_learning,
    tables_models,
    tables_ollama,
    tables_servers,
    tables_sizes,
)
from scripts.docs.filling import fill_place, has, settle

ROOT = Path(__file__).resolve().parents[2]
PAGES = (
    "README.md",
    "docs/lab/benchmarks.md",
    "docs/lab/which-tokens.md",
    "docs/lab/learning-rules.md",
    "docs/guides/agents.md",
    "docs/lab/agents.md",
    "docs/lab/reliability.md",
    "docs/lab/http-api.md",
    "docs/lab/quick-starts.md",
    "docs/lab/episodes.md",
    "docs/lab/backends.md",
    "docs/lab/ollama.md",
    "docs/lab/models.md",
    "docs/lab/languages.md",
    "docs/lab/experiments.md",
    "docs/lab/checks.md",
    "docs/lab/sizes.md",
    "docs/explain/scale.md",
    "docs/reference/models.md",
    "docs/lab/operations.md",
    "docs/reference/backends.md",
)


def serve(report: dict[str, Any]) -> str:
    rows = report["speed"]
    sizes = sorted({r["at_once"] for r in rows})
    lines = ["| threads | model | " + " | ".join(f"{n} at once" for n in sizes) + " |", "|---" * (len(sizes) + 2) + "|"]
    for threads in sorted({r["threads"] for r in rows}):
        for model in dict.fromkeys(r["model"] for r in rows):
            speed = {r["at_once"]: r["tokens_per_s"] for r in rows if (r["threads"], r["model"]) == (threads, model)}
            lines.append(f"| {threads} | {model} | " + " | ".join(f"{speed[n]:.0f}" for n in sizes) + " |")
    lines += ["", _circumstances(report)]
    return "\n".join(lines)


def swap(reports: list[dict[str, Any]]) -> str:
    heads = (
        "backend | changes | replies | failed | mixed | first token, p99 before → during | between chunks, p99 "
        "| first token, until all have it | between chunks, until then "
        "| load | warm-up and switch | switch alone | asked → first token of the new version"
    )
    lines = [f"| {heads} |", "|---" * (heads.count("|") + 1) + "|"]

    def parted(part: dict[str, Any]) -> str:
        seconds = [part[phase]["p99_ms"] / 1000 for phase in ("before", "during")]
        return f"{seconds[0]:.2f} → {seconds[1]:.2f} s ({part['p99_ratio']:.1f}×)"

    def seconds(spread: dict[str, float] | None) -> str:
        return f"{spread['median']:.2f} s (≤ {spread['most']:.2f})" if spread else "–"  # not measured at first

    for report in reports:
        first = report["swap_to_first_token_s"]
        kinds = [change["kind"] for change in report["changes"]]
        longer = report.get("until_all_have_it")  # not measured at first
        wider = [parted(longer[part]) if longer else "–" for part in ("first_token", "between_chunks")]
        lines.append(
            f"| {report['backend']} | {kinds.count('swap')} + {kinds.count('rollback')} | {report['replies']} "
            f"| {report['failed_count']} | {report['mixed_count']} | {parted(report['first_token'])} "
            f"| {parted(report['between_chunks'])} | {wider[0]} | {wider[1]} "
            f"| {seconds(report['load_s'])} | {seconds(report['switch_s'])} | {seconds(report.get('pointer_s'))} "
            f"| {first['median']:.1f} s (≤ {first['most']:.1f}) |"
        )
    machine = reports[0]["machine"]
    notes = "; ".join(map(_swap_note, reports))
    lines += ["", f"{reports[0]['clients']} clients, {machine['cpu']}, {machine['cores']} cores. {notes}."]
    return "\n".join(lines)


def _swap_note(report: dict[str, Any]) -> str:
    minute = report["date"][:16].replace("T", " ")
    return (
        f"{report['backend']} {minute}, {report['seconds_before_each']:g} s before each change, "
        f"{report['tokens_per_reply']} tokens a reply, load {report['machine']['load_before']:.0f}, "
        f"commit `{report['commit']}`"
    )


def watch_errors(report: dict[str, Any]) -> str:
    pairs = sorted({(r["old_share"], r["new_share"]) for r in report["found"]}, reverse=True)
    heads = [f"{old:.0%} → {new:.0%}" for old, new in pairs]
    lines = [
        "| ratings of the old version | false alarms, at most | " + " | ".join(heads) + " |",
        "|---" * (len(pairs) + 2) + "|",
    ]
    for row in report["false_alarms"]:
        old = row["old_rated"]
        cells = []
        for pair in pairs:
            (match,) = [r for r in report["found"] if (r["old_rated"], r["old_share"], r["new_share"]) == (old, *pair)]
            cells.append(f"{match['found']:.0%}" + (f", {match['median']:.0f}" if match["median"] else ""))
        lines.append(f"| {old} | {max(row['rates']):.1%} | " + " | ".join(cells) + " |")
    lines += [
        "",
        f"{report['date'][:10]}, level {report['level']} a look, {report['most_new']} ratings of the new version "
        f"at most, {report['found'][0]['times']:,} simulated comparisons a cell, commit `{report['commit']}`.",
    ]
    return "\n".join(lines)


def agent_requests(report: dict[str, Any]) -> str:
    lines = ["| agent | messages | tools |", "|---|---|---|"]
    for row in report["agents"]:
        messages_kb, tools_kb = row["messages_bytes"] / 1000, row["tools_bytes"] / 1000
        lines.append(f"| {row['agent']} {row['version']} | {messages_kb:.0f} kB | {row['tools']}, {tools_kb:.0f} kB |")
    lines += ["", f"JSON of the chat request that it becomes. {report['date'][:10]}, commit `{report['commit']}`."]
    return "\n".join(lines)


def page(report: dict[str, Any]) -> str:
    lines = ["| query | ms |", "|---|---|"]
    lines += [f"| {query['query']} | {query['ms']:.1f} |" for query in report["queries"]]
    lines += ["", "| page | served | first paint, median | worst |", "|---|---|---|---|"]
    painted = {row["path"]: row for row in report["first_paint"]}
    for row in report["pages"]:
        paint = painted.get(row["path"])
        paint_cells = f"{paint['ms']:.0f} ms | {paint['worst_ms']:.0f} ms" if paint else " | "
        lines.append(f"| `{row['path']}` | {row['ms']:.0f} ms | {paint_cells} |")
    lines += ["", f"{report['at'][:10]}, {report['cores']} cores, load {report['load_before']:.0f}."]
    return "\n".join(lines)


def feedback(report: dict[str, Any]) -> str:
    waits = report["wait_ms"]
    heads = (
        "asked | answered a second | lost | doubled | failed | answered after p50, p95, p99 "
        "| streams beside, whole, broken"
    )
    lines = [f"| {heads} |", "|---" * (heads.count("|") + 1) + "|"]
    percentiles = ", ".join(f"{waits[share]:,.0f}" for share in ("50", "95", "99"))
    cells = [f"{report['calls']:,} at {report['asked_per_s']:,.0f} a second", f"{report['answered_per_s']:.0f}"]
    cells += [str(report[name]) for name in ("lost", "doubled", "failed")]
    cells += [
        f"{percentiles} ms",
        f"{report['streams']}, {report['streamed']['whole']}, {report['streamed']['broken']}",
    ]
    lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, "", _circumstances(report)])


RELAY_COLUMNS = (  # title, shapes, figures
    ("1 kB, p50 / p99", ("plain-1k-1",), ("added_p50_ms", "added_p99_ms")),
    ("100 kB, p50", ("plain-100k-1",), ("added_p50_ms",)),
    ("1 MB, p50", ("plain-1M-1",), ("added_p50_ms",)),
    ("16 at once, p50 / p99", ("plain-1k-16",), ("added_p50_ms", "added_p99_ms")),
    ("first token, 1 / 16 streams", ("paced-1", "paced-16"), ("first_p50_ms",)),
    ("gap p99, 16 streams", ("paced-16",), ("added_gap_p99_ms",)),
    ("answers a second at 1, 16, 64, 256", tuple(f"plain-1k-{n}" for n in (1, 16, 64, 256)), ("per_s",)),
    ("CPU a request at 16, a stream", ("plain-1k-16", "stream-1k-16"), ("cpu_ms",)),
)


def relay(report: dict[str, Any]) -> str:
    """Two tables: what each adds, and rlproxy as a multiple of the bare relay."""
    targets = report["targets"].values()
    versions = "; ".join(a["version"] for a in targets if a.get("version") not in (None, "this commit"))
    note = f"Milliseconds. {versions}. {_circumstances(report)}"
    return "\n".join([*_relay_targets(report), "", *_relay_ratios(report["summary"]), "", note])


def _relay_targets(report: dict[str, Any]) -> list[str]:
    heads = [title for title, _, _ in RELAY_COLUMNS] + ["MB at rest, 1,000 idle streams"]
    lines = ["| | " + " | ".join(heads) + " |", "|---" * (len(heads) + 1) + "|"]
    for target, about in report["targets"].items():
        if "error" in about:
            lines.append(f"| {target} | did not run: {about['error']} |" + " |" * (len(heads) - 1))
            continue
        cells = []
        for _, shapes, figures in RELAY_COLUMNS:
            rows = [report["summary"].get(shape, {}).get(target, {}) for shape in shapes]
            cells.append(" / ".join(_figure(row.get(figure)) for row in rows for figure in figures))
        memory = report["memory"].get(target, {})
        cells.append(f"{_figure(about.get('rss_mb_at_rest'))} / {_figure(memory.get('rss_mb'))}")
        lines.append(f"| {target} | {' | '.join(cells)} |")
    return lines


def _relay_ratios(summary: dict[str, Any]) -> list[str]:
    lines = ["| rlproxy ÷ bare relay | added p50 | first byte | answers a second | CPU |", "|---|---|---|---|---|"]
    for shape, by_target in summary.items():
        ratios = by_target.get("rlproxy", {}).get("of_bare") or {}
        cells = [_figure(ratios.get(name)) for name in ("added_p50_ms", "first_p50_ms", "per_s", "cpu_ms")]
        lines.append(f"| `{shape}` | {' | '.join(cells)} |")
    return lines


def _figure(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def store(report: dict[str, Any]) -> str:
    lines = ["| at once | completions a second | of each commit | CPU | p50 | p99 |", "|---" * 6 + "|"]
    lines += [
        f"| {r['at_once']} | {r['completions_per_s']:,.0f} | {r['completions_per_commit']:.1f} | {r['cpu_ms']:.2f} ms "
        f"| {r['p50_ms']:.1f} ms | {r['p99_ms']:.1f} ms |"
        for r in report["commits"]
    ]
    talk, large = report["conversation"], report["large"]
    lines += [
        "",
        f"The disk alone: {report['disk_syncs_per_s']:,.0f} times 4 kB with fdatasync a second. "
        f"{talk['turns']:,} turns of one conversation: {talk['new_text_bytes'] / 1e6:.1f} MB of text became "
        f"{talk['steps'][-1]['bytes'] / 1e6:.1f} MB on disk, with token ids, log-probs and indices "
        f"({talk['sent_again_and_again_bytes'] / 1e6:,.0f} MB were sent); "
        f"the last tenth of the turns took {talk['growth_last_of_second']:.2f} times what the second took.",
        "",
        f"| {large['completions']:,} completions, {large['bytes'] / 1e9:.2f} GB | median | worst |",
        "|---|---|---|",
    ]
    lines += [f"| {name} | {r['ms']:.1f} ms | {r['worst_ms']:.1f} ms |" for name, r in large["reads"].items()]
    lines.append(f"| opened after a clean stop | {large['open']['clean_ms']:.0f} ms | |")
    if "checked_ms" in large["open"]:
        lines.append(f"| opened after a kill | {large['open']['after_a_kill_ms']:.0f} ms | |")
        lines.append(f"| and checked beside | {large['open']['checked_ms']:,.0f} ms | |")
    return "\n".join([*lines, "", _circumstances(report)])


def start(report: dict[str, Any]) -> str:
    lines = ["| | seconds | of Python with aiohttp | CPU, s | RSS, MB | of its own, MB |", "|---" * 6 + "|"]
    for name, times in report["of_python"].items():
        row = report[name]
        memory = [f"{row[part]:.0f}" if part in row else "" for part in ("rss_mb", "uss_mb")]
        size = f", {report['large_completions']:,} completions" if "large" in name else ""
        lines.append(f"| {name}{size} | {row['s']:.2f} | {times:.1f} | {row['cpu_s']:.2f} | {' | '.join(memory)} |")
    if (killed := report.get("serve, large home, killed")) is not None:
        note = f"After the kill the check took {killed['checked_s']:.0f} s beside the serving, and an answer meanwhile"
        lines += ["", f"{note} {killed['answer_s'] * 1000:.0f} ms."]
    return "\n".join([*lines, "", f"Medians of {report['times']}. {_circumstances(report)}"])


def memory_attacks(report: dict[str, Any]) -> str:
    lines = ["| attack | largest RSS, MB | the backend sent, MB | clients got |", "|---" * 4 + "|"]
    for name, row in report["attacks"].items():
        outcome = ", ".join(
            str(status) if count == 1 else f"{count} × {status}" for status, count in row["statuses"].items()
        )
        lines.append(f"| {name} | {row['peak_mb']:.0f} | {row['sent_mb'] or ''} | {outcome} |")
    return "\n".join([*lines, "", f"The largest of all: {report['largest_mb']:.0f} MB. {_circumstances(report)}"])


def scaling(report: dict[str, Any]) -> str:
    lines = ["| | input | exponent | CPU, ms, from the smallest to the largest |", "|---" * 4 + "|"]
    for row in report["rows"]:
        times = ", ".join(f"{t * 1000:.2g}" if t < 0.1 else f"{t * 1000:.0f}" for t in row["cpu_s"])
        lines.append(f"| {row['part']} | {row['input']} | {row['exponent']:.2f} | {times} |")
    sizes = report["rows"][0]["bytes"]
    spread = f"{sizes[0] >> 10} KB to {sizes[-1] >> 20} MB"
    return "\n".join([*lines, "", f"{spread}, the least of {report['repeats']}. {_circumstances(report)}"])


def patterns(report: dict[str, Any]) -> str:
    lines = [
        f"{report['patterns']} patterns were tried with {report['texts']:,} texts, made of {report['units']:,} units. "
        f"{report['measured']} took at least {report['least_s'] * 1000:g} ms for {report['bytes'][-1] >> 10} KB of "
        f"their slowest text, and were measured. The highest exponent is {report['highest']:.2f}.",
        "",
        "| pattern | called by | text | exponent | CPU, ms, from the smallest to the largest |",
        "|---" * 5 + "|",
    ]
    for row in report["rows"]:
        times = ", ".join(f"{t * 1000:.2g}" if t < 0.1 else f"{t * 1000:.0f}" for t in row["cpu_s"])
        cells = [f"`{row['place']}`", row["method"], f"`{row['text']}`", f"{row['exponent']:.2f}", times]
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    spread = f"{report['bytes'][0] >> 10} to {report['bytes'][-1] >> 10} KB"
    return "\n".join(
        [*lines, "", f"The ten highest. {spread}, the least of {report['repeats']}. {_circumstances(report)}"]
    )


def chaos(report: dict[str, Any]) -> str:
    kills, cuts = report["kills"], report["power_cuts"]
    lines = ["| | instants | answers had whole | ratings and undos acknowledged | missing, doubled or damaged |"]
    lines += ["|---" * 5 + "|"]
    early = f"{kills['instants']}, {kills['while_starting']} of them during a start"
    lines.append(f"| kill -9 | {early} | {kills['whole']:,} | {kills['acts']:,} | {len(kills['wrong'])} |")
    if "cuts" in cuts:
        unsynced = f"{cuts['cuts']}, {cuts['with_unsynced']} of them with unsynced writes"
        lines.append(f"| power cut | {unsynced} | {cuts['whole']:,} | {cuts['acts']:,} | {len(cuts['wrong'])} |")
    return "\n".join(
        [
            *lines,
            "",
            f"{_circumstances_by_name(report)} SQLite {report['sqlite']}, {report['seconds'] / 60:.0f} minutes.",
        ]
    )


def soak(report: dict[str, Any]) -> str:
    heads = "minutes | clients | answers | ratings and undos | hung up | runs, live version | memory, a minute | peak"
    lines = [f"| {heads} | lost or doubled |", "|---" * 9 + "|"]
    cells = [f"{report['minutes']:g}", str(report["clients"]), f"{report['answers']:,}", f"{report['acts']:,}"]
    cells += [f"{report['hung_up']:,}", f"{report['runs']}, v{report['live']}", f"{report['slope_mb_per_min']:+.2f} MB"]
    cells += [f"{report['peak_mb']:.0f} MB", str(len(report["wrong"]))]
    lines += [f"| {' | '.join(cells)} |", "", "| open in the proxy | before | after |", "|---|---|---|"]
    names = ("tasks", "files", "connections", "threads")
    lines += [f"| {name} | {report['start'][name]} | {report['end'][name]} |" for name in names]
    return "\n".join([*lines, "", _circumstances_by_name(report)])


def _circumstances_by_name(report: dict[str, Any]) -> str:
    load = f", load {report['load_before']:.1f} before it began" if report["load_before"] > 0.5 else ""
    return f"{report['date'][:10]}, {report['machine']}{load}, commit `{report['commit']}`."


def fuzz(report: dict[str, Any]) -> str:
    heads = (
        "house | requests | a second | 2xx, 3xx | 4xx | 5xx of ours | closed, left | longest wait | memory, after 30 % "
        "and in the end | completions kept | acknowledged and not there | failures"
    )
    lines = [f"| {heads} |", "|---" * (heads.count("|") + 1) + "|"]
    for house in report["houses"]:
        by_status, stored, memory = house["by_status"], house["store"], house["memory_mb"]
        counts = [sum(n for status, n in by_status.items() if status[0] in first) for first in ("23", "4", "cl")]
        lost = stored["lost"] + stored["witnesses"] - stored["witnesses_whole"]
        cells = [
            "with keys, a backend with every format" if house["keys"] else "no keys, a backend with chat completions",
            f"{house['requests']:,}", f"{house['per_s']:.0f}", f"{counts[0]:,}", f"{counts[1]:,}",
            str(house["own_5xx"]), f"{counts[2]:,}", f"{house['slowest_s']:.1f} s",
            f"{memory[int(len(memory) * 0.3)]:.0f}, {memory[-1]:.0f} MB",
            f"{stored['completions']:,}", str(lost), str(len(house["failures"])),
        ]  # fmt: skip
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(
        [*lines, "", f"{report['date'][:10]}, {report['machine']}, seed {report['seed']}, commit `{report['commit']}`."]
    )


def quick_starts(report: dict[str, Any]) -> str:
    """Steps of one kind in one column; what is not part of a quick start is a dash."""
    columns = {
        "clone, `make setup`": ("git clone", "make setup"),
        "`init`, or `serve`": ("init", "serve"),
        "ask, rate, `status`": ("ask", "rate", "status"),
        "three more ratings": ("3 more ratings",),
        "`train`": ("train",),
        "restart": ("restart",),
        "run": ("the run, until its version is live",),
        "the version answers": ("v1 answers",),
    }
    lines = [f"| quick start | {' | '.join(columns)} | in all |", "|---" * (len(columns) + 2) + "|"]
    labels = {
        "readme": "README, `rlproxy serve`", "builtin": "built-in", "llamacpp": "llama.cpp, the real one",
        "mlx": "MLX on a CPU, the real one", "ollama": "Ollama, a fake", "lmstudio": "LM Studio, a fake",
        "demo": "`make demo`, `QUICK=1`",
    }  # fmt: skip
    for run in report["found"]:
        steps = {step["step"]: step["seconds"] for step in [*report["setup"], *run["steps"]]}
        sums = [sum(steps[name] for name in names if name in steps) for names in columns.values()]
        cells = [f"{total:.0f}" if total else "–" for total in sums]
        total = f"{sum(steps.values()) / 60:.1f} min"
        lines.append(f"| {labels[run['name']]} | {' | '.join(cells)} | {run['problem'] or total} |")
    machine = report["machine"]
    loads = sorted(run["load"] for run in report["found"])
    load = f"load {loads[0]:.0f} to {loads[-1]:.0f}"  # above the number of cores, other programs took most of them
    circumstances = f"{report['date'][:10]}, {machine['cpu']}, {machine['cores']} cores, {load}, `{report['commit']}`."
    return "\n".join([*lines, "", circumstances])


def _circumstances(report: dict[str, Any]) -> str:
    machine = report["machine"]
    load = f", load {machine['load_before']:.1f} before it began" if machine["load_before"] > 0.5 else ""
    return f"{report['date'][:10]}, {machine['cpu']}, {machine['cores']} cores{load}, commit `{report['commit']}`."


TABLES: dict[str, tuple[str, Callable[[Any], str]]] = {
    "demo": ("benchmarks/demo.json", tables_learning.demo),
    "loop": ("benchmarks/demo.json", tables_learning.loop),
    "watch_errors": ("benchmarks/watch_errors.json", watch_errors),
    "serve": ("benchmarks/serve.json", serve),
    "agent_requests": ("benchmarks/agent_requests.json", agent_requests),
    "clients": ("benchmarks/clients.json", tables_clients.clients),
    "client-side-turns": ("benchmarks/clients.json", tables_clients.side_turns),
    "swap": ("benchmarks/swap.json", swap),
    "page": ("benchmarks/page.json", page),
    "feedback": ("benchmarks/feedback.json", feedback),
    "relay": ("benchmarks/relay.json", relay),
    "relay_goals": ("benchmarks/relay.json", relay_goals.table),
    "store": ("benchmarks/store.json", store),
    "start": ("benchmarks/start.json", start),
    "scaling": ("benchmarks/scaling.json", scaling),
    "memory_attacks": ("benchmarks/memory_attacks.json", memory_attacks),
    "patterns": ("benchmarks/patterns.json", patterns),
    "chaos": ("benchmarks/chaos.json", chaos),
    "soak": ("benchmarks/soak.json", soak),
    "fuzz": ("benchmarks/fuzz.json", fuzz),
    "models": ("benchmarks/models.json", tables_models.models),
    "languages": ("benchmarks/language_gates.json", tables_languages.languages),
    "language_gates": ("benchmarks/language_gates.json", tables_languages.gates),
    "language_headers": ("benchmarks/language_gates.json", tables_languages.headers),
    "language_refusals": ("benchmarks/language_gates.json", tables_languages.refused),
    "models_ollama": ("benchmarks/models_ollama.json", tables_models.at_ollama),
    "whole_loop": ("benchmarks/whole_loop.json", tables_models.whole_loop),
    "experiment_errors": ("benchmarks/experiment_errors.json", tables_experiments.experiment_errors),
    "slice_errors": ("benchmarks/slice_errors.json", tables_experiments.slice_errors),
    "carried": ("benchmarks/capacity.json", tables_capacity.carried),
    "lines": ("benchmarks/capacity.json", tables_capacity.lines),
    "plan_check": ("benchmarks/plan_check.json", tables_sizes.plan_check),
    "plan_published": ("benchmarks/plan_check.json", tables_sizes.plan_published),
    "model_matrix": ("benchmarks/model*s.json", tables_servers.matrix),
    "ollama_faults": ("benchmarks/ollama_faults.json", tables_ollama.faults),
    "ollama_templates": ("benchmarks/ollama_templates.json", tables_ollama.templates),
    "versions": ("benchmarks/versions.json", tables_ollama.versions),
    "yield": ("benchmarks/yield.json", tables_ollama.yielding),
    "token_shares": ("benchmarks/token_shares.json", tables_ollama.token_shares),
    "version_size": ("benchmarks/version_size.json", tables_ollama.version_size),
    "quick_starts": ("benchmarks/quick_starts.json", quick_starts),
    "versus": ("benchmarks/versus.json", tables_learning.versus),
    "versus_cost": ("benchmarks/versus.json", tables_learning.versus_cost),
    "hinted": ("benchmarks/hinted.json", tables_learning.hinted),
    "agent": ("benchmarks/agent/*.json", tables_agent.agent),
    "many": ("benchmarks/episodes.json", tables_agent.many_agents),
    "credit": ("benchmarks/agent/*.json", tables_agent.credit),
    "rollouts": ("benchmarks/rollouts.json", tables_agent.rollouts),
    "pair_tokens": ("benchmarks/pair_tokens.json", tables_learning.pair_tokens),
    "learn": ("benchmarks/learn/*-seed*.json", tables_learning.learn),
}


def filled(page: str) -> str:
    for name, (file, table) in TABLES.items():
        read = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(ROOT.glob(file))]
        if not read:
            continue  # not measured yet, and the page says so
        if has(page, name):
            page = fill_place(page, name, table(read if "*" in file else read[0]))
    return page


def main() -> int:
    return settle({path: filled(path.read_text(encoding="utf-8")) for path in (ROOT / page for page in PAGES)})


if __name__ == "__main__":
    sys.exit(main())
