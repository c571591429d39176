"""A real llama-server, and a real `rlproxy serve` with lessons before it: started, asked, stopped.

Owns the two processes and how a question is asked. Not here: what is asked (told, http).
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

import aiohttp

from scripts.bench.persona import MAX_TOKENS, TEMPERATURE, Reply
from scripts.bench.relay.targets import free_port
from scripts.harness.ollama_server import base_gguf
from scripts.harness.serving import Serving
from scripts.suites.servers import GGUF, LLAMA_SERVER, until_ready

MODEL: Final = "small"
AT_ONCE: Final = 8
WINDOW: Final = "16384"  # tokens of all slots together
NOWHERE: Final = asyncio.subprocess.DEVNULL


class Answer(NamedTuple):
    reply: Reply
    headers: dict[str, str]


def gguf_of(model: str) -> Path:
    """The file of `qwen` or `smollm2`."""
    return GGUF if model == "qwen" else base_gguf()


@asynccontextmanager
async def llama_server(file: Path) -> AsyncIterator[str]:
    port = free_port()
    command = [str(LLAMA_SERVER), "-m", str(file), "--port", str(port), "--jinja", "-c", WINDOW, "--alias", MODEL]
    command += ["--parallel", str(AT_ONCE), "--threads", "1"]
    process = await asyncio.create_subprocess_exec(*command, stdout=NOWHERE, stderr=NOWHERE)
    url = f"http://127.0.0.1:{port}"
    try:
        await until_ready(f"{url}/health")
        yield url
    finally:
        process.terminate()
        await process.wait()


@asynccontextmanager
async def proxy(url: str) -> AsyncIterator[Serving]:
    """`rlproxy serve` before this server, with lessons, in a new home."""
    with tempfile.TemporaryDirectory() as folder:
        flags = ("--backend", "llamacpp", "--backend-url", url)
        serving = Serving(Path(folder) / "home", Path("/nowhere"), *flags, RLPROXY_LESSONS__ENABLED="true")
        await serving.start()
        await until_ready(f"{serving.url}/readyz")
        try:
            yield serving
        finally:
            await serving.stop()


async def ask(url: str, talks: Sequence[list[dict[str, str]]], seed: int) -> list[Answer]:
    """The next answer in each conversation, AT_ONCE at a time."""
    slots = asyncio.Semaphore(AT_ONCE)
    timeout = aiohttp.ClientTimeout(total=None)

    async def answer(index: int, talk: list[dict[str, str]]) -> Answer:
        body = {"model": MODEL, "messages": talk, "max_tokens": MAX_TOKENS, "temperature": TEMPERATURE}
        async with slots, http.post("/v1/chat/completions", json=body | {"seed": seed + index}) as response:
            content = await response.json()
            if response.status != 200:
                raise SystemExit(f"{response.status}: {content}")
            (choice,) = content["choices"]
            reply = Reply(choice["message"]["content"] or "", ended=choice["finish_reason"] == "stop")
            return Answer(reply, dict(response.headers))

    async with aiohttp.ClientSession(base_url=url, timeout=timeout) as http:
        return list(await asyncio.gather(*(answer(index, talk) for index, talk in enumerate(talks))))


async def headers_after(serving: Serving, rating: dict[str, Any], question: str) -> tuple[float, dict[str, str]]:
    """Rate, and ask at once: seconds from the rating to the headers of the next answer, and those."""
    body = {"model": MODEL, "messages": [{"role": "user", "content": question}], "max_tokens": 1, "stream": True}
    start = time.monotonic()
    async with serving.http.post("/v1/feedback", json=rating) as response:
        if response.status != 201:
            raise SystemExit(f"{response.status}: {await response.text()}")
    async with serving.http.post("/v1/chat/completions", json=body) as response:
        seconds = time.monotonic() - start
        await response.read()
        return seconds, dict(response.headers)
