"""`POST /rl/import`: completions out of an export, of this home or another (docs/guides/export.md).

Owns what a line must hold, and what is not believed of it. Secrets are taken out again, and a version number means
something only in the home that trained it. A bad line costs that line.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, TypeVar

import orjson
from aiohttp import web

from proxy.access.security import actor_of, require_admin
from proxy.conversation.conversations import canonical, extend_thread, thread_and_above
from proxy.conversation.modalities import decisive, first_non_text
from proxy.conversation.redaction import INEXACT, UNTRAINABLE, WORTH_A_THREAD, Redactor, places
from proxy.core.errors import BadRequest
from proxy.core.json_edit import dumps, loads
from proxy.core.json_response import json_response
from proxy.core.offload import off_loop_above
from proxy.images.parts import count_images
from proxy.web.openapi.responses import BadLineBody, ImportedBody
from proxy.web.query import flag
from store.copies.export import FORMAT
from store.copies.imports import ImportedCompletions
from store.learning.rater_quota import LEAST_WEIGHT, MOST_WEIGHT
from store.learning.ratings import valid
from store.line_records import COMMON
from store.records import RATING_TEXTS, FinishedCompletion, NewCompletion, NewRating, Rating
from store.store import Store

ID_LENGTH: Final = 140  # a client's own id, and the number of its choice
MOST_CHOICES: Final = 1000
AHEAD_S: Final = 86400.0  # by which another machine's clock may be ahead of ours
LEAST_LOGPROB: Final = -10_000.0  # vLLM writes -9999 for what has no chance at all
LONGEST_PIECE: Final = 65_535  # bytes, as the store packs them
ROUNDED: Final = 1e-3  # a server's log-prob of what is certain may come out that far above 0
LARGEST: Final = 1e9  # of a sampling setting, in either direction
STATES: Final = ("done", "partial", "error")
ASKED_IN_MESSAGES: Final = ("chat", "messages")  # others may ask for nothing, as Ollama's do to load a model


T = TypeVar("T")


class BadImportLine(Exception):
    """Why this line is not taken."""


class ImportRoutes:
    def __init__(self, store: Store, redactor: Redactor) -> None:
        self._store = store
        self._redactor = redactor

    async def post(self, request: web.Request) -> web.Response:
        """A batch of lines: those that are good are on disk when it answers."""
        require_admin(request)
        own_versions = flag(request, "ours")
        raw = await request.read()
        lines = frozenset({COMMON, *(line.name for line in await self._store.lines.all())})
        rows, refusals = await off_loop_above(WORTH_A_THREAD, len(raw), self._read, raw, own_versions, lines)
        if not rows and not refusals:
            raise BadRequest("The body holds no line of an export.")
        ids = [id for row in rows for id in (row.new.id, *(rating.id for rating in row.ratings))]
        rows, forgotten = without_forgotten(rows, await self._store.erasure.forgotten(ids))
        result = await self._store.transfer.take(rows)
        if result.stored:
            await self._store.meta.audit(actor_of(request), "import", {**result._asdict(), "refused": len(refusals)})
        return json_response(
            ImportedBody(
                stored=result.stored,
                known=result.existing,
                ratings=result.ratings,
                forgotten=forgotten,
                refused=refusals,
            )
        )

    def _read(
        self, raw: bytes, own_versions: bool, lines: Collection[str]
    ) -> tuple[list[ImportedCompletions], list[BadLineBody]]:
        rows: list[ImportedCompletions] = []
        refusals: list[BadLineBody] = []
        for number, line in enumerate(raw.split(b"\n"), start=1):
            if not line.strip():
                continue
            try:
                rows.append(read(line, self._redactor, own_versions=own_versions, lines=lines))
            except BadImportLine as error:
                refusals.append({"line": number, "why": str(error)})
        return rows, refusals


def without_forgotten(
    rows: Sequence[ImportedCompletions], forgotten: Collection[str]
) -> tuple[list[ImportedCompletions], int]:
    """Leave out what was forgotten in this home, though the export has it; returns how many completions and ratings."""
    remaining = [
        row._replace(ratings=tuple(rating for rating in row.ratings if rating.id not in forgotten)) for row in rows
    ]
    ratings = sum(len(row.ratings) - len(kept_row.ratings) for row, kept_row in zip(rows, remaining, strict=True))
    new_rows = [row for row in remaining if row.new.id not in forgotten]
    return new_rows, len(rows) - len(new_rows) + ratings


def read(
    raw: bytes, redactor: Redactor, *, own_versions: bool, lines: Collection[str] = (COMMON,)
) -> ImportedCompletions:
    """`lines`: those of this home; in another one nobody would see it, and no run take it. Raises BadImportLine."""
    try:
        line = loads(raw)
    except ValueError:
        raise BadImportLine("it is no JSON") from None
    if not isinstance(line, dict):
        raise BadImportLine("it is no object")
    if line.get("format") != FORMAT:
        raise BadImportLine(f"its format is {line.get('format')!r}, this rlproxy reads {FORMAT}")
    try:
        return _read_line(line, redactor, own_versions, lines)
    except (TypeError, ValueError, AttributeError, OverflowError) as error:
        raise BadImportLine(f"a member is of another kind than an export has: {error}") from None


def _read_line(
    line: Mapping[str, Any], redactor: Redactor, own_versions: bool, lines: Collection[str]
) -> ImportedCompletions:
    if line.get("rollout") is True:  # here nothing would tie it to the person whose prompt it has
        raise BadImportLine("it is a rollout: rlproxy sampled it, and nobody asked")
    prompt_kinds: set[str] = set()
    reply_kinds: set[str] = set()
    request_kinds: set[str] = set()
    id = _text(line, "id")
    if not 0 < len(id) <= ID_LENGTH:
        raise BadImportLine(f"an id has 1 to {ID_LENGTH} characters")
    messages = _list(line, "messages", dict)
    if not messages and line.get("dialect") in ASKED_IN_MESSAGES:
        raise BadImportLine("it has no messages")
    reply = line.get("reply")
    if reply is not None and not isinstance(reply, dict):
        raise BadImportLine("`reply` is no message")
    message = None if reply is None else redactor.message(canonical(reply), reply_kinds)
    text = redactor.text(_text(line, "text"), reply_kinds)
    request = redactor.json(dumps(line.get("request") or {}), request_kinds)
    prompt = tuple(redactor.message(canonical(m), prompt_kinds) for m in messages)
    redacted = tuple(
        sorted(
            {
                *_list(line, "redacted", str),
                *places(prompt=prompt_kinds, request=request_kinds, reply=reply_kinds),
            }
        )
    )
    thread, ancestors = thread_and_above(messages, redactor.message)
    new = NewCompletion(
        id=id, request_id=_text(line, "request_id"), choice=_whole(line, "choice", MOST_CHOICES),
        created_at=_moment(line, "created_at"), dialect=_text(line, "dialect"), backend=_text(line, "backend"),
        model=_text(line, "model"), served_model=_text(line, "served_model"),
        version=_version(line) if own_versions else None, line=_line(line, lines),
        session=_maybe(line, "session"), user=_maybe(line, "user"),
        turn="side" if line.get("turn") == "side" else "main", turn_rule="imported", streamed=False, prompt=prompt,
        request=request, sampling=_sampling(line),
        untrainable=decisive(_maybe(line, "untrainable"), first_non_text(messages)),
        images=sum(map(count_images, messages)), redacted=redacted, above=ancestors,
    )  # fmt: skip
    usage = line.get("usage")
    if usage is not None and not isinstance(usage, dict):
        raise BadImportLine("`usage` is no object")
    status = line.get("status")
    if status not in STATES:
        raise BadImportLine(f"its status is {status!r}, not one of {', '.join(STATES)}")
    end = FinishedCompletion(
        id=id, status=status, finished_at=_moment(line, "finished_at"), reply=message, text=text,
        thread=None if reply is None else extend_thread(thread, reply, redactor.message),
        finish_reason=_maybe(line, "finish_reason"), usage=redactor.value(usage),
        prompt_token_ids=_each(line, "prompt_token_ids", _whole), token_ids=_each(line, "token_ids", _whole),
        logprobs=_each(line, "logprobs", _logprob),
        unconstrained_logprobs=_each(line, "unconstrained_logprobs", _logprob), pieces=_each(line, "pieces", _piece),
        logprobs_of=line["logprobs_of"] if line.get("logprobs_of") in ("model", "temperature") else None,
        exact=line.get("exact") is True,
        inexact_reason=_maybe(line, "inexact_reason"), error=redactor.text(_maybe(line, "error") or "") or None,
        translated=line.get("translated") is True, untrainable=UNTRAINABLE if reply_kinds else None, redacted=redacted,
    )  # fmt: skip
    if redacted or not _one_for_one(end):
        reason = end.inexact_reason or (
            INEXACT if redacted else "the export has no token ids and log-probs one for one"
        )
        end = replace(
            end, prompt_token_ids=None, token_ids=None, logprobs=None, unconstrained_logprobs=None, pieces=None,
            logprobs_of=None, exact=False, inexact_reason=reason,
        )  # fmt: skip
    ratings = tuple(_rating(rating, id, redactor.text) for rating in _list(line, "ratings", dict))
    return ImportedCompletions(new, end, ratings)


def _one_for_one(end: FinishedCompletion) -> bool:
    """Check that an exact line has all its numbers, one for one; others may lack them."""
    if not end.exact:
        return True
    if end.unconstrained_logprobs is not None and len(end.unconstrained_logprobs) != len(end.logprobs or ()):
        return False
    return bool(end.prompt_token_ids and end.token_ids and len(end.token_ids) == len(end.logprobs or ()))


def _rating(line: Mapping[str, Any], completion: str, keep: Callable[[str], str]) -> Rating:
    scale = line.get("scale")
    texts: dict[str, Any] = {name: keep(_maybe(line, name) or "") or None for name in RATING_TEXTS}
    rating = Rating(
        id=_text(line, "id"), completion_id=completion, rater=_text(line, "rater"), value=_number(line, "value", -1, 1),
        **texts, weight=_number(line, "weight", LEAST_WEIGHT, MOST_WEIGHT),
        source=_text(line, "source"), source_event_id=None, created_at=_moment(line, "created_at"), live=True,
        retracted_at=None,
        scale=scale if scale in ("thumb", "stars", "unit") else "unit",
        human=line.get("human") is not False,
    )  # fmt: skip
    valid(NewRating(completion, rating.rater, rating.value, weight=rating.weight))
    return rating


def _sampling(line: Mapping[str, Any]) -> dict[str, float]:
    sampling = line.get("sampling") or {}
    return {key: _number(sampling, key, -LARGEST, LARGEST) for key in sampling}


def _version(line: Mapping[str, Any]) -> int | None:
    return None if line.get("version") is None else _whole(line, "version")


def _line(line: Mapping[str, Any], lines: Collection[str]) -> str:
    name = _maybe(line, "line") or COMMON
    if name not in lines:
        raise BadImportLine(f"this home has no line {name[:40]!r}: `rlproxy line create` makes one")
    return name


def _text(line: Mapping[str, Any], key: str) -> str:
    value = line.get(key)
    if not isinstance(value, str):
        raise BadImportLine(f"`{key}` is no text")
    return value


def _maybe(line: Mapping[str, Any], key: str) -> str | None:
    return None if line.get(key) is None else _text(line, key)


def _number(line: Mapping[str, Any], key: str, low: float, high: float) -> float:
    value = line.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise BadImportLine(f"`{key}` is not a number")
    if not low <= value <= high:  # false for NaN too
        raise BadImportLine(f"`{key}` is {value:.6g}, and not from {low:.10g} to {high:.10g}")
    return float(value)


def _whole(line: Mapping[str, Any], key: str, most: int = 2**31 - 1) -> int:
    value = line.get(key)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= most:
        raise BadImportLine(f"`{key}` is not a whole number from 0 to {most}")
    return value


def _moment(line: Mapping[str, Any], key: str) -> float:
    """Unix seconds that a clock has shown. Everything that shows or sorts by time believes them."""
    return _number(line, key, 0, time.time() + AHEAD_S)


def _logprob(line: Mapping[str, Any], key: str) -> float:
    return _number(line, key, LEAST_LOGPROB, ROUNDED)


def _piece(line: Mapping[str, Any], key: str) -> bytes:
    try:
        piece = _text(line, key).encode("latin-1")
    except UnicodeEncodeError:
        raise BadImportLine(f"`{key}` holds a character that is not one byte") from None
    if len(piece) > LONGEST_PIECE:
        raise BadImportLine(f"`{key}` holds one of {len(piece):,} bytes")
    return piece


def _each(line: Mapping[str, Any], key: str, read: Callable[[Mapping[str, Any], str], T]) -> list[T] | None:
    return None if line.get(key) is None else [read({key: item}, key) for item in _list(line, key, object)]


def _list(line: Mapping[str, Any], key: str, kind: type) -> list[Any]:
    value = line.get(key) or []
    if not isinstance(value, list) or not all(isinstance(item, kind) for item in value):
        raise BadImportLine(f"`{key}` is no list of what an export has there")
    orjson.dumps(value)  # half a character, an integer without end: what no database takes
    return value
