"""Measure how a run slows answers meanwhile: answer time in each phase of the run ÷ answer time without one.

`python -m scripts.bench.yielding [--backend builtin|llamacpp|ollama …] [--before] [--busy] [--ratings 32] [--alone 60]
[--pause 1] [--every 10] [--tokens 24] [--gguf FILE] [--quick]` puts the figures of each backend into
benchmarks/yield.json, beside those of the others. A whole rlproxy runs, with the model's server as a person would run
it. llama-server chooses its own number of threads. Ollama is in a session of its own (OLLAMA_BIN names the program).

Each backend has three runs. In the first, a client asks one question after the other. The second is under light load (a
question every ten seconds), and in the third nobody asks. The last two are for the run's own time. `--before` takes all
yielding off, which is how rlproxy was before November 2026: its `nice 10` counted for nothing in a session of its own.
It has the first run alone, as has `--busy`. What is measured is written with each phase of a run.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import functools
import itertools
import json
import os
import shutil
import signal
import socket
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import aiohttp

from config.sections import Train
from scripts.bench.swap_setup import GGUF, LLAMA, MODEL
from scripts.harness.circumstances import circumstances
from trainer.formats.weights import resolve
from trainer.launch import standing

ROOT = Path(__file__).resolve().parents[2]
OUT = ROOT / "benchmarks" / "yield.json"
BACKENDS = ("builtin", "llamacpp", "ollama")
WITHOUT_YIELDING = {"RLPROXY_TRAIN__NICE": "0", "RLPROXY_TRAIN__STAND_STILL_S": "0"}
READY_S = 300.0
POLL_S = 0.2
QUESTIONS = (
    "Tell me about the sea.", "How do I boil an egg?", "Who was Newton?", "Write a letter to a friend.",
    "Name a fruit and say why.", "What do bees make?", "Why is the sky blue?", "What is a proxy?",
)  # fmt: skip


class Asking:
    """A client of the proxy, and what it measures."""

    def __init__(self, http: aiohttp.ClientSession, tokens: int) -> None:
        self._http, self._tokens = http, tokens
        self._numbers = itertools.count()

    async def ask(self, *, is_captured: bool = False) -> tuple[float, str]:
        """Seconds of one answer, and its id. Each question is a new one, for the server's cache too."""
        number = next(self._numbers)
        question = f"{number}. {QUESTIONS[number % len(QUESTIONS)]}"
        body = {"model": MODEL, "messages": [{"role": "user", "content": question}], "max_tokens": self._tokens}
        headers = {} if is_captured else {"x-rl-capture": "off"}
        began = time.perf_counter()
        async with self._http.post("/v1/chat/completions", json=body, headers=headers) as response:
            answer = await response.json()
        if response.status != 200:
            raise SystemExit(f"{response.status}: {answer}")
        return time.perf_counter() - began, str(answer["id"])

    async def status(self) -> dict[str, Any]:
        async with self._http.get("/rl/status", raise_for_status=True) as response:
            status: dict[str, Any] = await response.json()
            return status

    async def rated(self, count: int) -> None:
        for number in range(count):
            _, id = await self.ask(is_captured=True)
            rating = {"completion_id": id, "rating": "good" if number % 2 else "bad"}
            async with self._http.post("/v1/feedback", json=rating, raise_for_status=True):
                pass

    async def looked_at(self) -> None:
        """The look at the weights that the first rating starts is over."""
        while (await self.status())["match"]["state"] == "unasked":
            await asyncio.sleep(POLL_S)

    async def without_run(self, count: int) -> list[float]:
        return [(await self.ask())[0] for _ in range(count)]

    async def train(self) -> None:
        async with self._http.post("/rl/train") as response:
            if response.status >= 300:
                raise SystemExit(f"no run: {await response.text()}")
        while await self._phase() is None:
            await asyncio.sleep(POLL_S)

    async def _phase(self) -> str | None:
        training = (await self.status())["training"]
        if training["run"] is None:
            return None
        progress = training["progress"]
        return "publish" if "end" in progress else str(progress.get("phase", {}).get("phase", "start"))

    async def during(self, pause: float | None, so_far: Callable[[dict[str, list[float]], float], None]) -> None:
        """Measure answer times by the phase of the run in which they were asked for, and the run's seconds.

        `so_far` gets them with each new phase and at the end.
        """
        await self.train()
        began, seconds_by_phase = time.perf_counter(), dict[str, list[float]]()
        while (phase := await self._phase()) is not None:
            if pause is None:
                await asyncio.sleep(POLL_S)
                continue
            if seconds_by_phase and phase not in seconds_by_phase:
                so_far(seconds_by_phase, time.perf_counter() - began)
            seconds, _ = await self.ask()
            seconds_by_phase.setdefault(phase, []).append(seconds)
            until = time.perf_counter() + pause
            while time.perf_counter() < until and await self._phase() is not None:
                await asyncio.sleep(min(POLL_S, pause))
        so_far(seconds_by_phase, time.perf_counter() - began)


def summary(seconds: list[float]) -> dict[str, Any]:
    ordered = sorted(seconds)
    return {
        "answers": len(ordered),
        "median_s": round(statistics.median(ordered), 3),
        "slowest_s": round(ordered[-1], 3),
    }


async def measure(kind: str, options: argparse.Namespace, folder: Path, keep: Callable[[dict[str, Any]], None]) -> None:
    """`keep` gets all that is known, after each run."""
    env = WITHOUT_YIELDING if options.before else {}
    async with contextlib.AsyncExitStack() as stack:
        flags = await stack.enter_async_context(server(kind, options, folder))
        url = await stack.enter_async_context(proxy(folder / "home", flags, env))
        timeout = aiohttp.ClientTimeout(total=None)
        http = await stack.enter_async_context(aiohttp.ClientSession(url, timeout=timeout))
        asking = Asking(http, options.tokens)
        await asking.without_run(2)  # warm
        await asking.rated(options.ratings)
        await asking.looked_at()
        alone_seconds = await asking.without_run(options.alone)
        report: dict[str, Any] = {
            "backend": kind, "yields": not options.before, "ratings": options.ratings, "tokens": options.tokens,
            "alone": summary(alone_seconds), "run_s": {}, "runs": [],
        }  # fmt: skip
        pauses = {"asked all the while": options.pause}
        if not (options.before or options.busy):
            pauses |= {f"a question every {options.every:g} s": options.every, "nobody asks": None}
        for name, pause in pauses.items():
            if report["runs"]:
                await asking.rated(options.ratings)
            report["runs"].append("cut short")
            tell = functools.partial(_store, report, keep, name)
            await asking.during(pause, tell)
            run = (await asking.status())["last_run"]
            report["runs"][-1] = f"{run['status']}: {run['reason']}"
            keep(report)


def _store(
    report: dict[str, Any],
    keep: Callable[[dict[str, Any]], None],
    name: str,
    phases: dict[str, list[float]],
    seconds: float,
) -> None:
    """So far, of the run that is under way."""
    report["run_s"][name] = round(seconds, 1)
    all_seconds = [each for part in phases.values() for each in part]
    if len(report["runs"]) == 1:
        report["phases"] = {phase: _against(summary(each), report["alone"]) for phase, each in phases.items()}
        report["all"] = _against(summary(all_seconds), report["alone"])
    elif all_seconds:
        report["light"] = _against(summary(all_seconds), report["alone"])
    keep(report)


def _against(figures: dict[str, Any], base: dict[str, Any]) -> dict[str, Any]:
    ratios = {f"{name}_ratio": round(figures[f"{name}_s"] / base[f"{name}_s"], 2) for name in ("median", "slowest")}
    return figures | ratios


# The servers


@contextlib.asynccontextmanager
async def server(kind: str, options: argparse.Namespace, folder: Path) -> AsyncIterator[list[str]]:
    """The flags of `rlproxy serve` for it; a server that rlproxy does not start itself runs inside the block."""
    weights = str(resolve(None).path)
    if kind == "builtin":
        yield ["--backend", "builtin", "--weights", weights, "--model", MODEL]
        return
    gguf = options.gguf
    if not gguf.is_file():
        raise SystemExit(f"{gguf} is not there: name the model's GGUF file with --gguf")
    if kind == "llamacpp":
        config = folder / "home" / "rlproxy.toml"
        config.parent.mkdir(parents=True)
        command = f"{LLAMA} -m {gguf} --alias {MODEL} --offline --ctx-size 4096"
        config.write_text(f"[backend]\nkind = 'llamacpp'\ncommand = '{command}'\nmodel = '{MODEL}'\n")
        yield ["--weights", weights]
        return
    program = os.environ.get("OLLAMA_BIN") or shutil.which("ollama")
    if program is None:
        raise SystemExit("there is no Ollama: set OLLAMA_BIN")
    port = _free_port()
    env = {
        **os.environ,
        "OLLAMA_HOST": f"127.0.0.1:{port}",
        "OLLAMA_MODELS": str(folder / "models"),
        "HOME": str(folder),
    }
    async with _running([program, "serve"], folder / "ollama.log", env, f"http://127.0.0.1:{port}/api/version"):
        modelfile = folder / "Modelfile"
        modelfile.write_text(f"FROM {gguf}\n")
        process = await asyncio.create_subprocess_exec(program, "create", MODEL, "-f", str(modelfile), env=env)
        if await process.wait():
            raise SystemExit("Ollama did not make the model")
        yield [
            "--backend",
            "ollama",
            "--backend-url",
            f"http://127.0.0.1:{port}",
            "--model",
            MODEL,
            "--weights",
            weights,
        ]


@contextlib.asynccontextmanager
async def proxy(home: Path, flags: list[str], env: dict[str, str]) -> AsyncIterator[str]:
    await asyncio.to_thread(home.mkdir, parents=True, exist_ok=True)
    port = _free_port()
    command = [sys.executable, "-P", "-m", "proxy.cli", "serve", "--home", str(home), "--port", str(port), *flags]
    clean = {name: value for name, value in os.environ.items() if not name.startswith("RLPROXY_")}
    # A run starts when it is told to, whatever the model makes of the comparison with its weights.
    quiet = {
        "RLPROXY_TRAIN__START_AT": "10000",
        "RLPROXY_TRAIN__MATCH": "warn",
        "RLPROXY_TRAIN__MIN_FREE_MEMORY_GB": "0",
    }
    whole = {**clean, "PYTHONPATH": str(ROOT), **quiet, **env}
    url = f"http://127.0.0.1:{port}"
    async with _running(command, home.parent / "rlproxy.log", whole, f"{url}/readyz"):
        yield url


@contextlib.asynccontextmanager
async def _running(command: list[str], log: Path, env: dict[str, str], asks: str) -> AsyncIterator[None]:
    """In a session of its own, as from a terminal of its own."""
    with log.open("wb") as file:
        process = await asyncio.create_subprocess_exec(
            *command, stdin=asyncio.subprocess.DEVNULL, stdout=file, stderr=file, env=env, start_new_session=True
        )
    try:
        async with aiohttp.ClientSession() as http, asyncio.timeout(READY_S):
            while not await _answers(http, asks):
                if process.returncode is not None:
                    raise SystemExit(f"{command[0]} ended: see {log}")
                await asyncio.sleep(POLL_S)
        yield
    finally:
        if process.returncode is None:
            process.send_signal(signal.SIGTERM)
        await process.wait()


async def _answers(http: aiohttp.ClientSession, url: str) -> bool:
    try:
        async with http.get(url) as response:
            return response.status == 200
    except aiohttp.ClientError:
        return False


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", nargs="+", choices=BACKENDS, default=["builtin", "llamacpp"])
    parser.add_argument("--before", action="store_true", help="nothing yields")
    parser.add_argument("--busy", action="store_true", help="only the run while a client asks all the while")
    parser.add_argument("--ratings", type=int, default=32, help="for each run")
    parser.add_argument("--alone", type=int, default=60, help="answers without a run")
    parser.add_argument("--pause", type=float, default=1.0, help="seconds between two questions")
    parser.add_argument("--every", type=float, default=10.0, help="seconds between two under light load")
    parser.add_argument("--tokens", type=int, default=24)
    parser.add_argument("--gguf", type=Path, default=GGUF, help="for llama.cpp and Ollama")
    parser.add_argument("--quick", action="store_true", help="only show that it works; writes nothing")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # or the servers would stay
    if options.quick:
        options.ratings, options.alone, options.every = 16, 5, 3.0
    nice = 0 if options.before else Train().nice
    about = circumstances() | {"steps_back": list(standing(nice).how)}
    for kind in options.backend:
        with tempfile.TemporaryDirectory() as folder:
            asyncio.run(measure(kind, options, Path(folder), lambda report: _keep(report | about, options.quick)))


def _keep(figures: dict[str, Any], quick: bool) -> None:
    print(json.dumps(figures, indent=2), flush=True)
    if quick:
        return
    rows: list[dict[str, Any]] = json.loads(OUT.read_text())["rows"] if OUT.exists() else []
    same = (figures["backend"], figures["yields"])
    rows = [row for row in rows if (row["backend"], row["yields"]) != same] + [figures]
    OUT.write_text(json.dumps({"rows": rows}, indent=2) + "\n")


if __name__ == "__main__":
    main()
