"""Finds which answer a request follows, and what it says about that answer: signals, a few seconds behind the capture.

It reads what was captured, in order, and no request waits for it. An answer is known again as `/rl good` at that place
would know it: by the thread of the conversation, else by its words. Where that is not certain there is no signal. Owns
the kinds of signals; what a rule makes of them is `rules`. Not here: what is only a judge's to say (judging).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import structlog

from proxy.access.keys import Reach, Who
from proxy.conversation.answer_on_screen import CannotTell, OnScreen, Place
from proxy.conversation.conversations import as_chat
from proxy.conversation.typed_words import own_words
from proxy.core.agent_wrappers import agent_of
from proxy.signals import rules
from proxy.signals.rules import Label
from store.learning.signals import Next
from store.records import Candidate, Lately, NewSignal, SentBack, SignalKind
from store.store import Store

log = structlog.get_logger()

AT_ONCE: Final = 50  # requests
SHOWN: Final = 2000  # characters that are kept of what followed
AGAIN_S: Final = 600.0  # within which the same question is asked once more because of its answer
UNCERTAIN: Final = "it is not certain that a person typed it"
QUESTIONS: Final = 3


class Follower:
    def __init__(self, store: Store, screen: OnScreen) -> None:
        self._store = store
        self._screen = screen

    async def step(self) -> int:
        """Look at some more requests; how many. Raises StoreError."""
        unseen = await self._store.signals.unseen(AT_ONCE)
        signals: list[NewSignal] = []
        for one in unseen:
            try:
                signals += await self._found(one)
            except (ValueError, TypeError, KeyError) as error:  # whatever a client sent: the next one is looked at
                log.warning("a request says nothing of the answer before it", completion=one.id, error=repr(error))
        if unseen:  # one commit for all of them
            await self._store.signals.note(signals, unseen[-1].seq)
        broken = rules.of_kind("aborted")
        assert broken is not None
        return len(unseen) + await self._store.signals.note_broken_off(broken.why)

    async def _found(self, one: Next) -> list[NewSignal]:
        """Find what this request says of earlier answers."""
        if one.turn != "main" or not one.tail:
            return []
        # Without a session, equal words may be of two conversations: then nobody can tell which one goes on.
        certain = one.session is not None or await self._store.signals.is_only(one)
        if certain and one.tail[-1].role == "user" and (again := await self._asked_again(one)) is not None:
            return [again]
        if one.above is None or not certain:
            return []
        before = await self._before(one)
        if before is None:
            return []
        return await self._about(before, one)

    async def _asked_again(self, one: Next) -> NewSignal | None:
        """The same question once more, or another one in its place."""
        if (same := await self._store.signals.asked_before(one, AGAIN_S)) is not None:
            return _ruled(same, "regenerated", one, "", rules.of_kind("regenerated"))
        if one.parent is None or one.typed is None:  # all conversations begin at the same place
            return None
        other = await self._store.signals.asked_otherwise(one, AGAIN_S)
        if other is None:
            return None
        id, question = other
        kind: SignalKind = "regenerated" if question.strip() == one.asked.strip() else "edited"
        return _ruled(id, kind, one, one.typed, rules.of_kind(kind))

    async def _before(self, one: Next) -> Lately | None:
        """The answer that this request goes on from; None where that is not certain, or it was a side turn."""
        found = await self._by_thread(one)
        if not found:
            found = await self._by_words(one)
        if len(found) != 1:
            return None
        answer = await self._store.answers.main_turn(found[0].id)
        return answer if answer is not None and answer.seq < one.seq else None

    async def _by_thread(self, one: Next) -> Sequence[Candidate]:
        if one.above is None:
            return ()
        system = tuple(bytes.fromhex(one.system[start : start + 32]) for start in range(0, len(one.system), 32))
        sent = SentBack(one.above, one.reply or b"", system, one.model, one.session)
        return await self._store.completions.find_reply(sent, [one.asker])

    async def _by_words(self, one: Next) -> Sequence[Candidate]:
        """Its client has rewritten the conversation. Where no answer here says its newest reply, the
        conversation is not read."""
        if one.answer is not None and not await self._screen.may_have_said(
            as_chat(one.answer), [one.asker], one.session
        ):
            return ()
        whole = await self._store.completions.get(one.id)
        if whole is None:
            return ()
        messages = [as_chat(message) for message in whole.new.prompt]
        last = max((index for index, message in enumerate(messages) if message["role"] == "assistant"), default=-1)
        place = Place(_own(one), one.session, one.model, agent_of({}, messages))
        try:
            found = await self._screen.rendered(messages[: last + 1], place, [one.asker]) if last >= 0 else None
        except CannotTell:
            return ()
        return () if found is None else [Candidate(found.id, found.created_at, found.text)]

    async def _about(self, before: Lately, one: Next) -> list[NewSignal]:
        found: list[NewSignal] = []
        if any(message.role == "tool" for message in one.tail):
            found.append(self._of_tools(before, one))
        if one.tail[-1].role == "user":
            found.append(self._of_words(before, one))
        return found

    def _of_tools(self, before: Lately, one: Next) -> NewSignal:
        """All results of one answer's calls together: it failed where one of them did."""
        results = [as_chat(message) for message in one.tail if message.role == "tool"]
        said = [(_text(result), str(result.get("tool_call_id") or "")) for result in results]
        labels = [rules.of_tool(marked=id in one.tool_errors) for _, id in said]
        at = next((index for index, label in enumerate(labels) if label.value), 0)
        return _ruled(before.id, "tool", one, said[at][0], labels[at])

    def _of_words(self, before: Lately, one: Next) -> NewSignal:
        if one.typed is None:
            return _ruled(before.id, "message", one, one.asked, rules.label("unclear", UNCERTAIN))
        own = own_words(one.typed)  # a page that was pasted into it instructs nobody
        ruled = rules.of_message(one.typed, [before.asked])
        if ruled is None and own != one.typed:
            ruled = rules.of_message(own, []) if own else rules.label("unclear", UNCERTAIN)
        return _ruled(before.id, "message", one, own or one.typed, ruled)


def _ruled(id: str, kind: SignalKind, one: Next, said: str, ruled: Label | None) -> NewSignal:
    said = said[:SHOWN]
    if ruled is None:
        return NewSignal(id, kind, said, one.id)
    return NewSignal(id, kind, said, one.id, label=ruled.name, value=ruled.value, why=ruled.why)


def _own(one: Next) -> Reach:
    """The asker's own answers."""
    return Reach(Who("use"), one.asker.user, ())


def _text(message: dict[str, Any]) -> str:
    content = message.get("content")
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else []
    return "\n".join(str(part.get("text", "")) for part in parts if isinstance(part, dict))
