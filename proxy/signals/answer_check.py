"""A check of the user's own over every answer: `check(completion)`, a content filter or a check for bias.

It sees each main answer once, a few seconds after its end, whether anything followed or not. Owns what it may return: a
reason, as text, or None. A flagged answer that somebody likes does not train, and `rlproxy retrain --without flagged`
makes versions without all of them. Its file is known by its hash: another file takes back what the earlier one said.
Not here: the process that it runs in (proxy.core.own_code.child), the rows (store.learning.flags).
"""

from __future__ import annotations

import asyncio
from typing import Final

import structlog

from config.sections import Signals
from proxy.core.own_code.child import OwnCode, OwnCodeFailed
from proxy.signals.bodies import AnswerCheckReport
from store.copies import export
from store.store import Store

log = structlog.get_logger()

BATCH_SIZE: Final = 20  # answers between two looks
MOST_REASON: Final = 500  # characters


class AnswerFlagger:
    """The file of `signals.check`. One call at a time."""

    def __init__(self, settings: Signals, store: Store) -> None:
        self._store = store
        self._code: OwnCode | None = None
        self._problem: str | None = None
        if (file := settings.check) is not None:
            self._code = OwnCode(
                file, "check", timeout_s=settings.timeout_s, memory_mb=settings.memory_mb, settings="signals."
            )

    @property
    def on(self) -> bool:
        return self._code is not None

    async def step(self) -> bool:
        """Check some more answers; whether there are more. Raises StoreError."""
        if self._code is None:
            return False
        await self._store.flags.begin()
        waiting = await self._store.flags.unchecked(BATCH_SIZE)
        try:
            code = await asyncio.to_thread(self._code.hash)
        except OwnCodeFailed as error:  # the answers stay: the file may come back
            self._problem = str(error)
            return False
        await self._store.flags.forget_other_code(code)
        for seq, id in waiting:
            if id is None:
                await self._store.flags.pass_over(seq)
            else:
                await self._check(self._code, seq, id, code)
        return len(waiting) == BATCH_SIZE

    async def _check(self, code: OwnCode, seq: int, id: str, file_hash: str) -> None:
        completion = await self._store.completions.get(id)
        reason = None
        try:
            if completion is not None:
                value, file_hash = await code.call(export.without_tokens(completion))
                reason = _reason(value)
                self._problem = None
        except OwnCodeFailed as error:
            self._problem = f"{id} was not checked: {error}"
            log.warning("the user's own check failed", completion=id, why=str(error))
        await self._store.flags.keep(seq, id, reason, file_hash)

    async def report(self) -> AnswerCheckReport | None:
        """Count what the check has seen; None where the user has none."""
        if self._code is None:
            return None
        unchecked = await self._store.flags.count_unchecked()  # first: a flag is stored with the check that set it
        flagged = await self._store.flags.ids()
        return {"flagged": len(flagged), "unchecked": unchecked, "problem": self._problem}

    async def stop(self) -> None:
        if self._code is not None:
            await self._code.stop()


def _reason(value: object) -> str | None:
    """Raises OwnCodeFailed for what is neither text nor None."""
    if value is None:
        return None
    if not isinstance(value, str) or not value.strip():
        raise OwnCodeFailed("it returned neither a reason, as text, nor None")
    return value.strip()[:MOST_REASON]
