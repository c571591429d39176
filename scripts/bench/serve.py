"""Serving speed of the built-in backend: tokens/s at 1, 4 and 8 at once, for the base and an adapter.

Each is measured with 1 and 2 threads, alone and beside a training run that has as many threads.
`python -m scripts.bench.serve [--tokens N] [--weights SPEC]` writes benchmarks/serve.json. Requests go over HTTP to a
real server process, so the figures are those of a client. The time to read the prompt is part of them.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import aiohttp

from scripts.harness.circumstances import circumstances

ROOT = Path(__file__).resolve().parents[2]
QUESTIONS = ("Tell me about the sea.", "How do I boil an egg?", "Who was Newton?", "Write a letter to a friend.")


def random_adapter(weights: Path, folder: Path) -> None:
    """Rank 16 on every linear layer, as the presets train it; what it says does not matter here."""
    import warnings

    warnings.filterwarnings("ignore", category=FutureWarning)  # peft 0.21 on transformers 5.23
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(weights)
    config = LoraConfig(r=16, lora_alpha=32, target_modules="all-linear", init_lora_weights=False)
    get_peft_model(model, config).save_pretrained(str(folder), save_embedding_layers=False)


async def speed(client: aiohttp.ClientSession, model: str, at_once: int, tokens: int) -> float:
    async def ask(n: int) -> int:
        body = {
            "model": model,
            "messages": [{"role": "user", "content": QUESTIONS[n % len(QUESTIONS)]}],
            "max_tokens": tokens,
            "ignore_eos": True,
            "seed": n,
        }
        async with client.post("/v1/chat/completions", json=body, raise_for_status=True) as response:
            return int((await response.json())["usage"]["completion_tokens"])

    start = time.perf_counter()
    token_counts = await asyncio.gather(*(ask(n) for n in range(at_once)))
    return sum(token_counts) / (time.perf_counter() - start)


def write_run(weights: Path, folder: Path, threads: int) -> None:
    """A run folder with minutes of work in it."""
    folder.mkdir()
    line = {
        "completion": "c",
        "version": 0,
        "reward": 1.0,
        "exact": False,
        "finish_reason": "stop",
        "text": "the sea " * 60,
    }
    line["messages"] = [{"role": "user", "content": "Tell me about the sea."}]
    lines = [
        {**line, "rating": f"rt-{n}", "reward": 1.0 - 2 * (n % 2), "text": f"{n} {line['text']}"} for n in range(300)
    ]
    spec = {"format": 1, "run": 1, "model": "base", "weights": str(weights), "version": 1, "parent": 0, "adapters": {}}
    spec |= {"out": str(folder / "out"), "baseline": 0.0, "seed": 1, "threads": threads, "preset": "balanced"}
    (folder / "run.json").write_text(json.dumps(spec | {"overrides": {}}))
    (folder / "samples.jsonl").write_text("".join(json.dumps(row) + "\n" for row in lines))
    (folder / "calibration.jsonl").write_text("")


async def training(folder: Path) -> asyncio.subprocess.Process:
    """The run of this folder, as the proxy would start it; returns when it has its model and computes."""
    command = ["nice", "-n", "10", sys.executable, "-m", "trainer", str(folder)]
    process = await asyncio.create_subprocess_exec(*command, cwd=ROOT, stdout=subprocess.PIPE)
    assert process.stdout is not None
    while json.loads(await process.stdout.readline()).get("phase") != "old":
        pass
    return process


async def measure(weights: Path, adapter: Path, threads: int, tokens: int, scratch: Path) -> list[dict[str, Any]]:
    command = [sys.executable, "-m", "trainer.serve", "--weights", str(weights), "--name", "base", "--watch-stdin"]
    server = await asyncio.create_subprocess_exec(
        *command, "--threads", str(threads), cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert server.stdin is not None
    assert server.stdout is not None
    rows = []
    try:
        url = json.loads(await server.stdout.readline())["url"]
        async with aiohttp.ClientSession(url) as client:
            load = {"lora_name": "adapter", "lora_path": str(adapter)}
            await client.post("/v1/load_lora_adapter", json=load, raise_for_status=True)
            await speed(client, "adapter", 2, 4)  # warm
            for model, with_training in (("base", False), ("adapter", False), ("adapter", True)):
                run = None
                if with_training:
                    folder = scratch / f"run-{threads}"
                    write_run(weights, folder, threads)
                    run = await training(folder)
                name = f"{model}, training beside it" if with_training else model
                for at_once in (1, 4, 8):
                    rate = round(await speed(client, model, at_once, tokens), 1)
                    rows.append({"threads": threads, "model": name, "at_once": at_once, "tokens_per_s": rate})
                    print(f"{threads} threads  {name:30}  {at_once} at once  {rate:6.1f} tokens/s", flush=True)
                if run is not None:
                    assert run.returncode is None, "the run was over before the measurement was"
                    run.kill()
                    await run.wait()
    finally:
        server.stdin.close()
        await server.wait()
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=32, help="for each reply")
    parser.add_argument("--weights", help="default: the small model")
    options = parser.parse_args()
    from trainer.formats.weights import resolve

    about = circumstances()
    weights = resolve(options.weights)
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        adapter = Path(folder) / "adapter"
        random_adapter(weights.path, adapter)
        for threads in (1, 2):
            rows += asyncio.run(measure(weights.path, adapter, threads, options.tokens, Path(folder)))
    result = {
        **about,
        "model": weights.path.name,
        "tokens_per_reply": options.tokens,
        "speed": rows,
    }
    (ROOT / "benchmarks" / "serve.json").write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
