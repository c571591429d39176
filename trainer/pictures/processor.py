"""The processor of the weights: how it writes a picture in tokens, and what a model takes of it.

Owns the only place where a processor is called, and the tokens that stand for one picture by itself. Imports
transformers. Not here: which pictures there are (album), the model (policy.torch_pictures).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from trainer.formats import model_code
from trainer.pictures.pixels import BadPicture


class Expansion(NamedTuple):
    """A picture in a prompt: from its first own token to its last, and which of them the tower's output replaces."""

    ids: tuple[int, ...]
    replaced: tuple[int, ...]  # their places in `ids`


class PictureProcessor:
    def __init__(self, weights: Path) -> None:
        """Raises BadPicture where the weights' folder has no processor that reads pictures."""
        from transformers import AutoProcessor

        try:
            processor = AutoProcessor.from_pretrained(weights, **model_code.options(weights))
            self.placeholder = str(processor.image_token)  # of one picture, in a text that is not expanded yet
            self._replaced = frozenset(id for id in processor.image_token_ids if id is not None)
        except Exception as error:  # a folder without one, or code that it would need
            raise BadPicture(f"the weights have no processor that reads pictures ({_first_line(error)})") from None
        if not self._replaced or not self.placeholder:
            raise BadPicture("the weights' processor names no token for pictures")
        self._processor = processor

    def is_replaced(self, id: int) -> bool:
        """Tell whether this token stands for a piece of a picture."""
        return id in self._replaced

    def expand(self, text: str, images: Sequence[Any]) -> tuple[int, ...]:
        """Ids of a rendered prompt with a placeholder for each picture. Raises BadPicture."""
        return tuple(self._call(text, images)["input_ids"][0])

    def of_text(self, text: str) -> tuple[int, ...]:
        """Ids of a part of a rendered prompt between pictures."""
        return tuple(self._processor.tokenizer(text, add_special_tokens=False)["input_ids"])

    def of_picture(self, image: Any) -> Expansion:
        """The tokens of one picture by itself, without white space around them: that merges with its neighbours."""
        ids = [int(id) for id in self._call(self.placeholder, [image])["input_ids"][0]]
        inner = [index for index, id in enumerate(ids) if self._processor.tokenizer.decode([id]).strip()]
        core = tuple(ids[inner[0] : inner[-1] + 1]) if inner else ()
        return Expansion(core, tuple(index for index, id in enumerate(core) if id in self._replaced))

    def inputs(self, image: Any) -> dict[str, Any]:
        """Tensors from which a model reads one picture."""
        return dict(self._call(self.placeholder, [image], return_tensors="pt"))

    def _call(self, text: str, images: Sequence[Any], **options: Any) -> Any:
        try:
            return self._processor(text=[text], images=[list(images)], add_special_tokens=False, **options)
        except Exception as error:  # a processor is a program of the model's
            raise BadPicture(f"the weights' processor refuses the pictures ({_first_line(error)})") from None


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:160]}"
