"""Log-probs by transformers and PEFT of prompts with pictures, from pixels: servers and trainer are compared with them.

Owns the prompt's ids in both ways that servers write them. Nothing of the trainer's takes part. Not here: the models
(tiny_seeing), servers (picture_servers).
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any


class PictureReference:
    def __init__(self, model: Path, adapter: Path | None = None) -> None:
        from transformers import AutoModelForImageTextToText, AutoProcessor

        self.processor: Any = AutoProcessor.from_pretrained(model)
        self.causal: Any = AutoModelForImageTextToText.from_pretrained(model).eval()
        self.replaced = next(id for id in self.processor.image_token_ids if id is not None)
        if adapter is not None:
            from peft import PeftModel

            from scripts.harness.lora import peft_on_transformers

            with peft_on_transformers():
                self.causal = PeftModel.from_pretrained(self.causal, str(adapter)).eval()

    @contextlib.contextmanager
    def resizing_by(self, resampling: int | None) -> Iterator[None]:
        """Inside it pictures are resized by this filter of Pillow's; None: by the processor's own."""
        images = self.processor.image_processor
        default = images.resample
        images.resample = default if resampling is None else resampling
        try:
            yield
        finally:
            images.resample = default

    def inputs(self, pictures: Sequence[bytes], text: str, *, bare: bool = False) -> dict[str, Any]:
        """A question about pictures, as the processor writes it; `bare`: only the pictures' own tokens in their places,
        without white space around them."""
        parts = [*({"type": "image"} for _ in pictures), {"type": "text", "text": text}]
        return self.chat([{"role": "user", "content": parts}], pictures, bare=bare)

    def chat(
        self, messages: Sequence[dict[str, Any]], pictures: Sequence[bytes], *, bare: bool = False
    ) -> dict[str, Any]:
        """The same of a conversation with these pictures in their order."""
        import torch
        from PIL import Image

        rendered = self.processor.apply_chat_template(messages, add_generation_prompt=True)
        images = [Image.open(io.BytesIO(data)).convert("RGB") for data in pictures]
        inputs: dict[str, Any] = dict(self._call(rendered, images))
        if not bare:
            return inputs
        ids: list[int] = []
        for index, words in enumerate(rendered.split(self.processor.image_token)):
            ids += self._own_tokens(images[index - 1]) if index else []
            ids += self.processor.tokenizer(words, add_special_tokens=False)["input_ids"]
        inputs["input_ids"] = torch.tensor([ids])
        if "token_type_ids" in inputs:
            inputs["token_type_ids"] = (inputs["input_ids"] == self.replaced).long()
        return inputs

    def log_probs(self, prompt: dict[str, Any], reply: Sequence[int]) -> list[float]:
        """(T,) of a reply's tokens, at temperature 1."""
        import torch

        whole = {name: value for name, value in prompt.items() if name not in ("input_ids", "attention_mask")}
        whole["input_ids"] = torch.cat([prompt["input_ids"], torch.tensor([list(reply)])], 1)
        if "token_type_ids" in prompt:
            whole["token_type_ids"] = torch.nn.functional.pad(prompt["token_type_ids"], (0, len(reply)))
        with torch.no_grad():
            logits = self.causal(**whole).logits[0, len(prompt["input_ids"][0]) - 1 : -1].float()
        values: list[float] = logits.log_softmax(-1)[range(len(reply)), list(reply)].tolist()
        return values

    def _own_tokens(self, image: Any) -> list[int]:
        ids = self._call(self.processor.image_token, [image])["input_ids"][0].tolist()
        inner = [index for index, id in enumerate(ids) if self.processor.tokenizer.decode([id]).strip()]
        return list(ids[inner[0] : inner[-1] + 1])

    def _call(self, text: str, images: Sequence[Any]) -> Any:
        return self.processor(text=[text], images=[list(images)], add_special_tokens=False, return_tensors="pt")
