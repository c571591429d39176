"""Finds which answer a request follows, and what it says about that answer: signals, a few seconds behind the capture.

It reads what was captured, in order, and no request waits for it. An answer is known again as `/rl good` at that place
would know it: by the thread of the conversation, else by its words. Where that is not certain there is no signal. Owns
the kinds of signals; what a rule makes of them is `rules`. Not here: what is only a judge's to say (judging).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import structlog

from proxy.access.keys import Principal, Scope
from proxy.conversation.answer_on_screen import AnswerOnScreen, CannotTell, Place
from proxy.conversation.conversations import as_chat
from proxy.conversation.typed_words import own_words
from proxy.core.agent_wrappers import agent_of
from proxy.signals import rules
from proxy.signals.rules import Label
from store.learning.signals import FollowUp
from store.records import Candidate, NewSignal, RecentCompletion, ReturnedConversation, SignalKind
from store.store import Store

log = structlog.get_logger()

BATCH_SIZE: Final = 50  # requests
SHOWN_CHARACTERS: Final = 2000  # characters that are kept of what followed
REPEAT_WINDOW_S: Final = 600.0  # within which the same question is asked once more because of its answer
UNCERTAIN: Final = "it is not certain that a person typed it"
QUESTIONS: Final = 3


class Follower:
    def __init__(self, store: Store, screen: AnswerOnScreen) -> None:
        self._store = store
        self._screen = screen

    async def step(self) -> int:
        """Look at some more requests; how many. Raises StoreError."""
        unseen = await self._store.signals.unseen(BATCH_SIZE)
        signals: list[NewSignal] = []
        for request in unseen:
            try:
                signals += await self._signals_of(request)
            except (ValueError, TypeError, KeyError) as error:  # whatever a client sent: the next one is looked at
                log.warning("a request says nothing of the answer before it", completion=request.id, error=repr(error))
        if unseen:  # one commit for all of them
            await self._store.signals.note(signals, unseen[-1].seq)
        broken = rules.of_kind("aborted")
        assert broken is not None
        return len(unseen) + await self._store.signals.note_broken_off(broken.reason)

    async def _signals_of(self, request: FollowUp) -> list[NewSignal]:
        """Find what this request says of earlier answers."""
        if request.turn != "main" or not request.tail:
            return []
        # Without a session, equal words may be of two conversations: then nobody can tell which one goes on.
        certain = request.session is not None or await self._store.signals.is_only(request)
        if (
            certain
            and request.tail[-1].role == "user"
            and (repeated := await self._find_repetition(request)) is not None
        ):
            return [repeated]
        if request.above is None or not certain:
            return []
        answer = await self._previous_answer(request)
        if answer is None:
            return []
        return await self._about(answer, request)

    async def _find_repetition(self, request: FollowUp) -> NewSignal | None:
        """The same question once more, or another one in its place."""
        if (same := await self._store.signals.find_same_question(request, REPEAT_WINDOW_S)) is not None:
            return _ruled(same, "regenerated", request, "", rules.of_kind("regenerated"))
        if request.parent is None or request.typed is None:  # all conversations begin at the same place
            return None
        replaced = await self._store.signals.find_other_question(request, REPEAT_WINDOW_S)
        if replaced is None:
            return None
        id, question = replaced
        kind: SignalKind = "regenerated" if question.strip() == request.asked.strip() else "edited"
        return _ruled(id, kind, request, request.typed, rules.of_kind(kind))

    async def _previous_answer(self, request: FollowUp) -> RecentCompletion | None:
        """The answer that this request goes on from; None where that is not certain, or it was a side turn."""
        candidates = await self._by_thread(request)
        if not candidates:
            candidates = await self._by_words(request)
        if len(candidates) != 1:
            return None
        answer = await self._store.answers.main_turn(candidates[0].id)
        return answer if answer is not None and answer.seq < request.seq else None

    async def _by_thread(self, request: FollowUp) -> Sequence[Candidate]:
        if request.above is None:
            return ()
        system = tuple(bytes.fromhex(request.system[start : start + 32]) for start in range(0, len(request.system), 32))
        sent = ReturnedConversation(request.above, request.reply or b"", system, request.model, request.session)
        return await self._store.completions.find_reply(sent, [request.requester])

    async def _by_words(self, request: FollowUp) -> Sequence[Candidate]:
        """Its client has rewritten the conversation. Where no answer here says its newest reply, the
        conversation is not read."""
        if request.answer is not None and not await self._screen.may_have_said(
            as_chat(request.answer), [request.requester], request.session
        ):
            return ()
        whole = await self._store.completions.get(request.id)
        if whole is None:
            return ()
        messages = [as_chat(message) for message in whole.new.prompt]
        last = max((index for index, message in enumerate(messages) if message["role"] == "assistant"), default=-1)
        place = Place(_own_scope(request), request.session, request.model, agent_of({}, messages))
        try:
            shown_answer = (
                await self._screen.rendered(messages[: last + 1], place, [request.requester]) if last >= 0 else None
            )
        except CannotTell:
            return ()
        return () if shown_answer is None else [Candidate(shown_answer.id, shown_answer.created_at, shown_answer.text)]

    async def _about(self, answer: RecentCompletion, request: FollowUp) -> list[NewSignal]:
        signals: list[NewSignal] = []
        if any(message.role == "tool" for message in request.tail):
            signals.append(self._of_tools(answer, request))
        if request.tail[-1].role == "user":
            signals.append(self._of_words(answer, request))
        return signals

    def _of_tools(self, answer: RecentCompletion, request: FollowUp) -> NewSignal:
        """All results of one answer's calls together: it failed where one of them did."""
        results = [as_chat(message) for message in request.tail if message.role == "tool"]
        texts = [(_text(result), str(result.get("tool_call_id") or "")) for result in results]
        labels = [rules.of_tool(marked=id in request.tool_errors) for _, id in texts]
        worst = next((index for index, label in enumerate(labels) if label.value), 0)
        return _ruled(answer.id, "tool", request, texts[worst][0], labels[worst])

    def _of_words(self, answer: RecentCompletion, request: FollowUp) -> NewSignal:
        if request.typed is None:
            return _ruled(answer.id, "message", request, request.asked, rules.label("unclear", UNCERTAIN))
        typed_words = own_words(request.typed)  # a page that was pasted into it instructs nobody
        ruled = rules.of_message(request.typed, [answer.asked])
        if ruled is None and typed_words != request.typed:
            ruled = rules.of_message(typed_words, []) if typed_words else rules.label("unclear", UNCERTAIN)
        return _ruled(answer.id, "message", request, typed_words or request.typed, ruled)


def _ruled(id: str, kind: SignalKind, request: FollowUp, text: str, ruled: Label | None) -> NewSignal:
    text = text[:SHOWN_CHARACTERS]
    if ruled is None:
        return NewSignal(id, kind, text, request.id)
    return NewSignal(id, kind, text, request.id, label=ruled.name, value=ruled.value, why=ruled.reason)


def _own_scope(request: FollowUp) -> Scope:
    """The asker's own answers."""
    return Scope(Principal("use"), request.requester.user, ())


def _text(message: dict[str, Any]) -> str:
    content = message.get("content")
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else []
    return "\n".join(str(part.get("text", "")) for part in parts if isinstance(part, dict))
