"""Why: from a rating over its reward and the tokens that it pushed to the version that came of it.

Owns `GET /rl/why/{id}`, put together from the store and the run folders, and the same for a page. No text of a
conversation is in it. Not here: what the numbers mean (docs/lab/learning-rules.md), a whole run (run_detail).
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal

from aiohttp import web

from proxy.conversation.modalities import in_words
from proxy.core.errors import Gone, NotFound
from proxy.core.json_response import json_response
from proxy.feedback.ratings import Feedback
from proxy.training import run_folder
from proxy.versions.version_copies import VersionCopies
from proxy.web.openapi.explanation import (
    AnsweringWeights,
    ExplainedRating,
    ExplainedRun,
    ExplanationBody,
    MadeVersion,
    PushBody,
)
from store.line_records import Pointer
from store.records import BASE, Adapter, Completion, Rating, Run
from store.store import Store
from trainer.launch import AdapterError, Seal, SealError, verify_adapter

Split = Literal["train", "held", "replay"]  # replay: a run of an earlier release trained it once more
NOT_KEPT: Final = ["the push of each single token: a run keeps their number and their mean advantage"]
WEIGHTS: Final = "adapter_model.safetensors"
UNDER_WAY: Final = ("claimed", "running")


class Explanations:
    def __init__(self, store: Store, feedback: Feedback, copies: VersionCopies) -> None:
        self._store = store
        self._feedback = feedback
        self._copies = copies

    async def get(self, request: web.Request) -> web.Response:
        """By the id of a completion or of a rating; `last` is the newest answer."""
        return json_response(await self.explain(await self._feedback.named_in(request)))

    async def explain(self, id: str) -> ExplanationBody:
        """Raises Gone for what was forgotten, NotFound for what was never here or has expired."""
        rating = None
        completion = await self._store.completions.get(id)
        if completion is None and (rating := await self._store.ratings.get(id)) is not None:
            completion = await self._store.completions.get(rating.completion_id)
        if completion is None:
            if await self._store.erasure.forgotten([id]):
                raise Gone(f"{id} was forgotten. Nothing of it is left here to explain.", param="id")
            raise NotFound(
                f"There is no answer or rating {id}: it never was here, or has expired. `rlproxy answers` lists ids.",
                param="id",
            )
        ratings = await self._store.ratings.history(completion.new.id)
        runs = await self._runs(completion, ratings)
        flag = (await self._store.flags.reasons([completion.new.id])).get(completion.new.id)
        return {
            "completion": completion.new.id,
            "rating": None if rating is None else rating.id,
            "version": completion.new.version,
            "line": completion.new.line,
            "weights": await self._weights(completion),
            "created_at": completion.new.created_at,
            "images": completion.new.images,
            "ratings": [_rating_body(each) for each in ratings],
            "runs": runs,
            "flag": flag,
            "waiting": None if runs else _waiting_reason(completion, ratings, flag),
            "not_kept": NOT_KEPT if runs else [],
        }

    async def _runs(self, completion: Completion, ratings: Sequence[Rating]) -> list[ExplainedRun]:
        """All that took it, or trained it once more, as runs of earlier releases did."""
        id = completion.new.id
        splits: dict[int, Split] = {}
        runs: dict[int, Run] = {}
        for run, split, _ in await self._store.samples.runs_of(id):
            runs[run.id], splits[run.id] = run, "held" if split == "held" else "train"
        turns = {run.id: run for run in await self._store.episode_groups.runs_of(id)}
        splits |= dict.fromkeys(turns, "train")
        trained_runs = await self._store.runs.with_samples([rating.id for rating in ratings])
        for run in trained_runs:
            splits.setdefault(run.id, "replay")
        runs |= turns | {run.id: run for run in trained_runs}
        return [await self._run(runs[number], splits[number], id, ratings) for number in sorted(runs, reverse=True)]

    async def _run(self, run: Run, split: Split, completion: str, ratings: Sequence[Rating]) -> ExplainedRun:
        line, not_kept = await self._sample(run, completion)
        names = [rating.id for rating in ratings]
        turns = await self._store.episode_groups.turn_ids(run.id)
        names += [run_folder.turn_name(*place) for place, turn in turns.items() if turn == completion]
        outcomes = (run.result or {}).get("samples") or {}
        outcome = next((outcomes[name] for name in names if name in outcomes), None)
        not_kept += _missing_push(run, split, outcome)
        version = await self._version(run)
        if version is not None and version["state"] == "gone":
            not_kept.append(f"the weights of v{version['version']}: it learned from what was forgotten")
        return {
            "run": run.id,
            "status": run.status,
            "reason": run.reason or (run.result or {}).get("reason"),
            "ended_at": run.ended_at,
            "split": split,
            "reward": line.get("reward"),
            "weight": line.get("weight"),
            "push": None if outcome is None else _push_body(outcome),
            "gate": (run.result or {}).get("gate"),
            "version": version,
            "not_kept": not_kept,
        }

    async def _sample(self, run: Run, completion: str) -> tuple[dict[str, Any], list[str]]:
        """The line among its samples; where that is not to be had, the reason."""
        seal = Seal(await self._store.runs.existing_key(run.id))
        try:
            line = await asyncio.to_thread(run_folder.sample_of, Path(run.folder), completion, seal)
        except (OSError, SealError, ValueError):
            return {}, [f"reward and weight: the samples of run {run.id} are gone or cannot be read"]
        if line is None:
            return {}, [f"reward and weight: the samples of run {run.id} do not have it any more"]
        return line, [] if "reward" in line else [f"reward and weight: the samples of run {run.id} do not tell them"]

    async def _version(self, run: Run) -> MadeVersion | None:
        if run.status != "done" or (adapter := await self._store.versions.get(run.version)) is None:
            return None
        return {
            "version": run.version,
            "state": _version_state(adapter, await self._store.versions.pointer(adapter.line)),
            "reason": adapter.withdrawn,
        }

    async def _weights(self, completion: Completion) -> AnsweringWeights:
        """The file that answered, and whether it is still the one that its run wrote."""
        version, model = completion.new.version, completion.new.served_model
        adapter = None if not version else await self._store.versions.get(version)
        if version is None or version == BASE:
            return {"model": model, "state": "not ours" if version is None else "base", "sha256": None, "run": None}
        if adapter is None or adapter.is_deleted:
            return {"model": model, "state": "gone", "sha256": None, "run": None if adapter is None else adapter.run_id}
        try:
            await asyncio.to_thread(verify_adapter, self._copies.folder(adapter))
            state: Literal["intact", "changed"] = "intact"
        except (AdapterError, OSError):
            state = "changed"
        sha256 = adapter.manifest.get("files", {}).get(WEIGHTS)
        return {"model": model, "state": state, "sha256": sha256, "run": adapter.run_id}


def _version_state(adapter: Adapter, pointer: Pointer) -> Literal["live", "previous", "withdrawn", "gone", "kept"]:
    if adapter.is_deleted:
        return "gone"
    if adapter.version == pointer.live:
        return "live"
    if adapter.withdrawn:
        return "withdrawn"
    return "previous" if adapter.version == pointer.previous else "kept"


def _rating_body(rating: Rating) -> ExplainedRating:
    return {
        "id": rating.id,
        "rater": rating.rater,
        "human": rating.human,
        "value": rating.value,
        "source": rating.source,
        "created_at": rating.created_at,
        "state": "live" if rating.live else "taken back" if rating.retracted_at else "replaced",
        "has_comment": bool(rating.comment),
        "has_correction": bool(rating.correction),
    }


def _push_body(outcome: Mapping[str, Any]) -> PushBody:
    return {
        "used": bool(outcome.get("used")),
        "cause": outcome.get("cause"),
        "tokens": int(outcome.get("tokens") or 0),
        "accepted": int(outcome.get("accepted") or 0),
        "taught_by": outcome.get("taught_by"),
        "advantage": outcome.get("advantage"),
        "up": outcome.get("up"),
        "down": outcome.get("down"),
        "loss": outcome.get("loss"),
        "flags": list(outcome.get("flags") or ()),
    }


def _missing_push(run: Run, split: Split, outcome: Mapping[str, Any] | None) -> list[str]:
    """Parts of the push that its result does not tell, where something was pushed."""
    if split == "held" or run.status in UNDER_WAY:
        return []
    if outcome is None:
        return [f"what became of its tokens: the result of run {run.id} does not name it"]
    if outcome.get("accepted") and "advantage" not in outcome:
        return [f"advantage, tokens up and down: run {run.id} is older than the record of them"]
    return []


def _waiting_reason(completion: Completion, ratings: Sequence[Rating], flag: str | None) -> str:
    if completion.new.untrainable:
        return f"it never trains: {in_words(completion.new.untrainable)}"
    if not ratings:
        return "nobody has rated it"
    if not any(rating.live for rating in ratings):
        return "its rating was taken back before a run took it"
    if flag is not None and any(rating.live and rating.value > 0 for rating in ratings):
        return "it is liked, and your own check has flagged it"
    if completion.new.version is None:
        return 'a model that is not ours answered; only objective = "kto" trains on such answers'
    return "it waits for the next run"
