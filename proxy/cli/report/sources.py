"""Data of a report, as the running proxy tells it, or read-only from a home whose proxy does not answer.

Owns the reading, and that both ways give the same. Not here: what follows from it (gather).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import orjson

from proxy.cli.http import HomeClient
from proxy.web.control import whole_adapter
from proxy.web.pages.compare import SESSION
from proxy.web.run_detail import account
from store.copies.export import Filter
from store.copies.read_only import look
from store.file.db_key import Secret
from store.records import BASE, Rating

RUNS: Final = 1000  # the newest; what /rl/runs gives at most


@dataclass(frozen=True, slots=True)
class ReportedCompletion:
    """A completion without what no report shows: no token ids, and of the prompt only what was asked last."""

    id: str
    created_at: float
    model: str
    version: int | None
    turn: str
    question: str
    prompt: str  # a hash of all that was said before; system texts change with every turn and are not in it
    is_first_turn: bool  # nothing was said before the question
    text: str
    ratings: tuple[Rating, ...]


@dataclass(frozen=True, slots=True)
class ReportData:
    live: int
    previous: int
    adapters: Sequence[Mapping[str, Any]]  # as GET /rl/adapters/{version}
    runs: Sequence[Mapping[str, Any]]  # as GET /rl/runs/{id}, newest first
    completions: list[ReportedCompletion]  # the rated ones, and what was asked for to compare versions; oldest first


def ask(client: HomeClient) -> ReportData:
    """Read it from the running proxy. Raises Refused, Unreachable."""
    listing = client.ask("GET", "/rl/adapters")
    adapters = [client.ask("GET", f"/rl/adapters/{a['version']}") for a in listing["data"]]
    runs = [client.ask("GET", f"/rl/runs/{r['id']}") for r in client.ask("GET", f"/rl/runs?limit={RUNS}")["data"]]
    completions = _merge(
        parse_completion(orjson.loads(line))
        for query in ("rated=1", f"session={SESSION}")
        for line in client.lines(f"/rl/export?{query}")
    )
    return ReportData(listing["live"], _previous(adapters), adapters, runs, completions)


async def read(home: Path, secret: Secret | None) -> ReportData:
    """Read it from the files. Raises StoreError."""
    async with look(home, secret) as store:
        pointer = await store.versions.pointer()
        adapters = [await whole_adapter(store, a, pointer) for a in await store.versions.all()]
        runs = [await account(store, run) for run in await store.runs.recent(RUNS)]
        completions = [
            parse_completion(line)
            for only in (Filter(rated=True), Filter(session=SESSION))
            async for line in store.transfer.export(only)
        ]
    return ReportData(pointer.live, _previous(adapters), adapters, runs, _merge(completions))


def parse_completion(line: Mapping[str, Any]) -> ReportedCompletion:
    """A line of an export."""
    talk = [message for message in line["messages"] if message["role"] not in ("system", "developer")]
    return ReportedCompletion(
        id=line["id"],
        created_at=line["created_at"],
        model=line["model"],
        version=line["version"],
        turn=line["turn"],
        question=_question(talk),
        prompt=hashlib.blake2b(orjson.dumps(talk, option=orjson.OPT_SORT_KEYS), digest_size=16).hexdigest(),
        is_first_turn=len(talk) == 1,
        text=line["text"] or "",
        ratings=tuple(_rating(line["id"], rating) for rating in line["ratings"]),
    )


def _question(messages: Iterable[Mapping[str, Any]]) -> str:
    """The words of the last message of a user."""
    for message in reversed(list(messages)):
        content = message.get("content")
        if isinstance(content, list):
            content = " ".join(str(part.get("text") or "") for part in content if isinstance(part, dict))
        if message["role"] == "user" and isinstance(content, str) and content.strip():
            return content.strip()
    return ""


def _rating(completion: str, row: Mapping[str, Any]) -> Rating:
    columns = ("id", "rater", "value", "comment", "correction", "weight", "source", "created_at", "scale")
    return Rating(
        completion_id=completion,
        source_event_id=None,
        live=True,
        retracted_at=None,
        **{key: row[key] for key in columns},
    )


def _merge(completions: Iterable[ReportedCompletion]) -> list[ReportedCompletion]:
    """Each once, oldest first."""
    return sorted(
        {completion.id: completion for completion in completions}.values(),
        key=lambda completion: (completion.created_at, completion.id),
    )


def _previous(adapters: Iterable[Mapping[str, Any]]) -> int:
    return next((a["version"] for a in adapters if a["previous"]), BASE)
