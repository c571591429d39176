"""`POST /v1/feedback/open-webui`: Open WebUI's own thumbs, as our function there sends them, or an import.

A feedback has an id and changes: its rating, its comment, the text of the answer that it is about. Owns which
completion it is about, what of it is new, and what becomes of a rating whose feedback was deleted. What its members
mean is `open_webui_form`'s.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Sequence
from typing import Any, Final, Literal, NamedTuple

from aiohttp import web

from proxy.access.keys import Principal, Scope
from proxy.access.security import principal_of
from proxy.conversation.answer_on_screen import OURS, Ambiguous, AnswerOnScreen, CannotTell, Place
from proxy.conversation.first_words import quote_text
from proxy.conversation.modalities import in_words
from proxy.conversation.redaction import Redactor
from proxy.conversation.same_text import Similarity, similarity, text_in
from proxy.core.errors import BadRequest, NotFound
from proxy.core.json_response import json_response, parse_json
from proxy.core.offload import in_thread, off_loop
from proxy.dialects.identity import user_in
from proxy.feedback.bodies import AnswerText, OpenWebUITaken
from proxy.feedback.open_webui_form import MAX_TEXT, OpenWebUIVote, chat_messages, parse_vote, plain
from proxy.feedback.ratings import Feedback, as_json, rater_of
from store.learning.ratings import judgement
from store.records import NewRating, Rating, Requester
from store.store import Store

SOURCE: Final = "open-webui"
EVERYTHING: Final = "all"

SEVERAL: Final = (
    "several answers that rlproxy has captured fit this one, so nothing was rated. Rate the one you mean on rlproxy's "
    "page, or with `rlproxy good --id ID`."
)
NONE: Final = (
    "rlproxy has not captured this answer in this chat, or it has expired, or it was edited before it was rated. "
    "Nothing was rated; Open WebUI has kept your feedback."
)

How = Literal["given", "edited", "earlier"]
Result = Literal["rated", "known", "taken back", "nothing"]


class RatedAnswer(NamedTuple):
    """The completion that a feedback is about."""

    completion_id: str
    answer: AnswerText
    user: str | None  # whom it was for
    correction: str | None  # what a person has made of it in the chat


class FeedbackResult(NamedTuple):
    result: Result
    line: str  # for people
    rating: Rating | None = None
    answer: AnswerText = AnswerText()

    def as_json(self) -> OpenWebUITaken:
        stored = self.rating
        rating = None if stored is None else as_json(stored, {stored.completion_id: self.answer})
        return {"result": self.result, "line": self.line, "rating": rating}


class OpenWebUI:
    def __init__(self, store: Store, feedback: Feedback, screen: AnswerOnScreen, redactor: Redactor) -> None:
        self._store = store
        self._feedback = feedback
        self._screen = screen
        self._redactor = redactor
        self._turns: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)  # by key

    async def post(self, request: web.Request) -> web.Response:
        """One feedback, or that one was deleted."""
        raw = await request.read()
        body = await off_loop(len(raw), parse_json, raw)
        principal, user = principal_of(request), user_in(request.headers)
        async with self._turns[principal.key]:  # one at a time: each looks at what came before it
            result = await self._take(body, principal, user)
        status = 201 if result.result == "rated" else 200
        return json_response(result.as_json(), status)

    async def _take(self, body: Any, principal: Principal, user: str | None) -> FeedbackResult:
        """Raises ProxyError."""
        if not isinstance(body, dict):
            raise BadRequest("The body must be a JSON object; nothing was stored.")
        rater = body.get("rater")
        if rater is not None and not (isinstance(rater, str) and 0 < len(rater) <= 200):
            raise BadRequest("`rater` must be text of at most 200 characters.", param="rater")
        if rater is not None or user is not None:  # before anything is looked at for whoever it names
            rater = rater_of(rater, principal, user)
        if (deleted := body.get("deleted")) is not None:
            return await self._deleted(deleted, principal, rater)
        feedback, messages = body.get("feedback"), body.get("messages")
        if not isinstance(feedback, dict) or not isinstance(messages, list):
            raise BadRequest("Send `feedback` and `messages`, or `deleted`; nothing was stored.")
        how = body.get("how", "given")
        if how not in ("given", "edited", "earlier"):
            raise BadRequest("`how` must be given, edited or earlier; nothing was stored.", param="how")
        return await self._rated(parse_vote(feedback), messages, rater, how, principal, user)

    async def _rated(
        self,
        new: OpenWebUIVote,
        messages: list[Any],
        rater: str | None,
        how: How,
        principal: Principal,
        user: str | None,
    ) -> FeedbackResult:
        """`user`: whom a server before us names. What that says binds all that the body says, as on every route."""
        prefix = _key_prefix(principal)
        previous = await self._store.ratings.of_events(SOURCE, f"{prefix}{new.id}:", rater=user)
        scope = Scope(principal, rater, () if user is None else (user,))
        rated = await self._shown_answer(new, messages, previous, scope, None if user is not None else new.user_id)
        name = rater_of(rater or (previous[0].rater if previous else rated.user or new.user_id), principal, user)
        theirs = [old for old in await self._store.ratings.history(rated.completion_id) if old.rater == name]
        comment = await in_thread(self._redactor.text, _comment(new, previous))
        rating = NewRating(
            completion_id=rated.completion_id, rater=name, value=new.value,
            comment=comment or _emptied("comment", previous, theirs),
            correction=rated.correction or _emptied("correction", previous, theirs),
            source=SOURCE, source_event_id=f"{prefix}{new.id}:{len(previous)}", scale=new.scale,
        )  # fmt: skip
        if (unchanged := _unchanged(rating, previous, theirs, new.changed_at, how)) is not None:
            return FeedbackResult("known", f"rlproxy has this already: {rated.answer.words}", unchanged, rated.answer)
        stored = await self._feedback.rate(rating)
        for old in previous:  # the same message shows another answer now, or another person's name is on it
            if old.live and (old.completion_id, old.rater) != (rating.completion_id, rating.rater):
                await self._feedback.retract(old.id)
        added = [word for word in ("comment", "correction") if getattr(stored, word)]
        words = f", with your {' and '.join(added)}" if added else ""
        line = f"Rated {new.word} in rlproxy: {rated.answer.words}{words}"
        return FeedbackResult("rated", line, stored, rated.answer)

    async def _shown_answer(
        self, new: OpenWebUIVote, messages: list[Any], previous: Sequence[Rating], scope: Scope, other_name: str | None
    ) -> RatedAnswer:
        """By what is on the screen; else as an earlier rating of this feedback found it, and a person has edited the
        answer since. `other_name`: another name of the person. Raises NotFound, BadRequest, CannotTell."""
        history = await in_thread(chat_messages, messages)
        if not history or history[-1]["role"] != "assistant":
            raise NotFound("The `messages` do not end with an answer, so nothing was rated.", param="messages")
        now = await in_thread(text_in, history[-1])
        place = Place(scope, new.chat, new.model, None)
        requesters = await self._requesters(new.chat, scope, other_name)
        reason: CannotTell | None = None
        original = messages[-1].get("originalContent")
        texts = [history[-1]]
        if _is_text(original):
            texts.append({"role": "assistant", "content": await in_thread(plain, original)})
        for text in texts:
            try:
                answer = await self._screen.rendered([*history[:-1], text], place, requesters)
                return await self._edited(answer.id, answer.requester.user, now)
            except CannotTell as error:
                reason = reason or error
        for rating in previous:
            requester = await self._store.reactions.requester_of(rating.completion_id)
            if requester is not None:
                return await self._edited(rating.completion_id, requester.user, now)
        if reason is not None and reason.message == OURS:
            raise reason
        raise CannotTell(SEVERAL) if isinstance(reason, Ambiguous) else NotFound(NONE)

    async def _edited(self, id: str, user: str | None, text: str) -> RatedAnswer:
        completion = await self._store.completions.get(id)
        if completion is None:
            raise NotFound(f"The completion {id} went in this moment, so nothing was rated.")
        captured = completion.end.text if completion.end is not None else ""
        correction = await in_thread(self._correction, text, captured)
        reason = completion.new.untrainable
        answer = AnswerText(quote_text(captured), completion.new.line, reason and in_words(reason))
        return RatedAnswer(id, answer, user, correction)

    def _correction(self, text: str, captured: str) -> str | None:
        """None where it is the captured answer, or nothing to learn from."""
        now = self._redactor.text(text).strip()
        same = not captured or now.startswith(captured.strip()) or similarity(now, captured) is not Similarity.NOT
        return None if same or not now or len(now) > MAX_TEXT else now

    async def _requesters(self, chat: str | None, scope: Scope, other_name: str | None) -> list[Requester]:
        """Whose answers this person may have rated: their own, and in this chat all that this key may read and that
        are no other person's."""
        requesters = dict.fromkeys(scope.own_requesters(unnamed=True))
        for requester in await self._store.answers.askers_in(chat) if chat is not None else ():
            theirs = scope.user is None or requester.user in (None, scope.user, other_name)
            if theirs and scope._replace(user=requester.user).covers(requester):
                requesters[requester] = None
        return list(requesters)

    async def _deleted(self, deleted: Any, principal: Principal, rater: str | None) -> FeedbackResult:
        if not isinstance(deleted, str) or not deleted:
            raise BadRequest("`deleted` must be a feedback's id, or `all`.", param="deleted")
        prefix = _key_prefix(principal) if deleted == EVERYTHING else f"{_key_prefix(principal)}{deleted}:"
        live = await self._store.ratings.of_events(SOURCE, prefix, rater=rater, live=True)
        retracted = [await self._feedback.retract(rating.id) for rating in live]
        if not retracted:
            return FeedbackResult(
                "nothing", "No rating in rlproxy came of that feedback, so there was nothing to take back."
            )
        row = await self._store.answers.get(retracted[0].completion_id)
        reason = None if row is None else row.untrainable
        answer = (
            AnswerText()
            if row is None
            else AnswerText(quote_text(row.text, row.calls), row.line, reason and in_words(reason))
        )
        count = "The rating" if len(retracted) == 1 else f"{len(retracted)} ratings"
        return FeedbackResult(
            "taken back",
            f"{count} in rlproxy {'is' if len(retracted) == 1 else 'are'} taken back.",
            retracted[0],
            answer,
        )


def _key_prefix(principal: Principal) -> str:
    """Prefix of this key's events: none takes one of another key back."""
    return "" if principal.role == "admin" else f"{principal.key}:"


def _unchanged(
    new: NewRating, previous: Sequence[Rating], theirs: Sequence[Rating], changed_at: float, how: How
) -> Rating | None:
    """Ratings that stay as they are: `new` says nothing new, or something newer was said since. `previous` are the
    earlier ones of this feedback, `theirs` all of this rater and completion; newest first. Raises NotFound."""
    if how == "given":
        return next((rating for rating in theirs if _counts(rating, new)), None)
    if how == "earlier":
        if previous and _adds_nothing(new, previous[0]):  # also where it was undone here
            return previous[0]
        return next(
            (
                rating
                for rating in theirs
                if max(rating.created_at, rating.retracted_at or 0.0) >= changed_at or _counts(rating, new)
            ),
            None,
        )
    if not previous:
        raise NotFound("No rating in rlproxy came of that feedback, so an edit changes nothing.")
    return (
        None if previous[0].live and not _adds_nothing(new, previous[0]) else previous[0]
    )  # an edit alone is no rating


def _counts(stored: Rating, new: NewRating) -> bool:
    """And says all that `new` does."""
    return stored.live and _adds_nothing(new, stored)


def _adds_nothing(new: NewRating, stored: Rating) -> bool:
    """Words that are left out stay as they were."""
    comment = stored.comment if new.comment is None else new.comment
    correction = stored.correction if new.correction is None else new.correction
    verdict = (new.value, new.weight, new.scale, comment or None, correction or None)
    return new.completion_id == stored.completion_id and verdict == judgement(stored)


def _comment(new: OpenWebUIVote, previous: Sequence[Rating]) -> str:
    """Drop the other thumb's words, which stay in Open WebUI's form when the thumb is turned: it is none for this
    one."""
    other_comments = (rating.comment for rating in previous if rating.comment and (rating.value > 0) != (new.value > 0))
    return "" if any(old == new.comment or old.endswith(f": {new.comment}") for old in other_comments) else new.comment


def _emptied(word: str, previous: Sequence[Rating], theirs: Sequence[Rating]) -> str | None:
    """Empty text where Open WebUI had these words and has none now; None where they came from elsewhere, or never."""
    old = getattr(previous[0], word) if previous else None
    other_words = (getattr(rating, word) for rating in theirs if rating.source != SOURCE)
    return "" if old and old not in other_words else None


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and bool(value.strip())
