"""Would a run take the answers that have come? Tried on the newest of them, before anybody has rated 32.

Owns when that is looked at, which answers are tried, and the verdict, which is kept in the store. After the first two
answers the served model is compared with the weights, by its prompts alone (weights_check). The newest answers' lines
are read as a run would read them. A process of low priority does that, with the tokeniser and without the weights. The
same happens after four times as many, since other clients have other prompts, and when either side has changed. From
the first rating on the weights also say how likely these answers are, as a run asks them. What an answer costs is a
number counted up. Not here: what a run refuses (trainer.lessons), how a server renders (served_prompts).
"""

from __future__ import annotations

import asyncio
import base64
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final, Literal

import structlog
from pydantic import Field
from typing_extensions import TypedDict

from proxy.core.errors import BackendDown
from proxy.images import run_pictures
from proxy.images.run_pictures import RunPicture
from proxy.training import run_folder, served_prompts
from proxy.training.preconditions import Preconditions
from proxy.training.weights_check import WeightsCheck
from proxy.versions.services import Services
from store.records import Completion
from trainer.launch import LaunchError

log = structlog.get_logger()

META: Final = "rehearsal"
FIRST: Final = 2  # answers, after which it is tried first
RETRY_FACTOR: Final = 4  # times as many, and it is tried again
TRIED: Final = 8  # answers at a time
COUNTED_ANSWERS: Final = 64  # answers of whose tokens it is counted what is known
MOST_BYTES: Final = 64 * 2**20  # of pictures of one look: they travel in one line
TICK_S = 5.0  # as often it is looked whether there are new ones


class KnownTokensBody(TypedDict):
    answers: int
    tokens: Annotated[int, Field(description="Of these answers.")]
    ids: Annotated[int, Field(description="Tokens whose ids are exact.")]
    log_probs: Annotated[int, Field(description="Tokens whose log-probs the server gave.")]
    line: str


class RehearsalBody(TypedDict):
    """Rehearsal: would a run take the newest answers?"""

    state: Annotated[
        Literal["untried", "prompts", "taken", "partly", "refused", "unknown"],
        Field(description="`prompts`: it would take the prompts, and the weights have not looked at the words yet."),
    ]
    tried: int
    refused: int
    why: Annotated[str | None, Field(description="Why most of those are refused.")]
    reasons: Annotated[dict[str, int], Field(description="How many are refused, by reason; the most frequent first.")]
    line: str
    known_tokens: Annotated[
        KnownTokensBody | None, Field(description="What the server told of the newest answers' tokens.")
    ]


UNTRIED: Final[RehearsalBody] = {
    "state": "untried", "tried": 0, "refused": 0, "why": None, "reasons": {}, "known_tokens": None,
    "line": f"not known yet whether a run would take them: it is tried after the first {FIRST} answers",
}  # fmt: skip


class Rehearsal:
    def __init__(self, services: Services, weights_check: WeightsCheck, preconditions: Preconditions) -> None:
        self._settings = services.settings
        self._store = services.store
        self._backend = services.backend
        self._launcher = services.launcher
        self._events = services.events
        self._health = services.health
        self._admission = services.admission
        self._images = services.images
        self._weights_check = weights_check
        self._preconditions = preconditions
        self._last_turns = 0  # answers at the last look
        self._next = FIRST
        self._of: dict[str, Any] | None = None  # the two that the verdict is about
        self._scored = False  # the weights have said how likely the answers are
        self._result = UNTRIED

    def report(self) -> RehearsalBody:
        """For `status`."""
        return self._result

    async def run(self) -> None:
        saved = await self._store.meta.get(META)
        if saved is not None:
            self._of, self._scored = saved["of"], saved.get("scored", False)
            self._result = {**UNTRIED, **saved["found"]}
        while True:
            await asyncio.sleep(TICK_S)
            try:
                await self._look()
            except Exception as error:  # no request waits for it; the next answers are looked at again
                log.exception("rehearsal", error=str(error))
                self._result = unknown(f"{type(error).__name__}: {error}")

    async def _look(self) -> None:
        turns = self._health.turns
        scored = self._weights_check.verdict is not None and self._weights_check.verdict.scored
        if turns < FIRST or (turns == self._last_turns and scored <= self._scored):
            return
        if (weights := await self._preconditions.trainable_weights()) is None:
            return
        self._last_turns = turns
        if not await asyncio.to_thread(self._launcher.has_weights, weights):
            return  # they are fetched when the first rating has come
        await self._weights_check.check(weights, scored=False)
        scored = self._weights_check.verdict is not None and self._weights_check.verdict.scored
        if turns < self._next and self._of == self._weights_check.of and scored <= self._scored:
            return
        try:
            result = await self._try(weights, scored)
        except BackendDown:
            self._last_turns = 0  # it is asked again
            return
        except LaunchError as error:
            result = unknown(str(error))
        self._next, previous, self._result, self._of = (
            RETRY_FACTOR * turns,
            self._result,
            result,
            self._weights_check.of,
        )
        self._scored = scored
        await self._store.meta.set(META, {"of": self._of, "scored": scored, "found": result})
        if result["refused"] and not previous["refused"]:
            log.warning("a run would refuse answers", **{key: result[key] for key in ("tried", "refused", "why")})
            self._events.emit("problem", message=result["line"])

    async def _try(self, weights: str, scored: bool) -> RehearsalBody:
        """`scored`: by the weights, too. Raises BackendDown, LaunchError."""
        train = self._settings.train
        foreign = self._backend.capabilities.is_foreign
        completions = await self._store.completions.newest_turns(TRIED, foreign=foreign, has_pictures=True)
        if not completions:
            return UNTRIED
        lines = await asyncio.to_thread(run_folder.unrated_lines, completions)
        if not foreign:
            async with self._admission.through():
                await served_prompts.add(self._backend, lines, _by_id(completions), questions=())
        lines, pictures = with_room(lines, await run_pictures.take_out(lines, self._store, self._images))
        if not lines:
            return unknown("the newest answer is about pictures that are too large for this look")
        text_turns = await self._store.completions.newest_turns(COUNTED_ANSWERS, foreign=foreign)
        counted_lines = await asyncio.to_thread(run_folder.unrated_lines, text_turns) or lines
        parent = 0 if foreign else (await self._store.versions.pointer()).live
        adapter = (await self._store.versions.get(parent)) if parent else None
        # Exact answers of a server on the very files that train are the model's own, to the last digit.
        comparable = not foreign and not (self._weights_check.is_own_server and _all_exact(lines))
        scored = scored and comparable and (not parent or (adapter is not None and not adapter.is_deleted))
        request = {
            "conversations": [],
            "lines": lines,
            "counted": [{**line, "messages": []} for line in counted_lines],
            "pictures": await asyncio.to_thread(_as_base64, pictures),
            "preset": train.preset,
            "overrides": train.overrides,
            "score": scored,
            "parent": parent,
            "adapter": adapter.path if adapter is not None else None,
            "comparison": self._weights_check.noise,
            "trust_remote_code": weights in train.trust_remote_code,
        }
        out = self._settings.home / "logs" / "match.log"
        reply = await self._launcher.probe(weights, request, threads=1, nice=train.nice, log=out)
        refused = [reason for reason in reply["refused"] if reason is not None]
        words = _unknown_reason(reply["doubt"], scored) if comparable else None
        return {
            **verdict(refused, len(lines), words),
            "known_tokens": shares(len(counted_lines), reply["known_tokens"]),
        }


def with_room(
    lines: Sequence[dict[str, Any]], pictures: Mapping[bytes, RunPicture]
) -> tuple[list[dict[str, Any]], dict[bytes, RunPicture]]:
    """The newest of these lines whose pictures have MOST_BYTES together, and these pictures."""
    names: dict[str, list[bytes]] = {}
    for sha256, picture in pictures.items():
        for completion in picture.completions:
            names.setdefault(completion, []).append(sha256)
    newest: list[dict[str, Any]] = []
    album: dict[bytes, RunPicture] = {}
    for line in lines:
        larger_album = album | {sha256: pictures[sha256] for sha256 in names.get(line["completion"], ())}
        if sum(len(picture.data) for picture in larger_album.values()) > MOST_BYTES:
            break
        newest.append(line)
        album = larger_album
    return newest, album


def _as_base64(pictures: Mapping[bytes, RunPicture]) -> dict[str, str]:
    return {sha256.hex(): base64.b64encode(picture.data).decode() for sha256, picture in pictures.items()}


def _all_exact(lines: Sequence[dict[str, Any]]) -> bool:
    return all(line.get("exact") is True for line in lines)


def _unknown_reason(doubt: str | None, scored: bool) -> str | None:
    """Why it is not known whether a run would take the words of these answers; None where it is."""
    if not scored:
        return "their words are compared with the weights after the first rating"
    return doubt and f"whether it would take their words is not sure yet: {doubt}"


def shares(answers: int, counts: dict[str, int]) -> KnownTokensBody | None:
    """How much of the newest answers' tokens is exact; None where they have none."""
    if not counts["tokens"]:
        return None
    ids, log_probs = (min(1.0, counts[name] / counts["tokens"]) for name in ("ids", "log_probs"))
    of = f"newest {answers} answers" if answers > 1 else "newest answer"
    line = f"of the tokens of the {of} {ids:.0%} have exact ids and {log_probs:.0%} exact log-probs"
    return {
        "answers": answers, "tokens": counts["tokens"], "ids": counts["ids"], "log_probs": counts["log_probs"],
        "line": line,
    }  # fmt: skip


def _by_id(completions: Sequence[Completion]) -> dict[str, Completion]:
    return {completion.new.id: completion for completion in completions}


def unknown(reason: str) -> RehearsalBody:
    return {**UNTRIED, "state": "unknown", "line": f"whether a run would take them could not be tried: {reason}"}


def verdict(reasons: Sequence[str], tried: int, words: str | None = None) -> RehearsalBody:
    """`reasons`: of each answer that a run would refuse; `words`: why it is not known of the others yet."""
    result: RehearsalBody = {**UNTRIED, "tried": tried, "refused": len(reasons)}
    if not reasons:
        newest = f"newest {tried} answers" if tried > 1 else "newest answer"
        if words is not None:
            return {**result, "state": "prompts", "line": f"a run would take the prompts of the {newest}; {words}"}
        return {**result, "state": "taken", "line": f"a run would take the {newest}"}
    how_many = "all" if len(reasons) == tried else f"{len(reasons)}"
    counts = dict(Counter(reasons).most_common())
    reason = next(iter(counts))
    line = f"of the newest {tried} answers a run would refuse {how_many}: {reason}"
    state: Literal["refused", "partly"] = "refused" if len(reasons) == tried else "partly"
    return {**result, "state": state, "why": reason, "reasons": counts, "line": line}
