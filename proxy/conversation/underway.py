"""Answers that are under way, and how much of each has come.

Owns which they are: what is on a person's screen is often no whole answer yet. In memory only; the row of each is in
the store, pending. Not here: what the events of a stream mean (dialects), what is stored (capture).
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from itertools import takewhile
from typing import Protocol

from proxy.dialects import Reply
from store.records import Requester


class AnswerInProgress(Protocol):
    requester: Requester | None  # whose it is

    def replies(self) -> list[Reply]:
        """The answer so far."""
        ...

    async def begin_now(self) -> None:
        """Have its row stored, pending, if it is not yet."""
        ...


class AnswersInProgress:
    def __init__(self) -> None:
        self._answers: dict[str, AnswerInProgress] = {}

    def add(self, id: str, answer: AnswerInProgress) -> None:
        self._answers[id] = answer

    def remove(self, id: str) -> None:
        self._answers.pop(id, None)

    async def begin_now(self, id: str) -> bool:
        """Tell whether this is the id of a choice of an answer under way: then its row is stored when this returns."""
        answer = self._answers.get(id) or self._answers.get(id.rpartition(".")[0])
        if answer is None:
            return False
        await answer.begin_now()
        return True

    async def begin_all(self, requesters: Collection[Requester] | None = None) -> None:
        """Have the rows stored of all answers under way; of these askers alone, if given. From then on the store knows
        them as the newest."""
        answers = [answer for answer in self._answers.values() if requesters is None or answer.requester in requesters]
        await asyncio.gather(*(answer.begin_now() for answer in answers))  # they share a commit

    async def begin_before(self, id: str, requester: Requester) -> None:
        """Have the rows stored of what this asker asked before `id`. No two answers wait for each other here."""
        for earlier_id in [*takewhile(lambda answer_id: answer_id != id, self._answers)]:
            if (answer := self._answers.get(earlier_id)) is not None and answer.requester == requester:
                await answer.begin_now()

    def text(self, id: str) -> str:
        """The stream so far; empty for what is not under way, and where nothing has come."""
        answer = self._answers.get(id)
        return "" if answer is None else next((reply.text for reply in answer.replies() if reply.index == 0), "")
