"""Ratings: what a rating may look like, which completion it means, and `/v1/feedback`.

Owns the way from any channel to one stored `Rating`. Who speaks is settled before (security, chat, webhooks).
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, TypeVar
from unicodedata import normalize

from aiohttp import web

from config.webhooks import PLATFORMS
from proxy.access.keys import Principal, Scope
from proxy.access.security import principal_of
from proxy.conversation.answer_on_screen import AnswerOnScreen
from proxy.conversation.first_words import first_words, quote_of
from proxy.conversation.modalities import in_words
from proxy.conversation.redaction import WORTH_A_THREAD, Redactor
from proxy.core.errors import BadRequest, Conflict, Forbidden, NotFound, ProxyError, not_stored
from proxy.core.events import Events
from proxy.core.json_response import json_response, parse_json
from proxy.core.metrics import Metrics
from proxy.core.offload import off_loop, off_loop_above
from proxy.core.wrapped_ids import LONGEST, unwrap_id
from proxy.dialects.identity import user_in
from proxy.feedback.bodies import MAX_TEXT, AnswerText, Batch, RatingBody, RefusedBody, TakenBackBody, TakenBody, whole
from proxy.feedback.langsmith_form import to_own_format
from store.errors import EventTaken, NoAnswer, StoreError, UnknownCompletion, UnknownRating
from store.learning.rater_quota import FULL_VOICE, LEAST_WEIGHT, MOST_WEIGHT
from store.learning.rater_quota import OWNER as OWNER
from store.records import RATING_TEXTS, NewRating, NewReaction, Rating, ReactionResult, RecentCompletion, Scale
from store.store import Store

LAST: Final = "last"  # in place of an id
MAX_BATCH: Final = 1000
WAIT_S: Final = 0.5  # for a completion whose rating came before it
LOOK_S: Final = 0.05

T = TypeVar("T")
Words = Mapping[str, AnswerText]  # the rated answers, by their completions' ids

_WORDS: Final = {"good": 1.0, "bad": -1.0, "up": 1.0, "down": -1.0, "👍": 1.0, "👎": -1.0}
_SOURCES: Final = frozenset(("http", "chat", "cli", "page", "open-webui", *PLATFORMS))
_STARS: Final = re.compile(r"([1-5])(?:/5)?")


def parse_judgement(rating: Any, scale: str | None = None) -> tuple[float, Scale]:
    """A rating in [-1, 1]: "good", "bad", a number from -1 to 1, or 1 to 5 stars; and which. Raises BadRequest.

    A bare 1 could be one star or full praise. It is refused unless `scale` ("stars" or "unit") says which; "1" and
    "1/5" as text are stars, true and false are good and bad.
    """
    if scale not in (None, "stars", "unit"):
        raise BadRequest('`scale` must be "stars" or "unit".', param="scale")
    if isinstance(rating, bool):
        return (1.0 if rating else -1.0), "thumb"
    if isinstance(rating, str):
        if (word := _WORDS.get(rating.strip().lower())) is not None:
            return word, "thumb"
        if (stars := _STARS.fullmatch(rating.strip())) is not None:
            return (int(stars[1]) - 3) / 2, "stars"
    elif isinstance(rating, int | float):
        if scale is None and rating == 1:
            raise BadRequest(
                'A rating of 1 can be one star or full praise: send "good", "1/5", or add "scale": "stars" or "unit".',
                param="rating",
            )
        if scale != "unit" and rating in (1, 2, 3, 4, 5) and not (scale is None and rating == 1):
            return (rating - 3) / 2, "stars"
        if scale != "stars" and -1 <= rating <= 1:
            return float(rating), "unit"
    raise BadRequest('`rating` must be "good", "bad", 1 to 5, or a number from -1 to 1.', param="rating")


UNDELIVERED: Final = "If another relay gave it while the database was away, send this again in a moment."


class Feedback:
    """Every channel's way to a stored rating."""

    def __init__(
        self, store: Store, events: Events, metrics: Metrics, redactor: Redactor, screen: AnswerOnScreen
    ) -> None:
        self._store = store
        self._screen = screen
        self._redactor = redactor
        self._events = events
        self._metrics = metrics

    async def rate(self, new: NewRating, *, wait_s: float = 0.0) -> Rating:
        """Returns when it is on disk. For a completion that is not there yet it waits so long; some are quicker to
        rate than a backend is to begin. Raises NotFound, BadRequest, Conflict, StorageFailed."""
        return await self._save(self._redacted(new), wait_s)

    def _redacted(self, new: NewRating) -> NewRating:
        texts: dict[str, Any] = {name: text and self._redactor.text(text) for name, text in _texts_of(new).items()}
        return replace(new, **texts)

    async def _save(self, new: NewRating, wait_s: float = 0.0, *, is_begun: bool = False) -> Rating:
        """Store a rating whose secrets are out. `is_begun`: its answer is under way, and has a row by now."""
        await self._store.room()
        try:
            rating = await self._store.ratings.rate(new)
        except UnknownCompletion:
            if not is_begun and await self._screen.underway.begin_now(new.completion_id):
                return await self._save(new, wait_s, is_begun=True)
            if wait_s > 0:
                await asyncio.sleep(LOOK_S)
                return await self._save(new, wait_s - LOOK_S)
            undelivered = "" if self._store.sharing is None else f" {UNDELIVERED}"
            raise NotFound(
                f"There is no completion {new.completion_id}; it may have expired unrated, or was sent with "
                f"x-rl-capture: off.{undelivered}",
                param="completion_id",
            ) from None
        except EventTaken as error:
            raise _event_conflict(error.rating) from None
        except NoAnswer as error:
            raise _no_answer_error(error) from None
        except StoreError as error:
            raise not_stored("The rating was not stored", error) from error
        if not rating.duplicate:
            self._metrics.ratings.labels(_label(new.source), _sign(rating.value)).inc()
            self._events.emit("rating", id=rating.id, completion=rating.completion_id, value=rating.value)
        return rating

    async def retract(self, rating_id: str) -> Rating:
        """Raises NotFound, Conflict where another has taken its place and counts, StorageFailed."""
        try:
            rating = await self._store.ratings.retract(rating_id)
        except UnknownRating:
            raise NotFound(f"There is no rating {rating_id}.", param="id") from None
        except StoreError as error:
            raise not_stored("The rating was not retracted", error) from error
        if rating.retracted_at is None:
            await self._check_nothing_counts(rating)
        self._events.emit("retracted", id=rating.id, completion=rating.completion_id)
        return rating

    async def _check_nothing_counts(self, replaced: Rating) -> None:
        live = await self._store.ratings.live(replaced.completion_id, replaced.rater)
        if live is not None:
            raise Conflict(f"{replaced.id} was replaced by {live.id}, which still counts: undo that one.", param="id")

    async def react(self, new: NewReaction) -> ReactionResult:
        """A reaction on a chat platform, and the rating that follows from it. Raises NotFound, Conflict,
        StorageFailed."""
        try:
            reacted = await self._store.reactions.react(new)
        except UnknownCompletion:
            raise NotFound(f"There is no completion {new.completion_id}.", param="completion_id") from None
        except EventTaken as error:
            raise _event_conflict(error.rating) from None
        except NoAnswer as error:
            raise _no_answer_error(error) from None
        except StoreError as error:
            raise not_stored("The reaction was not stored", error) from error
        rating = reacted.rating
        if rating is not None and reacted.result == "rated":
            self._metrics.ratings.labels(_label(new.platform), _sign(rating.value)).inc()
            self._events.emit("rating", id=rating.id, completion=rating.completion_id, value=rating.value)
        elif rating is not None and reacted.result == "retracted":
            self._events.emit("retracted", id=rating.id, completion=rating.completion_id)
        return reacted

    # /v1/feedback

    async def post(self, request: web.Request) -> web.Response:
        """One rating, or up to 1,000 with a result each."""
        raw = await request.read()
        body = await off_loop(len(raw), parse_json, raw)
        if not isinstance(body, dict | list):
            raise BadRequest("The body must be a JSON object, or a list of them.")
        user, principal = user_in(request.headers), principal_of(request)
        if isinstance(body, list):
            return await self._batch(body, user, principal)
        rating = await self.rate(await self._read(body, user, principal), wait_s=WAIT_S)
        status = 200 if rating.duplicate else 201
        answer = as_json(rating, await self._words([rating], principal, user))
        return json_response(answer, status)

    async def quote(self, completion_id: str) -> str:
        """How this answer begins, as far as it has come."""
        answer = await self._store.answers.get(completion_id)
        return "no words" if answer is None else quote_of(await self._screen.so_far(answer))

    async def _words(self, ratings: Sequence[Rating], principal: Principal, user: str | None) -> Words:
        """The rated answers, by their completions' ids: those that this request may read."""
        completions = await self._store.answers.many([rating.completion_id for rating in ratings])
        raters = {rating.completion_id: rating.rater for rating in ratings}
        return {
            id: AnswerText(
                quote_of(await self._screen.so_far(completion)),
                completion.line,
                completion.untrainable and in_words(completion.untrainable),
            )
            for id, completion in completions.items()
            if Scope(
                principal, name := user or _rater_name(raters[id], principal), () if name is None else (name,)
            ).covers(completion.requester)
        }

    async def _batch(self, pieces: list[Any], user: str | None, principal: Principal) -> web.Response:
        """Each by itself, in their order: one that is refused keeps no other from being stored."""
        if not 0 < len(pieces) <= MAX_BATCH:
            raise BadRequest(f"A batch has 1 to {MAX_BATCH} ratings, not {len(pieces)}; nothing was stored.")
        new = [await _catch(self._read(piece, user, principal)) for piece in pieces]
        new = await off_loop_above(WORTH_A_THREAD, _count_characters(new), self._without_secrets, new)
        results = await self._all(new)
        until = asyncio.get_running_loop().time() + WAIT_S  # one wait for all whose completion is not there yet
        while late := [
            index for index, result in enumerate(results) if isinstance(result, NotFound) and result is not new[index]
        ]:
            if asyncio.get_running_loop().time() >= until:
                break
            await asyncio.sleep(LOOK_S)
            for place, result in zip(late, await self._all([new[place] for place in late]), strict=True):
                results[place] = result
        stored = [result for result in results if isinstance(result, Rating)]
        status = 201 if any(not result.duplicate for result in stored) else 200
        if len(stored) < len(results):
            status = 207 if stored else max(result.status for result in results if isinstance(result, ProxyError))
        words = await self._words(stored, principal, user)
        data = [_result(result, words) for result in results]
        return json_response(Batch(stored=len(stored), refused=len(results) - len(stored), data=data), status)

    async def _all(self, new: list[NewRating | ProxyError]) -> list[Rating | ProxyError]:
        """All at once: they share a commit. The writer takes them in this order."""
        return await asyncio.gather(*(self._stored(item) for item in new))

    async def _stored(self, item: NewRating | ProxyError) -> Rating | ProxyError:
        """Make what has to be awaited in here, since this may be cancelled before its first step."""
        return await _catch(self._save(item)) if isinstance(item, NewRating) else item

    def _without_secrets(self, batch: list[NewRating | ProxyError]) -> list[NewRating | ProxyError]:
        """All of them in one thread: a thousand texts, one after the other, would stall everybody."""
        return [self._redacted(item) if isinstance(item, NewRating) else item for item in batch]

    async def _read(self, piece: Any, user: str | None, principal: Principal) -> NewRating:
        """Raises BadRequest, Forbidden, NotFound."""
        if not isinstance(piece, dict):
            raise BadRequest("Each rating of a batch must be a JSON object.")
        body = to_own_format(piece)
        value, scale = parse_judgement(body.get("rating"), body.get("scale"))
        rater = rater_of(name := _text(body, "rater", 200), principal, user)
        # Whoever says in a header who speaks passes on what they wrote: that is no admin's.
        trusted = principal.role == "admin" and user is None
        source, event_id = _text(body, "source", 100) or "http", _text(body, "source_event_id", 200)
        if not trusted:
            _is_no_platform(source)
            # Of this key's events: none claims one of another key, or of a platform, before it comes.
            event_id = event_id and f"{principal.key}:{event_id}"
        event = None if event_id is None else (source, event_id)
        texts: dict[str, Any] = {
            name: "" if body.get(name) == "" else _text(body, name, MAX_TEXT) for name in RATING_TEXTS
        }
        return NewRating(
            completion_id=await self._target(body, rater, Scope(principal, name or user), event),
            rater=rater,
            value=value,
            weight=_weight(body, trusted),
            source=source,
            source_event_id=event_id,
            scale=scale,
            key=None if trusted else principal.key,
            line=principal.line,
            **texts,
        )

    async def delete(self, request: web.Request) -> web.Response:
        """`DELETE /v1/feedback/{id}`; `last` undoes the rater's newest."""
        rating_id, principal, user = request.match_info["id"], principal_of(request), user_in(request.headers)
        if rating_id == LAST:
            rater = rater_of(request.query.get("rater") or None, principal, user)
            session = request.query.get("session")
            last = await self._store.ratings.last(rater, session=session, line=principal.line)
            if last is None:
                raise Conflict(f"{rater} has no rating to undo.")
            rating_id = last.id
        elif principal.line not in (None, await self._store.ratings.line_of(rating_id)):
            raise NotFound(f"There is no rating {rating_id}.", param="id")
        elif (stored := await self._store.ratings.get(rating_id)) is not None:
            rater_of(stored.rater, principal, user)
        rating = await self.retract(rating_id)
        body = as_json(rating, await self._words([rating], principal, user))
        return web.json_response(TakenBackBody(**body, trained=await self._store.ratings.versions_of(rating.id)))

    async def _target(self, body: dict[str, Any], rater: str, scope: Scope, event: tuple[str, str] | None) -> str:
        """An id; the last main turn of a session; or "last". Never another user's: that is not what a rater saw. For a
        key below admin never another key's either: that anybody names a session or a user proves nothing.

        Raises CannotTell where nothing of the last one came."""
        completion_id, session = _text(body, "completion_id", LONGEST), _text(body, "session", 200)
        if completion_id and completion_id != LAST:
            return unwrap_id(completion_id)
        if not (completion_id or session or body.get(LAST)):
            raise BadRequest(
                'Say what is rated: `completion_id` (an id or "last") or `session`.', param="completion_id"
            )
        if event is not None and (previous := await self._store.ratings.of_event(*event, rater)) is not None:
            return previous.completion_id  # sent again, it means what was newest then
        if scope.principal.role != "admin":
            answer = await self._screen.last(scope.own_requesters(unnamed=True), session)
        else:
            answer = await self._last(session, rater)
        if answer is None:
            raise NotFound(f"There is no completion{f' in session {session}' if session else ''} to rate yet.")
        return answer.id

    async def named_in(self, request: web.Request) -> str:
        """The id in a route's path. `last` is the answer that a rating of `last` would be about. Raises NotFound."""
        id = unwrap_id(request.match_info["id"])
        if id != LAST:
            return id
        principal, user = principal_of(request), user_in(request.headers)
        rater = rater_of(request.query.get("rater") or None, principal, user)
        body = {LAST: True, "session": request.query.get("session")}
        return await self._target(body, rater, Scope(principal, user), None)

    async def _last(self, session: str | None, rater: str) -> RecentCompletion | None:
        await self._screen.underway.begin_all()
        answer = await self._store.answers.newest(session=session)
        if answer is not None and rater != OWNER and answer.requester.user not in (None, rater):
            answer = await self._store.answers.newest(session=session, user=rater)
        return await self._screen.settled(answer)


def _texts_of(new: NewRating) -> dict[str, str | None]:
    return {name: getattr(new, name) for name in RATING_TEXTS}


def _count_characters(batch: list[NewRating | ProxyError]) -> int:
    """Characters of their texts."""
    ratings = (item for item in batch if isinstance(item, NewRating))
    return sum(len(text or "") for rating in ratings for text in _texts_of(rating).values())


async def _catch(work: Awaitable[T]) -> T | ProxyError:
    try:
        return await work
    except ProxyError as error:
        return error


def _result(result: Rating | ProxyError, words: Words) -> TakenBody | RefusedBody:
    if isinstance(result, ProxyError):
        return {"status": result.status, "error": result.body()["error"]}
    return {"status": 200 if result.duplicate else 201, "rating": as_json(result, words)}


def _rater_name(rater: str, principal: Principal) -> str | None:
    """Whom a rating by this name is by, as far as that is not the key itself."""
    return None if rater in (OWNER, principal.name) else rater


def as_json(rating: Rating, words: Words) -> RatingBody:
    return whole(rating, words.get(rating.completion_id, AnswerText()))


def rater_of(name: str | None, principal: Principal, user: str | None) -> str:
    """By whose name this is. A key that was handed out to rate is one person's. So is a request whose header says who
    speaks (`user`): a server put it there, and passes on a body that it did not write. Raises Forbidden."""
    if user is not None and name not in (None, user):
        raise Forbidden(f"This request's `x-rl-user` is {user} and not {name}; nothing was done.", param="rater")
    name = name or user
    if principal.bound is None:
        return name or principal.name or OWNER
    if name not in (None, principal.bound):
        raise Forbidden(f"This key speaks for {principal.bound} and not for {name}; nothing was done.", param="rater")
    return principal.bound


def _is_no_platform(source: str) -> None:
    """Raises Forbidden: that a chat platform said it is proved by a signature, not by a word in a body."""
    letters = "".join(filter(str.isalnum, normalize("NFKC", source).casefold()))  # as a person reads it
    if letters in PLATFORMS:
        raise Forbidden(
            f"`source` {source.strip()} is what its signed webhook stores; nothing was stored. Send another name, or "
            "use a key with the role admin.",
            param="source",
        )


def _event_conflict(stored: Rating) -> Conflict:
    """An event once says one thing, so that what is answered is what was stored."""
    return Conflict(
        f"This event is stored already, as {stored.id}: {stored.rater} gave {stored.completion_id} {stored.value:g} "
        "then, and nothing was changed. Send a `source_event_id` of its own with what is new.",
        param="source_event_id",
    )


def _no_answer_error(error: NoAnswer) -> Conflict:
    reason = f" ({first_words(error.reason)})" if error.reason else ""
    return Conflict(
        f"{error.id} has no answer{reason}, so nothing was rated. Ask again, and rate the answer that comes.",
        param="completion_id",
    )


def _sign(value: float) -> str:
    return "good" if value > 0 else "bad" if value < 0 else "neutral"


def _label(source: str) -> str:
    """For the metrics, where whatever a client sends would be kept for ever."""
    return source if source in _SOURCES else "other"


def _text(body: dict[str, Any], key: str, limit: int) -> str | None:
    value = body.get(key)
    if value is None or value == "":
        return None
    if not isinstance(value, str) or len(value) > limit:
        raise BadRequest(f"`{key}` must be text of at most {limit} characters.", param=key)
    return value


def _weight(body: dict[str, Any], trusted: bool) -> float:
    """One voice is 1. Only an admin, who decides whose word counts for more, may give a rating more than that. A
    gateway with an admin's key may not, since it passes on what somebody else wrote."""
    weight = body.get("weight", 1.0)
    if isinstance(weight, bool) or not isinstance(weight, int | float) or not LEAST_WEIGHT <= weight <= MOST_WEIGHT:
        raise BadRequest(f"`weight` must be a number from {LEAST_WEIGHT:g} to {MOST_WEIGHT:g}.", param="weight")
    if weight > FULL_VOICE and not trusted:
        raise Forbidden(
            f"A `weight` above {FULL_VOICE:g} needs an admin key and no `x-rl-user`, and this was not stored. Leave it "
            "out, or ask an admin to name you in train.raters.",
            param="weight",
        )
    return float(weight)
