"""The test whether a request is a side turn, by what was answered lately to the same asker.

Owns the look-ups in the store that the rules by structure need, and the test whether a request needs any: hardly one
does. Not here: these rules (conversation.side_requests), those by headers and by words (conversation.turns).
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from proxy.conversation.conversations import as_chat, text_of
from proxy.conversation.own_tasks import Manner, manner_of
from proxy.conversation.side_requests import (
    OWN_TASK,
    QUOTATION,
    SUBAGENT,
    SYSTEM,
    differs,
    gives,
    goes_on_aside,
    is_own_task,
    is_subagent,
    may_be_given,
    may_be_own_task,
    may_quote,
    quotation,
)
from proxy.conversation.turns import DEFAULT
from proxy.conversation.underway import AnswersInProgress
from proxy.conversation.user_text import words
from proxy.core.offload import off_loop
from store.captured.recent_answers import SYSTEM_TEXTS
from store.captured.tree import SYSTEM_ROLES
from store.records import NewCompletion, RepeatedReply, Requester
from store.store import Store

QUOTABLE: Final = 100  # recent main turns that a request may quote
CALLING: Final = 100  # recent answers that may have called a subagent
LONGEST_CALL: Final = 1 << 18  # bytes of such an answer: a subagent gets a page or two
BRIEF: Final = 400  # characters of a recent answer that the store gives
LEAST: Final = 8  # characters of an answer that is known by its words
ASKERS: Final = 1000  # whose newest command is remembered

Messages = Sequence[dict[str, Any]]


def may_be_side(row: NewCompletion, messages: Messages, *, has_tools: bool) -> bool:
    """Tell whether what was answered lately may show that this is a side turn. The store is asked then."""
    if row.turn_rule != DEFAULT:
        return False
    if row.above is None:
        return may_quote(messages) or (has_tools and may_be_given(messages))
    if not _says_something_new(row):
        return bool(row.asides)
    return (has_tools and bool(row.asides)) or may_be_own_task(words(messages, SYSTEM))


def _says_something_new(row: NewCompletion) -> bool:
    return next((m.role for m in reversed(row.prompt) if m.role not in SYSTEM_ROLES), "") == "user"


class _RequestForm(NamedTuple):
    """How a completion was asked for."""

    manner: Manner
    system: tuple[str, ...]


class SideTurns:
    def __init__(self, store: Store, underway: AnswersInProgress) -> None:
        self._store = store
        self._underway = underway
        self._commands: dict[Requester, float] = {}  # when each asker's newest `/rl` line was answered; the newest last

    def note_command(self, requester: Requester) -> None:
        """A `/rl` line has been answered: what comes right after it was not typed after reading an answer."""
        self._commands.pop(requester, None)
        self._commands[requester] = time.time()
        if len(self._commands) > ASKERS:
            del self._commands[next(iter(self._commands))]

    async def rule_of(self, row: NewCompletion, messages: Messages, weight: int) -> str | None:
        """The rule by which this is a side turn, for a row that `may_be_side`."""
        if row.above is None:
            return await self._rule_of_beginning(row, messages, weight)
        requester, system = Requester(row.key, row.user), _system_of(row)
        goes_on = await self._store.answers.goes_on_from(row.above, [requester], SYSTEM)
        if not _says_something_new(row):
            return goes_on_aside(goes_on)
        if is_subagent(goes_on, system, tools=bool(_asked_of(row).manner.tools)):
            return SUBAGENT
        text = words(messages, SYSTEM)
        return OWN_TASK if may_be_own_task(text) and await self._is_own_task(row, text, goes_on) else None

    async def _rule_of_beginning(self, row: NewCompletion, messages: Messages, weight: int) -> str | None:
        requester = Requester(row.key, row.user)
        if may_quote(messages):
            await self._underway.begin_before(row.id, requester)  # it may quote a question that has no row yet
            recent_turns = await self._store.answers.main_turns_of([requester], limit=QUOTABLE)
            quoted = await off_loop(weight, quotation, messages, recent_turns)
            if quoted is not None and (quoted.turn is None or not await self._is_alike(row, quoted.turn.id)):
                return QUOTATION
        if may_be_given(messages):
            calls = await self._store.answers.calls_to(requester, limit=CALLING, longest=LONGEST_CALL)
            id = await off_loop(sum(len(reply) for _, reply in calls), _calling, calls, messages)
            if id is not None:
                return None if await self._is_alike(row, id) else SUBAGENT
        return None

    async def _is_own_task(self, row: NewCompletion, text: str, goes_on: Sequence[RepeatedReply]) -> bool:
        parent = next(((reply.id, reply.finished_at) for reply in goes_on if reply.turn == "main"), None)
        if parent is None:
            parent = await self._answer_by_text(row)
        if parent is None or (question := await self._request_form(parent[0])) is None:
            return False
        requester = Requester(row.key, row.user)
        since = max(parent[1] or 0.0, self._commands.get(requester, 0.0))
        mine = _asked_of(row)
        if differs(question.system, mine.system):
            return True
        return is_own_task(text, row.created_at - since, mine.manner, question.manner)

    async def _answer_by_text(self, row: NewCompletion) -> tuple[str, float | None] | None:
        """The newest main turn that answered with the words of the reply above, where the client has rewritten the
        conversation. It may have put several answers into one message."""
        text = _newest_reply(row)
        recent_turns = await self._store.answers.main_turns_of([Requester(row.key, row.user)], limit=QUOTABLE)
        for turn in recent_turns:
            answer = turn.text.strip()
            if len(answer) >= LEAST and (text.endswith(answer) or (len(turn.text) == BRIEF and answer in text)):
                return turn.id, turn.finished_at
        return None

    async def _is_alike(self, row: NewCompletion, id: str) -> bool:
        """Tell whether a request has the system texts and the tools of this turn. A person's next conversation in the
        same client has; what a client asks on the side has not."""
        question, mine = await self._request_form(id), _asked_of(row)
        if question is None or not (mine.system or mine.manner.tools):
            return False
        same_system = mine.system == question.system or (
            bool(mine.system) and bool(question.system) and not differs(question.system, mine.system)
        )
        return same_system and mine.manner.tools == question.manner.tools

    async def _request_form(self, id: str) -> _RequestForm | None:
        answer = await self._store.answers.request_details(id, SYSTEM)
        if answer is None:
            return None
        return _RequestForm(manner_of(answer.request, is_streamed=answer.is_streamed), answer.system)


def _calling(calls: Sequence[tuple[str, bytes]], messages: Messages) -> str | None:
    """The newest of these answers that gives a tool the words that these messages begin with."""
    return next((id for id, reply in calls if gives(reply, messages)), None)


def _asked_of(row: NewCompletion) -> _RequestForm:
    return _RequestForm(manner_of(row.request, is_streamed=row.streamed), tuple(_system_of(row)))


def _system_of(row: NewCompletion) -> list[str]:
    # A character has at most four bytes.
    bodies = [message.body[: 4 * SYSTEM] for message in row.prompt if message.role in SYSTEM_ROLES]
    return [body.decode(errors="ignore")[:SYSTEM] for body in bodies[:SYSTEM_TEXTS]]


def _newest_reply(row: NewCompletion) -> str:
    reply = next((message for message in reversed(row.prompt) if message.role == "assistant"), None)
    return "" if reply is None else (text_of(as_chat(reply)) or "").strip()
