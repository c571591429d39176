"""Tiny models that see, with random weights, their processors, and tokenizers that know pictures.

Owns their dimensions. What one of them shows of ids, log-probs, and frozen parts holds for its kind; it has learned
nothing. The text parts alone are in tiny. Not here: a model that has learned to see (colours).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

SIDE: Final = 32  # pixels of a tile
PATCH: Final = 8
TEMPLATE: Final = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\\n' }}"
    "{% if m['content'] is string %}{{ m['content'] }}{% else %}{% for part in m['content'] %}"
    "{% if part['type'] == 'image' %}{{ 'PLACEHOLDER' }}{% else %}{{ part['text'] }}{% endif %}{% endfor %}{% endif %}"
    "{{ '<|im_end|>\\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
_TEXT: Final = {
    "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 2048, "initializer_range": 0.2,
}  # fmt: skip
_WIDE: Final = {"hidden_size": 128, "head_dim": 32}
_VISION: Final = {
    "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "image_size": SIDE,
    "patch_size": PATCH,
}  # fmt: skip
IDEFICS_TOKENS: Final = (
    "<fake_token_around_image>", "<image>", "<end_of_utterance>", "<global-img>",
    *(f"<row_{row}_col_{column}>" for row in range(1, 7) for column in range(1, 7)),
)  # fmt: skip
GEMMA_TOKENS: Final = ("<start_of_image>", "<end_of_image>", "<image_soft_token>")


def make(
    kind: str,
    folder: Path,
    tokenizer: Any,
    *,
    seed: int = 0,
    splits: bool = False,
    deviation: float = 0.15,
    wide: bool = False,
) -> Path:
    """Write a model of this kind with its processor. `tokenizer` is changed: it learns the kind's tokens. `splits`:
    larger pictures become several tiles (Idefics3). `deviation`: of its random weights. `wide`: text with heads of 32,
    the least that vLLM has."""
    import torch

    torch.manual_seed(seed)
    model, processor = KINDS[kind](tokenizer, splits, {**_TEXT, **_WIDE} if wide else _TEXT)
    model.config.architectures = [type(model).__name__]
    for parameter in model.parameters():  # towers begin so small that a picture changes next to nothing
        if parameter.dim() > 1:
            parameter.data.normal_(0, deviation)
    if kind == "gemma3":  # llama.cpp's converter writes it in 16 bits
        projection = model.model.multi_modal_projector.mm_input_projection_weight
        projection.data = projection.data.half().float()
    model.generation_config.eos_token_id = tokenizer.eos_token_id
    model.save_pretrained(folder)
    processor.save_pretrained(folder)
    if kind == "gemma3":
        _name_as_on_the_hub(folder)
    return folder


def _name_as_on_the_hub(folder: Path) -> None:
    """Gemma 3's files have older names of its tower, and a member that converters read."""
    from safetensors.torch import load_file, save_file

    file, tower = folder / "model.safetensors", "vision_tower."
    tensors = {name.replace(tower, f"{tower}vision_model.", 1): tensor for name, tensor in load_file(file).items()}
    save_file(tensors, file, {"format": "pt"})
    processor = json.loads((folder / "processor_config.json").read_text())
    images = {**processor["image_processor"], "image_seq_length": processor["image_seq_length"]}
    (folder / "preprocessor_config.json").write_text(json.dumps(images))


def _idefics3(tokenizer: Any, splits: bool, sizes: Mapping[str, Any]) -> tuple[Any, Any]:
    import transformers
    from transformers.models.idefics3.image_processing_pil_idefics3 import Idefics3ImageProcessorPil

    tokenizer.add_special_tokens({"additional_special_tokens": [*IDEFICS_TOKENS]})
    tokenizer.chat_template = TEMPLATE.replace("PLACEHOLDER", "<image>")
    images = Idefics3ImageProcessorPil(
        size={"longest_edge": 2 * SIDE if splits else SIDE}, max_image_size={"longest_edge": SIDE},
        do_image_splitting=splits,
    )  # fmt: skip
    scale = 2
    pieces = (SIDE // PATCH) ** 2 // scale**2
    processor = transformers.Idefics3Processor(
        images, tokenizer, image_seq_len=pieces, chat_template=tokenizer.chat_template
    )
    text = transformers.LlamaConfig(
        **sizes, vocab_size=len(tokenizer), tie_word_embeddings=False, **_special(tokenizer)
    )
    config = transformers.Idefics3Config(
        # As SmolVLM's config.json names it: llama.cpp's converter goes by that.
        text_config={**text.to_dict(), "architectures": ["VLlama3ForCausalLM"]}, vision_config=dict(_VISION),
        scale_factor=scale,
        image_token_id=tokenizer.convert_tokens_to_ids("<image>"), tie_word_embeddings=False, **_special(tokenizer),
    )  # fmt: skip
    return transformers.Idefics3ForConditionalGeneration(config), processor


def _gemma3(tokenizer: Any, splits: bool, sizes: Mapping[str, Any]) -> tuple[Any, Any]:
    import transformers
    from transformers.models.gemma3.image_processing_pil_gemma3 import Gemma3ImageProcessorPil

    tokenizer.add_special_tokens({"additional_special_tokens": [*GEMMA_TOKENS]})
    for name, token in zip(("boi_token", "eoi_token", "image_token"), GEMMA_TOKENS, strict=True):
        tokenizer.init_kwargs[name] = token
        setattr(tokenizer, name, token)
        setattr(tokenizer, f"{name}_id", tokenizer.convert_tokens_to_ids(token))
    tokenizer.chat_template = TEMPLATE.replace("PLACEHOLDER", GEMMA_TOKENS[0])
    images = Gemma3ImageProcessorPil(size={"height": SIDE, "width": SIDE}, do_pan_and_scan=False)
    pieces = 4
    processor = transformers.Gemma3Processor(
        images, tokenizer, chat_template=tokenizer.chat_template, image_seq_length=pieces
    )
    text = transformers.Gemma3TextConfig(
        # llama.cpp counts: each sixth layer is full.
        **{**sizes, "num_hidden_layers": 6}, vocab_size=len(tokenizer), sliding_window=64, query_pre_attn_scalar=16,
        layer_types=["sliding_attention"] * 5 + ["full_attention"], **_special(tokenizer),
    )  # fmt: skip
    ids = {f"{key}_token_id": tokenizer.convert_tokens_to_ids(token) for key, token in
           zip(("boi", "eoi", "image"), GEMMA_TOKENS, strict=True)}  # fmt: skip
    config = transformers.Gemma3Config(
        text_config=text.to_dict(), vision_config={**_VISION, "model_type": "siglip_vision_model"},
        mm_tokens_per_image=pieces, **ids, **_special(tokenizer),
    )  # fmt: skip
    return transformers.Gemma3ForConditionalGeneration(config), processor


def _special(tokenizer: Any) -> dict[str, int]:
    names = ("bos_token_id", "eos_token_id", "pad_token_id")
    return {name: id for name in names if (id := getattr(tokenizer, name)) is not None}


KINDS: Final = {"gemma3": _gemma3, "idefics3": _idefics3}
