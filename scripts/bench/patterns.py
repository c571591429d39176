"""How the CPU time of each regular expression grows with a text that nearly fits it.

    python -m scripts.bench.patterns [--repeats N] [--quick] [--json FILE]

Every pattern of the source is tried with texts made of its own parts, called as the product calls it. The slowest text
of each is read in five sizes. The exponent is the slope of the line through the times, both in logarithms: 1 where
twice as much takes twice the CPU time. Writes benchmarks/patterns.json; `--quick` takes fewer patterns and writes
nothing unless told where. Exits with 1 where an exponent is above 1.2. tests/attacker/test_patterns.py tries the same.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NamedTuple

from scripts.bench.scaling import DOUBLINGS, MOST, ROOT, exponent, seconds
from scripts.harness.circumstances import circumstances
from scripts.harness.near_misses import Input, inputs, scan_with, text_of
from scripts.harness.patterns import METHODS, Use, everything

SMALLEST: Final = 16 << 10  # characters
LEAST_S: Final = 0.002  # of the largest size, for its clock to be worth something
MOST_ROWS: Final = 10
QUICK: Final = 10  # every tenth pattern


class Slowest(NamedTuple):
    """The text that takes a pattern the most time, and the method."""

    use: Use
    method: str
    text: Input


def slowest(use: Use, texts: list[Input]) -> Slowest:
    gc.collect()
    gc.disable()  # it looks through all that there is, now and then
    took: list[tuple[float, int, Slowest]] = []
    for text in texts:
        subject = text_of(use.pattern, text.make(SMALLEST))
        for method in sorted(use.methods or METHODS):
            scan = scan_with(use.pattern, method)
            began = time.thread_time()
            scan(subject)
            took.append((time.thread_time() - began, len(took), Slowest(use, method, text)))
    gc.enable()
    return max(took)[2]


def measured(case: Slowest, sizes: list[int], repeats: int) -> dict[str, Any] | None:
    """None where even the largest text takes no time to speak of."""
    use, method, text = case
    scan: Callable[[Any], Any] = scan_with(use.pattern, method)
    if seconds(scan, text_of(use.pattern, text.make(sizes[-1])), 1) < LEAST_S:
        return None
    times = [seconds(scan, text_of(use.pattern, text.make(size)), repeats) for size in sizes]
    return {
        "place": use.place, "method": method, "text": repr(text.head + text.unit + "…" + text.tail)[1:-1],
        "cpu_s": [round(t, 6) for t in times], "exponent": round(exponent(sizes, times), 3),
    }  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    about = circumstances()
    uses = everything()[:: QUICK if arguments.quick else 1]
    sizes = [SMALLEST << n for n in range(DOUBLINGS + 1)]
    rows: list[dict[str, Any]] = []
    texts = units = 0
    for use in uses:
        tried = inputs(use.pattern)
        texts, units = texts + len(tried), units + len({text.unit for text in tried})
        row = measured(slowest(use, tried), sizes, arguments.repeats)
        if row is not None:
            rows.append(row)
            print(f"{row['exponent']:6.2f}  {row['place']} ({row['method']})", flush=True)
    rows.sort(key=lambda row: row["exponent"], reverse=True)
    highest = rows[0]["exponent"]
    print(f"{len(uses)} patterns, {texts:,} texts of {units:,} units; the highest exponent is {highest}")
    target = arguments.json or (None if arguments.quick else ROOT / "benchmarks/patterns.json")
    if target is not None:
        report = {
            "most": MOST, "repeats": arguments.repeats, "bytes": sizes, "patterns": len(uses), "texts": texts,
            "units": units, "measured": len(rows), "least_s": LEAST_S, "highest": highest, "rows": rows[:MOST_ROWS],
        }  # fmt: skip
        target.write_text(json.dumps(about | report, indent=1) + "\n")
    violations = [f"{row['place']}: {row['exponent']}" for row in rows if row["exponent"] > MOST]
    if violations:
        print(f"above {MOST}: {'; '.join(violations)}", file=sys.stderr)
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main())
