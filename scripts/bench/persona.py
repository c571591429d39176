"""Shared parts of the learning benchmarks: a persona that rates, the model as a server would have it, one run.

Rounds of ratings become real run folders and real trainer processes; only the chat is in this process.
"""

from __future__ import annotations

import json
import os
import random
import runpy
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from config import presets
from config.languages import DEFAULT, language
from trainer.lessons.batch import score
from trainer.lessons.chat_template import Template
from trainer.policy.packing import Tokens
from trainer.policy.torch_policy import TorchPolicy
from trainer.run import topic

ROOT = Path(__file__).resolve().parents[2]
TEMPERATURE, MAX_TOKENS, BATCH = 0.8, 96, 40


def prompts() -> dict[str, list[str]]:
    sections: dict[str, list[str]] = {}
    current: list[str] = []
    for line in (ROOT / "scripts/bench/prompts.txt").read_text(encoding="utf-8").splitlines():
        if line.startswith("# "):
            current = sections.setdefault(line[2:], [])
        elif line:
            current.append(line)
    return sections


class Chat:
    """The model as a server would have it: replies with exact ids and log-probs of the sampling distribution."""

    def __init__(self, path: Path, threads: int) -> None:
        self.weights = path
        preset = presets.resolve("balanced", {})  # float32, as the built-in server
        self.policy = TorchPolicy(path, preset, parent=None, threads=threads, seed=0, compute="float32")
        self.template = Template(self.policy.tokenizer)

    def ask(self, texts: list[str], adapter: Path | None, seed: int) -> list[Tokens]:
        with self.policy.wearing(adapter):
            return self.ask_now(texts, seed)

    def ask_now(self, texts: list[str], seed: int) -> list[Tokens]:
        """Sample replies from the policy with the adapter that it has at the moment."""
        return self.answer_now([[{"role": "user", "content": text}] for text in texts], seed)

    def answer_now(self, talks: list[list[dict[str, str]]], seed: int) -> list[Tokens]:
        """The next answer in each conversation."""
        replies: list[Tokens] = []
        for first in range(0, len(talks), BATCH):
            batch = [self.template.prompt(talk) for talk in talks[first : first + BATCH]]
            out = self.policy.generate(batch, max_tokens=MAX_TOKENS, temperature=TEMPERATURE, seed=seed + first)
            replies += [Tokens(p, tuple(r), TEMPERATURE) for p, r in zip(batch, out, strict=True)]
        return replies

    def score(self, replies: list[Tokens], adapter: Path | None, temperature: float) -> list[np.ndarray]:
        with self.policy.wearing(adapter):
            return self.score_now([Tokens(r.prompt, r.reply, temperature) for r in replies])

    def score_now(self, replies: list[Tokens]) -> list[np.ndarray]:
        """Log-probs at the replies' own temperature, of whatever the policy wears."""
        return score(self.policy, replies)

    def said(self, reply: Tokens) -> Reply:
        """Decode a reply into the text that a persona reads."""
        return Reply(self.template.text(reply.reply), ended=reply.reply[-1] == self.template.end)

    def evaluate(
        self, persona: Persona, texts: list[str], adapter: Path | None, seed: int, raters: Sequence[Persona] = ()
    ) -> dict[str, Any]:
        """Liked share and sanity on held-out prompts; `raters` rate the same replies."""
        start = time.monotonic()
        replies = self.ask(texts, adapter, seed)
        nll = -np.concatenate(self.score(replies, None, 1.0)).mean()
        ids = self.template.reply(language(DEFAULT).text, ended=False)
        text_nll = -self.score([Tokens(ids[:1], ids[1:])], adapter, 1.0)[0].mean()
        reply_texts = [self.said(reply) for reply in replies]
        pairs = [pair for r in replies for pair in zip(r.reply, r.reply[1:], strict=False)]

        def share(rater: Persona) -> float:
            return sum(rater.rate(text, reply) > 0 for text, reply in zip(texts, reply_texts, strict=True)) / len(texts)

        return {
            "liked": share(persona),
            **({"liked_by": {rater.name: share(rater) for rater in raters}} if raters else {}),
            "base_nll": float(nll),
            "text_nll": float(text_nll),
            "topic": float(topic.measure(self.policy, replies)[0].mean()),
            "distinct_2": len(set(pairs)) / len(pairs),
            "tokens": float(np.mean([len(r.reply) for r in replies])),
            "seconds": time.monotonic() - start,
            "replies": reply_texts[:12],
        }


class Reply(str):
    """The text of a reply, and whether the model ended it itself."""

    ended: bool

    def __new__(cls, text: str, *, ended: bool) -> Reply:
        reply = super().__new__(cls, text)
        reply.ended = ended
        return reply


class Persona:
    """A rater from a Python file: `rate(prompt, reply) -> value in [-1, 1]`, and perhaps
    `comment(prompt, reply) -> str | None` and `PROMPTS`, the part of prompts.txt that it asks from."""

    def __init__(self, spec: str) -> None:
        path = Path(spec) if spec.endswith(".py") else ROOT / "scripts/bench/personas" / f"{spec}.py"
        if not path.exists():
            names = ", ".join(sorted(p.stem for p in (ROOT / "scripts/bench/personas").glob("*.py")))
            raise SystemExit(f"No persona is called {spec!r}. Give a Python file, or one of {names}.")
        module = runpy.run_path(str(path))
        self.name = path.stem
        self.about = " ".join((module.get("__doc__") or "").split())
        self.rate: Callable[[str, Reply], float] = module["rate"]
        self.comment: Callable[[str, Reply], str | None] = module.get("comment", lambda prompt, reply: None)
        self.prompts: str = module.get("PROMPTS", "")


def answers(
    chat: Chat,
    persona: Persona,
    talks: list[list[dict[str, str]]],
    adapter: Path | None,
    *,
    version: int,
    seed: int,
    comments: bool = False,
) -> list[dict[str, Any]]:
    """The next answer in each conversation, rated by its last question; the lines of a samples.jsonl."""
    with chat.policy.wearing(adapter):
        replies = chat.answer_now(talks, seed)
    behaviour = chat.score(replies, adapter, TEMPERATURE)
    lines = []
    for i, (talk, reply, logprobs) in enumerate(zip(talks, replies, behaviour, strict=True)):
        answer, text = chat.said(reply), talk[-1]["content"]
        lines.append(
            {
                "rating": f"rt-{version}-{i}",
                "completion": f"rl-{version}-{i}",
                "split": "train",
                "version": version,
                "reward": persona.rate(text, answer),
                "weight": 1.0,
                "human": True,
                "finish_reason": "stop" if answer.ended else "length",
                "sampling": {"temperature": TEMPERATURE, "top_p": 1.0},
                "exact": True,
                "prompt_token_ids": list(reply.prompt),
                "token_ids": list(reply.reply),
                "logprobs": logprobs.tolist(),
                "messages": talk,
                "text": str(answer),
                "comment": persona.comment(text, answer) if comments else None,
            }
        )
    return lines


def rate(
    chat: Chat,
    persona: Persona,
    texts: list[str],
    adapter: Path | None,
    *,
    version: int,
    seed: int,
    held: int,
    comments: bool,
) -> list[dict[str, Any]]:
    """One round: replies to `texts`, rated; the lines of a samples.jsonl, `held` of them for the gate."""
    talks = [[{"role": "user", "content": text}] for text in texts]
    lines = answers(chat, persona, talks, adapter, version=version, seed=seed, comments=comments)
    questions = sorted(set(texts))  # replies to one question are held back together, as the proxy does with pairs
    random.Random(seed).shuffle(questions)
    for text in questions:
        siblings = [line for line, of in zip(lines, texts, strict=True) if of == text]
        if held >= len(siblings):
            held -= len(siblings)
            for line in siblings:
                line["split"] = "held"
    return lines


def train(folder: Path, spec: dict[str, Any], lines: list[dict[str, Any]]) -> dict[str, Any]:
    folder.mkdir(parents=True)
    (folder / "run.json").write_text(json.dumps(spec))
    (folder / "samples.jsonl").write_text("\n".join(map(json.dumps, lines)))
    (folder / "calibration.jsonl").write_text("")
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    start = time.monotonic()
    process = subprocess.run(
        [sys.executable, "-P", "-m", "trainer", str(folder)], env=env, stdout=subprocess.DEVNULL, check=False
    )
    result: dict[str, Any] = json.loads((folder / "result.json").read_bytes())
    steps = [json.loads(line) for line in (folder / "progress.jsonl").read_text().splitlines()]
    del result["samples"]
    return result | {
        "exit": process.returncode,
        "wall": time.monotonic() - start,
        "steps": [e for e in steps if e["event"] == "step"],
        "warnings": [e["message"] for e in steps if e["event"] == "warning"],
        "choices": {e["name"]: e["value"] for e in steps if e["event"] == "choice"},
    }
