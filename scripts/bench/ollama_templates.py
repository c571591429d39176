"""Does it learn behind a real Ollama whose chat template is not that of the weights, as it does with the built-in one?

`OLLAMA_BIN=…/ollama[:…/ollama] python -m scripts.bench.ollama_templates [--templates alpaca …] [--seeds 1 2]
[--builtin]` puts what each did into benchmarks/ollama_templates.json, beside the others. Each server, template and seed
gets a real `rlproxy serve` on a fresh home. The persona `concise` rates 32 answers, which start a run. Held-out prompts
are asked before and after the run. The models are the same SmolLM2-135M (Q4_1). Nothing is set but the address of the
server.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, Final

import aiohttp

from scripts.bench.persona import MAX_TOKENS, TEMPERATURE, Persona, Reply
from scripts.chaos.ollama_faults import version_of
from scripts.demo.__main__ import read_prompts
from scripts.harness.circumstances import circumstances
from scripts.harness.ollama_server import OllamaServer, binaries
from scripts.harness.serving import Serving
from trainer.formats.weights import resolve

ROOT = Path(__file__).resolve().parents[2]
OUT = ROOT / "benchmarks" / "ollama_templates.json"
MODEL: Final = "smol"
RATINGS: Final = 32
AT_ONCE: Final = 4
PATIENCE_S: Final = 3600.0  # a busy machine
LINES: Final = ("base ", "template ", "prompts ")  # of doctor
RENDERS: Final = (0, 11, 5)  # before, Ollama says only how many tokens it read

_TURNS: Final = "<|im_start|>{{ .Role }}\n{{ .Content }}<|im_end|>\n"
_TOOL_WORDS: Final = """{{- $system := "You are a helpful AI assistant named SmolLM, trained by Hugging Face" }}
{{- range .Messages }}{{ if eq .Role "system" }}{{ $system = .Content }}{{ end }}{{ end -}}
<|im_start|>system
{{ $system }}
{{- if .Tools }}

Functions that you may use, if you need one:
{{- range .Tools }}
- {{ json .Function }}
{{- end }}
To use it, answer only with <call>{"name": its name, "arguments": {...}}</call>.
{{- end }}<|im_end|>
{{ range .Messages }}{{ if ne .Role "system" }}<|im_start|>{{ .Role }}
{{ .Content }}{{ range .ToolCalls }}<call>{{ json .Function }}</call>{{ end }}<|im_end|>
{{ end }}{{ end }}<|im_start|>assistant
"""
_ALPACA: Final = """{{ if .System }}{{ .System }}

{{ end }}### Instruction:
{{ .Prompt }}

### Response:
{{ .Response }}"""
TEMPLATES: Final = {
    "no default system text": "{{ range .Messages }}" + _TURNS + "{{ end }}<|im_start|>assistant\n",
    "other tool wording": _TOOL_WORDS,
    "alpaca": _ALPACA,
}
TOOL: Final = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a town now.",
        "parameters": {"type": "object", "properties": {"town": {"type": "string"}}, "required": ["town"]},
    },
}


class Person:
    """Asks and rates over HTTP. With tools where the template words them."""

    def __init__(self, http: aiohttp.ClientSession, seed: int, tools: bool) -> None:
        self._http, self._seed = http, seed
        self._fields: dict[str, Any] = {"tools": [TOOL]} if tools else {}
        self._persona = Persona("concise")

    async def ask(self, n: int, prompt: str, model: str, *, keep: bool) -> tuple[str, float, str, str]:
        """The id of an answer, what the persona thinks of it, which version it is of, and its text."""
        body = {"model": model, "messages": [{"role": "user", "content": prompt}], "temperature": TEMPERATURE}
        body |= {"max_tokens": MAX_TOKENS, "seed": n, **self._fields}
        headers = {} if keep else {"x-rl-capture": "off"}
        async with self._http.post("/v1/chat/completions", json=body, headers=headers) as response:
            answer = await response.json()
            assert response.status == 200, answer
        choice = answer["choices"][0]
        text = choice["message"].get("content") or ""
        liked = self._persona.rate(prompt, Reply(text, ended=choice["finish_reason"] != "length"))
        return answer["id"], liked, response.headers.get("x-rl-adapter", ""), text

    async def rate(self, prompts: Sequence[str]) -> int:
        """How many of the answers were good."""

        async def rate_answer(n: int) -> int:
            id, liked, _, _ = await self.ask(self._seed * 1000 + n, prompts[n], MODEL, keep=True)
            word = {"completion_id": id, "rating": "good" if liked > 0 else "bad"}
            async with self._http.post("/v1/feedback", json=word) as response:
                assert response.status == 201, await response.text()
            return int(liked > 0)

        return sum(await at_once(rate_answer, len(prompts)))

    async def held_out(self, prompts: Sequence[str], pin: str) -> dict[str, Any]:
        async def answer(n: int) -> tuple[float, str]:
            _, liked, label, text = await self.ask(1000 + n, prompts[n], f"{MODEL}@{pin}", keep=False)
            assert label in ("", pin), (label, pin)
            return liked, text

        answers = await at_once(answer, len(prompts))
        words = sum(len(text.split()) for _, text in answers) / len(answers)
        liked = sum(liked > 0 for liked, _ in answers) / len(answers)
        return {"liked": liked, "words": words, "replies": [text for _, text in answers[:6]]}


async def at_once(work: Callable[[int], Awaitable[Any]], count: int) -> list[Any]:
    slots = asyncio.Semaphore(AT_ONCE)

    async def limited(n: int) -> Any:
        async with slots:
            return await work(n)

    return list(await asyncio.gather(*map(limited, range(count))))


async def outcome(served: Serving) -> dict[str, Any]:
    """Status when the run that the ratings start has ended, or none can start."""
    began = time.monotonic()
    while time.monotonic() - began < PATIENCE_S:
        status = await served.status()
        run = status["last_run"]
        if run and run["ended_at"] and (run["status"] != "done" or status["live"] > 0 or status["problem"]):
            return status
        if not run and status["training"]["run"] is None and refused(status):
            return status
        await asyncio.sleep(2)
    raise SystemExit(f"no run in {PATIENCE_S:.0f} s: {status['training']}")


def refused(status: dict[str, Any]) -> bool:
    """The prompts that the server read are not known: no run starts."""
    return bool(status["match"]["stops"])


async def measure(folder: Path, weights: Path, flags: list[str], seed: int, tools: bool, count: int) -> dict[str, Any]:
    prompt_sets = read_prompts()
    prompts = random.Random(seed).sample(prompt_sets["rate"], RATINGS)
    held_out = prompt_sets["held-out"][:count]
    served = Serving(folder / "home", weights, "--model", MODEL, *flags)
    await served.start()
    try:
        person = Person(served.http, seed, tools)
        base = await person.held_out(held_out, "base")
        good = await person.rate(prompts)
        status = await outcome(served)
        live = status["live"]
        trained = await person.held_out(held_out, f"v{live}") if live else None
        code, doctor = await doctor_of(folder / "home")
    finally:
        await served.stop()
    return {
        "good": good, "base": base, "after": trained, "live": live, "tools": tools, "held_out": count,
        "run": ran(folder / "home", status["last_run"]),
        "match": status["match"], "problem": status["problem"], "doctor": doctor, "doctor_code": code,
    }  # fmt: skip


async def doctor_of(home: Path, lines: tuple[str, ...] = LINES) -> tuple[int, list[str]]:
    """Its lines on what trains, as a person reads them; those that begin so."""
    command = [sys.executable, "-m", "proxy.cli", "doctor", "--home", str(home)]
    process = await asyncio.create_subprocess_exec(
        *command, cwd=ROOT, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    output, _ = await process.communicate()
    words = [line.replace(str(home), "HOME") for line in output.decode().splitlines()]
    return process.returncode or 0, [line for line in words if line[1:].lstrip().startswith(lines)]


def ran(home: Path, run: dict[str, Any] | None) -> dict[str, Any] | None:
    """Read the figures of a run from its folder."""
    if run is None:
        return None
    folder = home / "runs" / f"r{run['id']:05}"
    figures: dict[str, Any] = {name: run.get(name) for name in ("id", "status", "reason", "gate", "metrics")}
    figures["seconds"] = run["ended_at"] - run["started_at"]
    if (path := folder / "result.json").exists():
        samples = json.loads(path.read_bytes())["samples"]
        figures["samples"] = dict(
            Counter("trained" if sample["used"] else str(sample["cause"]) for sample in samples.values())
        )
    if (path := folder / "progress.jsonl").exists():
        events = [json.loads(line) for line in path.read_text().splitlines()]
        figures["choices"] = {e["name"]: [e["value"], e.get("why")] for e in events if e["event"] == "choice"}
        figures["warnings"] = [e["message"] for e in events if e["event"] == "warning"]
    return figures


def keep(server: str, template: str, seed: int, figures: dict[str, Any]) -> None:
    """At once."""
    stored: dict[str, Any] = json.loads(OUT.read_text()) if OUT.exists() else {}
    stored.setdefault(server, {}).setdefault(template, {})[str(seed)] = figures
    OUT.write_text(json.dumps(stored, indent=1, ensure_ascii=False) + "\n")
    trained = figures["after"] or {"liked": float("nan")}
    reason = (figures["run"] or {}).get("reason") or figures["match"]
    print(
        f"{server}, {template}, seed {seed}: {figures['base']['liked']:.2f} -> {trained['liked']:.2f}, {reason}",
        flush=True,
    )


async def at_ollama(binary: Path, arguments: argparse.Namespace, weights: Path) -> None:
    server_version = await asyncio.to_thread(version_of, binary)
    renders = tuple(map(int, server_version.split("."))) >= RENDERS
    for template in arguments.templates:
        for seed in arguments.seeds:
            about = circumstances()
            with tempfile.TemporaryDirectory(prefix="templates-") as work:
                folder = Path(work)
                (folder / "ollama").mkdir()
                server = OllamaServer(binary, folder / "ollama")
                await server.start()
                try:
                    await server.create(MODEL, f'TEMPLATE """{TEMPLATES[template]}"""')
                    tools = "tool" in template and renders
                    flags = ["--backend", "ollama", "--backend-url", server.url]
                    figures = await measure(folder, weights, flags, seed, tools, arguments.held_out)
                finally:
                    await server.stop()
            keep(server_version, template, seed, {**about, **figures})


async def at_builtin(arguments: argparse.Namespace, weights: Path) -> None:
    for seed in arguments.seeds:
        about = circumstances()
        with tempfile.TemporaryDirectory(prefix="templates-") as work:
            figures = await measure(Path(work), weights, ["--backend", "builtin"], seed, False, arguments.held_out)
        keep("built-in", "the weights' own", seed, {**about, **figures})


async def main() -> None:
    parser = argparse.ArgumentParser(description="Does it learn behind a real Ollama with another chat template?")
    parser.add_argument("--templates", nargs="+", choices=list(TEMPLATES), default=list(TEMPLATES))
    parser.add_argument("--seeds", nargs="+", type=int, default=[1])
    parser.add_argument("--held-out", type=int, default=40)
    parser.add_argument("--builtin", action="store_true", help="the built-in backend too, with the weights' template")
    arguments = parser.parse_args()
    os.environ["OLLAMA_NUM_PARALLEL"] = str(AT_ONCE)
    weights = resolve().path
    if arguments.builtin:
        await at_builtin(arguments, weights)
    for binary in binaries():
        await at_ollama(binary, arguments, weights)


if __name__ == "__main__":
    asyncio.run(main())
