"""Pictures in requests: decoded, placed in the prompt, and read once by the model's frozen vision part.

Owns what is remembered of them, within bounds, and the rows that a prompt's pass takes in their places. A prompt has an
id for each piece of its pictures, past the vocabulary; what the client is told are the processor's own. Rows are
computed in the engine's thread: hooks are the whole model's. Not here: decoding (pictures.decoder), how a model makes
rows of a picture (policy.torch_pictures), when (engine).
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor

from config.sections import Images
from trainer.formats import sight
from trainer.pictures.album import Album
from trainer.pictures.decoder import PictureDecoder
from trainer.pictures.pixels import BadPicture
from trainer.pictures.processor import Expansion, PictureProcessor
from trainer.policy import torch_load
from trainer.policy.packing import Tokens
from trainer.policy.torch_pictures import PictureReader, put_rows_in_place

REMEMBERED: Final = 64 << 20  # bytes of rows: a conversation sends the same pictures with each turn
IDS_EACH: Final = 1 << 24  # for the pieces of one request's pictures
UNREAD: Final = 2  # requests at once whose pictures were decoded and not read yet
MOST_PIXELS: Final = 3  # times images.max_pixels, of all pictures of a request
LOOKS_AHEAD: Final = "the pieces of its pictures see each other, which this server's batches do not"


class PlacedPicture(NamedTuple):
    """A picture of one request."""

    name: str  # sha256
    first_id: int
    image: list[Any]  # Pillow's, until it has been read: its request lives longer
    expansion: Expansion


class SeenPrompt(NamedTuple):
    ids: tuple[int, ...]  # as the engine reads it: each piece of a picture has an id of its own
    wire_ids: tuple[int, ...]  # as the processor writes it
    pictures: tuple[PlacedPicture, ...]


class Sight:
    def __init__(self, model: Any, weights: Path, bounds: Images) -> None:
        """Proves on one picture that rows give what the model gives by itself. Raises BadPicture where pictures cannot
        be read here."""
        if (reason := sight.refusal(weights)) is not None:
            raise BadPicture(reason)
        self.unread = asyncio.Semaphore(UNREAD)  # for who decodes: decoded pictures are large
        self._decoder, self._bounds = PictureDecoder(bounds), bounds
        self._processor = PictureProcessor(weights)
        self._reader = PictureReader(model, model.device)
        if self._reader.looks_ahead:
            raise BadPicture(LOOKS_AHEAD)
        table = model.get_input_embeddings()
        self._first_id = max(int(model.config.get_text_config().vocab_size), int(table.num_embeddings))
        self._requests = itertools.count()
        self._rows: OrderedDict[str, Tensor] = OrderedDict()  # (pieces, H) by sha256, the newest last
        self._pictures_of_pass: Sequence[tuple[PlacedPicture, Tensor]] = ()  # in the pass that is under way
        put_rows_in_place(table, self._first_id, self._look_up)
        if (reason := self._refusal(model)) is not None:
            raise BadPicture(reason)

    @property
    def most_pictures(self) -> int:
        return self._bounds.max_per_prompt

    async def decode(self, pictures: Sequence[bytes]) -> list[tuple[str, Any]]:
        """The sha256 and Pillow's image of each. Raises BadPicture."""
        images, pixels = [], 0
        for data in pictures:
            name, image = await self._decoder.decode(data)
            pixels += image.width * image.height
            if pixels > MOST_PIXELS * self._bounds.max_pixels:
                raise BadPicture(f"all its pictures have more than {MOST_PIXELS} times images.max_pixels")
            images.append((name, image))
        return images

    def place(self, text: str, images: Sequence[tuple[str, Any]]) -> SeenPrompt:
        """A rendered prompt with a placeholder for each of these pictures, in their order. Raises BadPicture."""
        album = self._album(dict(images))
        ids = album.expand(text, [name for name, _ in images])
        return SeenPrompt(ids, album.as_read(ids), tuple(_placed(album, dict(images))))

    def read(self, picture: PlacedPicture) -> Tensor:
        """(pieces, H). From the engine's thread, and outside a pass. Raises BadPicture, and what a model raises."""
        image = picture.image.pop()
        if picture.name not in self._rows:
            self._rows[picture.name] = self._reader.rows(self._processor.inputs(image), picture.expansion)
            while sum(rows.nbytes for rows in self._rows.values()) > REMEMBERED and len(self._rows) > 1:
                self._rows.popitem(last=False)
        self._rows.move_to_end(picture.name)
        return self._rows[picture.name]

    @contextlib.contextmanager
    def showing(self, pictures: Sequence[tuple[PlacedPicture, Tensor]]) -> Iterator[None]:
        """Passes inside have these pictures."""
        self._pictures_of_pass = pictures
        try:
            yield
        finally:
            self._pictures_of_pass = ()

    def _album(self, images: Mapping[str, Any]) -> Album:
        return Album(images, self._processor, first_id=self._first_id + next(self._requests) * IDS_EACH)

    def _look_up(self, ids: Tensor) -> Tensor:
        """(N,) of pieces to (N, H)."""
        rows = ids.new_zeros(
            (len(ids), self._pictures_of_pass[0][1].shape[-1]), dtype=self._pictures_of_pass[0][1].dtype
        )
        for picture, of_picture in self._pictures_of_pass:
            piece = ids - picture.first_id
            is_of_it = (piece >= 0) & (piece < len(of_picture))
            rows[is_of_it] = of_picture[piece[is_of_it]]
        return rows

    def _refusal(self, model: Any) -> str | None:
        from PIL import Image

        image = Image.effect_noise((64, 64), 80).convert("RGB")
        album = self._album({"": image})
        with torch.inference_mode():
            try:
                album.number_all()
            except BadPicture as error:
                return str(error)
            if not album.numbered:
                return "the weights' processor makes no tokens of a picture"
            (placed,) = _placed(album, {"": image})

            def states(tokens: Tokens) -> Tensor:
                ids = torch.tensor([[*tokens.prompt, *tokens.reply[:-1]]], device=model.device)
                with self.showing([(placed, self._reader.rows(self._processor.inputs(image), placed.expansion))]):
                    output = torch_load.body(model)(input_ids=ids, use_cache=False)
                hidden: Tensor = output.last_hidden_state[0]
                return hidden[-len(tokens.reply) :]

            return self._reader.refusal(album, states)


def _placed(album: Album, images: Mapping[str, Any]) -> Iterator[PlacedPicture]:
    next_id = album.first_id
    for name, expansion in album.numbered:
        yield PlacedPicture(name, next_id, [images[name]], expansion)
        next_id += len(expansion.replaced)
