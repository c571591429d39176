"""The row of a request: what is stored of it once its question has left.

Owns what a prompt is in the store: redacted, in the tree of messages, main or side turn. Most rows are made on the
spot. A large request takes a thread, and one that may be a side turn a look into the store. Not here: when the row goes
to the disk (pending_record).
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable
from dataclasses import replace
from typing import Final

from proxy.conversation.history_cache import HistoryFacts, HistoryLookup
from proxy.conversation.modalities import FURTHER, IMAGE, TOO_MANY
from proxy.conversation.redaction import WORTH_A_THREAD, places
from proxy.conversation.secret_shapes import LONGEST
from proxy.conversation.turns import turn_of
from proxy.conversation.typed_words import marked_errors, typed_text
from proxy.conversation.user_text import EXCERPT_LENGTH, last_words, words
from proxy.core.json_edit import dumps
from proxy.core.offload import LARGE, in_thread, off_loop
from proxy.dialects.base import OutgoingRequest
from proxy.relay.capture.side_turns import SideTurns, may_be_side
from proxy.relay.context import RequestContext
from proxy.relay.parts import RelayParts
from store.errors import StoreAway
from store.records import NewCompletion, PromptLesson

LOOK_S: Final = 5.0  # into the store; the end of the answer waits for its row


class RequestRow:
    def __init__(
        self,
        parts: RelayParts,
        side_turns: SideTurns,
        context: RequestContext,
        outgoing: OutgoingRequest,
        taught: tuple[PromptLesson, ...] = (),
    ) -> None:
        self._parts = parts
        self._side_turns = side_turns
        self._context = context
        self._outgoing = outgoing
        self._taught = taught

    def make(self) -> NewCompletion | Awaitable[NewCompletion]:
        """The row; something to wait for, where it takes a thread or a look into the store."""
        if self._context.weight >= LARGE:
            return self._make_in_thread(None)
        lookup, members = self._read()
        # What is new is looked at for secrets, and the members beside the messages each time.
        if self._context.size >= WORTH_A_THREAD and lookup.fresh + len(members) >= WORTH_A_THREAD:
            return self._make_in_thread((lookup, members))
        row = self._build(lookup, members)
        if self._may_be_side(row):
            return self._place(row)
        return self._remember(row)

    async def _make_in_thread(self, read: tuple[HistoryLookup, bytes] | None) -> NewCompletion:
        lookup, members = read if read is not None else await in_thread(self._read)
        row = await in_thread(self._build, lookup, members)
        if await off_loop(self._context.weight, self._may_be_side, row):
            return await self._place(row)
        return self._remember(row)

    def _read(self) -> tuple[HistoryLookup, bytes]:
        """Knowledge of the messages, and the members beside them."""
        context = self._context
        lookup = HistoryLookup(self._parts.recent.history, self._outgoing.parsed.messages, context.size)
        return lookup, dumps(context.dialect.without_messages(context.content.parsed))

    def _may_be_side(self, row: NewCompletion) -> bool:
        parsed = self._outgoing.parsed
        return may_be_side(row, parsed.messages, has_tools=bool(parsed.tools))

    async def _place(self, row: NewCompletion) -> NewCompletion:
        """The row as that of a side turn, if what was answered lately to whom it is of shows that."""
        rule = None
        with contextlib.suppress(StoreAway, TimeoutError):  # it is a turn like any other then
            async with asyncio.timeout(LOOK_S):
                rule = await self._side_turns.rule_of(row, self._outgoing.parsed.messages, self._context.weight)
        return self._remember(row if rule is None else replace(row, turn="side", turn_rule=rule))

    def _remember(self, row: NewCompletion) -> NewCompletion:
        lease = self._context.lease
        if lease.version is not None and not lease.pinned:
            self._parts.recent.note(row, self._context.dialect, self._outgoing)
        return row

    def _build(self, lookup: HistoryLookup, members: bytes) -> NewCompletion:
        context, parsed, assigned = self._context, self._outgoing.parsed, self._context.assigned
        assert context.id is not None
        secrets: set[str] = set()
        redactor, backend, conversation = self._parts.redactor, context.server.backend, lookup.read()
        served, rules = backend.served, self._parts.settings.turns.rules
        typed = last_words(parsed.messages)
        turn = turn_of(
            context.request.headers,
            context.content.parsed,
            parsed.messages,
            parsed.tools,
            rules,
            conversation.turns,
            typed,
        )
        excerpt = (
            words(parsed.messages, EXCERPT_LENGTH + LONGEST) if typed is None else typed[: EXCERPT_LENGTH + LONGEST]
        )
        return NewCompletion(
            id=context.id,
            request_id=context.id,
            choice=0,
            created_at=time.time() - (time.perf_counter() - context.started),  # this is made later
            dialect=context.dialect.name,
            backend=backend.kind,
            model=parsed.model or served.model,
            served_model=context.lease.model,
            version=context.lease.version,
            line=context.line,
            session=context.identity.session,
            user=context.requester.user,
            turn=turn.turn,
            turn_rule=turn.rule,
            streamed=parsed.stream,
            prompt=conversation.prompt,
            nodes=conversation.nodes,
            asides=conversation.asides,
            request=redactor.json(members, secrets),
            sampling={**served.sampling, **served.by_dialect.get(context.dialect.name, {}), **parsed.sampling},
            thread=conversation.thread,
            above=conversation.reply_thread,
            untrainable=FURTHER if context.server.is_further else parsed.untrainable or self._untrainable(conversation),
            images=conversation.images,
            asked=redactor.text(excerpt)[:EXCERPT_LENGTH],
            typed=typed_text(parsed.messages, context.agent, redactor),
            tool_errors=marked_errors(parsed.messages),
            redacted=places(prompt=conversation.secrets, request=secrets) if conversation.secrets or secrets else (),
            key=context.requester.key,
            forms=conversation.forms,
            lessons=self._taught,
            experiment=assigned.turn if assigned is not None and assigned.version == context.lease.version else None,
        )

    def _untrainable(self, conversation: HistoryFacts) -> str | None:
        most = self._parts.settings.images.max_per_prompt
        if conversation.untrainable != IMAGE:
            return conversation.untrainable
        if conversation.images > most:
            return TOO_MANY
        return None if self._parts.services.picture_training.trains else IMAGE
