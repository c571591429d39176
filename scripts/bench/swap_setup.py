"""Set up a measurement of swaps: a proxy over a real server, and versions of a model that all say something else.

Owns the adapters (random, PEFT layout, as large as the presets'), their rows in the store, and the servers. Not here:
the clients and the measuring (swap).
"""

from __future__ import annotations

import asyncio
import contextlib
import glob
import multiprocessing
import os
import signal
import socket
import time
import warnings
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web

from config.settings import load
from proxy.app import make_app
from proxy.backends import make_backend
from proxy.backends.base import Backend
from store.learning.samples import SampleRequirements
from store.records import Adapter
from store.store import Store
from trainer.formats.weights import cache_folder
from trainer.launch import LocalLauncher

MODEL = "small"
READY_S = 900.0  # of a server's start beside other programs: vLLM compiles and reads 2 GB
SIZE = 0.06  # of the weights of an adapter: enough to say something else, and words all the same
LLAMA = cache_folder() / "venvs" / "llamacpp" / "bin" / "llama-server-vulkan"
GGUF = cache_folder() / "models" / "SmolLM2-135M-Instruct.F32.gguf"
VLLM = cache_folder() / "venvs" / "vllm" / "bin" / "vllm"
MLX = cache_folder() / "venvs" / "mlx" / "bin" / "mlx_lm.server"
OPENBLAS = glob.glob("/usr/lib/*/openblas-pthread/libopenblas.so.0")  # mlx's own matrix products are slow on Linux
# fp32 throughout, or a batch's size would change what a model says at a near tie.
EXACT = {"cache-type-k": "f32", "cache-type-v": "f32", "flash-attn": "off", "ctx-size": "4096", "parallel": "8"}
# New prompts are read in pieces of this, between which those who are being answered go on.
EXACT |= {"batch-size": "64"}


def write_adapters(weights: str, folder: str, count: int) -> None:
    """v0001, v0002, …: rank 16 on every linear layer, as the presets train it, with random weights."""
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    from trainer.formats.adapter import write

    warnings.filterwarnings("ignore", category=FutureWarning)  # peft 0.21 on transformers 5.23
    model = AutoModelForCausalLM.from_pretrained(weights, dtype=torch.float32)
    peft = get_peft_model(model, LoraConfig(r=16, lora_alpha=32, target_modules="all-linear", task_type="CAUSAL_LM"))
    lora = [parameter for name, parameter in peft.named_parameters() if "lora_" in name]
    for version in range(1, count + 1):
        generator = torch.Generator().manual_seed(version)
        for parameter in lora:
            parameter.data.normal_(0, SIZE, generator=generator)

        def save(out: Path) -> None:
            peft.save_pretrained(out, save_embedding_layers=False)

        write(Path(folder) / f"v{version:04d}", save, {"run": version, "samples": []})


async def adapters(weights: Path, folder: Path, count: int) -> None:
    """In a process of its own: the proxy that is measured has no torch in it."""
    process = multiprocessing.get_context("spawn").Process(
        target=write_adapters, args=(str(weights), str(folder), count)
    )
    process.start()
    await asyncio.to_thread(process.join)
    if process.exitcode:
        raise SystemExit("the adapters were not written")


async def publish(http: aiohttp.ClientSession, store: Store, home: Path, version: int, folder: Path) -> None:
    """Put a version on record as a run leaves it, with a claimed rating. The version is not live."""
    body = {"model": MODEL, "messages": [{"role": "user", "content": f"Say {version}."}], "max_tokens": 1}
    async with http.post("/v1/chat/completions", json=body, raise_for_status=True) as response:
        rating = {"completion_id": (await response.json())["id"], "rating": "good"}
    await (await http.post("/v1/feedback", json=rating, raise_for_status=True)).read()
    claimed = await store.samples.claim(SampleRequirements(
        model=MODEL, live=0, max_version_gap=8, limit=1, held_share=0, min_total=1, version=version,
        folder_of=lambda run: str(home / "runs" / str(run)),
    ))  # fmt: skip
    assert claimed is not None
    adapter = Adapter(version, 0, claimed.id, MODEL, str(folder), time.time(), {})
    await store.runs.publish(claimed.id, adapter, {"status": "passed"}, 0.0)


class Timed:
    """When the backend's last load returned."""

    def __init__(self, backend: Backend) -> None:
        self.began = self.loaded = 0.0
        self._load = backend.load
        backend.load = self.load  # type: ignore[method-assign]

    async def load(self, name: str, path: Path) -> None:
        self.began = time.perf_counter()
        await self._load(name, path)
        self.loaded = time.perf_counter()


@contextlib.asynccontextmanager
async def proxy(kind: str, weights: Path, home: Path, threads: int) -> AsyncIterator[tuple[str, Store, Timed]]:
    """A running proxy over this server: its address, its store, and when it loaded what."""
    flags: dict[str, Any] = {"home": home, "train.enabled": False, "train.weights": str(weights)}
    flags |= {"backend.model": MODEL, "backend.threads": threads}
    await asyncio.to_thread(home.mkdir, parents=True, exist_ok=True)
    async with contextlib.AsyncExitStack() as stack:
        flags |= await stack.enter_async_context(_server(kind, weights, home, threads))
        settings = load(flags, environ={}).settings
        store = await Store.open(settings.home)
        stack.push_async_callback(store.close)
        launcher = LocalLauncher()
        backend = make_backend(settings, launcher)
        timed = Timed(backend)
        runner = web.AppRunner(make_app(settings, store, backend, launcher), handler_cancellation=True)
        await runner.setup()
        stack.push_async_callback(runner.cleanup)
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}", store, timed


@contextlib.asynccontextmanager
async def _server(kind: str, weights: Path, home: Path, threads: int) -> AsyncIterator[dict[str, Any]]:
    """The flags for it; a server that rlproxy does not start itself runs inside the block."""
    options = {**EXACT, "threads": str(threads)}
    if kind == "builtin":
        yield {"backend.kind": "builtin"}
    elif kind == "llamacpp":
        line = " ".join(f"--{key} {value}" for key, value in options.items())
        yield {"backend.kind": "llamacpp", "backend.command": f"{LLAMA} -m {GGUF} --alias {MODEL} --offline {line}"}
    elif kind == "llamacpp-router":
        presets = home / "presets.ini"
        lines = "\n".join(f"{key} = {value}" for key, value in options.items())
        presets.write_text(f"[*]\n{lines}\n\n[{MODEL}]\nmodel = {GGUF}\n")
        command = [str(LLAMA), "--models-preset", str(presets), "--models-max", "4", "--offline"]
        async with running(command, home / "router.log", {}) as url:
            yield {"backend.kind": "llamacpp", "backend.url": url, "backend.presets": str(presets)}
    elif kind == "mlx":
        (home / MODEL).symlink_to(weights)  # where it runs, so that the model has a short name
        env = {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": str(threads), "OPENBLAS_NUM_THREADS": str(threads)}
        env |= {"LD_PRELOAD": OPENBLAS[0]} if OPENBLAS else {}
        command = [str(MLX), "--model", MODEL, "--host", "127.0.0.1"]
        async with running(command, home / "mlx.log", env) as url:
            yield {"backend.kind": "mlx", "backend.url": url}
    else:
        command = [str(VLLM), "serve", str(weights), "--served-model-name", MODEL, "--dtype", "float32"]
        # More places than versions: on a CPU what is in the last one answers for the base, too
        # (docs/reference/backends.md).
        command += ["--enable-lora", "--max-lora-rank", "16", "--max-loras", "16", "--max-cpu-loras", "16"]
        command += ["--max-model-len", "1024", "--max-num-seqs", "8", "--logprobs-mode", "processed_logprobs"]
        command += ["--enforce-eager", "--host", "127.0.0.1"]
        env = {"VLLM_ALLOW_RUNTIME_LORA_UPDATING": "True", "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_NO_USAGE_STATS": "1"}
        async with running(command, home / "vllm.log", env) as url:
            yield {"backend.kind": "vllm", "backend.url": url}


@contextlib.asynccontextmanager
async def running(command: list[str], log: Path, env: dict[str, str]) -> AsyncIterator[str]:
    """The address of a server that runs inside the block; its port goes behind the command."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    ours = ("OMP_", "PYTHON") if command[0] == str(VLLM) else ("PYTHON",)  # vLLM binds its own threads
    mine = {key: value for key, value in os.environ.items() if not key.startswith(ours)}
    with log.open("wb") as file:
        process = await asyncio.create_subprocess_exec(
            *command, "--port", str(port), stdout=file, stderr=file, env={**mine, **env}, cwd=log.parent,
            start_new_session=True,
        )  # fmt: skip
    url = f"http://127.0.0.1:{port}"
    try:
        async with aiohttp.ClientSession() as http, asyncio.timeout(READY_S):
            while not await _healthy(http, url):
                if process.returncode is not None:
                    raise SystemExit(f"{command[0]} ended: see {log}")
                await asyncio.sleep(0.2)
        yield url
    finally:
        if process.returncode is None:
            os.killpg(process.pid, signal.SIGKILL)  # mlx_lm.server waits for its threads when told to end
        await process.wait()


async def _healthy(http: aiohttp.ClientSession, url: str) -> bool:
    try:
        async with http.get(f"{url}/health") as response:
            return response.status == 200
    except aiohttp.ClientError:
        return False
