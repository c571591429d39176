"""Models of Llama's shapes with random weights, as large as one likes: what only their size is asked of.

Owns the GGUF file, a Hugging Face folder that says the same shapes, and an adapter on all linear layers. The weights in
the folder take no room on the disk: they are never read. The tokenizer is that of another GGUF file, so the vocabulary
is as large as there. One random piece is repeated: nobody reads what such a model says.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Type
from safetensors.numpy import save_file

PIECE: Final = 2**20  # random numbers
RANK: Final = 16
TYPES: Final = {"Q4_0": Type.Q4_0, "Q8_0": Type.Q8_0, "F16": Type.F16}
FILE_TYPES: Final = {
    "Q4_0": gguf.LlamaFileType.MOSTLY_Q4_0,
    "Q8_0": gguf.LlamaFileType.MOSTLY_Q8_0,
    "F16": gguf.LlamaFileType.MOSTLY_F16,
}


@dataclass(frozen=True, slots=True)
class Shape:
    layers: int
    hidden: int
    heads: int
    groups: int
    between: int  # of the MLP
    head: int  # numbers of one head

    def linear(self) -> dict[str, tuple[int, int]]:
        """The linear layers of one block, by their names in a Hugging Face model."""
        q, kv = self.heads * self.head, self.groups * self.head
        return {
            "self_attn.q_proj": (q, self.hidden), "self_attn.k_proj": (kv, self.hidden),
            "self_attn.v_proj": (kv, self.hidden), "self_attn.o_proj": (self.hidden, q),
            "mlp.gate_proj": (self.between, self.hidden), "mlp.up_proj": (self.between, self.hidden),
            "mlp.down_proj": (self.hidden, self.between),
        }  # fmt: skip

    def parameters(self, vocabulary: int) -> int:
        block = sum(rows * width for rows, width in self.linear().values()) + 2 * self.hidden
        return self.layers * block + self.hidden + vocabulary * self.hidden


SHAPES: Final = {  # as Llama 3.2 1B, Llama 3.2 3B and Llama 3.1 8B
    "1B": Shape(16, 2048, 32, 8, 8192, 64),
    "3B": Shape(28, 3072, 24, 8, 8192, 128),
    "8B": Shape(32, 4096, 32, 8, 14336, 128),
}
NAMES: Final = {
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}  # fmt: skip


class _Numbers:
    """Tensors of one type, made of one random piece."""

    def __init__(self, kind: Type) -> None:
        numbers = np.random.default_rng(0).normal(scale=0.02, size=PIECE).astype(np.float32)
        self.kind = kind
        self._raw = gguf.quantize(numbers.reshape(1, -1), kind).view(np.uint8).reshape(-1)
        self._block, self._bytes = gguf.GGML_QUANT_SIZES[kind]

    def of(self, rows: int, width: int) -> Any:
        row = width // self._block * self._bytes
        return np.resize(self._raw, (rows, row))


def write(out: Path, shape: Shape, kind: str, tokenizer: Path) -> int:
    """The GGUF file; its parameters."""
    reader, writer = gguf.GGUFReader(tokenizer), gguf.GGUFWriter(out, "llama", use_temp_file=False)
    vocabulary = _metadata(writer, reader, shape, kind)
    numbers, norm = _Numbers(TYPES[kind]), np.ones(shape.hidden, np.float32)
    tensors: list[tuple[str, int, int]] = [("token_embd", vocabulary, shape.hidden)]
    for n in range(shape.layers):
        tensors += [(f"blk.{n}.{NAMES[name]}", *size) for name, size in shape.linear().items()]
    norms = ["output_norm", *(f"blk.{n}.{name}" for n in range(shape.layers) for name in ("attn_norm", "ffn_norm"))]
    for name in norms:
        writer.add_tensor(f"{name}.weight", norm)
    for name, rows, width in tensors:
        row = width // gguf.GGML_QUANT_SIZES[numbers.kind][0] * gguf.GGML_QUANT_SIZES[numbers.kind][1]
        shape_in_bytes = (rows, row) if kind != "F16" else (rows, width)
        dtype = np.dtype(np.uint8 if kind != "F16" else np.float16)
        writer.add_tensor_info(f"{name}.weight", shape_in_bytes, dtype, rows * row, raw_dtype=numbers.kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for _ in norms:
        writer.write_tensor_data(norm)
    for _, rows, width in tensors:
        writer.write_tensor_data(numbers.of(rows, width))
    writer.close()
    return shape.parameters(vocabulary)


def _metadata(writer: gguf.GGUFWriter, reader: Any, shape: Shape, kind: str) -> int:
    """Llama's own, and the tokenizer's; the size of the vocabulary."""
    writer.add_type("model")
    writer.add_file_type(FILE_TYPES[kind])
    writer.add_context_length(2048)
    writer.add_embedding_length(shape.hidden)
    writer.add_block_count(shape.layers)
    writer.add_feed_forward_length(shape.between)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.groups)
    writer.add_key_length(shape.head)
    writer.add_value_length(shape.head)
    writer.add_rope_dimension_count(shape.head)
    writer.add_rope_freq_base(500000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    vocabulary = len(reader.get_field("tokenizer.ggml.tokens").contents())
    writer.add_vocab_size(vocabulary)
    for name, field in reader.fields.items():
        if name.startswith("tokenizer."):
            kinds = [*field.types, None]
            writer.add_key_value(name, field.contents(), kinds[0], sub_type=kinds[1])
    return vocabulary


def as_weights(folder: Path, shape: Shape, vocabulary: int) -> None:
    """A Hugging Face folder of these shapes, whose numbers are a hole in the file."""
    folder.mkdir(parents=True)
    config = {
        "model_type": "llama", "architectures": ["LlamaForCausalLM"], "num_hidden_layers": shape.layers,
        "hidden_size": shape.hidden, "num_attention_heads": shape.heads, "num_key_value_heads": shape.groups,
        "intermediate_size": shape.between, "head_dim": shape.head, "vocab_size": vocabulary,
        "tie_word_embeddings": True, "rms_norm_eps": 1e-5, "rope_theta": 500000.0, "torch_dtype": "bfloat16",
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    header, start = {}, 0
    sizes = {"model.embed_tokens": (vocabulary, shape.hidden)}
    for n in range(shape.layers):
        sizes |= {f"model.layers.{n}.{name}": size for name, size in shape.linear().items()}
    for name, (rows, width) in sizes.items():
        end = start + 2 * rows * width
        header[f"{name}.weight"] = {"dtype": "BF16", "shape": [rows, width], "data_offsets": [start, end]}
        start = end
    head = json.dumps(header).encode()
    with (folder / "model.safetensors").open("wb") as file:
        file.write(len(head).to_bytes(8, "little") + head)
        file.truncate(8 + len(head) + start)


def adapter(folder: Path, shape: Shape, seed: int) -> None:
    """A LoRA on all linear layers, of the size that a run leaves behind: small against the weights."""
    folder.mkdir(parents=True)
    numbers = np.random.default_rng(seed)
    tensors = {}
    for n in range(shape.layers):
        for name, (outs, ins) in shape.linear().items():
            for side, size in (("A", (RANK, ins)), ("B", (outs, RANK))):
                values = numbers.normal(scale=0.01 if side == "A" else 0.001, size=size)
                tensors[f"base_model.model.model.layers.{n}.{name}.lora_{side}.weight"] = values.astype(np.float32)
    save_file(tensors, folder / "adapter_model.safetensors")
    about = {"peft_type": "LORA", "r": RANK, "lora_alpha": 2 * RANK, "target_modules": list(shape.linear())}
    (folder / "adapter_config.json").write_text(json.dumps(about))
