"""The pictures of one run, and the ids that prompts have in their places.

Owns these ids. A server writes every picture with the same few tokens, so two prompts about two pictures may have equal
ids. Here each piece of each picture has an id of its own, past the vocabulary. What compares prompts (prefix trees,
caches, pairs) then tells them apart, and shares a picture that comes again. A prompt is taken only where the server
read the very tokens that the weights' processor makes of its pictures. Not here: what stands at an id (policy).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from trainer.pictures.pixels import BadPicture, pixels
from trainer.pictures.processor import Expansion, PictureProcessor

UNSEEN = "the model saw more than text, and text is all that training sees"


class Album:
    def __init__(
        self,
        pictures: Mapping[str, Any] | None = None,
        processor: PictureProcessor | None = None,
        *,
        first_id: int = 0,
        refusal: str | None = None,
    ) -> None:
        """`pictures` by the sha256 of each, as bytes or decoded; `first_id`: one past all that the model's tables know.
        `refusal`: why no sample with a picture can train."""
        self._pictures = pictures or {}
        self._processor = processor
        self.first_id = first_id
        self.refusal = refusal if self._pictures else None
        self._expansions: dict[str, Expansion] = {}
        self._first_ids: dict[str, int] = {}
        self._next_id = first_id

    def __len__(self) -> int:
        return len(self._pictures)

    @property
    def numbered(self) -> list[tuple[str, Expansion]]:
        """Pictures whose pieces have ids, in the order of these."""
        return [(name, self._expansions[name]) for name in self._first_ids]

    def number_all(self) -> None:
        """Give ids to all, by their hashes: then they are the same when a run goes on."""
        for name in sorted(self._pictures):
            try:
                self._number(name)
            except BadPicture:
                continue  # each sample that has it says so

    def bind(self, ids: Sequence[int], names: Sequence[str]) -> tuple[int, ...]:
        """A prompt's ids with those of its pictures' pieces. Raises BadPicture where the server read other tokens for a
        picture than the weights' processor makes."""
        processor, bound, position = self._usable(names), list(ids), 0
        for number, name in enumerate(names, 1):
            first_id, expansion = self._number(name)
            start = _find(ids, expansion.ids, position)
            if start is None:
                raise BadPicture(
                    f"the server read other tokens for picture {number} of {len(names)} than the "
                    f"{len(expansion.ids):,} that the weights' processor makes"
                )
            for piece, offset in enumerate(expansion.replaced):
                bound[start + offset] = first_id + piece
            position = start + len(expansion.ids)
        if any(processor.is_replaced(id) for id in bound):
            raise BadPicture(f"the server read more tokens of pictures than {len(names)} of them have")
        return tuple(bound)

    def expand(
        self, text: str, names: Sequence[str], marker: str | None = None, count: int | None = None
    ) -> tuple[int, ...]:
        """Ids of a rendered prompt that has `marker` in the place of each picture, or the processor's own. Some servers
        put a picture's own tokens there and nothing around them. That is taken where it alone has `count` tokens.
        Raises BadPicture."""
        processor = self._usable(names)
        marker = processor.placeholder if marker is None else marker
        texts = text.split(marker)
        if len(texts) != len(names) + 1:
            raise BadPicture(f"{len(texts) - 1} places for {len(names)} pictures in the prompt")
        images = [self._pixels(name) for name in names]
        ids = processor.expand(processor.placeholder.join(texts), images)
        if count is not None and len(ids) != count:
            pieces = [
                *zip(map(processor.of_text, texts), [*(self._number(name)[1].ids for name in names), ()], strict=True)
            ]
            bare = tuple(id for words, picture in pieces for id in (*words, *picture))
            ids = bare if len(bare) == count else ids
        return self.bind(ids, names)

    def inputs(self, name: str) -> dict[str, Any]:
        """Tensors from which a model reads this picture."""
        return self._usable([name]).inputs(self._pixels(name))

    def as_read(self, ids: Sequence[int]) -> tuple[int, ...]:
        """A bound prompt with the ids that the processor wrote."""
        written_ids: dict[int, int] = {}
        for name, first_id in self._first_ids.items():
            expansion = self._expansions[name]
            written_ids |= {first_id + piece: expansion.ids[offset] for piece, offset in enumerate(expansion.replaced)}
        return tuple(written_ids.get(id, id) for id in ids)

    def are_in(self, ids: Sequence[int]) -> bool:
        """Tell whether a prompt has pictures."""
        return bool(self._first_ids) and max(ids) >= self.first_id

    def _usable(self, names: Sequence[str]) -> PictureProcessor:
        if self.refusal is not None:
            raise BadPicture(self.refusal)
        if self._processor is None or any(name not in self._pictures for name in names):
            raise BadPicture("a picture of it did not come with the run")
        return self._processor

    def _number(self, name: str) -> tuple[int, Expansion]:
        """The id of its first piece, and its tokens."""
        if name not in self._first_ids:
            processor = self._usable([name])
            expansion = processor.of_picture(self._pixels(name))
            if not expansion.replaced:
                raise BadPicture("the weights' processor makes no tokens of a picture")
            self._expansions[name], self._first_ids[name] = expansion, self._next_id
            self._next_id += len(expansion.replaced)
        return self._first_ids[name], self._expansions[name]

    def _pixels(self, name: str) -> Any:
        picture = self._pictures[name]
        return pixels(picture) if isinstance(picture, bytes) else picture


def _find(ids: Sequence[int], part: Sequence[int], start: int) -> int | None:
    """Where `part` stands in `ids`, from `start` on."""
    part = list(part)
    for index in range(start, len(ids) - len(part) + 1):
        if ids[index] == part[0] and list(ids[index : index + len(part)]) == part:
            return index
    return None


NO_PICTURES = Album()


def open_album(
    pictures: Mapping[str, bytes], weights: Path, first_id: int, see: Callable[[Album], str | None] | None = None
) -> Album:
    """An album of these pictures, as the weights in this folder read them. Its `refusal` says why they do not.
    `first_id`: as in Album; `see`: a loaded model's answer whether it reads them."""
    if not pictures:
        return NO_PICTURES
    try:
        album = Album(pictures, PictureProcessor(weights), first_id=first_id)
        album.number_all()
    except BadPicture as error:
        return Album(pictures, refusal=str(error))
    if see is not None and album.numbered:
        album.refusal = see(album)
    return album
