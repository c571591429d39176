"""Rated answers about pictures, as a server of a tiny model that sees would have been captured: exact ids, log-probs.

The log-probs are the model's own, from pixels, computed by transformers alone: nothing of the trainer's takes part.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

from scripts.harness.pictures import picture
from scripts.models import tiny_seeing
from scripts.models.picture_reference import PictureReference
from tests.harness import tiny

SIZE = (tiny_seeing.SIDE, tiny_seeing.SIDE)
COLOURS = ((200, 0, 0), (0, 0, 200), (0, 200, 0))


def make(kind: str, folder: Path, **options: Any) -> Path:
    return tiny_seeing.make(kind, folder, tiny.tokenizer(), **options)


def name_of(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def question(*pictures: bytes, text: str = "what?") -> list[dict[str, Any]]:
    """A message about pictures, as samples.jsonl has it."""
    parts: list[dict[str, Any]] = [{"type": "image", "sha256": name_of(data)} for data in pictures]
    return [{"role": "user", "content": [*parts, {"type": "text", "text": text}]}]


@lru_cache(maxsize=4)
def reference(model: Path) -> PictureReference:
    return PictureReference(model)


def inputs(model: Path, pictures: tuple[bytes, ...], text: str = "what?") -> dict[str, Any]:
    """The prompt as transformers itself makes it."""
    return reference(model).inputs(pictures, text)


def answer(model: Path, pictures: tuple[bytes, ...], text: str = "what?", *, seed: int, tokens: int = 8) -> Any:
    """(prompt ids, reply ids, log-probs): a sampled reply and what the model gave each of its tokens."""
    prompt = inputs(model, pictures, text)
    torch.manual_seed(seed)
    out = reference(model).causal.generate(
        **prompt, max_new_tokens=tokens, do_sample=True, temperature=1.0, top_k=0, top_p=1.0
    )
    ids = prompt["input_ids"][0].tolist()
    reply = out[0].tolist()[len(ids) :]
    return ids, reply, reference(model).log_probs(prompt, reply)


def line(model: Path, number: int, pictures: tuple[bytes, ...], reward: float, **members: Any) -> dict[str, Any]:
    text = f"what {number}?"
    ids, reply, values = answer(model, pictures, text, seed=number)
    return {
        "rating": f"rt-{number}", "completion": f"rl-{number}", "split": "train", "version": 0, "reward": reward,
        "weight": 1.0, "human": True, "finish_reason": "length", "sampling": {"temperature": 1.0}, "exact": True,
        "prompt_token_ids": ids, "token_ids": reply, "logprobs": values, "text": f"answer {number}",
        "messages": question(*pictures, text=text),
    } | members  # fmt: skip


def episode(model: Path, number: int, screens: Sequence[bytes], reward: float) -> list[dict[str, Any]]:
    """An agent's turns: each screen comes as the result of the click before, and the reward at the end."""
    messages: list[dict[str, Any]] = [{"role": "user", "content": f"task {number % 2}: close the window"}]
    turns = []
    for turn, screen in enumerate(screens):
        shot = [{"type": "image", "sha256": name_of(screen)}, {"type": "text", "text": f"screen {turn}"}]
        messages = [*messages, {"role": "tool" if turn else "user", "content": shot}]
        prompt = reference(model).chat(messages, screens[: turn + 1])
        torch.manual_seed(100 * number + turn)
        out = reference(model).causal.generate(**prompt, max_new_tokens=6, do_sample=True, top_k=0, top_p=1.0)
        ids = prompt["input_ids"][0].tolist()
        reply = out[0].tolist()[len(ids) :]
        turns.append({
            "rating": f"ep-{number}-{turn}", "ratings": [], "completion": f"rl-{number}-{turn}", "split": "train",
            "version": 0, "reward": reward, "weight": 1.0, "human": False, "source": "program",
            "finish_reason": "length", "sampling": {"temperature": 1.0}, "exact": True, "prompt_token_ids": ids,
            "token_ids": reply, "logprobs": reference(model).log_probs(prompt, reply), "text": f"click {turn}",
            "messages": messages,
            "episode": {"id": str(number), "group": "k 1", "reward": reward, "turn": turn, "turns": len(screens),
                        "turn_reward": None},
        })  # fmt: skip
        messages = [*messages, {"role": "assistant", "content": f"click {turn}"}]
    return turns


def lines(model: Path, count: int = 8) -> list[dict[str, Any]]:
    """Liked where the picture is red, disliked where it is blue."""
    pictures = [picture(color=colour, size=SIZE) for colour in COLOURS]
    return [
        line(model, n, (pictures[n % 2],), -1.0 if n % 2 else 1.0, split="held" if n >= count - 2 else "train")
        for n in range(count)
    ]


def write_pictures(folder: Path, *pictures: bytes) -> None:
    """The run folder's file of pictures."""
    rows = [
        {"sha256": name_of(data), "completions": ["rl-0"], "data": base64.b64encode(data).decode()} for data in pictures
    ]
    (folder / "pictures.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def pictures_of_lines() -> list[bytes]:
    return [picture(color=colour, size=SIZE) for colour in COLOURS]
