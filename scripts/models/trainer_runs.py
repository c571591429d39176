"""A whole run of the trainer on a tiny model of each kind: `python -m scripts.models --server trainer`.

Owns the row of each kind: how its run ended, and how shared prefixes were computed.
"""

from __future__ import annotations

import io
import json
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from config import presets
from scripts.models import tiny
from trainer import loop
from trainer.formats.weights import cache_folder
from trainer.io.progress import Progress, Stop
from trainer.lessons.chat_template import Template
from trainer.policy.packing import Tokens, pack
from trainer.policy.policies import open_policy

TOKENS: Final = 8  # of a reply
TOPICS: Final = ("the sea", "bread", "a bridge", "winter", "maps", "salt", "a clock", "trains")
# Random weights pass no gate that is meant for a model which says something.
GATE: Final = {
    "base_nll_rise": 100.0, "text_nll_rise": 100.0, "margin_slack": 100.0, "topic_fall": 100.0, "max_looping": 100,
    "repetition_rise": 100.0, "more_refusals": 100, "min_length_ratio": 0.0, "max_length_ratio": 100.0,
    "min_entropy_ratio": 0.0,
}  # fmt: skip


def rows(kinds: Sequence[str]) -> Iterator[dict[str, Any]]:
    """One for each kind, those that also see or hear among them."""
    for kind in kinds:
        with tempfile.TemporaryDirectory() as name:
            yield _row(kind, Path(name))


def _row(kind: str, folder: Path) -> dict[str, Any]:
    try:
        model = tiny.make(kind, folder / "model", tokenizer=cache_folder() / "models" / "SmolLM2-135M-Instruct")
        run = _run_folder(folder / "run", model)
    except Exception as error:  # before the run, which answers for whatever comes after
        return {"kind": kind, "error": f"{type(error).__name__}: {error}"[:600]}
    out = io.StringIO()
    with Progress(run, out) as progress:
        result = loop.run(run, progress, Stop())
    events = [json.loads(line) for line in out.getvalue().splitlines()]
    choices = {event["name"]: event for event in events if event["event"] == "choice"}
    prefixes = choices.get("shared_prefixes", {})
    return {
        "kind": kind,
        "status": result["status"],
        "reason": result["reason"],
        "shared_prefixes": prefixes.get("value"),
        "shared_prefixes_reason": prefixes.get("why"),
    }


def _run_folder(folder: Path, model: Path) -> Path:
    """A run of eight ratings, of the model's own replies as a server captures them."""
    folder.mkdir()
    order = {
        "format": 1, "run": 1, "model": "tiny", "weights": str(model), "version": 1, "parent": 0,
        "out": str(folder.parent / "v0001"), "seed": 7, "threads": 1, "gate": GATE, "server_format": "gguf",
        "overrides": {"rank": 4, "alpha": 8, "batch": 4, "learning_rate": 2e-4},
    }  # fmt: skip
    (folder / "run.json").write_text(json.dumps(order))
    (folder / "samples.jsonl").write_text("".join(json.dumps(line) + "\n" for line in _lines(model)))
    (folder / "calibration.jsonl").write_text("")
    return folder


def _lines(model: Path) -> Iterator[dict[str, Any]]:
    policy = open_policy("torch", model, presets.resolve("balanced", {}), parent=None, threads=1, seed=7)
    template = Template(policy.tokenizer)
    chats = [[{"role": "user", "content": f"Say something of {topic}."}] for topic in TOPICS]
    prompts = [template.prompt(chat) for chat in chats]
    replies = policy.generate(prompts, max_tokens=TOKENS, temperature=1.0, seed=7)
    for number, (chat, prompt, reply) in enumerate(zip(chats, prompts, replies, strict=True)):
        log_probs = policy.log_probs(pack([Tokens(prompt, tuple(reply), 1.0)])).sampled
        yield {
            "rating": f"rt-{number}", "completion": f"rl-{number}", "split": "held" if number > 5 else "train",
            "version": 0, "reward": 1.0 if number % 2 else -1.0, "weight": 1.0, "human": True, "exact": True,
            "finish_reason": "length", "sampling": {"temperature": 1.0, "top_p": 1.0}, "messages": chat,
            "prompt_token_ids": list(prompt), "token_ids": list(reply), "logprobs": log_probs.tolist(),
            "text": template.text(reply),
        }  # fmt: skip
