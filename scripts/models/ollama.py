"""Tiny models of some kinds before a real Ollama, with a version made by rlproxy: `python -m scripts.models.ollama`.

OLLAMA_BIN names the Ollamas: one before 0.34.1 gets an adapter, one since then a whole model with the adapter in it.
rlproxy's own backend makes the version. The log-probs of the next token after three prompts are compared: those that
Ollama says with those of transformers and PEFT. Ollama's key-value cache is in 16 bits. One before 0.12.11 says no
log-probs, so its greedy tokens are compared. `--json` writes benchmarks/models_ollama.json. Docs: docs/lab/models.md.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import tempfile
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any, Final

import aiohttp

from config.settings import load
from proxy.backends import make_backend
from proxy.backends.ollama import Ollama, format_of, release_of
from scripts.chaos.ollama_faults import version_of
from scripts.harness.circumstances import circumstances
from scripts.harness.ollama_server import OllamaServer, binaries
from scripts.models import tiny
from scripts.models.llamacpp import upstream, write_base
from scripts.models.reference import LIKELIEST, last_names, make_adapter
from trainer.formats import adapter
from trainer.formats.weights import cache_folder
from trainer.launch import LocalLauncher

FILE: Final = Path(__file__).resolve().parents[2] / "benchmarks" / "models_ollama.json"
EIGHT: Final = ("granite", "qwen3", "qwen3_moe", "qwen3_5_text", "gemma3_text", "phi3", "smollm3", "lfm2")
MODEL: Final = "tiny"
PROMPTS: Final = ("The capital of France", "One, two, three, four", "def add(a, b):\n    return")
GREEDY: Final = 12
LOG_PROBS: Final = (0, 12, 11)  # the first Ollama that says them


class Reference:
    """What transformers and PEFT say after the prompts, with the adapter and without."""

    def __init__(self, base: Path, model: Any) -> None:
        import torch
        from transformers import AutoTokenizer

        self._tokenizer = AutoTokenizer.from_pretrained(base)
        self._torch = torch
        self._ids_of_bytes = {self._tokenizer.decode([i]): i for i in range(len(self._tokenizer))}
        self.adapted = self._rows(model)
        self.greedy_adapted = self._greedy(model)
        with model.disable_adapter():
            self.original, self.greedy_original = self._rows(model), self._greedy(model)

    def _prompts(self) -> list[Any]:
        return [self._torch.tensor([self._tokenizer(text, add_special_tokens=False).input_ids]) for text in PROMPTS]

    def _rows(self, model: Any) -> list[Any]:
        with self._torch.no_grad():
            return [self._torch.log_softmax(model(ids).logits[0, -1].double(), -1) for ids in self._prompts()]

    def _greedy(self, model: Any) -> list[str]:
        texts = []
        for ids in self._prompts():
            out = model.generate(input_ids=ids, max_new_tokens=GREEDY, do_sample=False)[0, ids.shape[1] :]
            texts.append(self._tokenizer.decode(out, skip_special_tokens=True))
        return texts

    def distance(self, rows: Sequence[Any], served: Sequence[dict[str, float]]) -> tuple[float, int]:
        """The largest difference of a log-prob in nats, and how many were compared."""
        gaps = [
            abs(float(row[self._ids_of_bytes[text]]) - value)
            for row, tokens in zip(rows, served, strict=True)
            for text, value in tokens.items()
            if text in self._ids_of_bytes
        ]
        return max(gaps), len(gaps)

    @property
    def effect(self) -> float:
        return max(float((a - b).abs().max()) for a, b in zip(self.original, self.adapted, strict=True))


@contextlib.asynccontextmanager
async def backend_of(server: OllamaServer, home: Path, weights: Path) -> AsyncIterator[Ollama]:
    flags = {"home": home, "train.weights": str(weights), "backend.kind": "ollama", "backend.url": server.url}
    flags |= {"backend.model": MODEL, "backend.models_dir": server.models}
    backend = make_backend(load(flags, environ={}).settings, LocalLauncher())
    assert isinstance(backend, Ollama)
    async with aiohttp.ClientSession() as http:
        await backend.start(http, _nothing)
        yield backend
        await backend.stop()


async def _nothing() -> None:
    pass


async def next_tokens(url: str, model: str) -> list[dict[str, float]]:
    """The likeliest next tokens after each prompt, as text, and their log-probs."""
    tokens = []
    async with aiohttp.ClientSession() as http:
        for prompt in PROMPTS:
            body = {
                "model": model, "prompt": prompt, "raw": True, "stream": False, "logprobs": True,
                "top_logprobs": LIKELIEST, "options": {"temperature": 0, "num_predict": 1},
            }  # fmt: skip
            async with http.post(f"{url}/api/generate", json=body) as response:
                answer = await response.json()
                if response.status != 200:
                    raise RuntimeError(f"Ollama says {response.status}: {answer}")
            entries = answer.get("logprobs") or [{"top_logprobs": ()}]
            tokens.append({entry["token"]: entry["logprob"] for entry in entries[0]["top_logprobs"]})
    if not any(tokens):
        raise RuntimeError("Ollama says no log-probs")
    return tokens


async def texts(url: str, model: str) -> list[str]:
    """Greedy continuations of the prompts."""
    replies = []
    async with aiohttp.ClientSession() as http:
        for prompt in PROMPTS:
            options = {"temperature": 0, "num_predict": GREEDY, "repeat_penalty": 1.0}
            body = {"model": model, "prompt": prompt, "raw": True, "stream": False, "options": options}
            async with http.post(f"{url}/api/generate", json=body) as response:
                answer = await response.json()
                if response.status != 200:
                    raise RuntimeError(f"Ollama says {response.status}: {answer}")
            replies.append(answer["response"])
    return replies


async def compare(kind: str, binary: Path, folder: Path, converters: Path) -> dict[str, Any]:
    base = tiny.make(kind, folder / "base", tokenizer=cache_folder() / "models" / "SmolLM2-135M-Instruct")
    release = release_of(await asyncio.to_thread(version_of, binary))
    server_format = format_of(release)
    model, layers, left_out = make_adapter(base, folder / "adapter", server_format)
    adapter.write(folder / "v0001", model.save_pretrained, {"run": 1, "samples": []})
    await asyncio.to_thread(write_base, kind, base, folder / "base.gguf", converters)
    reference = Reference(base, model)
    server = OllamaServer(binary, folder)
    await server.start()
    try:
        (folder / "Modelfile").write_text("FROM base.gguf\nPARAMETER num_ctx 256\nPARAMETER num_thread 1\n")
        await server.run("create", MODEL, "-f", "Modelfile")
        (folder / "home").mkdir()
        async with backend_of(server, folder / "home", base) as backend:
            await backend.load(f"{MODEL}@v1", folder / "v0001")
            tag = str(json.loads(backend.address(f"{MODEL}@v1").members["model"]))
        found: dict[str, Any] = {
            "way": "a whole model" if server_format == "merged" else "an adapter",
            "effect": reference.effect,
            "layers": last_names(layers),
            "left_out": last_names(left_out),
        }
        if release is None or release >= LOG_PROBS:
            original, adapted = await next_tokens(server.url, MODEL), await next_tokens(server.url, tag)
            found["base"], found["compared"] = reference.distance(reference.original, original)
            found["version"], _ = reference.distance(reference.adapted, adapted)
            found["served_effect"], _ = reference.distance(reference.original, adapted)
        else:
            original_texts, adapted_texts = await texts(server.url, MODEL), await texts(server.url, tag)
            found["greedy_base"] = _equal(original_texts, reference.greedy_original)
            found["greedy_version"] = _equal(adapted_texts, reference.greedy_adapted)
            found["greedy_moved"] = len(PROMPTS) - _equal(adapted_texts, original_texts)
    finally:
        await server.stop()
    return found


def _equal(texts: Sequence[str], others: Sequence[str]) -> int:
    return sum(text == other for text, other in zip(texts, others, strict=True))


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=list(EIGHT))
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    records: dict[str, Any] = json.loads(FILE.read_text()) if FILE.exists() else {}
    with tempfile.TemporaryDirectory() as work:
        converters = upstream(Path(work))
        for binary in binaries():
            version = await asyncio.to_thread(version_of, binary)
            for kind in arguments.only:
                about = circumstances()
                with tempfile.TemporaryDirectory() as folder:
                    try:
                        found = await compare(kind, binary, Path(folder), converters)
                    except Exception as error:  # of one kind; the others are still to be tried
                        found = {"error": " ".join(str(error).split())[-400:]}
                print(version, kind, json.dumps(found), flush=True)
                records.setdefault(version, {})[kind] = {**about, **found}
                if arguments.json:
                    FILE.write_text(json.dumps(records, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    asyncio.run(main())
