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
from scripts.docs.filling import has, put, settle

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


def serve(found: dict[str, Any]) -> str:
    rows = found["speed"]
    sizes = sorted({r["at_once"] for r in rows})
    lines = ["| threads | model | " + " | ".join(f"{n} at once" for n in sizes) + " |", "|---" * (len(sizes) + 2) + "|"]
    for threads in sorted({r["threads"] for r in rows}):
        for model in dict.fromkeys(r["model"] for r in rows):
            speed = {r["at_once"]: r["tokens_per_s"] for r in rows if (r["threads"], r["model"]) == (threads, model)}
            lines.append(f"| {threads} | {model} | " + " | ".join(f"{speed[n]:.0f}" for n in sizes) + " |")
    lines += ["", _when(found)]
    return "\n".join(lines)


def swap(found: list[dict[str, Any]]) -> str:
    heads = (
        "backend | changes | replies | failed | mixed | first token, p99 before → during | between chunks, p99 "
        "| first token, until all have it | between chunks, until then "
        "| load | warm-up and switch | switch alone | asked → first token of the new version"
    )
    lines = [f"| {heads} |", "|---" * (heads.count("|") + 1) + "|"]

    def parted(part: dict[str, Any]) -> str:
        before, during = part["before"]["p99_ms"] / 1000, part["during"]["p99_ms"] / 1000
        return f"{before:.2f} → {during:.2f} s ({part['p99_ratio']:.1f}×)"

    def seconds(spread: dict[str, float] | None) -> str:
        return f"{spread['median']:.2f} s (≤ {spread['most']:.2f})" if spread else "–"  # not measured at first

    for one in found:
        first = one["swap_to_first_token_s"]
        kinds = [change["kind"] for change in one["changes"]]
        longer = one.get("until_all_have_it")  # not measured at first
        wider = [parted(longer[part]) if longer else "–" for part in ("first_token", "between_chunks")]
        lines.append(
            f"| {one['backend']} | {kinds.count('swap')} + {kinds.count('rollback')} | {one['replies']} "
            f"| {one['failed_count']} | {one['mixed_count']} | {parted(one['first_token'])} "
            f"| {parted(one['between_chunks'])} | {wider[0]} | {wider[1]} "
            f"| {seconds(one['load_s'])} | {seconds(one['switch_s'])} | {seconds(one.get('pointer_s'))} "
            f"| {first['median']:.1f} s (≤ {first['most']:.1f}) |"
        )
    each = "; ".join(
        f"{one['backend']} {one['date'][:16].replace('T', ' ')}, {one['seconds_before_each']:g} s before each change, "
        f"{one['tokens_per_reply']} tokens a reply, load {one['machine']['load_before']:.0f}, commit `{one['commit']}`"
        for one in found
    )
    machine = found[0]["machine"]
    lines += ["", f"{found[0]['clients']} clients, {machine['cpu']}, {machine['cores']} cores. {each}."]
    return "\n".join(lines)


def watch_errors(found: dict[str, Any]) -> str:
    pairs = sorted({(r["old_share"], r["new_share"]) for r in found["found"]}, reverse=True)
    heads = [f"{old:.0%} → {new:.0%}" for old, new in pairs]
    lines = [
        "| ratings of the old version | false alarms, at most | " + " | ".join(heads) + " |",
        "|---" * (len(pairs) + 2) + "|",
    ]
    for row in found["false_alarms"]:
        old = row["old_rated"]
        cells = []
        for pair in pairs:
            (one,) = [r for r in found["found"] if (r["old_rated"], r["old_share"], r["new_share"]) == (old, *pair)]
            cells.append(f"{one['found']:.0%}" + (f", {one['median']:.0f}" if one["median"] else ""))
        lines.append(f"| {old} | {max(row['rates']):.1%} | " + " | ".join(cells) + " |")
    lines += [
        "",
        f"{found['date'][:10]}, level {found['level']} a look, {found['most_new']} ratings of the new version at most, "
        f"{found['found'][0]['times']:,} simulated comparisons a cell, commit `{found['commit']}`.",
    ]
    return "\n".join(lines)


def agent_requests(found: dict[str, Any]) -> str:
    lines = ["| agent | messages | tools |", "|---|---|---|"]
    for one in found["agents"]:
        said, offered = one["messages_bytes"] / 1000, one["tools_bytes"] / 1000
        lines.append(f"| {one['agent']} {one['version']} | {said:.0f} kB | {one['tools']}, {offered:.0f} kB |")
    lines += ["", f"JSON of the chat request that it becomes. {found['date'][:10]}, commit `{found['commit']}`."]
    return "\n".join(lines)


def page(found: dict[str, Any]) -> str:
    lines = ["| query | ms |", "|---|---|"]
    lines += [f"| {query['query']} | {query['ms']:.1f} |" for query in found["queries"]]
    lines += ["", "| page | served | first paint, median | worst |", "|---|---|---|---|"]
    painted = {one["path"]: one for one in found["first_paint"]}
    for one in found["pages"]:
        paint = painted.get(one["path"])
        seen = f"{paint['ms']:.0f} ms | {paint['worst_ms']:.0f} ms" if paint else " | "
        lines.append(f"| `{one['path']}` | {one['ms']:.0f} ms | {seen} |")
    lines += ["", f"{found['at'][:10]}, {found['cores']} cores, load {found['load_before']:.0f}."]
    return "\n".join(lines)


def feedback(found: dict[str, Any]) -> str:
    waits = found["wait_ms"]
    heads = (
        "asked | answered a second | lost | doubled | failed | answered after p50, p95, p99 "
        "| streams beside, whole, broken"
    )
    lines = [f"| {heads} |", "|---" * (heads.count("|") + 1) + "|"]
    after = ", ".join(f"{waits[share]:,.0f}" for share in ("50", "95", "99"))
    cells = [f"{found['calls']:,} at {found['asked_per_s']:,.0f} a second", f"{found['answered_per_s']:.0f}"]
    cells += [str(found[name]) for name in ("lost", "doubled", "failed")]
    cells += [f"{after} ms", f"{found['streams']}, {found['streamed']['whole']}, {found['streamed']['broken']}"]
    lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, "", _when(found)])


def relay(found: dict[str, Any]) -> str:
    """Two tables: what each adds, and rlproxy as a multiple of the bare relay."""
    made, targets = found["summary"], found["targets"]
    columns = (
        ("1 kB, p50 / p99", "plain-1k-1", ("added_p50_ms", "added_p99_ms")),
        ("100 kB, p50", "plain-100k-1", ("added_p50_ms",)),
        ("1 MB, p50", "plain-1M-1", ("added_p50_ms",)),
        ("16 at once, p50 / p99", "plain-1k-16", ("added_p50_ms", "added_p99_ms")),
        ("first token, 1 / 16 streams", ("paced-1", "paced-16"), ("first_p50_ms",)),
        ("gap p99, 16 streams", "paced-16", ("added_gap_p99_ms",)),
        ("answers a second at 1, 16, 64, 256", tuple(f"plain-1k-{n}" for n in (1, 16, 64, 256)), ("per_s",)),
        ("CPU a request at 16, a stream", ("plain-1k-16", "stream-1k-16"), ("cpu_ms",)),
    )
    heads = [name for name, _, _ in columns] + ["MB at rest, 1,000 idle streams"]
    lines = ["| | " + " | ".join(heads) + " |", "|---" * (len(heads) + 1) + "|"]
    for target, about in targets.items():
        if "error" in about:
            lines.append(f"| {target} | did not run: {about['error']} |" + " |" * (len(heads) - 1))
            continue
        cells = []
        for _, named, parts in columns:
            rows = [made.get(n, {}).get(target, {}) for n in ([named] if isinstance(named, str) else named)]
            cells.append(" / ".join(_figure(row.get(part)) for row in rows for part in parts))
        memory = found["memory"].get(target, {})
        cells.append(f"{_figure(about.get('rss_mb_at_rest'))} / {_figure(memory.get('rss_mb'))}")
        lines.append(f"| {target} | {' | '.join(cells)} |")
    lines += ["", "| rlproxy ÷ bare relay | added p50 | first byte | answers a second | CPU |", "|---|---|---|---|---|"]
    for shape, by_target in made.items():
        of = by_target.get("rlproxy", {}).get("of_bare") or {}
        names = ("added_p50_ms", "first_p50_ms", "per_s", "cpu_ms")
        lines.append(f"| `{shape}` | {' | '.join(_figure(of.get(name)) for name in names)} |")
    versions = "; ".join(a["version"] for a in targets.values() if a.get("version") not in (None, "this commit"))
    return "\n".join([*lines, "", f"Milliseconds. {versions}. {_when(found)}"])


def _figure(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def store(found: dict[str, Any]) -> str:
    lines = ["| at once | completions a second | of each commit | CPU | p50 | p99 |", "|---" * 6 + "|"]
    lines += [
        f"| {r['at_once']} | {r['completions_per_s']:,.0f} | {r['completions_per_commit']:.1f} | {r['cpu_ms']:.2f} ms "
        f"| {r['p50_ms']:.1f} ms | {r['p99_ms']:.1f} ms |"
        for r in found["commits"]
    ]
    talk, large = found["conversation"], found["large"]
    lines += [
        "",
        f"The disk alone: {found['disk_syncs_per_s']:,.0f} times 4 kB with fdatasync a second. {talk['turns']:,} turns "
        f"of one conversation: {talk['new_text_bytes'] / 1e6:.1f} MB of text became "
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
    return "\n".join([*lines, "", _when(found)])


def start(found: dict[str, Any]) -> str:
    lines = ["| | seconds | of Python with aiohttp | CPU, s | RSS, MB | of its own, MB |", "|---" * 6 + "|"]
    for name, times in found["of_python"].items():
        row = found[name]
        memory = [f"{row[part]:.0f}" if part in row else "" for part in ("rss_mb", "uss_mb")]
        held = f", {found['large_completions']:,} completions" if "large" in name else ""
        lines.append(f"| {name}{held} | {row['s']:.2f} | {times:.1f} | {row['cpu_s']:.2f} | {' | '.join(memory)} |")
    if (killed := found.get("serve, large home, killed")) is not None:
        told = f"After the kill the check took {killed['checked_s']:.0f} s beside the serving, and an answer meanwhile"
        lines += ["", f"{told} {killed['answer_s'] * 1000:.0f} ms."]
    return "\n".join([*lines, "", f"Medians of {found['times']}. {_when(found)}"])


def memory_attacks(found: dict[str, Any]) -> str:
    lines = ["| attack | largest RSS, MB | the backend sent, MB | clients got |", "|---" * 4 + "|"]
    for name, row in found["attacks"].items():
        outcome = ", ".join(
            str(status) if count == 1 else f"{count} × {status}" for status, count in row["statuses"].items()
        )
        lines.append(f"| {name} | {row['peak_mb']:.0f} | {row['sent_mb'] or ''} | {outcome} |")
    return "\n".join([*lines, "", f"The largest of all: {found['largest_mb']:.0f} MB. {_when(found)}"])


def scaling(found: dict[str, Any]) -> str:
    lines = ["| | input | exponent | CPU, ms, from the smallest to the largest |", "|---" * 4 + "|"]
    for row in found["rows"]:
        times = ", ".join(f"{t * 1000:.2g}" if t < 0.1 else f"{t * 1000:.0f}" for t in row["cpu_s"])
        lines.append(f"| {row['part']} | {row['input']} | {row['exponent']:.2f} | {times} |")
    sizes = found["rows"][0]["bytes"]
    spread = f"{sizes[0] >> 10} KB to {sizes[-1] >> 20} MB"
    return "\n".join([*lines, "", f"{spread}, the least of {found['repeats']}. {_when(found)}"])


def patterns(found: dict[str, Any]) -> str:
    lines = [
        f"{found['patterns']} patterns were tried with {found['texts']:,} texts, made of {found['units']:,} units. "
        f"{found['measured']} took at least {found['least_s'] * 1000:g} ms for {found['bytes'][-1] >> 10} KB of their "
        f"slowest text, and were measured. The highest exponent is {found['highest']:.2f}.",
        "",
        "| pattern | called by | text | exponent | CPU, ms, from the smallest to the largest |",
        "|---" * 5 + "|",
    ]
    for row in found["rows"]:
        times = ", ".join(f"{t * 1000:.2g}" if t < 0.1 else f"{t * 1000:.0f}" for t in row["cpu_s"])
        cells = [f"`{row['place']}`", row["method"], f"`{row['text']}`", f"{row['exponent']:.2f}", times]
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    spread = f"{found['bytes'][0] >> 10} to {found['bytes'][-1] >> 10} KB"
    return "\n".join([*lines, "", f"The ten highest. {spread}, the least of {found['repeats']}. {_when(found)}"])


def chaos(found: dict[str, Any]) -> str:
    kills, cuts = found["kills"], found["power_cuts"]
    lines = ["| | instants | answers had whole | ratings and undos acknowledged | missing, doubled or damaged |"]
    lines += ["|---" * 5 + "|"]
    early = f"{kills['instants']}, {kills['while_starting']} of them during a start"
    lines.append(f"| kill -9 | {early} | {kills['whole']:,} | {kills['acts']:,} | {len(kills['wrong'])} |")
    if "cuts" in cuts:
        unsynced = f"{cuts['cuts']}, {cuts['with_unsynced']} of them with unsynced writes"
        lines.append(f"| power cut | {unsynced} | {cuts['whole']:,} | {cuts['acts']:,} | {len(cuts['wrong'])} |")
    return "\n".join([*lines, "", f"{_at(found)} SQLite {found['sqlite']}, {found['seconds'] / 60:.0f} minutes."])


def soak(found: dict[str, Any]) -> str:
    heads = "minutes | clients | answers | ratings and undos | hung up | runs, live version | memory, a minute | peak"
    lines = [f"| {heads} | lost or doubled |", "|---" * 9 + "|"]
    cells = [f"{found['minutes']:g}", str(found["clients"]), f"{found['answers']:,}", f"{found['acts']:,}"]
    cells += [f"{found['hung_up']:,}", f"{found['runs']}, v{found['live']}", f"{found['slope_mb_per_min']:+.2f} MB"]
    cells += [f"{found['peak_mb']:.0f} MB", str(len(found["wrong"]))]
    lines += [f"| {' | '.join(cells)} |", "", "| open in the proxy | before | after |", "|---|---|---|"]
    names = ("tasks", "files", "connections", "threads")
    lines += [f"| {name} | {found['start'][name]} | {found['end'][name]} |" for name in names]
    return "\n".join([*lines, "", _at(found)])


def _at(found: dict[str, Any]) -> str:
    load = f", load {found['load_before']:.1f} before it began" if found["load_before"] > 0.5 else ""
    return f"{found['date'][:10]}, {found['machine']}{load}, commit `{found['commit']}`."


def fuzz(found: dict[str, Any]) -> str:
    heads = (
        "house | requests | a second | 2xx, 3xx | 4xx | 5xx of ours | closed, left | longest wait | memory, after 30 % "
        "and in the end | completions kept | acknowledged and not there | failures"
    )
    lines = [f"| {heads} |", "|---" * (heads.count("|") + 1) + "|"]
    for one in found["houses"]:
        by, stored, memory = one["by_status"], one["store"], one["memory_mb"]
        counts = [sum(n for status, n in by.items() if status[0] in first) for first in ("23", "4", "cl")]
        lost = stored["lost"] + stored["witnesses"] - stored["witnesses_whole"]
        cells = [
            "with keys, a backend with every format" if one["keys"] else "no keys, a backend with chat completions",
            f"{one['requests']:,}", f"{one['per_s']:.0f}", f"{counts[0]:,}", f"{counts[1]:,}", str(one["own_5xx"]),
            f"{counts[2]:,}", f"{one['slowest_s']:.1f} s", f"{memory[int(len(memory) * 0.3)]:.0f}, {memory[-1]:.0f} MB",
            f"{stored['completions']:,}", str(lost), str(len(one["failures"])),
        ]  # fmt: skip
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(
        [*lines, "", f"{found['date'][:10]}, {found['machine']}, seed {found['seed']}, commit `{found['commit']}`."]
    )


def quick_starts(found: dict[str, Any]) -> str:
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
    shown = {
        "readme": "README, `rlproxy serve`", "builtin": "built-in", "llamacpp": "llama.cpp, the real one",
        "mlx": "MLX on a CPU, the real one", "ollama": "Ollama, a fake", "lmstudio": "LM Studio, a fake",
        "demo": "`make demo`, `QUICK=1`",
    }  # fmt: skip
    for one in found["found"]:
        steps = {step["step"]: step["seconds"] for step in [*found["setup"], *one["steps"]]}
        sums = [sum(steps[name] for name in names if name in steps) for names in columns.values()]
        cells = [f"{total:.0f}" if total else "–" for total in sums]
        total = f"{sum(steps.values()) / 60:.1f} min"
        lines.append(f"| {shown[one['name']]} | {' | '.join(cells)} | {one['problem'] or total} |")
    machine = found["machine"]
    loads = sorted(one["load"] for one in found["found"])
    load = f"load {loads[0]:.0f} to {loads[-1]:.0f}"  # above the number of cores, other programs took most of them
    return "\n".join(
        [*lines, "", f"{found['date'][:10]}, {machine['cpu']}, {machine['cores']} cores, {load}, `{found['commit']}`."]
    )


def _when(found: dict[str, Any]) -> str:
    machine = found["machine"]
    load = f", load {machine['load_before']:.1f} before it began" if machine["load_before"] > 0.5 else ""
    return f"{found['date'][:10]}, {machine['cpu']}, {machine['cores']} cores{load}, commit `{found['commit']}`."


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
    "many": ("benchmarks/episodes.json", tables_agent.many),
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
            page = put(page, name, table(read if "*" in file else read[0]))
    return page


def main() -> int:
    return settle({path: filled(path.read_text(encoding="utf-8")) for path in (ROOT / page for page in PAGES)})


if __name__ == "__main__":
    sys.exit(main())
