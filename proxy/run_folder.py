"""What the trainer reads: a run folder, written whole before the trainer starts.

Owns the writing half of the format in docs/architecture.md ("The run folder"); the reading half is trainer.samples.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import orjson

from config.settings import Settings
from proxy.conversations import as_chat
from store.records import BASE, Completion, Message, Run, Sample

FORMAT = 1


def write(
    run: Run,
    samples: Sequence[Sample],
    held_before: Sequence[Sample],
    calibration: Sequence[Completion],
    *,
    settings: Settings,
    weights: str,
    adapters: Mapping[int, str],
    out: Path,
    baseline: float,
) -> None:
    """Blocking. Complete when `run.json` is there: it is written last.

    `held_before` are held-back samples of earlier runs: the gate sees them again. Raises OSError (disk full).
    """
    folder = Path(run.folder)
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    lines = [_sample(s, held=s.held) for s in samples] + [_sample(s, held=True) for s in held_before]
    _write(folder / "samples.jsonl", lines)
    _write(folder / "calibration.jsonl", [_completion(c, ()) for c in calibration])
    used = {s.completion.new.version for s in samples} | {run.parent}
    train = settings.train
    order = {
        "format": FORMAT,
        "run": run.id,
        "model": run.model,
        "weights": weights,
        "version": run.version,
        "parent": run.parent,
        "out": str(out),
        "adapters": {str(v): adapters[v] for v in sorted(v for v in used if v) if v in adapters},
        "baseline": baseline,
        "seed": run.id,
        "threads": train.threads,
        "preset": train.preset,
        "overrides": {"max_version_gap": train.max_version_gap, **train.overrides},
        "gate": settings.gate.model_dump(),
    }
    _write(folder / "run.json", [order])


def result(folder: Path) -> dict[str, Any] | None:
    """The trainer's last word, or None where it did not come to one."""
    try:
        found = orjson.loads((folder / "result.json").read_bytes())
    except (OSError, orjson.JSONDecodeError):
        return None
    return found if isinstance(found, dict) and "status" in found else None


def tidy(folder: Path) -> None:
    """What only an unfinished run needs goes: three times the adapter's size."""
    for name in ("checkpoint", "cache"):
        shutil.rmtree(folder / name, ignore_errors=True)


def complete(folder: Path) -> bool:
    return (folder / "run.json").is_file()


def _sample(sample: Sample, *, held: bool) -> dict[str, Any]:
    rating = sample.rating
    return {
        "rating": rating.id,
        "split": "held" if held else "train",
        "reward": rating.value,
        "weight": rating.weight,
        "human": True,
        "comment": rating.comment,
        "correction": rating.correction,
        **_completion(sample.completion, sample.messages),
    }


def _completion(completion: Completion, messages: Iterable[Message]) -> dict[str, Any]:
    new, end = completion.new, completion.end
    assert end is not None, "only ended completions are trained on"
    return {
        "completion": new.id,
        "version": new.version if new.version is not None else BASE,
        "finish_reason": end.finish_reason,
        "sampling": new.sampling,
        "exact": end.exact,
        "prompt_token_ids": end.prompt_token_ids,
        "token_ids": end.token_ids,
        "logprobs": end.logprobs,
        "messages": [as_chat(m) for m in messages],
        "tools": orjson.loads(new.request).get("tools"),
        "text": end.text,
    }


def _write(path: Path, lines: Iterable[dict[str, Any]]) -> None:
    part = path.with_suffix(path.suffix + ".part")
    with part.open("wb") as file:
        for line in lines:
            file.write(orjson.dumps(line) + b"\n")
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)
