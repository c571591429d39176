"""Records to store, with what a test does not care about filled in."""

from __future__ import annotations

from typing import Any

from store.learning.samples import SampleRequirements
from store.records import Adapter, FinishedCompletion, Message, NewCompletion, NewRating
from store.store import Store

HELLO = Message("user", b'"hello"')
HI = Message("assistant", b'"hi"')


def new(id: str, **fields: Any) -> NewCompletion:
    defaults: dict[str, Any] = {
        "request_id": id, "choice": 0, "created_at": 1000.0, "dialect": "chat", "backend": "builtin",
        "model": "m", "served_model": "m@v1", "version": 0, "session": None, "user": None, "turn": "main",
        "turn_rule": "default", "streamed": True, "prompt": (HELLO,), "request": b'{"stream":true}',
        "sampling": {"temperature": 0.8},
    }  # fmt: skip
    return NewCompletion(id=id, **(defaults | fields))


def end(id: str, **fields: Any) -> FinishedCompletion:
    defaults: dict[str, Any] = {
        "status": "done", "finished_at": 1001.0, "reply": HI, "text": "hi", "finish_reason": "stop",
        "usage": {"total_tokens": 3}, "prompt_token_ids": [1, 2], "token_ids": [3], "logprobs": [-0.5],
        "exact": True,
    }  # fmt: skip
    return FinishedCompletion(id=id, **(defaults | fields))


def rating(completion_id: str, value: float = 1.0, **fields: Any) -> NewRating:
    return NewRating(completion_id, fields.pop("rater", "me"), value, **fields)


def adapter(version: int, run_id: int | None = None) -> Adapter:
    return Adapter(version, 0, run_id, "m", f"/adapters/{version}", 1000.0, {"rank": 16})


async def put(store: Store, *ids: str, **fields: Any) -> None:
    """Completions that are done."""
    await store.completions.record([new(id, **fields) for id in ids], [end(id) for id in ids])


async def rated(store: Store, count: int, **fields: Any) -> list[str]:
    """Completions done and rated good and bad in turn; the ids of the ratings."""
    ids = []
    for number in range(count):
        await put(store, f"c{number}", **fields)
        ids.append((await store.ratings.rate(rating(f"c{number}", 1.0 if number % 2 == 0 else -1.0))).id)
    return ids


async def claim(store: Store, **fields: Any) -> Any:
    """A run and its samples; None where there is none."""
    defaults: dict[str, Any] = {
        "model": "m", "live": 0, "max_version_gap": 8, "limit": 256, "held_share": 0.125,
        "folder_of": "runs/r{:05}".format, "version": 1, "min_total": 1,
    }  # fmt: skip
    run = await store.samples.claim(SampleRequirements(**(defaults | fields)))
    return run and (run, await store.samples.of_run(run.id))
