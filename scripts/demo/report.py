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

from scripts.demo.person import HOME, ROOT, Reply, console
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

    def add(self, version: int, replies: Sequence[Reply]) -> None:
        """May block while the process loads the model."""
        assert self._process.stdin is not None
        for reply in replies:
            line = {"group": str(version), "prompt_token_ids": reply.prompt_token_ids, "token_ids": reply.token_ids}
            self._process.stdin.write(json.dumps(line) + "\n")
        self._process.stdin.write("\n")
        self._process.stdin.flush()

    def collect(self) -> dict[str, dict[str, Any]]:
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
    overhead = ended - started - sum(laps.values())  # its process begins and ends, the version is written
    return {"start": started, **laps, "beside": overhead, "swap": to_live_s - ended}


def by_position(count: int, limit: int = 6) -> list[int]:
    """Places of the answers that are shown, spread evenly over all: nobody chose them by what they say."""
    return [index * count // limit for index in range(min(limit, count))]


def report(outcome: dict[str, Any], base: dict[str, dict[str, Any]], seconds: float, tree: str) -> dict[str, Any]:
    """Print the versions, some answers and the client's counts; the figures for the file."""
    versions = [_version_figures(row, base[str(row["version"])]) for row in outcome["rows"]]
    _print_versions(versions)
    answers = _answers(outcome["rows"], base)
    _print_answers(answers, len(outcome["rows"][0]["replies"]))
    loop = outcome["loop"]
    console.print(
        f"\nThe client that never stopped asking: [b]{loop.served}[/b] requests served, "
        f"[b]{len(loop.failed)}[/b] failed; {loop.in_swap} were under way in the moment of a swap. "
        f"Ratings: {outcome['channels']}. {seconds:.0f} s in all."
    )
    return {
        "date": now(),
        "machine": machine_name(),
        "commit": tree,
        "held_out": len(outcome["rows"][0]["replies"]),
        "versions": versions,
        "answers": answers,
        "served": loop.served,
        "by_version": loop.by_version,
        "in_swap": loop.in_swap,
        "failed": loop.failed,
        "channels": outcome["channels"],
        "seconds": seconds,
    }


def _version_figures(row: dict[str, Any], score: dict[str, Any]) -> dict[str, Any]:
    replies, run = row["replies"], row.get("run")
    return {
        "version": row["version"],
        "ratings": row["ratings"],
        "liked": sum(reply.liked for reply in replies) / len(replies),
        "base_nll": score["nll"],
        "topic": score["topic"],
        "words": sum(len(reply.text.split()) for reply in replies) / len(replies),
        "rating_to_live_s": row.get("rating_to_live_s"),
        "run_s": run["ended_at"] - run["started_at"] if run else None,
        "phases": phases(run, row["rated_at"], row["rating_to_live_s"]) if run else None,
        "gate": run["gate"] if run else None,
        "metrics": run["metrics"] if run else None,
    }


def _print_versions(versions: Sequence[dict[str, Any]]) -> None:
    table = Table(
        "version", "ratings", "liked", "base NLL", "on topic", "words", "rating → live", "run", title="held-out prompts"
    )
    for figures in versions:
        table.add_row(
            f"v{figures['version']}" if figures["version"] else "base",
            str(figures["ratings"]),
            f"{figures['liked']:.0%}",
            f"{figures['base_nll']:.2f}",
            f"{figures['topic']:.2f}",
            f"{figures['words']:.0f}",
            f"{figures['rating_to_live_s']:.0f} s" if figures["rating_to_live_s"] else "",
            f"{figures['run_s']:.0f} s" if figures["run_s"] else "",
        )
    console.print(table)


def _answers(rows: Sequence[dict[str, Any]], base: dict[str, dict[str, Any]]) -> list[dict[str, Any]]:
    """Some held-out questions, each with the first and the last version's answer."""
    first, last = rows[0], rows[-1]
    first_topics, last_topics = (base[str(row["version"])]["topics"] for row in (first, last))
    return [
        {
            "position": index + 1,
            "prompt": first["replies"][index].prompt,
            "base": first["replies"][index].text.strip(),
            "now": last["replies"][index].text.strip(),
            "base_topic": first_topics[index],
            "now_topic": last_topics[index],
        }
        for index in by_position(len(first["replies"]))
    ]


def _print_answers(answers: Sequence[dict[str, Any]], count: int) -> None:
    console.print(
        f"\nHeld-out questions {', '.join(str(answer['position']) for answer in answers)} of {count}, and how much "
        "each answer depends on its question (nats a token; about 0: it would fit any):"
    )
    for answer in answers:
        console.print(f"\n{answer['prompt']}", style="bold", markup=False)
        console.print(f"base {answer['base_topic']:+.2f}  {answer['base']}", markup=False)
        console.print(f"now  {answer['now_topic']:+.2f}  {answer['now']}", markup=False)
