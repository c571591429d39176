"""Looks into the pictures that were captured, one after the other, behind the capture.

What waits is in the store, so nothing is lost by a kill. Not here: which blobs are pictures (store.captured.images),
how one is decoded (decoder).
"""

from __future__ import annotations

import asyncio
from typing import Annotated, Final

import structlog
from pydantic import Field
from typing_extensions import TypedDict

from proxy.core.offload import off_loop
from proxy.images.decoder import NO_PILLOW, Decoder
from proxy.images.parts import from_base64
from store.captured.images import WaitingImage
from store.errors import StoreError
from store.image_records import DecodedImage
from store.store import Store

log = structlog.get_logger()

LOOK_S: Final = 1.0  # between two looks where nothing waits
REST_S: Final = 0.02  # between two pictures: answers come first


class ImagesBody(TypedDict):
    """Pictures in prompts, each once."""

    decoded: int
    refused: Annotated[int, Field(description="Broken, too large, or of another kind: neither shown nor trained on.")]
    waiting: int
    problem: Annotated[str | None, Field(description="Reason why pictures are not decoded.")]
    untrained: Annotated[str | None, Field(description="Reason why answers about pictures do not train.")]


class ImageExaminer:
    def __init__(self, store: Store, decoder: Decoder) -> None:
        self._store = store
        self._decoder = decoder
        self._decoded = asyncio.Event()  # set, and made anew, with each picture

    async def run(self) -> None:
        """For ever, in a task of its own."""
        if not self._decoder.is_installed:
            if (await self._store.images.counts()).get("waiting"):
                log.warning(NO_PILLOW)
            return
        while True:
            has_more = False
            try:
                has_more = await self.step()
            except StoreError as error:
                log.error("pictures wait for the store", error=str(error))
            except OSError as error:  # no process could be started
                log.error("pictures wait", error=str(error))
            await asyncio.sleep(REST_S if has_more else LOOK_S)

    @property
    def is_installed(self) -> bool:
        """Tell whether there is a decoder here."""
        return self._decoder.is_installed

    async def report(self, untrained: str | None) -> ImagesBody:
        """For `status`. `untrained`: why answers about pictures do not train, or None."""
        counts = await self._store.images.counts()
        waiting = counts.get("waiting", 0)
        problem = NO_PILLOW if waiting and not self._decoder.is_installed else None
        return {
            "decoded": counts.get("decoded", 0),
            "refused": counts.get("refused", 0),
            "waiting": waiting,
            "problem": problem,
            "untrained": untrained,
        }

    async def step(self) -> bool:
        """Look into one; False where none waits. Raises StoreError, OSError."""
        if self._store.integrity.state == "damaged" or (image := await self._store.images.waiting()) is None:
            return False
        await self._store.images.note_decoded(image.blob, await self._decode(image))
        self._decoded.set()
        self._decoded = asyncio.Event()
        return True

    async def _decode(self, image: WaitingImage) -> DecodedImage:
        data = image.data if image.coded else await off_loop(len(image.data), from_base64, image.data)
        if data is None:
            return DecodedImage(None, len(image.data), reason="it is not base64")
        return await self._decoder.decode(data)

    async def thumbnail(self, sha256: bytes, patience_s: float) -> bytes | None:
        """The thumbnail of this picture, waiting for it a while where it was captured just now; None: there is none."""
        try:
            async with asyncio.timeout(patience_s):
                while self._decoder.is_installed:
                    decoded = self._decoded
                    if not await self._store.images.is_waiting(sha256):
                        break
                    await decoded.wait()
        except TimeoutError:
            return None
        return await self._store.images.thumbnail(sha256)
