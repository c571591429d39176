"""Capacity on paper: what a relay, a database and a trainer carry, and what 1,000 lines of people take.

Owns the simulation. A line works with its agent when one real developer made commits: 28 days of one of 150 such spans
of a public repository. What it asks then has the gaps of Azure's public trace of a coding model (CC BY 4.0), scaled to
a mean of two minutes. What each part carries is from benchmarks/*.json. What a run
of a large model takes on a GPU is `trainer.estimate`'s, which nobody has measured here.

    python -m scripts.research.capacity --extract AIOHTTP_CLONE AZURE_CLONE   # benchmarks/arrivals.json
    python -m scripts.research.capacity                                       # benchmarks/capacity.json
"""

from __future__ import annotations

import argparse
import heapq
import json
import random
import subprocess
import tempfile
from collections import Counter, defaultdict
from collections.abc import Sequence
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, NamedTuple

from scripts.harness.circumstances import circumstances
from trainer.estimate import EstimateRequest, Hardware, duration
from trainer.launch import estimate_run
from trainer.policy.footprint import Workload

BENCHMARKS: Final = Path(__file__).resolve().parents[2] / "benchmarks"
ARRIVALS: Final = BENCHMARKS / "arrivals.json"
SPAN_DAYS: Final = 28
DAY_S: Final = 86_400.0
MONDAY_S: Final = 4 * 86_400  # 5 January 1970
LEAST_COMMITS: Final = 10  # of a span that is somebody's work
LONGEST_GAP_S: Final = 600.0  # within one sitting
LINES: Final = 1000
RATED: Final = 0.1  # of main answers
RATINGS_A_RUN: Final = 32  # train.start_at
REQUESTS_AN_ANSWER: Final = 6  # an agent's own calls around one answer that a person sees
ANSWERS_A_DAY: Final = (20, 60, 200)  # of a line's person, the mean over all days
RUN_S: Final = (73.0, 300.0, 900.0)
PATIENCE_S: Final = 600.0  # for 95 of 100 runs to begin
KEPT_VERSIONS: Final = 3  # on the disk of each line: live, previous, candidate
QWEN3_8B: Final = {
    "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_size": 4096, "intermediate_size": 12288,
    "num_hidden_layers": 36, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151936,
    "tie_word_embeddings": False, "torch_dtype": "bfloat16", "max_position_embeddings": 40960,
}  # fmt: skip


# --- the patterns -------------------------------------------------------------------------------------------------


def extract(repository: Path, azure: Path) -> dict[str, Any]:
    """Spans of 28 days of one person each, in minutes and without names; gaps between requests, in seconds."""
    log = subprocess.run(
        ["git", "-C", str(repository), "log", "--no-merges", "--format=%ae%x09%an%x09%at%x09%ai"],
        capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    commits: dict[str, list[int]] = defaultdict(list)
    for line in log.splitlines():
        address, name, timestamp, local = line.split("\t")
        if "bot" not in (address + name).lower() and "[" not in name:
            zone = local[-5:]  # as +0200: the hours of a day are those on the person's own clock
            offset_s = (int(zone[1:3]) * 3600 + int(zone[3:]) * 60) * (-1 if zone[0] == "-" else 1)
            commits[address].append(int(timestamp) + offset_s)
    spans = []
    for timestamps in commits.values():
        remaining = sorted(timestamps)
        while remaining:
            begin = remaining[0] - (remaining[0] - MONDAY_S) % round(7 * DAY_S)
            span = [t for t in remaining if t < begin + SPAN_DAYS * DAY_S]
            remaining = remaining[len(span) if len(span) >= LEAST_COMMITS else 1 :]
            if len(span) >= LEAST_COMMITS:
                spans.append([round((t - begin) / 60) for t in span])
    trace = subprocess.run(
        ["git", "-C", str(azure), "show", "HEAD:data/AzureLLMInferenceTrace_code.csv"],
        capture_output=True, text=True, check=True,
    ).stdout.splitlines()[1:]  # fmt: skip
    seconds = [datetime.fromisoformat(row.split(",")[0][:26]).timestamp() for row in trace if row.strip()]
    gaps = sorted(round(b - a, 3) for a, b in pairwise(seconds))
    thinned = [gaps[round(i * (len(gaps) - 1) / 499)] for i in range(500)]
    return {"spans_minutes": sorted(spans), "gaps_s": thinned, "requests_in_trace": len(seconds)}


# --- the simulation -----------------------------------------------------------------------------------------------


class Load(NamedTuple):
    """The requests and due runs of all lines over the span."""

    requests_by_second: Counter[int]
    due: list[float]  # seconds at which a line has ratings for a run
    answers: int


def make_load(arrivals: dict[str, Any], answers_a_day: int, rng: random.Random, lines: int = LINES) -> Load:
    """Each line is one person's span, its weeks begun at one of four and all on one clock; answers spread over the
    sittings."""
    by_second: Counter[int] = Counter()
    due: list[float] = []
    spans, gaps = arrivals["spans_minutes"], arrivals["gaps_s"]
    mean_gap = sum(gaps) / len(gaps)
    total_sittings = sum(map(len, spans)) / len(spans)
    each = answers_a_day * SPAN_DAYS / total_sittings  # answers a sitting: busy people have more sittings
    answers = 0
    for _ in range(lines):
        fresh, weeks = 0, rng.randrange(SPAN_DAYS // 7)
        for minute in sorted((minute + weeks * 7 * 1440) % (SPAN_DAYS * 1440) for minute in rng.choice(spans)):
            count = int(each) + (rng.random() < each % 1)
            moment = minute * 60.0
            for _ in range(count):
                # A person reads and thinks; the shape of the gaps is the trace's, their mean two minutes.
                moment += min(LONGEST_GAP_S, rng.choice(gaps) / mean_gap * 120.0)
                answers += 1
                for call in range(REQUESTS_AN_ANSWER):
                    by_second[int(moment + 4 * call)] += 1
                if rng.random() < RATED:
                    fresh += 1
                    if fresh == RATINGS_A_RUN:
                        fresh = 0
                        due.append(moment)
    return Load(by_second, sorted(due), answers)


def waits(due: Sequence[float], run_s: float, trainers: int) -> list[float]:
    """Seconds that each run waits for one of the trainers; the first that is due goes first."""
    free = [0.0] * trainers
    delays = []
    for moment in due:
        begin = max(moment, heapq.heappop(free))
        delays.append(begin - moment)
        heapq.heappush(free, begin + run_s)
    return delays


def trainers_needed(due: Sequence[float], run_s: float) -> int:
    """Fewest trainers with which 95 of 100 runs begin within PATIENCE_S."""
    trainers = 1
    while _percentile(waits(due, run_s, trainers), 0.95) > PATIENCE_S:
        trainers += 1
    return trainers


def _percentile(values: Sequence[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0


def _peak_minute(by_second: Counter[int]) -> float:
    minutes: Counter[int] = Counter()
    for second, count in by_second.items():
        minutes[second // 60] += count
    return max(minutes.values()) / 60


# --- what each part carries ---------------------------------------------------------------------------------------


def carried() -> dict[str, Any]:
    """From the benchmarks; two cores, one process."""

    def read(name: str) -> Any:
        return json.loads((BENCHMARKS / f"{name}.json").read_text())

    workers, store, start, soak = read("workers"), read("store"), read("start"), read("soak")
    run = read("run_cost")["now"]["runs"][0]
    rates = {shape: figures["answers_a_second"]["rlproxy × 1"] for shape, figures in workers["shapes"].items()}
    return {
        "relay_answers_s": rates["plain-1k-8"],
        "relay_streams_s": rates["stream-1k-8"],
        "store_completions_s": store["commits"][-1]["completions_per_s"],
        "store_one_at_a_time_s": store["commits"][0]["completions_per_s"],
        "bytes_a_completion": round(soak["database_mb"] * 1e6 / soak["answers"]),
        "start_s": start["serve, large home"]["s"],
        "start_completions": start["large_completions"],
        "run_135m_cpu_s": run["cpu_s"],
        "swaps_in_soak": soak["live"],
    }


def eight_billion() -> dict[str, Any]:
    """A version of Qwen3-8B, and a run on a card of 80 GB, as `rlproxy plan` computes them."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "config.json"
        path.write_text(json.dumps(QWEN3_8B))
        hardware = Hardware(80 * 2**30, 256 * 2**30)
        estimated = estimate_run(str(path), EstimateRequest("vllm", hardware, Workload(RATINGS_A_RUN, 1500)))
        seconds = duration(estimated, 8)
    version = estimated.version
    assert version is not None and seconds is not None
    return {"version_stored_bytes": version.stored, "version_served_bytes": version.served, "run_s": seconds.seconds}


def simulate(seed: int = 1) -> dict[str, Any]:
    arrivals = json.loads(ARRIVALS.read_text())
    parts, large = carried(), eight_billion()
    rows = []
    for answers_a_day in ANSWERS_A_DAY:
        load = make_load(arrivals, answers_a_day, random.Random(seed))
        requests = sum(load.requests_by_second.values())
        rows.append(
            {
                "answers_a_day": answers_a_day,
                "requests_s": {
                    "mean": round(requests / (SPAN_DAYS * DAY_S), 1),
                    "busiest minute": round(_peak_minute(load.requests_by_second), 1),
                    "busiest second": max(load.requests_by_second.values()),
                },
                "runs_a_day": round(len(load.due) / SPAN_DAYS, 1),
                "trainers": {f"{s:.0f}": trainers_needed(load.due, s) for s in (*RUN_S, large["run_s"])},
                "busy": {
                    f"{s:.0f}": round(len(load.due) * s / (SPAN_DAYS * DAY_S), 2) for s in (*RUN_S, large["run_s"])
                },
                "database_gb_a_week": round(requests * parts["bytes_a_completion"] / 4 / 1e9, 1),
            }
        )
    return {
        "seed": seed,
        "lines": LINES,
        "spans": len(arrivals["spans_minutes"]),
        "assumed": {
            "rated": RATED, "ratings_a_run": RATINGS_A_RUN, "requests_an_answer": REQUESTS_AN_ANSWER,
            "kept_versions": KEPT_VERSIONS, "patience_s": PATIENCE_S,
        },
        "carried": parts,
        "qwen3_8b": large,
        "adapters_gb": round(LINES * KEPT_VERSIONS * large["version_stored_bytes"] / 1e9, 1),
        "adapters_served_gb": round(LINES * large["version_served_bytes"] / 1e9, 1),
        "loads": rows,
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description="What 1,000 lines take.")
    parser.add_argument("--extract", nargs=2, type=Path, metavar=("AIOHTTP", "AZURE"), help="clones of the two sources")
    options = parser.parse_args()
    if options.extract:
        ARRIVALS.write_text(json.dumps(extract(*options.extract)) + "\n")
        return
    report = {**circumstances(), **simulate()}
    (BENCHMARKS / "capacity.json").write_text(json.dumps(report, indent=1) + "\n")
    print(json.dumps(report["loads"], indent=1), report["adapters_gb"], report["qwen3_8b"])


if __name__ == "__main__":
    main()
