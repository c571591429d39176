"""The end of `make demo`, on the screen and in a file: a table of versions, six answers before and after.

Owns figures and their look. How coherent the replies are is measured in a process of its own (coherence.py).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

from rich.table import Table

from scripts.demo.person import HOME, ROOT, Told, console
from scripts.harness.circumstances import machine_name, now


class Scoring:
    """Scores held-out replies under the base model, in a process beside the demo (coherence.py)."""

    def __init__(self) -> None:
        with (HOME / "scoring.log").open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "scripts.demo.coherence"],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True, cwd=ROOT,
                env=os.environ | {"OMP_WAIT_POLICY": "PASSIVE"},
            )  # fmt: skip

    def add(self, version: int, told: Sequence[Told]) -> None:
        """May block while the process loads the model."""
        assert self._process.stdin is not None
        for one in told:
            line = {"group": str(version), "prompt_token_ids": one.prompt_token_ids, "token_ids": one.token_ids}
            self._process.stdin.write(json.dumps(line) + "\n")
        self._process.stdin.write("\n")
        self._process.stdin.flush()

    def found(self) -> dict[str, dict[str, Any]]:
        """By version. Raises RuntimeError where the process failed."""
        with console.status("scoring the replies under the base model"):
            out, _ = self._process.communicate()
        if self._process.returncode:
            raise RuntimeError(f"scoring the replies ended with {self._process.returncode}: see {HOME}/scoring.log")
        return dict(json.loads(out))


def phases(run: dict[str, Any], rated_at: float, to_live_s: float) -> dict[str, float]:
    """Seconds from the last needed rating to the first answer of the new version, by what went on."""
    laps = {name: run["metrics"][f"seconds_{name}"] for name in ("load", "old", "train", "gate")}
    started, ended = run["started_at"] - rated_at, run["ended_at"] - rated_at
    beside = ended - started - sum(laps.values())  # its process begins and ends, the version is written
    return {"start": started, **laps, "beside": beside, "swap": to_live_s - ended}


def by_position(count: int, shown: int = 6) -> list[int]:
    """Places of the answers that are shown, spread evenly over all: nobody chose them by what they say."""
    return [at * count // shown for at in range(min(shown, count))]


def report(found: dict[str, Any], base: dict[str, dict[str, Any]], seconds: float, tree: str) -> dict[str, Any]:
    table = Table(
        "version", "ratings", "liked", "base NLL", "on topic", "words", "rating → live", "run", title="held-out prompts"
    )
    out = []
    for row in found["rows"]:
        told, run = row["told"], row.get("run")
        line = {
            "version": row["version"],
            "ratings": row["ratings"],
            "liked": sum(t.liked for t in told) / len(told),
            "base_nll": base[str(row["version"])]["nll"],
            "topic": base[str(row["version"])]["topic"],
            "words": sum(len(t.text.split()) for t in told) / len(told),
            "rating_to_live_s": row.get("rating_to_live_s"),
            "run_s": run["ended_at"] - run["started_at"] if run else None,
            "phases": phases(run, row["rated_at"], row["rating_to_live_s"]) if run else None,
            "gate": run["gate"] if run else None,
            "metrics": run["metrics"] if run else None,
        }
        out.append(line)
        table.add_row(
            f"v{line['version']}" if line["version"] else "base",
            str(line["ratings"]),
            f"{line['liked']:.0%}",
            f"{line['base_nll']:.2f}",
            f"{line['topic']:.2f}",
            f"{line['words']:.0f}",
            f"{line['rating_to_live_s']:.0f} s" if line["rating_to_live_s"] else "",
            f"{line['run_s']:.0f} s" if line["run_s"] else "",
        )
    console.print(table)
    first, last = found["rows"][0]["told"], found["rows"][-1]["told"]
    topics = [base[str(found["rows"][at]["version"])]["topics"] for at in (0, -1)]
    shown = by_position(len(first))
    console.print(f"\nHeld-out questions {', '.join(str(at + 1) for at in shown)} of {len(first)}, and how much each "
                  "answer depends on its question (nats a token; about 0: it would fit any):")  # fmt: skip
    answers = [
        {"position": at + 1, "prompt": first[at].prompt, "base": first[at].text.strip(), "now": last[at].text.strip(),
         "base_topic": topics[0][at], "now_topic": topics[1][at]}
        for at in shown
    ]  # fmt: skip
    for one in answers:
        console.print(f"\n{one['prompt']}", style="bold", markup=False)
        console.print(f"base {one['base_topic']:+.2f}  {one['base']}", markup=False)
        console.print(f"now  {one['now_topic']:+.2f}  {one['now']}", markup=False)
    loop = found["loop"]
    console.print(
        f"\nThe client that never stopped asking: [b]{loop.served}[/b] requests served, "
        f"[b]{len(loop.failed)}[/b] failed; {loop.in_swap} were under way in the moment of a swap. "
        f"Ratings: {found['channels']}. {seconds:.0f} s in all."
    )
    return {
        "date": now(),
        "machine": machine_name(),
        "commit": tree,
        "held_out": len(first),
        "versions": out,
        "answers": answers,
        "served": loop.served,
        "by_version": loop.by_version,
        "in_swap": loop.in_swap,
        "failed": loop.failed,
        "channels": found["channels"],
        "seconds": seconds,
    }
