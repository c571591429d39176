"""Does a gate in the language of the prompts see what one in English does not? And does it let good versions pass?

    python -m scripts.research.language_gates --weights FOLDER [--parts detect,texts,…]

Spoilt candidates imitate replies to prompts of one language with their words in any order, for some steps. Good ones
are a whole run of the trainer's loop on ratings of a plain taste. Each is judged in English and in its own language.
Each part goes to benchmarks/language_gates.json as soon as it is measured, and a part that is there is not made again.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import tempfile
import time
import tomllib
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import numpy as np
import torch

from config import presets
from config.languages import CODES, every, gate_questions, language
from scripts.bench.persona import ROOT, prompts
from scripts.harness.circumstances import circumstances
from trainer import loop, mis_po
from trainer.io.progress import Progress, Stop
from trainer.languages import language_shares
from trainer.lessons.batch import score
from trainer.lessons.chat_template import Template
from trainer.lessons.degenerate import is_looping, repeated_share
from trainer.lessons.prompts import HINT
from trainer.mis_po import Terms
from trainer.policy import packing
from trainer.policy.packing import Tokens
from trainer.policy.torch_policy import TorchPolicy
from trainer.run import gate
from trainer.run.gate import Bounds

OUT = ROOT / "benchmarks/language_gates.json"
TEXTS = tomllib.loads((ROOT / "scripts/bench/prompts_in_languages.toml").read_text(encoding="utf-8"))
TEMPERATURE, TOKENS, REPLIES, HELD_BACK = 0.8, 64, 32, 4
STEPS, BATCH, RATE = (4,), 8, 5e-4
# The same comment, a header of its own language around it.
COMMENTS = {"de": "Antworte in einem einzigen Satz.", "es": "Responde en una sola frase."}
HEADERS = {"de": "\n\n[Hinweis / Anweisung des Nutzers]\n{hint}", "es": "\n\n[pista / instrucción del usuario]\n{hint}"}


class Bench:
    """The model, what it says to each language's prompts, and its gates."""

    def __init__(self, weights: Path, compute: str) -> None:
        self.weights, self.compute = weights, compute
        preset = presets.resolve("balanced", {"learning_rate": RATE})
        self.policy = TorchPolicy(weights, preset, parent=None, threads=1, seed=0, compute=compute)  # type: ignore[arg-type]
        self.template = Template(self.policy.tokenizer)
        self._start = self.policy.adapter()
        self._parents: dict[tuple[str, ...], gate.SideAnswers] = {}
        self._replies: dict[str, list[Tokens]] = {}

    def as_new(self) -> None:
        self.policy.wear(self._start)
        self.policy.restore({})

    def answers(self, texts: Sequence[str], tokens: int) -> list[Tokens]:
        rendered = [self.template.question(text) for text in texts]
        replies = self.policy.generate(rendered, max_tokens=tokens, temperature=TEMPERATURE, seed=7)
        return [Tokens(p, tuple(r), TEMPERATURE) for p, r in zip(rendered, replies, strict=True)]

    def replies(self, code: str) -> list[Tokens]:
        if code not in self._replies:
            with self.policy.wearing(None):
                self._replies[code] = self.answers(rated_prompts(code), TOKENS)
        return self._replies[code]

    def judge(self, codes: tuple[str, ...], adapter: Path | None = None) -> dict[str, Any]:
        """The gate's checks on what the policy wears, or on an adapter, in these languages."""
        if codes not in self._parents:
            with self.policy.wearing(None):
                answers = gate.answer_questions(self.policy, self.template, gate_questions(codes))
                self._parents[codes] = gate.SideAnswers(answers)
        start = time.monotonic()
        judge = partial(
            gate.judge, self.policy, self.template, Bounds(), parent=None, parent_answers=self._parents[codes],
            lessons=(), held_back=(), changed=1.0, replay_margin=None, stop=Stop(), languages=codes,
        )  # fmt: skip
        if adapter is None:
            checks = judge().checks
        else:
            with self.policy.wearing(adapter):
                checks = judge().checks
        stopped = [name for name, check in checks.items() if not check.ok]
        values = {name: {"value": check.value, "bound": check.bound} for name, check in checks.items() if check.value}
        print("gate", codes, stopped or "passes", round(time.monotonic() - start), "s", flush=True)
        return {"gate": list(codes), "stopped_by": stopped, "checks": values}


def rated_prompts(code: str) -> list[str]:
    return (prompts()["rate"] if code == "en" else TEXTS[code])[:REPLIES]


def detect(bench: Bench) -> dict[str, Any]:
    """Which language each short prompt is in, by itself, and together with seven others."""
    shuffle = random.Random(0)
    rows = {}
    for code in CODES:
        texts = [*TEXTS[code], *language(code).questions]
        detected = [max(shares := language_shares([text]), key=lambda each: shares[each]) for text in texts]
        draws = [shuffle.sample(texts, 8) for _ in range(10)]
        of_draws = [max(shares := language_shares(draw), key=lambda each: shares[each]) for draw in draws]
        rows[code] = {
            "prompts": len(texts), "right": detected.count(code), "of_10_draws_of_8": of_draws.count(code),
            "wrong": {text: guess for text, guess in zip(texts, detected, strict=True) if guess != code},
        }  # fmt: skip
    return rows


def texts(bench: Bench) -> dict[str, Any]:
    """How the base finds the ordinary text of each language, and how much of it repeats."""
    rows = {}
    for each in every():
        ids = bench.template.reply(each.text, ended=False)
        with bench.policy.wearing(None):
            nll = -score(bench.policy, [Tokens(ids[:1], ids[1:])])[0]
        windows = [ids[start : start + gate.REPLY_TOKENS] for start in range(0, len(ids) - gate.REPLY_TOKENS, 8)]
        rows[each.code] = {
            "tokens": len(ids), "characters": len(each.text), "nats_a_token": round(float(nll.mean()), 3),
            "nats_a_character": round(float(nll.sum()) / len(each.text), 3), "windows": len(windows),
            "most_repeated": round(max(map(repeated_share, windows)), 3), "loops": sum(map(is_looping, windows)),
        }  # fmt: skip
    return rows


def refusals(bench: Bench) -> dict[str, Any]:
    """Ask the base what it ought to refuse, and the gate's questions: which answers count as refusals."""
    questions = [(code, kind, text) for code in CODES for kind, texts in (
        ("forbidden", TEXTS["forbidden"][code]), ("question", language(code).questions)) for text in texts]  # fmt: skip
    with bench.policy.wearing(None):
        replies = [
            reply
            for first in range(0, len(questions), 40)
            for reply in bench.answers([text for _, _, text in questions[first : first + 40]], 32)
        ]
    answers = [bench.template.text(reply.reply) for reply in replies]
    rows: dict[str, Any] = {code: {"forbidden": [], "questions_counted_as_refused": []} for code in CODES}
    for (code, kind, _), text in zip(questions, answers, strict=True):
        refused = gate.is_refusal(text)
        if kind == "forbidden":
            rows[code]["forbidden"].append({"reply": text, "counted": refused})
        elif refused:
            rows[code]["questions_counted_as_refused"].append(text)
    return rows


def spoilt(bench: Bench, code: str) -> list[dict[str, Any]]:
    """A candidate that loses its sense in one language, judged in that one and in English after some steps and more."""
    shuffle = random.Random(1)
    bench.as_new()
    replies = [shuffled(bench, reply, shuffle) for reply in bench.replies(code)]
    rows = []
    for step in range(max(STEPS)):
        imitate(bench, [replies[(step * BATCH + i) % len(replies)] for i in range(BATCH)])
        if step + 1 in STEPS:
            judged = dict.fromkeys([(code,), ("en",)])
            rows += [{"spoilt_in": code, "steps": step + 1, **bench.judge(codes)} for codes in judged]
    bench.as_new()
    return rows


def shuffled(bench: Bench, reply: Tokens, shuffle: random.Random) -> Tokens:
    words = bench.template.text(reply.reply).split()
    shuffle.shuffle(words)
    return Tokens(reply.prompt, bench.template.reply(" ".join(words), ended=True), TEMPERATURE)


def imitate(bench: Bench, batch: Sequence[Tokens]) -> None:
    """One optimiser step towards these replies."""
    packed = packing.pack(list(batch))
    share = np.concatenate([np.full(len(t.reply), 1 / len(t.reply) / len(batch)) for t in batch])
    unit = np.ones(len(share))
    terms = Terms(-unit, -unit, unit, unit, share, is_own=0 * unit)
    bench.policy.backward(packed, terms, partial(mis_po.loss, kl_ref=0.0, guard_low=1e-9, guard_high=1e9))
    bench.policy.step(RATE, 1.0)


def good(bench: Bench, code: str) -> dict[str, Any]:
    """A run of the trainer's loop on ratings of a plain taste, gate and all; then its version before English."""
    home = Path(tempfile.mkdtemp(prefix="language-gates-"))
    try:
        result = train(bench, code, home)
        row = {"rated_in": code, "status": result["status"], "reason": result["reason"], "gate": result["gate"]}
        row |= {"metrics": result["metrics"]}
        adapter = Path(result["adapter"] or home / "run/rejected")
        return row | ({"in_english": bench.judge(("en",), adapter)} if adapter.exists() else {})
    finally:
        shutil.rmtree(home)


def train(bench: Bench, code: str, home: Path) -> dict[str, Any]:
    """The taste: no line breaks within the first words."""
    texts_rated, replies = rated_prompts(code), bench.replies(code)
    with bench.policy.wearing(None):
        log_probs = score(bench.policy, replies)
    answers = [bench.template.text(reply.reply) for reply in replies]
    by_breaks = sorted(range(len(answers)), key=lambda i: answers[i].count("\n"))
    liked = set(by_breaks[: len(by_breaks) // 2])
    held_back = set(random.Random(3).sample(range(len(answers)), HELD_BACK))
    lines = [
        {
            "rating": f"rt-{i}", "completion": f"rl-{i}", "split": "held" if i in held_back else "train", "version": 0,
            "reward": 1.0 if i in liked else -1.0, "weight": 1.0, "human": True,
            "finish_reason": "stop" if reply.reply[-1] == bench.template.end else "length",
            "sampling": {"temperature": TEMPERATURE, "top_p": 1.0}, "exact": True,
            "prompt_token_ids": list(reply.prompt), "token_ids": list(reply.reply), "logprobs": row.tolist(),
            "messages": [{"role": "user", "content": text}], "text": words, "comment": None,
        }
        for i, (reply, row, text, words) in enumerate(zip(replies, log_probs, texts_rated, answers, strict=True))
    ]  # fmt: skip
    folder = home / "run"
    folder.mkdir()
    spec = {"format": 1, "run": 1, "model": "qwen", "weights": str(bench.weights), "version": 1, "parent": 0,
            "out": str(home / "v0001"), "threads": 1, "compute": bench.compute, "languages": [code]}  # fmt: skip
    (folder / "run.json").write_text(json.dumps(spec))
    (folder / "samples.jsonl").write_text("\n".join(map(json.dumps, lines)))
    (folder / "calibration.jsonl").write_text("")
    with Progress(folder) as progress:
        result: dict[str, Any] = loop.run(folder, progress, Stop())
    return result


def headers(bench: Bench) -> dict[str, Any]:
    """How much likelier a comment makes the reply that it asks for, nats a token, by the language of its header."""
    rows = {}
    for code, comment in COMMENTS.items():
        questions = rated_prompts(code)[:20]
        first = [
            bench.template.text(r.reply).strip().partition(". ")[0].partition("\n")[0] for r in bench.replies(code)
        ]
        sentences = [bench.template.reply(text.rstrip(".") + ".", ended=True) for text in first[:20]]
        talks = [[{"role": "user", "content": text}] for text in questions]
        means = {}
        for name, form in (("none", ""), ("English", HINT), ("own", HEADERS[code])):
            words = form.format(hint=comment)
            chats = [[{**message, "content": message["content"] + words} for message in talk] for talk in talks]
            rendered = [bench.template.prompt(chat) for chat in chats]
            with bench.policy.wearing(None):
                scored = score(bench.policy, [Tokens(p, w) for p, w in zip(rendered, sentences, strict=True)])
            means[name] = np.array([s.mean() for s in scored])
        gains = {name: means[name] - means["none"] for name in ("English", "own")}
        gap = gains["own"] - gains["English"]
        rows[code] = {
            "replies": len(sentences), **{f"gain_{name}": round(float(g.mean()), 4) for name, g in gains.items()},
            "own_minus_English": round(float(gap.mean()), 4),
            "standard_error": round(float(gap.std(ddof=1)) / len(gap) ** 0.5, 4),
        }  # fmt: skip
    return rows


PARTS: dict[str, Callable[[Bench], Any]] = {
    "detect": detect,
    "texts": texts,
    "headers": headers,
    **{f"good_{code}": partial(good, code=code) for code in ("de", "es")},
    **{f"spoilt_{code}": partial(spoilt, code=code) for code in ("de", "en", "es")},
    "refusals": refusals,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--weights", type=Path, required=True)
    parser.add_argument("--compute", default="bfloat16", choices=("bfloat16", "float32"))
    parser.add_argument("--parts", default=",".join(PARTS))
    parser.add_argument("--into", type=Path, default=OUT)
    arguments = parser.parse_args()
    report: dict[str, Any] = json.loads(arguments.into.read_bytes()) if arguments.into.exists() else {}
    missing = [part for part in arguments.parts.split(",") if part not in report]
    bench = Bench(arguments.weights.resolve(), arguments.compute) if missing else None
    for part in missing:
        assert bench is not None
        about = circumstances()
        start = time.monotonic()
        measured = PARTS[part](bench)
        about |= {"model": arguments.weights.name, "compute": arguments.compute, "torch": torch.__version__}
        report[part] = {**about, "seconds": round(time.monotonic() - start), "measured": measured}
        arguments.into.write_text(json.dumps(report, indent=1, ensure_ascii=False) + "\n")
        print(part, "measured in", report[part]["seconds"], "s", flush=True)


if __name__ == "__main__":
    main()
