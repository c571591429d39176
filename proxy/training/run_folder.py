"""The trainer's input: a run folder, written whole before the trainer starts.

Owns the writing half of the format in trainer/CONTRACT.md ("The run folder"); the reading half is
trainer.lessons.samples. A completion is one line, whatever the number of its raters; what they are worth together is
`rewards`.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import orjson

from config.sections import Train
from config.settings import Settings
from proxy.conversation.as_sent import as_sent
from proxy.conversation.conversations import as_chat
from proxy.conversation.redaction import was_redacted
from proxy.dialects import chat_tools, chat_turns, template_kwargs
from proxy.training.own_loss import LossFile
from proxy.training.rewards import worth
from store.captured.rows import as_text
from store.learning.episode_groups import RunTurn
from store.learning.labels import HINDSIGHT, rater_of
from store.learning.ratings import JUDGED
from store.learning.samples import why_held
from store.records import BASE, Completion, Message, Moments, Run, RunSample
from store.safety import conversion
from trainer.launch import IN_THE_CLEAR, Seal, SealError, join_lessons, partial_path, with_hint

FORMAT = 1
SAMPLES: Final = "samples.jsonl"
CALIBRATION: Final = "calibration.jsonl"
LOSS: Final = "loss.py"  # the copy of the user's own
NO_LESSONS: Final[Mapping[str, Sequence[str]]] = {}
TEXTS: Final = (SAMPLES, CALIBRATION)  # all files of a run that hold what people said; `cache` is made of them


def lines(
    samples: Sequence[RunSample],
    held_before: Sequence[RunSample],
    earlier: Sequence[RunSample],
    train: Train,
    moments: Moments,
    lessons: Mapping[str, Sequence[str]] = NO_LESSONS,
) -> list[dict[str, Any]]:
    """Lines of samples.jsonl. `held_before` are held-back samples of earlier runs: the gate sees them again. `earlier`
    ones trained in those: the trainer may choose among them what trains once more. `lessons` were in the prompts of
    these completions."""
    now = _by_completion(samples)
    before = {id: group for id, group in _by_completion(held_before).items() if id not in now}
    found = [_sample(group, train, moments, "held" if group[0].held else "train") for group in now.values()]
    found += [_sample(group, train, moments, "held") for group in before.values()]
    found += [_sample(group, train, moments, "replay") for group in _by_completion(earlier).values()]
    return [_with_lessons(line, lessons.get(line["completion"], ())) for line in found]


def _with_lessons(line: dict[str, Any], texts: Sequence[str]) -> dict[str, Any]:
    """With the prompt that was sent: its client's messages, and the lessons that rlproxy added."""
    messages = with_hint(line["messages"], join_lessons(texts)) if texts else None
    return line if messages is None else {**line, "messages": messages, "lessons": list(texts)}


def episode_lines(turns: Sequence[RunTurn]) -> list[dict[str, Any]]:
    """Lines of samples.jsonl, a turn each, the newest episode first. Blocking."""
    return [
        {
            "rating": turn_name(one.episode.seq, one.turn),
            "ratings": [],
            "split": "train",
            "reward": next((r for r in (one.episode.reward, one.reward) if r is not None), 0.0),
            "weight": 1.0,
            "human": False,
            "source": "program",
            "comment": None,
            "correction": None,
            "episode": {
                "id": f"{one.episode.seq}",
                "group": None if one.episode.group is None else f"{one.episode.key} {one.episode.group}",
                "reward": one.episode.reward,
                "turn": one.turn,
                "turns": one.turns,
                "turn_reward": one.reward,
            },
            **_completion(one.completion, one.completion.new.prompt),
        }
        for one in sorted(turns, key=lambda one: (-one.episode.seq, one.turn))
    ]


def scored_by(turns: Sequence[RunTurn]) -> list[dict[str, Any]]:
    """For the manifest: which code of the user's own rewarded these episodes."""
    hashes = sorted({one.episode.scored_by for one in turns if one.episode.scored_by is not None})
    why = "the sha256 of the user's own reward of episodes"
    return [{"name": "train.reward", "value": ", ".join(hashes), "why": why}] if hashes else []


def turn_name(episode: int, turn: int) -> str:
    """The name in a rating's place where a program rewarded an episode: of its `seq` and the turn from 0."""
    return f"ep-{episode}-{turn}"


def unrated_lines(completions: Sequence[Completion]) -> list[dict[str, Any]]:
    """Lines of completions, without what a rating says. Blocking."""
    return [_completion(completion, completion.new.prompt) for completion in completions]


def write(
    run: Run,
    lines: Sequence[dict[str, Any]],
    calibration: Sequence[Completion],
    *,
    settings: Settings,
    weights: str,
    adapters: Mapping[int, str],
    out: Path,
    baseline: float,
    episode_baseline: float = 0.0,
    neutral: Mapping[str, Mapping[str, Any]],
    objective: str | None = None,
    tune: bool = False,
    tuned: float | None = None,
    choices: Sequence[Mapping[str, Any]] = (),
    loss: LossFile | None = None,
    seal: Seal = IN_THE_CLEAR,
) -> None:
    """Blocking. Complete when `run.json` is there: it is written last.

    `tune`: look for the learning rate, whatever one was found before (`tuned`). `objective` is that of the preset where
    it is None; `choices` are said with the run's own. `neutral` are the gate's
    questions as the server renders them. What people said is written under `seal`. Raises OSError (disk full).
    """
    folder = Path(run.folder)
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    train = settings.train
    _write(folder / SAMPLES, lines, seal)
    _write(folder / CALIBRATION, [_completion(c, ()) for c in calibration], seal)
    _dated(folder / CALIBRATION, min((c.new.created_at for c in calibration), default=None))
    if loss is not None:
        IN_THE_CLEAR.write(folder / LOSS, loss.code)
    used = {line["version"] for line in lines} | {run.parent}
    aim = {"objective": objective} if objective else {}
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
        "episode_baseline": episode_baseline,
        "seed": run.id,
        "threads": train.threads,
        "compute": train.compute,
        "load_in_4bit": train.load_in_4bit,
        "preset": train.preset,
        "tune": "anew" if tune else train.tune,
        "tuned": tuned,
        "overrides": {"max_version_gap": train.max_version_gap, **train.overrides, **aim},
        "gate": settings.gate.model_dump(),
        "neutral": neutral,
        "tensorboard": str(settings.home / "tensorboard" / f"run-{run.id}") if train.tensorboard else None,
        "choices": [
            {"name": "held", "value": run.held, "why": why_held(run.held, run.samples, train.held_share)},
            *([loss.choice] if loss else []),
            *choices,
        ],
        "loss": loss.spec if loss else None,
    }
    _write(folder / "run.json", [order])


def of_model(adapters_dir: Path, model: str) -> Path:
    """Where the versions of a model are, whatever its name has in it."""
    safe = "".join(c if c.isalnum() or c in "._-" else "-" for c in model).lstrip(".") or "model"
    return adapters_dir / safe


def newest_version(folder: Path) -> int:
    """Folders count too: a version number is never used twice, even if the database was lost."""
    return _highest(folder, "v")


def newest_run(runs: Path) -> int:
    """Highest number, of folders, too: after an older backup was restored, those of runs that it does not know are
    still there."""
    return _highest(runs, "r")


def _highest(folder: Path, letter: str) -> int:
    names = [p.name[1:] for p in folder.glob(f"{letter}*")]
    return max((int(n) for n in names if n.isdecimal()), default=0)


def result(folder: Path) -> dict[str, Any] | None:
    """The trainer's last word, or None where it did not come to one."""
    try:
        found = orjson.loads((folder / "result.json").read_bytes())
    except (OSError, orjson.JSONDecodeError):
        return None
    return found if isinstance(found, dict) and "status" in found else None


def ordered(folder: Path) -> str:
    """Where the run was told to write its adapter: nothing that is elsewhere is taken for it."""
    return str(orjson.loads((folder / "run.json").read_bytes())["out"])


def progress(folder: Path) -> list[dict[str, Any]]:
    """The trainer's events; empty where it has not begun. A line that it is writing is passed over."""
    found = []
    with contextlib.suppress(OSError):
        for line in (folder / "progress.jsonl").read_bytes().splitlines():
            with contextlib.suppress(orjson.JSONDecodeError):
                found.append(orjson.loads(line))
    return [event for event in found if isinstance(event, dict)]


def steps(told: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The numbers of each optimiser step; a second try begins anew, a resumed one goes on from its checkpoint."""
    found: dict[int, dict[str, Any]] = {}
    for event in told:
        if event.get("event") == "phase" and event.get("again"):
            found.clear()
        elif event.get("event") == "step":
            found[event["step"]] = {key: value for key, value in event.items() if key != "event"}
    return [found[step] for step in sorted(found)]


def tidy(folder: Path) -> None:
    """Remove what only an unfinished run needs: three times the adapter's size."""
    for name in ("checkpoint", "cache"):
        shutil.rmtree(folder / name, ignore_errors=True)


def without(folder: Path, completions: Collection[str], ratings: Collection[str], seal: Seal = IN_THE_CLEAR) -> int:
    """Take what was forgotten out of the files of a run; how many lines went. Blocking; raises OSError.

    A file whose key is lost, since an older database was restored, nobody can read again: it goes whole.
    """
    gone = 0
    settle(folder)
    for name in TEXTS:
        path = folder / name
        if not path.is_file():
            continue
        try:
            lines = [orjson.loads(line) for line in seal.read(path).splitlines()]
        except SealError:
            path.unlink()
            continue
        kept = [line for line in lines if not _of(line, completions, ratings)]
        if len(kept) < len(lines):
            gone += len(lines) - len(kept)
            written = path.stat().st_mtime
            try:
                _write(path, kept, seal)
                _dated(path, written)
            except FileNotFoundError:
                if folder.exists():
                    raise
                return gone  # a rebuild has just taken the whole folder away
            # What a run without a version left has learned from its samples, too.
            for left in ("cache", "checkpoint", "rejected") if name == SAMPLES else ("cache",):
                shutil.rmtree(folder / left, ignore_errors=True)
    return gone


def settle(folder: Path) -> None:
    """Remove what a kill has left of files that were being written or encrypted. Blocking; raises OSError."""
    for name in TEXTS:
        conversion.settle(folder / name, folder / f".{name}{conversion.OLD}")
        conversion.wipe(partial_path(folder / name))


def others(runs: Path, known: Iterable[str]) -> list[Path]:
    """List run folders that are not `known`: made after the backup that was restored. Blocking."""
    there = {Path(folder).resolve() for folder in known}
    return [folder for folder in runs.glob("r*") if folder.resolve() not in there]


def trains_on(folder: Path, completions: Collection[str], ratings: Collection[str], seal: Seal = IN_THE_CLEAR) -> bool:
    """Tell whether a sample of this run is one of these; not where nobody can read them. Blocking; raises OSError."""
    path = folder / SAMPLES
    lines: list[bytes] = []
    with contextlib.suppress(SealError):
        lines = seal.read(path).splitlines() if path.is_file() else []
    return any(_of(orjson.loads(line), completions, ratings) for line in lines)


def _of(line: Mapping[str, Any], completions: Collection[str], ratings: Collection[str]) -> bool:
    return line.get("completion") in completions or not set(line.get("ratings") or ()).isdisjoint(ratings)


def expire(runs: Path, before: float, needed: Collection[str]) -> int:
    """Unrated completions are in run folders, too: files with one from before then go, but of runs whose folders (by
    name) are `needed`. Blocking."""
    gone = 0
    for folder in runs.glob("r*"):
        if folder.name in needed:
            continue
        for file in (folder / CALIBRATION, *(partial_path(folder / name) for name in TEXTS)):
            with contextlib.suppress(OSError):
                if file.stat().st_mtime < before:
                    file.unlink()
                    gone += 1
    return gone


def _dated(path: Path, oldest: float | None) -> None:
    """A file is as old as the oldest of what it holds: `expire` goes by that."""
    if oldest is not None:
        os.utime(path, (oldest, oldest))


def at_work(folder: Path) -> bool:
    """Tell whether a trainer holds the folder: one of a proxy that was killed may be about to end."""
    try:
        with (folder / "lock").open("r") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False


def complete(folder: Path) -> bool:
    return (folder / "run.json").is_file()


def _by_completion(samples: Iterable[RunSample]) -> dict[str, list[RunSample]]:
    groups: dict[str, list[RunSample]] = {}
    for sample in samples:
        groups.setdefault(sample.completion.new.id, []).append(sample)
    return groups


def _sample(group: Sequence[RunSample], train: Train, moments: Moments, split: str) -> dict[str, Any]:
    completion = group[0].completion
    # What was said next has no value: it trains where nobody has given the answer one.
    said_next = [sample.rating for sample in group if sample.rating.rater == rater_of(HINDSIGHT)]
    valued = [sample.rating for sample in group if sample.rating.rater != rater_of(HINDSIGHT)]
    found = worth(
        valued or said_next,
        [rating for rating in completion.ratings if valued and rating.rater != rater_of(HINDSIGHT)],
        scheme=train.rewards,
        raters=train.raters,
        moments=moments,
    )
    return {
        "rating": found.ratings[0],
        "ratings": [*found.ratings, *(rating.id for rating in said_next if valued)],
        "split": split,
        "reward": found.reward,
        "weight": found.weight,
        "human": any(sample.rating.human for sample in group),
        "followed": any(sample.rating.source == JUDGED for sample in group),
        "comment": found.comment if valued else None,
        "hindsight": None if valued else found.comment,
        # Nobody should learn to say what stands in a secret's place.
        "correction": None if was_redacted(found.correction) else found.correction,
        **_completion(completion, group[0].messages),
    }


def _completion(completion: Completion, messages: Iterable[Message]) -> dict[str, Any]:
    new, end = completion.new, completion.end
    assert end is not None, "only ended completions are trained on"
    chat = as_sent([as_chat(m) for m in messages], new.forms)
    return {
        "completion": new.id,
        "version": new.version if new.version is not None else BASE,
        "finish_reason": end.finish_reason,
        "sampling": new.sampling,
        "exact": end.exact,
        "prompt_token_ids": end.prompt_token_ids,
        "token_ids": end.token_ids,
        "logprobs": end.logprobs,
        "pieces": as_text(end.pieces),
        "logprobs_of": end.logprobs_of,
        "reply_tokens": _tokens(end.usage, "completion_tokens"),
        "messages": chat_turns(new.dialect, chat) if end.translated else chat,
        "as_sent": new.forms is not None,
        "tools": chat_tools(new.dialect, new.request),
        "template_kwargs": template_kwargs(new.dialect, new.request, translated=end.translated),
        "text": end.text,
        "prompt_tokens": None if new.version is None else _tokens(end.usage, "prompt_tokens"),
    }


def _tokens(usage: Mapping[str, Any] | None, which: str) -> int | None:
    """How many tokens the server says that it read, those of its cache among them, or wrote."""
    count = (usage or {}).get(which)
    return count if type(count) is int else None


def _write(path: Path, lines: Iterable[dict[str, Any]], seal: Seal = IN_THE_CLEAR) -> None:
    seal.write(path, b"".join(orjson.dumps(line) + b"\n" for line in lines))
