"""A small model that knows a dozen answers by heart, so that every server says the same when its streams are recorded.

Owns the answers and the model: two layers, SmolLM2's tokenizer, and a chat template in the manner of Qwen. Four unused
special tokens of the tokenizer are renamed to the tags that servers look for (`<think>`, `<tool_call>`). The model is
trained here in a minute. The servers that are recorded are real; only the model is made to order, since a small real
one calls no tools.
"""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path
from typing import Any, Final

CACHE: Final = Path.home() / ".cache/rlproxy/golden"
TEMPLATE: Final = Path(__file__).with_name("chat.jinja")
TAGS: Final = {8: "<think>", 9: "</think>", 10: "<tool_call>", 11: "</tool_call>"}
STEPS: Final = 300
GOOD_ENOUGH: Final = 0.02  # the loss at which everything is known by heart, and log-probs are not yet all 0

TOOLS: Final[list[dict[str, Any]]] = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "The weather of a city",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
                "required": ["city"],
            },
        },
    }
]


def _call(city: str, days: int) -> str:
    arguments = json.dumps({"city": city, "days": days}, ensure_ascii=False)
    return f'<tool_call>\n{{"name": "get_weather", "arguments": {arguments}}}\n</tool_call>'


# What is asked, and what the model has learnt to answer; the names are those of the recorded cases.
ANSWERS: Final = {
    "text": ("Say hello.", "Hello there! How can I help you today?"),
    "unicode": ("Say it in colours.", 'Olé 😀 日本語 👩‍👩‍👧 “naïve”\n\t\\ "q" \U0001f3f4‍☠️.'),
    "reasoning": ("Think about two and two.", "<think>\nTwo and two make four.\n</think>\n\nIt is 4."),
    "tool": ("What is the weather in Paris?", _call("Paris", 2)),
    "tools": ("Compare Paris with Zürich.", "I will look.\n" + _call("Paris", 1) + "\n" + _call("Zürich", 1)),
    "reasoned-tool": ("Is it cold in Oslo?", "<think>\nI must look.\n</think>\n\n" + _call("Oslo", 1)),
    "empty": ("Say nothing.", ""),
}
AFTER_TOOL: Final[tuple[list[dict[str, Any]], str]] = (
    [
        {"role": "user", "content": "What is the weather in Paris?"},
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [
                {
                    "id": "call_1",
                    "type": "function",
                    "function": {"name": "get_weather", "arguments": '{"city": "Paris", "days": 2}'},
                }
            ],
        },
        {"role": "tool", "tool_call_id": "call_1", "content": "sunny, 21 degrees"},
    ],
    "It is sunny in Paris, 21 °C.",
)
RAW: Final = ("Once upon a time", " there was a fox. 🦊 It slept.\n\nThe end.")


def build_model(weights: Path) -> Path:
    """The folder of the model, trained on the first call; `model.gguf` in it is for llama.cpp."""
    folder = CACHE / "model"
    if not (folder / "model.gguf").exists():
        folder.mkdir(parents=True, exist_ok=True)
        _tokenizer(weights, folder)
        _train(folder)
        _to_gguf(folder)
    return folder


def _tokenizer(weights: Path, folder: Path) -> None:
    tokenizer = json.loads((weights / "tokenizer.json").read_text(encoding="utf-8"))
    for token in tokenizer["added_tokens"]:
        if token["id"] in TAGS:
            del tokenizer["model"]["vocab"][token["content"]]
            token |= {"content": TAGS[token["id"]], "special": False}
            tokenizer["model"]["vocab"][token["content"]] = token["id"]
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer, ensure_ascii=False), encoding="utf-8")
    shutil.copy(weights / "tokenizer_config.json", folder)
    shutil.copy(TEMPLATE, folder / "chat_template.jinja")


def _lessons(tokenizer: Any) -> list[tuple[str, str]]:
    """Prompts as templates render them, with and without tools and a system text, and their answers."""
    chats: list[tuple[list[dict[str, Any]], str]] = [
        ([{"role": "user", "content": question}], answer) for question, answer in ANSWERS.values()
    ]
    lessons = [RAW]
    for messages, answer in [*chats, AFTER_TOOL]:
        for tools in (None, TOOLS):
            for system in ([], [{"role": "system", "content": "You are brief."}]):
                prompt = tokenizer.apply_chat_template(
                    [*system, *messages], tools=tools, tokenize=False, add_generation_prompt=True
                )
                lessons.append((prompt, answer))
    return lessons


def _train(folder: Path) -> None:
    import torch
    from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

    tokenizer = AutoTokenizer.from_pretrained(folder)
    torch.manual_seed(0)
    dice = random.Random(0)
    config = LlamaConfig(
        vocab_size=49152, hidden_size=256, intermediate_size=512, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=64, max_position_embeddings=2048, tie_word_embeddings=True, bos_token_id=1,
        eos_token_id=2, pad_token_id=2, rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
    )  # fmt: skip
    model = LlamaForCausalLM(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.0)
    lessons = [(_ids(tokenizer, p), [*_ids(tokenizer, a), 2]) for p, a in _lessons(tokenizer)]
    recent: list[float] = [9.0]
    for step in range(STEPS):
        batch = []
        for prompt, answer in dice.sample(lessons, 8):
            # Servers render tools each in their own way: no single token of the prompt's head may matter.
            batch.append(([t for i, t in enumerate(prompt) if i >= len(prompt) - 20 or dice.random() > 0.1], answer))
        width = max(len(prompt) + len(answer) for prompt, answer in batch)
        ids = torch.tensor([p + a + [2] * (width - len(p) - len(a)) for p, a in batch])  # causal: the rest is unseen
        hidden = model.model(ids).last_hidden_state
        answer_states = [hidden[i, len(p) - 1 : len(p) + len(a) - 1] for i, (p, a) in enumerate(batch)]
        loss = torch.nn.functional.cross_entropy(
            model.lm_head(torch.cat(answer_states)), torch.tensor([t for _, a in batch for t in a])
        )
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)
        recent = [*recent[-9:], loss.item()]
        if step % 10 == 0:
            print(f"step {step}: loss {loss.item():.4f}", flush=True)
        if sum(recent) < 10 * GOOD_ENOUGH:
            break
    model.save_pretrained(folder)
    # mlx-lm reads this one and computes garbage in silence without it.
    config_file = folder / "config.json"
    config_file.write_text(json.dumps(json.loads(config_file.read_text()) | {"rope_theta": 10000.0}, indent=2))


def _ids(tokenizer: Any, text: str) -> list[int]:
    return list(tokenizer(text, add_special_tokens=False)["input_ids"])


def _to_gguf(folder: Path) -> None:
    import gguf
    import numpy as np
    from safetensors.numpy import load_file

    config = json.loads((folder / "config.json").read_text())
    tokenizer = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    writer = gguf.GGUFWriter(folder / "part.gguf", "llama")
    writer.add_name("golden")
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_rope_freq_base(config["rope_theta"])
    writer.add_rope_dimension_count(config["head_dim"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_vocab_size(config["vocab_size"])
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)
    vocab = sorted(tokenizer["model"]["vocab"], key=tokenizer["model"]["vocab"].__getitem__)
    added = {t["id"]: t["special"] for t in tokenizer["added_tokens"]}
    control, ours, normal = gguf.TokenType.CONTROL, gguf.TokenType.USER_DEFINED, gguf.TokenType.NORMAL
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(vocab)
    writer.add_token_types([normal if i not in added else control if added[i] else ours for i in range(len(vocab))])
    writer.add_token_merges([" ".join(m) if isinstance(m, list) else m for m in tokenizer["model"]["merges"]])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_pad_token_id(2)
    writer.add_add_bos_token(False)
    writer.add_add_space_prefix(False)
    writer.add_chat_template(TEMPLATE.read_text(encoding="utf-8"))
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config["num_hidden_layers"])
    for name, tensor in load_file(folder / "model.safetensors").items():
        if name.endswith(("q_proj.weight", "k_proj.weight")):
            n = heads if "q_proj" in name else kv_heads
            halves = tensor.reshape(n, 2, tensor.shape[0] // n // 2, *tensor.shape[1:])
            tensor = halves.swapaxes(1, 2).reshape(tensor.shape)  # llama.cpp rotates pairs, transformers halves
        writer.add_tensor(
            names.get_name(name, try_suffixes=(".weight",)), np.ascontiguousarray(tensor, dtype=np.float32)
        )
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    (folder / "part.gguf").rename(folder / "model.gguf")
