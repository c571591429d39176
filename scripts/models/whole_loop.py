"""The whole loop with a second real model before each server: capture, comparison, ratings, runs, gate, swaps.

`python -m scripts.models.whole_loop --weights FOLDER --gguf FILE --servers llama-server ollama built-in [--rounds 2]`
puts what each did into benchmarks/whole_loop.json, beside the others. OLLAMA_BIN names the Ollamas; vLLM runs on the
CPU, in the environment of scripts/setup_vllm. Each server gets a real `rlproxy serve` on a fresh home. The rater is the
persona `concise`, which only rates; it likes an answer that ends by itself. The last third of the questions comes with
a tool, where the model's template has tools. Before the last rating of the first round `doctor` compares server and
weights. Then the version is rolled back and made live again. Docs: docs/lab/models.md.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import random
import re
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

import aiohttp
import psutil

from scripts.bench.ollama_templates import TOOL, doctor_of, ran
from scripts.bench.persona import TEMPERATURE, Persona, Reply
from scripts.bench.swap_setup import LLAMA, VLLM, running
from scripts.chaos.ollama_faults import version_of
from scripts.demo.__main__ import read_prompts
from scripts.harness.circumstances import circumstances
from scripts.harness.ollama_server import OllamaServer, binaries
from scripts.harness.serving import Serving

OUT: Final = Path(__file__).resolve().parents[2] / "benchmarks" / "whole_loop.json"
MODEL: Final = "second"
RUN_S: Final = 7200.0  # that a run may take on a busy machine
LOOK_S: Final = 1.0
# As the templates of the weights word it, in Ollama's language. The smaller model's has no tools.
SYSTEM_TEXTS: Final = {
    "Qwen2.5-Coder-0.5B-Instruct": "You are Qwen, created by Alibaba Cloud. You are a helpful assistant.",
    "SmolLM2-135M-Instruct": "You are a helpful AI assistant named SmolLM, trained by Hugging Face",
}
CHATML_WITH_TOOLS: Final = """{{- if or .System .Tools }}<|im_start|>system
{{ if .System }}{{ .System }}{{ else }}SYSTEM_TEXT{{ end }}
{{- if .Tools }}

# Tools

You may call one or more functions to assist with the user query.

You are provided with function signatures within <tools></tools> XML tags:
<tools>
{{- range .Tools }}
{{ json . }}
{{- end }}
</tools>

For each function call, return a json object with function name and arguments within <tool_call></tool_call> XML tags:
<tool_call>
{\"name\": <function-name>, \"arguments\": <args-json-object>}
</tool_call>
{{- end }}<|im_end|>
{{ else }}<|im_start|>system
SYSTEM_TEXT<|im_end|>
{{ end }}
{{- range .Messages }}{{ if ne .Role "system" }}<|im_start|>{{ .Role }}
{{ .Content }}<|im_end|>
{{ end }}{{ end }}<|im_start|>assistant
"""
OPTIONS: Final = "--ctx-size 4096 --parallel 1 --threads 1 --offline"
VLLM_OPTIONS: Final = (
    "--dtype float32 --max-model-len 2048 --max-num-seqs 4 --enforce-eager --host 127.0.0.1 --enable-lora "
    "--max-lora-rank 16 --max-loras 4 --logprobs-mode processed_logprobs --enable-auto-tool-choice "
    "--tool-call-parser hermes"
)
VLLM_ENVIRONMENT: Final = {
    "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "True", "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1",
}  # fmt: skip


class Person:
    """Asks, and rates by the persona. Each answer is cut after `tokens`."""

    def __init__(self, http: aiohttp.ClientSession, tokens: int) -> None:
        self._http, self._tokens = http, tokens
        self._persona = Persona("concise")

    async def ask(self, seed: int, prompt: str, pin: str = "", *, with_tool: bool = False) -> dict[str, Any]:
        body: dict[str, Any] = {
            "model": MODEL + pin,
            "messages": [{"role": "user", "content": prompt}],
            "temperature": TEMPERATURE,
            "max_tokens": self._tokens,
            "seed": seed,
            **({"tools": [TOOL]} if with_tool else {}),
        }
        headers = {"x-rl-capture": "off"} if pin else {}
        start = time.monotonic()
        async with self._http.post("/v1/chat/completions", json=body, headers=headers) as response:
            answer = await response.json()
            assert response.status == 200, answer
        choice = answer["choices"][0]
        text = choice["message"].get("content") or ""
        reply = Reply(text, ended=choice["finish_reason"] != "length")
        return {
            "id": answer["id"], "prompt": prompt, "text": text, "liked": self._persona.rate(prompt, reply) > 0,
            "tools": with_tool, "calls": len(choice["message"].get("tool_calls") or []),
            "version": response.headers.get("x-rl-adapter", ""),
            "tokens": (answer.get("usage") or {}).get("completion_tokens"),
            "seconds": round(time.monotonic() - start, 2),
        }  # fmt: skip

    async def rate(self, answer: dict[str, Any]) -> None:
        rating = {"completion_id": answer["id"], "rating": "good" if answer["liked"] else "bad"}
        async with self._http.post("/v1/feedback", json=rating) as response:
            assert response.status == 201, await response.text()

    async def held_out(self, prompts: Sequence[str], pin: str) -> dict[str, Any]:
        answers = [await self.ask(1000 + n, prompt, pin) for n, prompt in enumerate(prompts)]
        liked = sum(answer["liked"] for answer in answers) / len(answers)
        return {"liked": liked, "tokens": sum(a["tokens"] or 0 for a in answers) / len(answers), "answers": answers}


class Memory:
    """The most bytes (resident, mapped files too) that rlproxy, its children and the server held, by their kind."""

    def __init__(self) -> None:
        self.most: dict[str, int] = {}

    async def watch(self) -> None:
        while True:
            for kind, size in (await asyncio.to_thread(self._now)).items():
                self.most[kind] = max(size, self.most.get(kind, 0))
            await asyncio.sleep(LOOK_S)

    def _now(self) -> dict[str, int]:
        sizes: dict[str, int] = {}
        for process in psutil.Process().children(recursive=True):
            with contextlib.suppress(psutil.Error):
                kind = _kind(process.cmdline())
                sizes[kind] = sizes.get(kind, 0) + process.memory_info().rss
        return sizes


def _kind(words: Sequence[str]) -> str:
    line = " ".join(words).lower()
    kinds = {
        "trainer.serve": "server", "-m trainer": "trainer", "llama-server": "server", "proxy.cli": "rlproxy",
        "ollama": "server", "vllm": "server",
    }  # fmt: skip
    return next((kind for part, kind in kinds.items() if part in line), "other")


def folder_bytes(*folders: Path) -> int:
    size = 0
    for folder in folders:
        for file in folder.rglob("*"):
            with contextlib.suppress(OSError):
                size += file.stat().st_blocks * 512 if file.is_file() and not file.is_symlink() else 0
    return size


@contextlib.asynccontextmanager
async def server_of(name: str, folder: Path, weights: Path, gguf: Path) -> AsyncIterator[tuple[dict[str, str], str]]:
    """The settings of rlproxy for a server, and the server's full name. It runs inside the block."""
    if name == "built-in":
        yield {"KIND": "builtin"}, name
    elif name == "llama-server":
        yield {"KIND": "llamacpp", "COMMAND": f"{LLAMA} -m {gguf} --alias {MODEL} {OPTIONS}"}, name
    elif name == "vLLM":
        command = [str(VLLM), "serve", str(weights), "--served-model-name", MODEL, *VLLM_OPTIONS.split()]
        async with running(command, folder / "vllm.log", VLLM_ENVIRONMENT) as url:
            yield {"KIND": "vllm", "URL": url}, "vLLM on a CPU"
    else:
        binary = next(path for path in binaries() if name in ("ollama", f"ollama {path.parent.parent.name}"))
        version = await asyncio.to_thread(version_of, binary)
        (folder / "ollama").mkdir()
        server = OllamaServer(binary, folder / "ollama")
        await server.start()
        try:
            await server.create(MODEL, "PARAMETER num_ctx 4096", *template_lines(version, weights.name), gguf=gguf)
            yield {"KIND": "ollama", "URL": server.url, "MODELS_DIR": str(server.models)}, f"ollama {version}"
        finally:
            await server.stop()


def template_lines(version: str, model: str) -> list[str]:
    """An old Ollama finds no template by likeness for these models, and asks them without one."""
    template = CHATML_WITH_TOOLS.replace("SYSTEM_TEXT", SYSTEM_TEXTS[model])
    return [f'TEMPLATE """{template}"""'] if version.startswith("0.9.") else []


async def run_of(served: Serving, after: int) -> dict[str, Any]:
    """Status when the next run has ended and its version, if it has one, is live; or none can start."""
    start = time.monotonic()
    while time.monotonic() - start < RUN_S:
        status = await served.status()
        run = status["last_run"]
        if run and run["id"] > after and run["ended_at"]:
            if run["status"] != "done" or status["problem"] or status["live"] == run.get("version", status["live"]):
                return status
        elif status["training"]["run"] is None and (status["match"]["stops"] or status["backend"]["obstacle"]):
            return status
        await asyncio.sleep(LOOK_S)
    raise SystemExit(f"no run in {RUN_S:.0f} s: {status['training']}")


async def one(
    arguments: argparse.Namespace,
    folder: Path,
    settings: dict[str, str],
    save: Callable[[dict[str, Any]], None],
) -> None:
    """`save` is given what is known so far, after each round and in the end."""
    texts = read_prompts()
    prompts = random.Random(arguments.seed).sample(texts["rate"], arguments.ratings * arguments.rounds)
    held = texts["held-out"][: arguments.held_out]
    has_tools = "tools" in (arguments.weights / "chat_template.jinja").read_text()
    home = folder / "home"
    served = Serving(
        home, arguments.weights, "--model", MODEL,
        RLPROXY_TRAIN__START_AT=str(arguments.ratings), RLPROXY_TRAIN__HELD_SHARE="0.2",
        **{f"RLPROXY_BACKEND__{name}": value for name, value in settings.items()},
    )  # fmt: skip
    await served.start()
    record: dict[str, Any] = {"ratings_a_round": arguments.ratings, "rounds": [], "held_out": arguments.held_out}
    try:
        memory = Memory()
        watching = asyncio.create_task(memory.watch())
        person = Person(served.http, arguments.tokens)
        record["base"] = await person.held_out(held, "@base")
        print("base", record["base"]["liked"], flush=True)
        for number in range(arguments.rounds):
            asked = prompts[number * arguments.ratings : (number + 1) * arguments.ratings]
            figures = await one_round(served, person, asked, number, folder, has_tools=has_tools)
            record["rounds"].append(figures)
            status = figures.pop("status")
            live = status["live"]
            if live:
                figures["after"] = await person.held_out(held, f"@v{live}")
            print(f"round {number + 1}: live v{live}, liked {figures.get('after', {}).get('liked')}", flush=True)
            record["status"] = {name: status[name] for name in ("match", "problem", "live")}
            record["most_bytes"] = memory.most
            save(record)
        record["swaps"] = await swaps(served, live) if live else None
        record["swap_log"] = swap_lines(served)
        watching.cancel()
        save(record)
    finally:
        await served.stop()


async def one_round(
    served: Serving, person: Person, prompts: Sequence[str], number: int, folder: Path, *, has_tools: bool
) -> dict[str, Any]:
    """Questions, ratings, and the run that they start."""
    before = await served.status()
    start = time.monotonic()
    plain = len(prompts) * 2 // 3 if has_tools else len(prompts)
    answers = [await person.ask(number * 100 + n, prompt, with_tool=n >= plain) for n, prompt in enumerate(prompts)]
    asked_s = time.monotonic() - start
    for answer in answers[:-1]:
        await person.rate(answer)
    doctor = await doctor_of(folder / "home", ("",)) if number == 0 else None
    print(
        f"asked in {asked_s:.0f} s, {sum(a['liked'] for a in answers)} good",
        *(doctor or (0, []))[1],
        sep="\n",
        flush=True,
    )
    size = folder_bytes(folder)
    start = time.monotonic()
    await person.rate(answers[-1])
    status = await run_of(served, (before["last_run"] or {"id": 0})["id"])
    return {
        "answers": answers, "asked_s": round(asked_s), "doctor": doctor,
        "rating_to_live_s": round(time.monotonic() - start), "run": ran(folder / "home", status["last_run"]),
        "bytes": folder_bytes(folder) - size, "status": status,
    }  # fmt: skip


async def swaps(served: Serving, live: int) -> dict[str, Any]:
    """Seconds of a rollback and of a promotion, and which version answers after each."""
    found: dict[str, Any] = {}
    for name, path in (("rollback", "/rl/rollback"), ("promote", f"/rl/promote/{live}")):
        start = time.monotonic()
        answer = await served.post(path)
        seconds = round(time.monotonic() - start, 2)
        start = time.monotonic()
        _, label = await served.chat("Say hello.", model=MODEL, max_tokens=4)
        found[name] = {"seconds": seconds, "live": answer.get("live"), "answered_by": label}
        found[name]["first_answer_s"] = round(time.monotonic() - start, 2)
    return found


def swap_lines(served: Serving) -> list[str]:
    """Lines of rlproxy's own log about each swap, with seconds by step."""
    return [line for line in served.log.splitlines() if re.search(r"\bswap\b", line)]


def keep(server: str, model: str, about: dict[str, Any], record: dict[str, Any]) -> None:
    """At once."""
    records: dict[str, Any] = json.loads(OUT.read_text()) if OUT.exists() else {}
    records.setdefault(model, {})[server] = {**about, **record}
    OUT.write_text(json.dumps(records, indent=1, ensure_ascii=False) + "\n")


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--weights", type=Path, required=True)
    parser.add_argument("--gguf", type=Path, required=True)
    parser.add_argument(
        "--servers", nargs="+", required=True, help="built-in, llama-server, vLLM, ollama or 'ollama FOLDER'"
    )
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--ratings", type=int, default=12, help="a round")
    parser.add_argument("--held-out", type=int, default=12)
    parser.add_argument("--tokens", type=int, default=48, help="of an answer, at most")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    for name in arguments.servers:
        about = circumstances()
        with tempfile.TemporaryDirectory(prefix="whole-loop-") as work:
            async with server_of(name, Path(work), arguments.weights, arguments.gguf) as (settings, full_name):
                print(full_name, flush=True)
                save = partial(keep, full_name, arguments.weights.name, about)
                await one(arguments, Path(work), settings, save)


if __name__ == "__main__":
    asyncio.run(main())
