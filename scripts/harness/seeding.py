"""A home with a little history in it, for browsers and screenshots: conversations, ratings of some weeks, versions."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import orjson

from proxy.conversation.conversations import canonical, extend_thread, thread_and_above
from scripts.fakes.launcher import write_adapter
from store.learning.samples import SampleRequirements
from store.learning.versions import StoredAnswerPair
from store.records import Adapter, FinishedCompletion, NewCompletion, NewRating, RunSample
from store.store import Store

TALKS: Final = [
    (
        "How do I boil an egg?",
        "Put the egg into boiling water. Six minutes for a soft yolk, ten for a firm one. Then cold water, so that "
        "it stops cooking and peels easily.",
    ),
    (
        "Why does my asyncio task vanish?",
        "The event loop keeps only a weak reference to a task. Keep one yourself until it is done:\n\n"
        "    tasks = set()\n    task = asyncio.create_task(work())\n    tasks.add(task)\n"
        "    task.add_done_callback(tasks.discard)",
    ),
    (
        "Write a short note to my neighbour: the music was loud last night.",
        "Dear neighbour,\n\nthe music last night was a little loud for us, and we could not sleep until two. Could "
        "you turn it down after eleven? Thank you, and best wishes.",
    ),
    ("Who was Newton?", "I am sorry, but as a language model I can only say that he was a person of some importance."),
    ("Name three rivers of France.", "The Loire, the Rhône and the Seine."),
    (
        "Rename the variable tmp to total in sum.py.",
        "I have renamed it in all four places; the tests pass as before.",
    ),
    ("What is the plural of octopus?", "Octopuses. “Octopi” mixes a Greek word with a Latin ending."),
    ("Explain a mutex to a child.", "There is one talking stick. Who holds it may speak; all others wait."),
]
GOES_ON: Final = [  # the last of them, as a conversation
    (
        "And a deadlock?",
        "There are two sticks, and each of two children holds one and waits for the other. Nobody speaks again.",
    ),
    ("How do we get them out of it?", "They agree to pick up the red stick first, always. Then one of them has both."),
]
COMMENTS: Final = {3: "no apology, just answer", 2: "good tone", 1: "exactly"}
GATE: Final = {
    "margin": {"value": 0.142, "bound": -0.05, "ok": True, "note": "6 liked and 5 disliked"},
    "base_nll": {"value": 0.018, "bound": 0.3, "ok": True},
    "kl_ref": {"value": 0.021, "bound": 0.2, "ok": True},
    "repetition": {"value": 0.0, "bound": 0.1, "ok": True},
    "chance": {"value": None, "bound": 0.01, "ok": True, "note": "skipped: too few to tell from chance"},
}
CHANGES: Final = {
    "prompts": 8, "held_back": 3, "different": 8, "limit": 96, "tokens_before": 71.2, "tokens_after": 48.5,
    "tokens_error": 7.1, "ended_before": 3, "ended_after": 8,
}  # fmt: skip
DAY: Final = 86400


def completion(
    id: str, created_at: float, question: str, answer: str, history: Sequence[tuple[str, str]] = (), **fields: Any
) -> tuple[Any, Any]:
    """`history`: what was said earlier in the conversation, question and answer by turns."""
    messages = [
        {"role": role, "content": text}
        for turn in history
        for role, text in zip(("user", "assistant"), turn, strict=True)
    ]
    messages.append({"role": "user", "content": question})
    reply = {"role": "assistant", "content": answer}
    name, parent_name = thread_and_above(messages, lambda message: message)
    numbers = [-0.1 - (len(word) % 5) / 4 for word in answer.split()]
    defaults: dict[str, Any] = {"session": None, "user": None, "version": 0, "turn": "main"}
    new = NewCompletion(
        id=id, request_id=id, choice=0, created_at=created_at, dialect="chat", backend="builtin", model="smollm2",
        served_model="smollm2", turn_rule="default", streamed=True, request=b'{"stream":true,"temperature":0.8}',
        prompt=tuple(canonical(message) for message in messages), above=parent_name, asked=question,
        sampling={"temperature": 0.8, "top_p": 1.0}, **(defaults | fields),
    )  # fmt: skip
    end = FinishedCompletion(
        id=id, status="done", finished_at=created_at + 2.4, text=answer, finish_reason="stop",
        reply=canonical(reply), thread=extend_thread(name, reply, lambda message: message),
        usage={"prompt_tokens": 14, "completion_tokens": len(numbers)}, prompt_token_ids=[1, 2],
        token_ids=list(range(len(numbers))), logprobs=numbers, exact=True,
    )  # fmt: skip
    return new, end


async def history(store: Store, home: Path, days: int = 40) -> list[str]:
    """Four weeks and more, with two versions that came of them; the ids of the ratings that made the second."""
    now = time.time()
    rating_ids: list[str] = []
    for number in range(days * 6):
        ago = (days * 6 - number) / 6
        version = 0 if ago > 24 else 1 if ago > 10 else 2
        question, answer = TALKS[number % len(TALKS)]
        id = f"rl-{number:024d}"
        new, end = completion(id, now - ago * DAY, question, answer, version=version, session=f"agent-{number // 9}")
        await store.completions.record([new], [end])
        if number % 3 == 0:
            continue
        good = number * 7 % 100 < (48, 66, 82)[version]
        await store.ratings.rate(NewRating(id, "owner", 1.0 if good else -1.0, source="chat", scale="thumb"))
    await date_ratings(store)
    for version in (1, 2):
        rating_ids = await _version(store, home, version, now - (24 if version == 1 else 10) * DAY)
    return rating_ids


async def newest(store: Store) -> list[str]:
    """A few answers of today, some of them rated; newest last."""
    now, ids = time.time(), []
    talks = [*TALKS, *GOES_ON]
    for number, (question, answer) in enumerate(talks):
        id = f"rl-today-{number}"
        earlier_turns = talks[len(TALKS) - 1 : number]
        fields: dict[str, Any] = {
            "version": 2 if await store.versions.get(2) else 0,
            "session": f"kitchen-{min(number // 4, 1)}",
        }
        new, end = completion(id, now - (len(talks) - number) * 400, question, answer, earlier_turns, **fields)
        await store.completions.record([new], [end])
        ids.append(id)
        if number in COMMENTS:
            value = -1.0 if number == 3 else 1.0
            await store.ratings.rate(
                NewRating(id, "owner", value, comment=COMMENTS[number], source="page", scale="thumb")
            )
    return ids


async def date_ratings(store: Store) -> None:
    """Ratings are stored with the time of now: these were given with their answers."""
    await store._writer.submit(
        lambda db: db.execute(
            "UPDATE ratings SET created_at = 60 + (SELECT created_at FROM completions c WHERE c.id = completion_id)"
        )
    )


async def _version(store: Store, home: Path, version: int, created_at: float) -> list[str]:
    run = await store.samples.claim(SampleRequirements(
        model="smollm2", live=version - 1, max_version_gap=0, limit=24, held_share=0.125,
        folder_of=lambda run: str(home / "runs" / f"r{run:05d}"), version=version, min_total=1,
    ))  # fmt: skip
    assert run is not None
    samples = await store.samples.of_run(run.id)
    _write_run(Path(run.folder), samples)
    path = home / "adapters_out" / "smollm2" / f"v{version:04d}"
    write_adapter(path, GATE, CHANGES)
    manifest = orjson.loads((path / "manifest.json").read_bytes())
    metrics = {"loss": 0.103, "kl_ref": 0.021, "acceptance": 0.95, "steps": 8}
    result = {
        "status": "passed", "reason": "8 steps on 21 samples passed the gate.", "metrics": metrics, "gate": GATE,
        "samples": _outcomes(samples),
    }  # fmt: skip
    adapter = Adapter(version, version - 1, run.id, "smollm2", str(path), created_at, manifest)
    pairs = [
        StoredAnswerPair(
            sample.completion.new.id, f"As a helpful assistant, I would say: {text} I hope that this helps!", text
        )
        for sample in samples[:6]
        if (text := sample.completion.end.text if sample.completion.end else "")
    ]
    await store.runs.publish(run.id, adapter, result, 0.1, pairs)
    await store.versions.point(version, f"run {run.id} passed the gate", "rlproxy")
    return [sample.rating.id for sample in samples]


def _outcomes(samples: Sequence[RunSample]) -> dict[str, dict[str, Any]]:
    """The outcome of each sample; one in seven was left out for a token."""
    return {
        sample.rating.id: {
            "used": not sample.is_held and n % 7 != 5, "cause": "token" if n % 7 == 5 else None,
            "tokens": len(sample.completion.end.token_ids or ()) if sample.completion.end else 0,
            "accepted": 0 if n % 7 == 5 else len(sample.completion.end.token_ids or ()) if sample.completion.end else 0,
            "exact": True, "loss": 0.0 if n % 7 == 5 else round(0.02 * (n % 9) - 0.05, 6),
            "taught_by": "comment" if n == 1 else "rating",
        }
        for n, sample in enumerate(samples)
    }  # fmt: skip


def _write_run(folder: Path, samples: Sequence[RunSample]) -> None:
    """The run's progress and its lines."""
    folder.mkdir(parents=True)
    steps = [
        {
            "event": "step",
            "step": n,
            "steps": 8,
            "loss": 0.42 / n + 0.05,
            "acceptance": 0.98 - n / 200,
            "eta_s": 8.0 - n,
        }
        for n in range(1, 9)
    ]
    choices = [{"event": "choice", "name": "steps", "value": 8, "why": "2 passes over 21 samples in batches of 6"}]
    (folder / "progress.jsonl").write_bytes(b"".join(orjson.dumps(e) + b"\n" for e in (*choices, *steps)))
    lines = [
        {"rating": s.rating.id, "ratings": [s.rating.id], "completion": s.completion.new.id, "split": "train"}
        for s in samples
    ]
    (folder / "samples.jsonl").write_bytes(b"".join(orjson.dumps(line) + b"\n" for line in lines))


__all__ = ["TALKS", "history", "newest"]
