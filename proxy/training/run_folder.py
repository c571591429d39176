"""The trainer's input: a run folder, written whole before the trainer starts.

Owns the writing half of the format in trainer/CONTRACT.md ("The run folder"); the reading half is
trainer.lessons.samples. A completion is one line, whatever the number of its raters; what they are worth together is
`rewards`.
"""

from __future__ import annotations

import base64
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
from proxy.dialects import chat_tools, chat_turns, has_one_text, template_kwargs
from proxy.images.run_pictures import RunPicture
from proxy.training.own_loss import LossFile
from proxy.training.rewards import worth
from store.captured.rows import as_text
from store.file import conversion
from store.learning.episode_groups import RunTurn
from store.learning.episodes import Episode
from store.learning.opinion import Moments
from store.learning.ratings import JUDGED
from store.learning.samples import explain_held
from store.learning.versions import StoredAnswerPair
from store.records import BASE, Completion, FinishedCompletion, Message, PromptLesson, Run, RunSample
from trainer.launch import IN_THE_CLEAR, Seal, SealError, ServerFormat, join_lessons, partial_path, with_hint

FORMAT = 1
SAMPLES: Final = "samples.jsonl"
PICTURES: Final = "pictures.jsonl"  # of the prompts in SAMPLES, each once
CALIBRATION: Final = "calibration.jsonl"
LOSS: Final = "loss.py"  # the copy of the user's own
NO_PICTURES: Final[Mapping[bytes, RunPicture]] = {}
NO_LESSONS: Final[Mapping[str, Sequence[PromptLesson]]] = {}
ANSWER_PAIRS: Final = "answer_pairs.jsonl"  # added by the trainer; in the store once the run is published
TEXTS: Final = (
    SAMPLES,
    PICTURES,
    CALIBRATION,
    ANSWER_PAIRS,
)  # all files of a run that hold what people said; `cache` is made of them


def lines(
    samples: Sequence[RunSample],
    held_samples: Sequence[RunSample],
    train: Train,
    moments: Moments,
    lessons: Mapping[str, Sequence[PromptLesson]] = NO_LESSONS,
) -> list[dict[str, Any]]:
    """Lines of samples.jsonl. `held_samples` are held-back samples of earlier runs: the gate sees them again.

    `lessons` were in the prompts of these completions.
    """
    now = _by_completion(samples)
    held_groups = {id: group for id, group in _by_completion(held_samples).items() if id not in now}
    groups = [(group, "held" if group[0].is_held else "train") for group in now.values()]
    groups += [(group, "held") for group in held_groups.values()]
    return [_sample(group, train, moments, split, lessons.get(_id(group), ())) for group, split in groups]


def _id(group: Sequence[RunSample]) -> str:
    return group[0].completion.new.id


def episode_lines(turns: Sequence[RunTurn]) -> list[dict[str, Any]]:
    """Lines of samples.jsonl, a turn each, the newest episode first. Blocking."""
    return [
        {
            "rating": turn_name(turn.episode.seq, turn.turn),
            "ratings": [],
            "split": "train",
            "reward": next((r for r in (turn.episode.reward, turn.reward) if r is not None), 0.0),
            "weight": 1.0,
            "human": False,
            "source": "program",
            # What one's own code says of a rollout teaches as a person's comment does.
            "comment": None if turn.episode.prompt is None else turn.episode.comment,
            "correction": None,
            "episode": {
                "id": f"{turn.episode.seq}",
                "group": group_name(turn.episode),
                "reward": turn.episode.reward,
                "turn": turn.turn,
                "turns": turn.turns,
                "turn_reward": turn.reward,
            },
            **_completion(turn.completion, turn.completion.new.prompt),
        }
        for turn in sorted(turns, key=lambda turn: (-turn.episode.seq, turn.turn))
    ]


def group_name(episode: Episode) -> str | None:
    """The name of its group. Rewards of the user's own code before and after a change are on two scales."""
    if episode.group is None:
        return None
    code = "" if episode.prompt is None else f" {episode.scored_by}"
    return f"{episode.key} {episode.group}{code}"


def scored_by(turns: Sequence[RunTurn]) -> list[dict[str, Any]]:
    """For the manifest: which code of the user's own rewarded these episodes."""
    hashes = sorted({turn.episode.scored_by for turn in turns if turn.episode.scored_by is not None})
    reason = "the sha256 of the user's own reward of episodes"
    return [{"name": "train.reward", "value": ", ".join(hashes), "why": reason}] if hashes else []


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
    version_gap: int | None = None,
    languages: Sequence[str],
    neutral: Mapping[str, Mapping[str, Any]],
    comparison: Mapping[str, float] | None = None,
    objective: str | None = None,
    tune: bool = False,
    tuned: float | None = None,
    choices: Sequence[Mapping[str, Any]] = (),
    loss: LossFile | None = None,
    server_format: ServerFormat = "peft",
    pictures: Mapping[bytes, RunPicture] = NO_PICTURES,
    seal: Seal = IN_THE_CLEAR,
) -> None:
    """Blocking. Complete when `run.json` is there: it is written last.

    `tune`: look for the learning rate, whatever one was found before (`tuned`). `objective` is that of the preset where
    it is None; `choices` are said with the run's own. `neutral` are the gate's questions, in these `languages`, as the
    server renders them. `version_gap`: in place of train.max_version_gap. `comparison` is the noise that was seen as
    the server was compared with the weights. What people said is written under `seal`. Raises OSError (disk full).
    """
    folder = Path(run.folder)
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    train = settings.train
    _write(folder / SAMPLES, lines, seal)
    if pictures:
        _write(folder / PICTURES, map(_picture, pictures.items()), seal)
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
        "trust_remote_code": weights in train.trust_remote_code,
        "gpus": train.gpus,
        "offload": train.offload,
        "server_format": server_format,
        "preset": train.preset,
        "tune": "anew" if tune else train.tune,
        "tuned": tuned,
        "overrides": {"max_version_gap": version_gap or train.max_version_gap, **train.overrides, **aim},
        "gate": settings.gate.model_dump(exclude={"checks"}),
        "languages": languages,
        "neutral": neutral,
        "lessons": settings.lessons.enabled,
        "comparison": comparison,
        "tensorboard": str(settings.home / "tensorboard" / f"run-{run.id}") if train.tensorboard else None,
        "choices": [
            {"name": "held", "value": run.held, "why": explain_held(run.held, run.samples, train.held_share)},
            *([loss.choice] if loss else []),
            *choices,
        ],
        "loss": loss.spec if loss else None,
    }
    _write(folder / "run.json", [order])


def _picture(item: tuple[bytes, RunPicture]) -> dict[str, Any]:
    sha256, picture = item
    data = base64.b64encode(picture.data).decode()
    return {"sha256": sha256.hex(), "completions": picture.completions, "data": data}


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
        content = orjson.loads((folder / "result.json").read_bytes())
    except (OSError, orjson.JSONDecodeError):
        return None
    return content if isinstance(content, dict) and "status" in content else None


def ordered(folder: Path) -> str:
    """Where the run was told to write its adapter: nothing that is elsewhere is taken for it."""
    return str(orjson.loads((folder / "run.json").read_bytes())["out"])


def progress(folder: Path) -> list[dict[str, Any]]:
    """The trainer's events; empty where it has not begun. A line that it is writing is passed over."""
    events = []
    with contextlib.suppress(OSError):
        for line in (folder / "progress.jsonl").read_bytes().splitlines():
            with contextlib.suppress(orjson.JSONDecodeError):
                events.append(orjson.loads(line))
    return [event for event in events if isinstance(event, dict)]


def steps(events: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The numbers of each optimiser step; a second try begins anew, a resumed one goes on from its checkpoint."""
    by_step: dict[int, dict[str, Any]] = {}
    for event in events:
        if event.get("event") == "phase" and event.get("again"):
            by_step.clear()
        elif event.get("event") == "step" and isinstance(step := event.get("step"), int):
            by_step[step] = {key: value for key, value in event.items() if key != "event"}
    return [by_step[number] for number in sorted(by_step)]


def answer_pairs(folder: Path, seal: Seal = IN_THE_CLEAR) -> list[StoredAnswerPair]:
    """Rated prompts that parent and candidate answered, the best to show first; empty where the file is missing or
    nobody can read it. Blocking."""
    try:
        rows = [orjson.loads(line) for line in seal.read(folder / ANSWER_PAIRS).splitlines()]
        return [StoredAnswerPair(row["completion"], row["parent_answer"], row["answer"]) for row in rows]
    except (OSError, SealError, ValueError, KeyError, TypeError):
        return []


def sample_of(folder: Path, completion: str, seal: Seal = IN_THE_CLEAR) -> dict[str, Any] | None:
    """The line of a completion among a run's samples, without its texts; None where there is none. Blocking.

    Raises OSError, SealError, ValueError.
    """
    for text in seal.read(folder / SAMPLES).splitlines():
        line = orjson.loads(text)
        if line.get("completion") == completion:
            return {name: line[name] for name in ("rating", "ratings", "split", "reward", "weight") if name in line}
    return None


def tidy(folder: Path) -> None:
    """Remove what only an unfinished run needs, three times the adapter's size, and what the store has by now."""
    for name in ("checkpoint", "cache"):
        shutil.rmtree(folder / name, ignore_errors=True)
    (folder / ANSWER_PAIRS).unlink(missing_ok=True)


def remove_forgotten(
    folder: Path, completions: Collection[str], ratings: Collection[str], seal: Seal = IN_THE_CLEAR
) -> int:
    """Take what was forgotten out of the files of a run; how many lines went. Blocking; raises OSError.

    A file whose key is lost, since an older database was restored, nobody can read again: it goes whole.
    """
    removed = 0
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
        remaining = [remainder for line in lines if (remainder := _without(line, completions, ratings)) is not None]
        if remaining != lines:
            removed += 0 if name == PICTURES else len(lines) - len(remaining)
            written = path.stat().st_mtime
            try:
                _write(path, remaining, seal)
                _dated(path, written)
            except FileNotFoundError:
                if folder.exists():
                    raise
                return removed  # a rebuild has just taken the whole folder away
            # What a run without a version left has learned from its samples, too.
            for subfolder in ("cache", "checkpoint", "rejected") if name == SAMPLES else ("cache",):
                shutil.rmtree(folder / subfolder, ignore_errors=True)
    return removed


def settle(folder: Path) -> None:
    """Remove what a kill has left of files that were being written or encrypted. Blocking; raises OSError."""
    for name in TEXTS:
        conversion.settle(folder / name, folder / f".{name}{conversion.OLD}")
        conversion.wipe(partial_path(folder / name))


def find_unlisted(runs: Path, known_folders: Iterable[str]) -> list[Path]:
    """List run folders that are not `known_folders`: made after the backup that was restored. Blocking."""
    known_paths = {Path(folder).resolve() for folder in known_folders}
    return [folder for folder in runs.glob("r*") if folder.resolve() not in known_paths]


def trains_on(folder: Path, completions: Collection[str], ratings: Collection[str], seal: Seal = IN_THE_CLEAR) -> bool:
    """Tell whether a sample of this run is one of these; not where nobody can read them. Blocking; raises OSError."""
    path = folder / SAMPLES
    lines: list[bytes] = []
    with contextlib.suppress(SealError):
        lines = seal.read(path).splitlines() if path.is_file() else []
    return any(_of(orjson.loads(line), completions, ratings) for line in lines)


def _without(line: dict[str, Any], completions: Collection[str], ratings: Collection[str]) -> dict[str, Any] | None:
    """The line as it stays; None where it goes. A picture stays with the other completions that have it."""
    if (of_picture := line.get("completions")) is None:
        return None if _of(line, completions, ratings) else line
    owners = [id for id in of_picture if id not in completions]
    return {**line, "completions": owners} if owners else None


def _of(line: Mapping[str, Any], completions: Collection[str], ratings: Collection[str]) -> bool:
    return line.get("completion") in completions or not set(line.get("ratings") or ()).isdisjoint(ratings)


def expire(runs: Path, cutoff: float, needed: Collection[str]) -> int:
    """Unrated completions are in run folders, too: files with one from before then go, but of runs whose folders (by
    name) are `needed`. Blocking."""
    removed = 0
    for folder in runs.glob("r*"):
        if folder.name in needed:
            continue
        for file in (folder / CALIBRATION, *(partial_path(folder / name) for name in TEXTS)):
            with contextlib.suppress(OSError):
                if file.stat().st_mtime < cutoff:
                    file.unlink()
                    removed += 1
    return removed


def _dated(path: Path, oldest: float | None) -> None:
    """A file is as old as the oldest of what it holds: `expire` goes by that."""
    if oldest is not None:
        os.utime(path, (oldest, oldest))


def is_running(folder: Path) -> bool:
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


def _sample(
    group: Sequence[RunSample], train: Train, moments: Moments, split: str, lessons: Sequence[PromptLesson]
) -> dict[str, Any]:
    completion = group[0].completion
    combined = worth(
        [sample.rating for sample in group],
        completion.ratings,
        scheme=train.rewards,
        raters=train.raters,
        moments=moments,
    )
    return {
        "rating": combined.ratings[0],
        "ratings": list(combined.ratings),
        "split": split,
        "reward": combined.reward,
        "weight": combined.weight,
        "human": any(sample.rating.human for sample in group),
        "followed": any(sample.rating.source == JUDGED for sample in group),
        "comment": combined.comment,
        # Nobody should learn to say what stands in a secret's place.
        "correction": None if was_redacted(combined.correction) else combined.correction,
        **_completion(completion, group[0].messages, lessons),
    }


def _completion(
    completion: Completion, messages: Iterable[Message], lessons: Sequence[PromptLesson] = ()
) -> dict[str, Any]:
    """A completion's part of its line, with the prompt that was sent: its client's messages, and rlproxy's lessons."""
    new, end = completion.new, completion.end
    assert end is not None, "only ended completions are trained on"
    chat = as_sent([as_chat(m) for m in messages], new.forms)
    texts = [lesson.text for lesson in lessons]
    if texts:
        chat_sent = with_hint(chat, join_lessons(texts), is_in_text=has_one_text(new.dialect))
        chat, texts = (chat, []) if chat_sent is None else (chat_sent, texts)
    return {
        "completion": new.id,
        "version": new.version if new.version is not None else BASE,
        "finish_reason": end.finish_reason,
        "sampling": new.sampling,
        "seconds": round(end.finished_at - new.created_at, 3),
        "exact": end.exact,
        "prompt_token_ids": end.prompt_token_ids,
        "token_ids": end.token_ids,
        "logprobs": end.logprobs,
        "unconstrained_logprobs": end.unconstrained_logprobs,
        "pieces": as_text(end.pieces),
        "logprobs_of": end.logprobs_of,
        "reply_tokens": _tokens(end.usage, "completion_tokens"),
        "messages": chat_turns(new.dialect, chat) if end.translated else chat,
        "as_sent": new.forms is not None,
        "tools": chat_tools(new.dialect, new.request),
        "template_kwargs": template_kwargs(new.dialect, new.request, translated=end.translated),
        "text": end.text,
        "reply": _calling_reply(end),
        **({"lessons": texts, "lesson_ratings": [lesson.rating for lesson in lessons]} if texts else {}),
        "prompt_tokens": None if new.version is None else _tokens(end.usage, "prompt_tokens"),
    }


def _calling_reply(end: FinishedCompletion) -> dict[str, Any] | None:
    """A reply with tool calls that was not captured exactly: its words alone are not all that the model said."""
    message = None if end.exact or end.reply is None else as_chat(end.reply)
    return message if message is not None and message.get("tool_calls") else None


def _tokens(usage: Mapping[str, Any] | None, member: str) -> int | None:
    """How many tokens the server says that it read, those of its cache among them, or wrote."""
    count = (usage or {}).get(member)
    return count if type(count) is int else None


def _write(path: Path, lines: Iterable[dict[str, Any]], seal: Seal = IN_THE_CLEAR) -> None:
    seal.write(path, b"".join(orjson.dumps(line) + b"\n" for line in lines))
