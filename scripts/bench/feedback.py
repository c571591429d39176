"""1,000 ratings a second for 30 s, beside 50 answers that stream: is each stored, and stored once?

`python -m scripts.bench.feedback [--rate N] [--seconds N] [--streams N] [--quick]` writes benchmarks/feedback.json;
`--quick` takes 3 s and writes nothing. A real `rlproxy serve` over the scripted backend of the tests; the calls come at
a steady pace, however slow the answers are. A tenth of them is sent twice under one event id, as clients do whose
answer was late. Afterwards the database itself is read. Exit code 1 where a rating is lost or doubled.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sqlite3
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

from scripts.fakes.backend import MODEL, FakeBackend
from scripts.harness.circumstances import circumstances
from scripts.harness.serving import Serving

ROOT = Path(__file__).resolve().parents[2]
COMPLETIONS = 200  # that are rated, by raters of whom each rates each once
WORDS = 40  # of a streamed answer
CONNECTIONS = 64
REPEATED = 10  # one in so many is sent twice


@dataclass
class Sent:
    """Counts of the answers that the caller got."""

    stored: set[str] = field(default_factory=set)  # event ids that were answered 201 or 200
    new: int = 0  # 201
    repeated: int = 0  # 200
    failed: list[str] = field(default_factory=list)
    waits: list[float] = field(default_factory=list)  # from the moment when it was due to the answer
    seconds: float = 0.0


async def rate(url: str, completions: list[str], calls: int, per_s: float) -> Sent:
    """So many calls at that pace: a call that waits for others before it is late, and that counts."""
    sent = Sent()
    due: asyncio.Queue[tuple[int, float]] = asyncio.Queue()

    async def caller(client: aiohttp.ClientSession) -> None:
        while True:
            n, due_at = await due.get()
            await send(client, n, due_at)
            due.task_done()

    async def send(client: aiohttp.ClientSession, n: int, due_at: float) -> None:
        event = f"e{n - n % REPEATED if n % REPEATED == 1 else n}"  # the second of ten is the first again
        number = int(event[1:])
        body = {
            "completion_id": completions[number % len(completions)], "rating": "good" if number % 3 else "bad",
            "rater": f"r{number // len(completions)}", "source": "bench", "source_event_id": event,
        }  # fmt: skip
        try:
            async with client.post("/v1/feedback", json=body) as response:
                text = await response.text()
                if response.status not in (200, 201):
                    sent.failed.append(f"{response.status} {text}")
                    return
        except aiohttp.ClientError as error:
            sent.failed.append(repr(error))
            return
        sent.stored.add(event)
        sent.new += response.status == 201
        sent.repeated += response.status == 200
        sent.waits.append(time.perf_counter() - due_at)

    connector = aiohttp.TCPConnector(limit=CONNECTIONS)
    async with aiohttp.ClientSession(url, connector=connector, timeout=aiohttp.ClientTimeout(total=120)) as client:
        callers = [asyncio.create_task(caller(client)) for _ in range(CONNECTIONS)]
        start = time.perf_counter()
        for n in range(calls):
            due_at = start + n / per_s
            if (wait_s := due_at - time.perf_counter()) > 0:
                await asyncio.sleep(wait_s)
            due.put_nowait((n, due_at))
        await due.join()
        sent.seconds = time.perf_counter() - start
        for task in callers:
            task.cancel()
    return sent


def stream(url: str, at_once: int) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "scripts.bench.feedback", "--only-stream", url, "--streams", str(at_once)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT,
    )  # fmt: skip


async def keep_streaming(url: str, at_once: int) -> dict[str, int]:
    """So many at a time, one after another, until our stdin closes."""
    counts = {"whole": 0, "broken": 0}
    over = asyncio.Event()
    asyncio.get_running_loop().add_reader(sys.stdin, over.set)
    body = {"model": MODEL, "stream": True, "messages": [{"role": "user", "content": "word " * WORDS}]}

    async def reader(client: aiohttp.ClientSession) -> None:
        while not over.is_set():
            async with client.post("/v1/chat/completions", json=body) as response:
                last = b""
                async for line in response.content:
                    last = line.strip() or last
                counts["whole" if last == b"data: [DONE]" else "broken"] += 1

    async with aiohttp.ClientSession(url, connector=aiohttp.TCPConnector(limit=0)) as client:
        await asyncio.gather(*(reader(client) for _ in range(at_once)))
    return counts


def stored(home: Path) -> tuple[dict[str, int], int]:
    """Rows by event id as the database has them, and live ratings that share completion and rater."""
    (file,) = home.glob("*.db")
    with sqlite3.connect(f"file:{file}?mode=ro", uri=True) as db:
        rows = dict(db.execute("SELECT source_event_id, count(*) FROM ratings WHERE source = 'bench' GROUP BY 1"))
        twice = db.execute(
            "SELECT count(*) FROM (SELECT 1 FROM ratings WHERE live GROUP BY completion_id, rater HAVING count(*) > 1)"
        ).fetchone()[0]
    return rows, twice


async def measure(per_s: float, seconds: float, streams: int, folder: Path) -> dict[str, Any]:
    backend = FakeBackend()
    backend.pause_s = 0.1  # a model that speaks ten words a second
    await backend.start()
    flags = ("--backend", "openai", "--backend-url", backend.url, "--model", MODEL)
    serving = Serving(folder / "home", folder / "no-weights", *flags)
    await serving.start()
    try:
        await serving.post("/rl/pause")  # a run would take a core, and is not what is measured
        backend.pause_s = 0.0
        completions = [(await serving.chat(f"question {n}", model=MODEL))[0]["id"] for n in range(COMPLETIONS)]
        backend.pause_s = 0.1
        url = str(serving.http._base_url)
        streaming = stream(url, streams)
        await asyncio.sleep(2.0)  # all of them stream
        sent = await rate(url, completions, int(per_s * seconds), per_s)
        streamed = json.loads((await asyncio.to_thread(streaming.communicate))[0])
    finally:
        assert await serving.stop() == 0, serving.log
        await backend.stop()
    rows, twice = stored(folder / "home")
    waits = sorted(sent.waits) or [0.0]
    return {
        "asked_per_s": per_s, "calls": int(per_s * seconds), "seconds": round(sent.seconds, 2),
        "answered_per_s": round(len(sent.waits) / sent.seconds, 1), "failed": len(sent.failed),
        "failures": sent.failed[:3], "answered_201": sent.new, "answered_200": sent.repeated, "stored": len(rows),
        "lost": len(sent.stored - rows.keys()), "doubled": sum(n > 1 for n in rows.values()) + twice,
        "unknown": len(rows.keys() - sent.stored),
        "wait_ms": {p: round(waits[min(int(len(waits) * int(p) / 100), len(waits) - 1)] * 1000, 1)
                    for p in ("50", "95", "99")},
        "streams": streams, "streamed": streamed,
    }  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rate", type=float, default=1000.0, help="calls a second")
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--streams", type=int, default=50, help="answers that stream beside")
    parser.add_argument("--quick", action="store_true", help="3 s, and nothing is written")
    parser.add_argument("--only-stream", metavar="URL", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.only_stream:
        print(json.dumps(asyncio.run(keep_streaming(arguments.only_stream, arguments.streams))))
        return 0
    about = circumstances()
    with tempfile.TemporaryDirectory() as folder:
        seconds = 3.0 if arguments.quick else arguments.seconds
        report = asyncio.run(measure(arguments.rate, seconds, arguments.streams, Path(folder)))
    print(json.dumps(report, indent=2))
    if not arguments.quick:
        result = about | report
        (ROOT / "benchmarks" / "feedback.json").write_text(json.dumps(result, indent=2) + "\n")
    return 1 if report["lost"] or report["doubled"] or report["failed"] or report["streamed"]["broken"] else 0


if __name__ == "__main__":
    sys.exit(main())
