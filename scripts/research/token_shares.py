"""How much of the captured tokens is exact, behind servers that send no token ids: ids, and log-probs.

`python -m scripts.research.token_shares --backend ollama|llamacpp|mlx --url URL --model NAME [--name NAME IN THE TABLE]
[--captures 200] [--tokens 32]` asks a server that runs, through a real `rlproxy serve`, half of it in streams. It puts
the shares by kind of text into benchmarks/token_shares.json, beside those of the others. A token counts as exact where
the run that would train on it knows its id from the server (trainer.lessons.captured_tokens). A log-prob counts as
exact where the server gave one.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import Any, Final

from transformers import AutoTokenizer

from proxy.training.run_folder import unrated_lines
from scripts.harness.circumstances import circumstances
from scripts.harness.serving import Serving
from store.store import Store
from trainer.formats.weights import resolve
from trainer.lessons.chat_template import Template
from trainer.lessons.rehearsal import known_tokens

OUT = Path(__file__).resolve().parents[2] / "benchmarks" / "token_shares.json"
KINDS: Final = {
    "prose": ("Tell me about the sea.", "Who was Newton?", "Why is the sky blue?", "Describe a winter morning."),
    "code": ("Write a Python function that adds two numbers.", "Show a for loop in C.", "Write SQL that counts users."),
    "lists": ("List five fruits, one a line.", "Give me three steps to boil an egg, numbered.", "Name the planets."),
    "emoji": ("Repeat exactly: 😀🎉🚀👩‍👩‍👧 done", "Answer with emoji only: 🐱🐶🦊🐻", "Repeat: ❤️🇨🇦✅"),
    "Chinese": ("请用中文介绍一下北京。", "重复这句话：今天天气很好，我们去公园。", "把“hello”翻译成中文。"),
    "calls": ("What is the weather in Paris?", "Get the weather of Rome now.", "Is it raining in Oslo?"),
    "stop words": ("Count from one to ten in words.", "Say the days of the week.", "Write two sentences about bees."),
    "JSON": ("Give me a JSON object with name and age.", "Write a JSON list of three cities."),
}  # fmt: skip
TOOL: Final = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a town now.",
        "parameters": {"type": "object", "properties": {"town": {"type": "string"}}, "required": ["town"]},
    },
}


def request(kind: str, number: int, tokens: int) -> dict[str, Any]:
    text = KINDS[kind][number % len(KINDS[kind])]
    body: dict[str, Any] = {
        "messages": [{"role": "user", "content": text}], "max_tokens": tokens, "stream": number % 2 == 1,
        "temperature": 0.8, "seed": number, "user": kind,
    }  # fmt: skip
    if body["stream"]:
        body["stream_options"] = {"include_usage": True}
    if kind == "calls":
        body["tools"] = [TOOL]
    if kind == "stop words":
        body["stop"] = ["three", "Wednesday", "."]
    return body


async def ask(served: Serving, model: str, captures: int, tokens: int) -> int:
    """How many were answered; a server may refuse tools."""
    kinds, answered = list(KINDS), 0
    for number in range(captures):
        body = {"model": model, **request(kinds[number % len(kinds)], number // len(kinds), tokens)}
        async with served.http.post("/v1/chat/completions", json=body) as response:
            await response.read()
            answered += response.status == 200
    return answered


async def shares(home: Path, captures: int, template: Template) -> dict[str, Any]:
    store = await Store.open(home)
    try:
        turns = await store.completions.newest_turns(captures, foreign=False)
    finally:
        await store.close()
    lines: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for completion, line in zip(turns, unrated_lines(turns), strict=True):
        for name in (completion.new.user or "?", "stream" if completion.new.streamed else "whole", "all"):
            lines[name].append(line)
    counts = {name: {"replies": len(each), **known_tokens(each, template)} for name, each in lines.items()}
    return {
        name: {**row, "ids_share": row["ids"] / max(row["tokens"], 1),
               "log_probs_share": row["log_probs"] / max(row["tokens"], 1)}
        for name, row in counts.items()
    }  # fmt: skip


async def main() -> None:
    parser = argparse.ArgumentParser(description="How much of the captured tokens is exact?")
    parser.add_argument("--backend", required=True, choices=("ollama", "llamacpp", "mlx"))
    parser.add_argument("--url", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--name", default="")
    parser.add_argument("--captures", type=int, default=200)
    parser.add_argument("--tokens", type=int, default=32)
    arguments = parser.parse_args()
    weights = resolve(None).path
    about = circumstances()
    with tempfile.TemporaryDirectory(prefix="shares-") as work:
        flags = ["--backend", arguments.backend, "--backend-url", arguments.url, "--model", arguments.model]
        served = Serving(Path(work) / "home", weights, *flags, RLPROXY_TRAIN__ENABLED="false")
        await served.start()
        try:
            answered = await ask(served, arguments.model, arguments.captures, arguments.tokens)
        finally:
            await served.stop()
        template = Template(AutoTokenizer.from_pretrained(weights))
        rows = await shares(Path(work) / "home", arguments.captures, template)
    stored: dict[str, Any] = json.loads(OUT.read_text()) if OUT.exists() else {}
    stored[arguments.name or arguments.backend] = {
        **about,
        "asked": arguments.captures,
        "answered": answered,
        "shares": rows,
    }
    OUT.write_text(json.dumps(stored, indent=1, ensure_ascii=False) + "\n")
    for name, row in rows.items():
        print(f"{name:12} {row['replies']:4} {row['tokens']:6} {row['ids_share']:.3f} {row['log_probs_share']:.3f}")


if __name__ == "__main__":
    asyncio.run(main())
