"""How much memory `rlproxy serve` takes while somebody tries to fill it: a lying backend, and clients.

    python -m scripts.chaos.memory_attacks [--only NAME …] [--part 0.01] [--json FILE]

Each attack has a process of its own, with every default, before a backend whose answers have no end
(scripts/fakes/endless.py). What counts is the largest resident memory that the kernel saw (VmHWM), so Linux only.
Writes benchmarks/memory_attacks.json; with `--part`, a share of all sizes, it writes nothing unless told where.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gzip
import json
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final, NamedTuple

import aiohttp

from config.sections import ServerSection
from scripts.fakes.endless import MODEL, EndlessBackend
from scripts.harness.circumstances import circumstances
from scripts.harness.serving import Serving

ROOT: Final = Path(__file__).resolve().parents[2]
GB: Final = 1 << 30
MB: Final = 1 << 20
BODY: Final = 30 * MB
SECRETS: Final = {"RLPROXY_WEBHOOKS__SLACK__SIGNING_SECRET": "a-secret"}
TRANSLATED: Final = {"RLPROXY_BACKEND__TRANSLATE": '["responses", "messages", "ollama"]'}
PATIENCE_S: Final = 90.0  # for one attack whose clients wait for something


class Scene(NamedTuple):
    """One attack under way."""

    served: Serving
    backend: EndlessBackend
    part: float

    def scaled(self, size: int) -> int:
        return max(1, int(size * self.part))

    @property
    def address(self) -> tuple[str, int]:
        host, port = self.served.url.removeprefix("http://").split(":")
        return host, int(port)


class Attack(NamedTuple):
    size: int  # bytes of one answer of the backend
    run: Callable[[Scene], Awaitable[dict[str, Any]]]
    environment: dict[str, str] = {}


def question(path: str, *, stream: bool) -> bytes:
    message = [{"role": "user", "content": "hi"}]
    prompt = {"input": "hi"} if path == "/v1/responses" else {"messages": message}
    return json.dumps({"model": MODEL, "stream": stream, "max_tokens": 10, **prompt}).encode()


async def read(scene: Scene, path: str, *, stream: bool, headers: dict[str, str] | None = None) -> dict[str, Any]:
    """One client that reads all that it gets."""
    size = 0
    try:
        async with scene.served.http.post(path, data=question(path, stream=stream), headers=headers) as response:
            async for piece in response.content.iter_any():
                size += len(piece)
            return {"status": response.status, "read": size}
    except aiohttp.ClientError as error:
        return {"status": type(error).__name__, "read": size}


def asks(
    mood: str,
    path: str = "/v1/chat/completions",
    *,
    stream: bool = False,
    clients: int = 1,
    headers: dict[str, str] | None = None,
) -> Callable[[Scene], Awaitable[dict[str, Any]]]:
    """Clients of one key, to each of which the backend answers in this mood."""

    async def run(scene: Scene) -> dict[str, Any]:
        scene.backend.mood = mood
        answers = await asyncio.gather(*(read(scene, path, stream=stream, headers=headers) for _ in range(clients)))
        return {
            "statuses": Counter(str(answer["status"]) for answer in answers),
            "read_mb": round(sum(answer["read"] for answer in answers) / MB),
        }

    return run


async def probes(scene: Scene) -> dict[str, Any]:
    """Nobody shows a key."""
    scene.backend.lists = "things"

    async def probe() -> int:
        async with scene.served.http.get("/readyz") as response:
            return response.status

    return {"statuses": Counter(map(str, await asyncio.gather(*(probe() for _ in range(32)))))}


async def heads(scene: Scene) -> dict[str, Any]:
    scene.backend.endless_head = True
    answer = await read(scene, "/v1/chat/completions", stream=True)
    return {"statuses": {str(answer["status"]): 1}}


def unfinished(path: str, count: int, head: str, body: bytes) -> Callable[[Scene], Awaitable[dict[str, Any]]]:
    """So many connections that send all of this and wait. What they are told, and what is still waited for."""

    async def send_unfinished(scene: Scene) -> str:
        reader, writer = await asyncio.open_connection(*scene.address)
        try:
            writer.write(f"POST {path} HTTP/1.1\r\nhost: localhost\r\n{head}\r\n\r\n".encode())
            sent = memoryview(body)[: scene.scaled(len(body))]
            for offset in range(0, len(sent), MB):
                writer.write(sent[offset : offset + MB])
                await writer.drain()
            async with asyncio.timeout(5):
                return (await reader.readline()).decode().split(" ")[1]
        except TimeoutError:
            return "waits"
        except (OSError, IndexError):
            return "closed"
        finally:
            writer.transport.abort()

    async def run(scene: Scene) -> dict[str, Any]:
        scene.backend.mood = "silent"
        return {"statuses": Counter(await asyncio.gather(*(send_unfinished(scene) for _ in range(count))))}

    return run


def unread(mood: str, count: int, *, stream: bool) -> Callable[[Scene], Awaitable[dict[str, Any]]]:
    """Clients that ask for long answers and read none of them."""

    async def run(scene: Scene) -> dict[str, Any]:
        scene.backend.mood = mood
        writers = []
        for _ in range(count):
            reader, writer = await asyncio.open_connection(*scene.address, limit=1024)
            writer.transport.pause_reading()  # type: ignore[attr-defined]
            body = question("/v1/chat/completions", stream=stream)
            head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(body)}\r\n\r\n"
            writer.write(head.encode() + body)
            writers.append((reader, writer))
        await asyncio.sleep(10 * min(1, 10 * scene.part))
        for _, writer in writers:
            writer.transport.abort()
        return {"statuses": {"unread": count}}

    return run


def json_of(size: int) -> bytes:
    start, end = b'{"model":"fake","messages":[{"role":"user","content":"', b'"}]}'
    return start + b"x" * (size - len(start) - len(end)) + end


def things_of(size: int) -> bytes:
    return b'{"model":"fake","messages":[{"role":"user","content":[' + b"{}," * (size // 3) + b"{}]}]}"


def announced(body: bytes, *headers: str) -> str:
    return "\r\n".join((f"content-length: {len(body)}", *headers))


CHAT: Final = "/v1/chat/completions"
LONG: Final = json_of(BODY)
PACKED: Final = gzip.compress(json_of(31 * MB))
CHUNKED: Final = b"%x\r\n%s\r\n" % (len(LONG), LONG)
ATTACKS: Final[dict[str, Attack]] = {
    "nothing": Attack(0, asks("stream", stream=True)),
    # The backend
    "one event without an end": Attack(2 * GB, asks("event", stream=True)),
    "one event without an end, translated": Attack(2 * GB, asks("event", "/v1/responses", stream=True), TRANSLATED),
    "one event without an end, 16 clients": Attack(200 * MB, asks("event", stream=True, clients=16)),
    "one line without an end": Attack(2 * GB, asks("line", "/api/chat", stream=True)),
    "a stream without an end": Attack(2 * GB, asks("stream", stream=True)),
    "a stream without an end, of an SDK that may ask again": Attack(
        2 * GB, asks("stream", stream=True, headers={"x-stainless-retry-count": "0"})
    ),
    "a stream without an end, as Responses": Attack(2 * GB, asks("stream", "/v1/responses", stream=True), TRANSLATED),
    "a stream without an end, as Messages": Attack(2 * GB, asks("stream", "/v1/messages", stream=True), TRANSLATED),
    "a stream without an end, asked for whole": Attack(2 * GB, asks("stream", "/v1/messages"), TRANSLATED),
    "a stream without an end, 16 clients": Attack(200 * MB, asks("stream", stream=True, clients=16)),
    "comments without an end": Attack(2 * GB, asks("comments", stream=True)),
    "an answer without an end": Attack(2 * GB, asks("answer")),
    "an answer without an end, translated": Attack(2 * GB, asks("answer", "/v1/messages"), TRANSLATED),
    "an answer without an end, asked for as a stream": Attack(2 * GB, asks("answer", stream=True)),
    "an answer without an end, 16 clients": Attack(200 * MB, asks("answer", clients=16)),
    "an answer of 30 MB, 40 clients": Attack(30 * MB, asks("answer", clients=40)),
    "an answer of many things": Attack(30 * MB, asks("things")),
    "an answer of many things, 16 clients": Attack(30 * MB, asks("things", clients=16)),
    "a packed answer": Attack(2 * GB, asks("packed")),
    "a packed answer, 16 clients": Attack(200 * MB, asks("packed", clients=16)),
    "a 404 without an end": Attack(2 * GB, asks("missing", "/v1/messages")),
    "a 404 without an end, passed through": Attack(2 * GB, asks("missing", "/v1/embeddings")),
    "a 500 without an end": Attack(2 * GB, asks("refused")),
    "a model list without an end": Attack(600 * MB, probes),
    "a head without an end": Attack(600 * MB, heads),
    # Clients
    "40 unfinished bodies of 30 MB": Attack(
        0, unfinished(CHAT, 40, f"content-length: {len(LONG) + 1}", LONG)
    ),
    "40 unfinished bodies in chunks": Attack(0, unfinished(CHAT, 40, "transfer-encoding: chunked", CHUNKED)),
    "40 bodies of 30 MB that wait for the backend": Attack(0, unfinished(CHAT, 40, announced(LONG), LONG)),
    "40 packed bodies": Attack(0, unfinished(CHAT, 40, announced(PACKED, "content-encoding: gzip"), PACKED)),
    "bodies of many things": Attack(
        0, unfinished(CHAT, 16, announced(large_body := things_of(BODY)), large_body)
    ),
    "500 short bodies of many things": Attack(
        0, unfinished(CHAT, 500, announced(short_body := things_of(60_000)), short_body)
    ),
    "2,000 unfinished webhooks": Attack(
        0, unfinished("/rl/webhooks/slack", 2000, f"content-length: {MB}", b"x" * (MB - 1)), SECRETS
    ),
    "40 unfinished forms": Attack(0, unfinished("/login", 40, f"content-length: {len(LONG) + 1}", LONG)),
    "500 streams that nobody reads": Attack(20 * MB, unread("stream", 500, stream=True)),
    "200 answers that nobody reads": Attack(30 * MB, unread("answer", 200, stream=False)),
}  # fmt: skip


def memory(pid: int, name: str) -> float:
    """Megabytes that a process has by the kernel's account: VmRSS now, VmHWM the largest there was."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return round(next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:")) * 1024 / 1e6, 1)


async def measure(attack: Attack, part: float) -> dict[str, Any]:
    backend = EndlessBackend(int(attack.size * part))
    await backend.start()
    with tempfile.TemporaryDirectory() as folder:
        flags = ("--backend", "openai", "--backend-url", backend.url, "--model", MODEL, "--log-level", "error")
        served = Serving(Path(folder) / "home", Path(folder) / "no-weights", *flags, **attack.environment)
        await served.start()
        began = time.monotonic()
        try:
            idle_mb = memory(served.process.pid, "VmRSS")
            try:
                async with asyncio.timeout(PATIENCE_S + 600 * part):
                    outcome = await attack.run(Scene(served, backend, part))
            except TimeoutError:
                outcome = {"statuses": {"unfinished": 1}}
            backend.mood = backend.lists = None
            async with served.http.get("/healthz") as response:
                assert response.status == 200
            return {
                "peak_mb": memory(served.process.pid, "VmHWM"),
                "before_mb": idle_mb,
                "s": round(time.monotonic() - began, 1),
                "sent_mb": round(backend.sent / MB),
                **outcome,
            }
        finally:
            with contextlib.suppress(ProcessLookupError):
                served.process.kill()
            await served.process.wait()
            await served.http.close()
            await backend.stop()


async def measured(names: list[str], part: float) -> dict[str, Any]:
    attacks: dict[str, Any] = {}
    for name in names:
        attacks[name] = result = await measure(ATTACKS[name], part)
        print(f"{result['peak_mb']:8.1f} MB  {name}  {result}", flush=True)
    largest = max(attacks, key=lambda name: attacks[name]["peak_mb"])
    return {"largest": largest, "largest_mb": attacks[largest]["peak_mb"], "attacks": attacks}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=ATTACKS, metavar="NAME")
    parser.add_argument("--part", type=float, default=1.0)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    if not sys.platform.startswith("linux"):
        raise SystemExit("The largest memory of a process is read from /proc, which only Linux has.")
    about = circumstances()
    server = ServerSection()
    about |= {"max_body_bytes": server.max_body_bytes, "max_held_bytes": server.max_held_bytes}
    result = about | asyncio.run(measured(arguments.only or list(ATTACKS), arguments.part))
    target = arguments.json or (
        ROOT / "benchmarks/memory_attacks.json" if arguments.part == 1 and not arguments.only else None
    )
    if target is not None:
        target.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
