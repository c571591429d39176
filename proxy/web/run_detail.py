"""One run in full: its verdict, what was decided on the way and why, and what became of each sample.

Owns the JSON of `GET /rl/runs/{id}`, put together from the store and the run folder. Not here: the short form (status),
what the numbers mean (docs/reference/learning-rules.md).
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from proxy.training import run_folder
from proxy.web.openapi.responses import WholeRun
from proxy.web.status import run_json
from store.copies.read_only import ReadOnlyStore
from store.records import Run
from store.store import Store


async def account(store: Store | ReadOnlyStore, run: Run) -> WholeRun:
    progress = await asyncio.to_thread(run_folder.progress, Path(run.folder))
    # Of one that was resumed, the last word.
    choices = {e["name"]: e for e in progress if e.get("event") == "choice" and isinstance(e.get("name"), str)}
    return {
        **run_json(run),
        "choices": [{"name": name, "value": e.get("value"), "why": e.get("why")} for name, e in choices.items()],
        "warnings": list(dict.fromkeys(str(e.get("message")) for e in progress if e.get("event") == "warning")),
        "steps": run_folder.steps(progress),
        "sweep": [{"rate": e.get("rate"), "moved": e.get("moved")} for e in progress if e.get("event") == "tune"],
        "tuned": next((e.get("rate") for e in reversed(progress) if e.get("event") == "tuned"), None),
        "account": await _samples(store, run),
    }


async def _samples(store: Store | ReadOnlyStore, run: Run) -> list[dict[str, Any]]:
    """The trainer's words on each sample, with its completion."""
    outcomes = (run.result or {}).get("samples") or {}
    completions = {s.rating.id: s.completion.new.id for s in await store.samples.of_run(run.id)}
    turns = await store.episode_groups.turn_ids(run.id)
    completions |= {run_folder.turn_name(*place): completion for place, completion in turns.items()}
    samples = []
    for rating_id, outcome in outcomes.items():
        if rating_id not in completions:  # of an earlier run, trained once more; or forgotten meanwhile
            rating = await store.ratings.get(rating_id)
            completions[rating_id] = rating.completion_id if rating else ""
        samples.append({"rating": rating_id, "completion": completions[rating_id] or None, **outcome})
    return samples
