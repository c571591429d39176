"""Answers about pictures: do they train? By the weights of a run.

Owns the answer, and that what was captured before it changed follows. A completion whose only hindrance is a picture
is marked by it where the weights read text alone. Not here: other hindrances (conversation.modalities), how a run
reads pictures (trainer.pictures).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

import structlog

from store.errors import StoreError
from store.store import Store
from trainer.launch import WEIGHTS_NOT_HERE, picture_refusal

log = structlog.get_logger()

TRAIN: Final = "pictures_train"  # meta: what the completions are marked by


class PictureTraining:
    def __init__(self, store: Store, weights: Callable[[], str | None]) -> None:
        self._store = store
        self._weights = weights
        self._judged_weights: str | None = None  # the weights that the answer is of
        self.reason: str | None = WEIGHTS_NOT_HERE  # why they do not train; None: they do

    @property
    def trains(self) -> bool:
        return self.reason is None

    async def refresh(self) -> None:
        """Look at the weights where others are named now, or none were here before."""
        weights = self._weights()
        if weights == self._judged_weights and self.reason != WEIGHTS_NOT_HERE:
            return
        self.reason = await asyncio.to_thread(picture_refusal, weights)
        self._judged_weights = weights
        try:
            if await self._store.meta.get(TRAIN, False) == self.trains:
                return
            changed = await self._store.images.mark_trainable(self.trains)
            await self._store.meta.set(TRAIN, self.trains)
        except StoreError as error:
            self._judged_weights = None  # the next look tries again
            log.error("answers about pictures are not marked", error=str(error))
            return
        log.info("answers about pictures", train=self.trains, reason=self.reason, completions=changed)
