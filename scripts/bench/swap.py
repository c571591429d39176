"""Swaps and rollbacks that nobody notices: streamed clients ask all the while, and every reply is checked by its text.

`python -m scripts.bench.swap [--backend all|builtin|llamacpp|llamacpp-router|vllm|mlx …] [--resume] [--quick] [--swaps
10] [--rollbacks 5] [--seconds 60] [--clients 8] [--tokens 32]` writes the figures of each backend to
benchmarks/swap.json as soon as it has them, beside those of the others. It says how long it will take. A backend that
fails, or takes four times as long, does not keep the next one from being measured. With `--resume`, those that the file
has already in this form and of this commit are left out.

Each version answers each client's question otherwise (greedily). Its answers are asked for by its pin before anything
is measured. A reply that is not word for word that of the version in its `x-rl-adapter` counts as mixed.
"During" a change is from asking for it until two seconds after it was done. "Before" is the rest of its window, without
each client's first reply, as all of those begin in one moment.
A second pair of figures extends "during" until every client has had its first token of the new version. A server has to
read each prompt anew for that version.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import platform
import tempfile
import time
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import aiohttp

from scripts.bench.swap_setup import MODEL, Timed, adapters, proxy, publish
from scripts.harness.circumstances import commit, machine, now
from trainer.formats.weights import resolve

ROOT = Path(__file__).resolve().parents[2]
AFTER_S = 2.0  # that still counts as during a change
BACKENDS = ("builtin", "llamacpp", "llamacpp-router", "mlx", "vllm")
START_S, VERSION_S, CHANGE_S = 90.0, 20.0, 10.0  # what each takes, about, on two idle cores
QUESTIONS = (
    "Tell me about the sea.", "How do I boil an egg?", "Who was Newton?", "Write a letter to a friend.",
    "Name a fruit and say why.", "What do bees make?", "Why is the sky blue?", "What is a proxy?",
)  # fmt: skip
PRINTED = (
    "failed_count", "mixed_count", "first_token", "between_chunks", "until_all_have_it", "load_s", "switch_s",
    "pointer_s", "swap_to_first_token_s",
)  # fmt: skip
Lengths = dict[str, int]  # how long the reply to a question may be


@dataclass
class Reply:
    question: str
    began: float
    label: str
    first: float = 0.0  # when its first token came
    ended: float = 0.0
    text: str = ""
    gaps: list[tuple[float, float]] = field(default_factory=list)  # when a chunk came, and after how long


@dataclass
class Change:
    kind: str  # swap or rollback
    live: int
    start: float
    switched: float  # the pointer has moved
    end: float
    load_s: float | None  # None: it was loaded already
    switch_s: float  # from the end of the load, the warm-up with it
    pointer_s: float  # from the end of the warm-up


async def streamed(http: aiohttp.ClientSession, model: str, question: str, tokens: int) -> Reply:
    body = {"model": model, "messages": [{"role": "user", "content": question}], "stream": True, "temperature": 0}
    began = last = time.perf_counter()
    async with http.post("/v1/chat/completions", json=body | {"max_tokens": tokens}) as response:
        if response.status != 200:
            raise RuntimeError(f"{response.status}: {(await response.text())[:300]}")
        reply = Reply(question, began, response.headers["x-rl-adapter"])
        whole = False
        async for line in response.content:
            now = time.perf_counter()
            whole = whole or line.strip() == b"data: [DONE]"
            if not line.startswith(b"data: {"):
                continue
            event = json.loads(line[6:])
            if event.get("error"):
                raise RuntimeError(str(event["error"]))
            if not (event["choices"] and (text := event["choices"][0]["delta"].get("content"))):
                continue
            if reply.first:
                reply.gaps.append((now, now - last))
            else:
                reply.first = now
            reply.text, last = reply.text + text, now
    if not whole:
        raise RuntimeError("the stream broke off")
    reply.ended = time.perf_counter()
    return reply


class Clients:
    """They ask until they are told to stop; what fails and what is mixed is kept, word for word."""

    def __init__(self, http: aiohttp.ClientSession, expected: dict[tuple[str, str], str], lengths: Lengths) -> None:
        self._http, self._expected, self._lengths = http, expected, lengths
        self._stop = asyncio.Event()
        self.replies: list[Reply] = []
        self.failed: list[str] = []
        self.mixed: list[str] = []

    async def ask(self, question: str) -> None:
        while not self._stop.is_set():
            try:
                reply = await streamed(self._http, MODEL, question, self._lengths[question])
            except (aiohttp.ClientError, RuntimeError, OSError) as error:
                self.failed.append(f"{error!r}"[:500])
                await asyncio.sleep(0.2)
                continue
            self.replies.append(reply)
            if reply.text != self._expected.get((reply.label, question)):
                self.mixed.append(f"{reply.label}: {reply.text!r}")

    def stop(self) -> None:
        self._stop.set()


def lengths_of(tokens: int, clients: int) -> Lengths:
    """From half as long to half as long again, so that replies do not all begin and end together."""
    return {QUESTIONS[n]: round(tokens * (0.5 + n / len(QUESTIONS))) for n in range(min(clients, len(QUESTIONS)))}


async def what_each_says(http: aiohttp.ClientSession, versions: int, lengths: Lengths) -> dict[tuple[str, str], str]:
    expected, questions = {}, list(lengths)
    for pin in ("base", *(f"v{n}" for n in range(1, versions + 1))):
        replies = await asyncio.gather(*(streamed(http, f"{MODEL}@{pin}", q, lengths[q]) for q in questions))
        for question, reply in zip(questions, replies, strict=True):
            assert reply.label == pin
            expected[pin, question] = reply.text
        print(f"{pin}: {expected[pin, questions[0]]!r}", flush=True)
    for first_pin, second_pin in itertools.combinations({pin for pin, _ in expected}, 2):
        differences = sum(expected[first_pin, q] != expected[second_pin, q] for q in questions)
        assert 2 * differences >= len(questions), f"{first_pin} and {second_pin} say the same"
    return expected


class Pointer:
    """When the live pointer moved, from the proxy's own events."""

    def __init__(self, http: aiohttp.ClientSession) -> None:
        self._http = http
        self.moved: dict[int, float] = {}
        self.took_s: dict[int, float] = {}

    async def listen(self) -> None:
        timeout = aiohttp.ClientTimeout(total=None)
        async with self._http.get("/rl/events", timeout=timeout) as response:
            async for line in response.content:
                if line.startswith(b"data: {") and "previous" in (event := json.loads(line[6:])):
                    self.took_s[event["live"]] = event["switch_s"]
                    self.moved[event["live"]] = time.perf_counter()


async def change(http: aiohttp.ClientSession, pointer: Pointer, timed: Timed, act: str) -> Change:
    start = time.perf_counter()
    async with http.post(f"/rl/{act}") as response:
        body = await response.json()
        if response.status != 200:
            raise SystemExit(f"{act} failed: {body}")
    end, live = time.perf_counter(), body["live"]
    while pointer.moved.get(live, 0.0) < start:
        await asyncio.sleep(0.001)
    switched, loaded = pointer.moved[live], timed.loaded > start
    return Change(
        act.partition("/")[0].replace("promote", "swap"), live, start, switched, end,
        timed.loaded - timed.began if loaded else None, switched - (timed.loaded if loaded else start),
        pointer.took_s[live],
    )  # fmt: skip


def acts(swaps: int, rollbacks: int) -> list[str]:
    """Every so often a version is taken back, and the next one goes live after that."""
    steps: list[str] = []
    for version in range(1, swaps + 1):
        steps.append(f"promote/{version}")
        if version * rollbacks // swaps > (version - 1) * rollbacks // swaps:
            steps.append("rollback")
    return steps


async def measure(backend: str, options: argparse.Namespace, weights: Path, scratch: Path) -> dict[str, Any]:
    await adapters(weights, scratch / "adapters", options.swaps)
    lengths = lengths_of(options.tokens, options.clients)
    async with (
        proxy(backend, weights, scratch / "home", options.threads) as (url, store, timed),
        aiohttp.ClientSession(url, connector=aiohttp.TCPConnector(limit=0)) as http,
    ):
        for version in range(1, options.swaps + 1):
            folder = scratch / "adapters" / f"v{version:04d}"
            await publish(http, store, scratch / "home", version, folder)
        expected = await what_each_says(http, options.swaps, lengths)
        async with asyncio.timeout(60):
            while (await (await http.get("/rl/status")).json())["loaded"] != [
                0
            ]:  # what was asked by its pin goes again
                await asyncio.sleep(0.1)
        clients, pointer = Clients(http, expected, lengths), Pointer(http)
        questions = [list(lengths)[n % len(lengths)] for n in range(options.clients)]
        tasks = [asyncio.create_task(clients.ask(question)) for question in questions]
        listening = asyncio.create_task(pointer.listen())
        changes = []
        for act in acts(options.swaps, options.rollbacks):
            await asyncio.sleep(options.seconds)
            changes.append(await change(http, pointer, timed, act))
            await asyncio.sleep(AFTER_S)
            last = changes[-1]
            print(f"{act}: {last.end - last.start:.1f} s, {len(clients.replies)} replies", flush=True)
        clients.stop()
        await asyncio.gather(*tasks)
        listening.cancel()
    return figures(clients, changes)


def figures(clients: Clients, changes: Sequence[Change]) -> dict[str, Any]:
    replies = clients.replies
    shortly = [(c.start, c.end + AFTER_S) for c in changes]
    nexts = [*(c.start for c in changes[1:]), float("inf")]
    longer = [(c.start, max(c.end + AFTER_S, _reached(c, end, replies))) for c, end in zip(changes, nexts, strict=True)]
    began = {r.question: r.ended for r in reversed(replies)}  # the first of each client: all began in one moment
    counted_replies = [r for r in replies if r.ended > began[r.question]]
    first_token = [(r.first, r.first - r.began) for r in counted_replies]
    between_chunks = [gap for r in counted_replies for gap in r.gaps]

    def parted(points: Sequence[tuple[float, float]], during: Sequence[tuple[float, float]]) -> dict[str, Any]:
        inside = [s for moment, s in points if any(a <= moment <= b for a, b in during)]
        outside = [s for moment, s in points if not any(a <= moment <= b for a, b in during)]
        calm, now = _quantiles(outside), _quantiles(inside)
        return {"before": calm, "during": now, "p99_ratio": round(now["p99_ms"] / calm["p99_ms"], 2)}

    first_tokens = []
    for c in changes:
        label = f"v{c.live}" if c.live else "base"
        firsts = [r.first for r in replies if r.label == label and r.began >= c.switched]
        if firsts:
            first_tokens.append(min(firsts) - c.start)
    loads = [c.load_s for c in changes if c.load_s is not None]
    return {
        "replies": len(replies),
        "failed": clients.failed[:20],
        "mixed": clients.mixed[:20],
        "failed_count": len(clients.failed),
        "mixed_count": len(clients.mixed),
        "under_way_in_a_switch": sum(any(r.began < c.switched < r.ended for c in changes) for r in replies),
        "first_token": parted(first_token, shortly),
        "between_chunks": parted(between_chunks, shortly),
        "until_all_have_it": {
            "first_token": parted(first_token, longer),
            "between_chunks": parted(between_chunks, longer),
            "seconds": _spread([end - start for start, end in longer]),
        },
        "load_s": _spread(loads),
        "switch_s": _spread([c.switch_s for c in changes]),
        "pointer_s": _spread([c.pointer_s for c in changes]),
        "swap_to_first_token_s": _spread(first_tokens),
        "changes": [{"kind": c.kind, "live": c.live, "seconds": round(c.end - c.start, 3)} for c in changes],
    }


def _reached(change: Change, end: float, replies: Sequence[Reply]) -> float:
    """When the last client had its first token of the version that went live, of those that had one before `end`."""
    label = f"v{change.live}" if change.live else "base"
    first: dict[str, float] = {}
    for reply in replies:
        if reply.label == label and reply.began >= change.switched and reply.first < end:
            first[reply.question] = min(reply.first, first.get(reply.question, end))
    return max(first.values(), default=change.end)


def _quantiles(seconds: Sequence[float]) -> dict[str, Any]:
    values = sorted(seconds)
    assert values, "nothing was measured"
    quantiles = {name: values[min(len(values) - 1, int(len(values) * q))] for name, q in (("p50", 0.5), ("p99", 0.99))}
    return {f"{name}_ms": round(1000 * s, 1) for name, s in quantiles.items()} | {"n": len(values)}


def _spread(seconds: Sequence[float]) -> dict[str, float] | None:
    if not seconds:
        return None
    values = sorted(seconds)
    return {"median": round(values[len(values) // 2], 3), "most": round(values[-1], 3)}


def main() -> None:
    options = _options()
    weights = resolve(options.weights)
    path: Path | None = options.out or (None if options.quick else ROOT / "benchmarks" / "swap.json")
    form = {
        "commit": commit(),
        "clients": options.clients,
        "tokens_per_reply": options.tokens,
        "seconds_before_each": options.seconds,
    }
    backends = [b for b in options.backend if not (options.resume and path and _has(path, b, form, options.swaps))]
    each = estimate(options)
    end = datetime.now() + timedelta(seconds=each * len(backends))
    names = ", ".join(backends) or "nothing left"
    print(f"{names}: about {each / 60:.0f} minutes each, until {end:%H:%M}; more on a busy machine", flush=True)
    failed = []
    for backend in backends:
        began = {"backend": backend, "date": now(), "machine": machine()}
        print(f"--- {backend}", flush=True)
        try:
            with tempfile.TemporaryDirectory() as folder:
                measured = asyncio.run(_in_time(4 * each, measure(backend, options, weights.path, Path(folder))))
        except (Exception, SystemExit) as error:
            failed.append(backend)
            print(f"{backend} failed, and its figures stay as they were: {error!r}", flush=True)
            continue
        result = {**began, "python": platform.python_version(), "model": weights.path.name, **form, **measured}
        if path:
            _keep(path, result)
        print(json.dumps({key: result[key] for key in PRINTED}, indent=2), flush=True)
    if failed:
        raise SystemExit(f"Failed: {', '.join(failed)}. With --resume only what is missing is measured.")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", nargs="+", default=["builtin"], choices=["all", *BACKENDS])
    parser.add_argument("--resume", action="store_true", help="leave out what has been measured in this form")
    parser.add_argument("--quick", action="store_true", help="two swaps and a rollback, four seconds each")
    parser.add_argument("--swaps", type=int, default=10)
    parser.add_argument("--rollbacks", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=60.0, help="before each change")
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=32, help="of a reply; half as many to half as many again")
    parser.add_argument("--threads", type=int, default=1, help="of the server")
    parser.add_argument("--weights", help="default: the small model")
    parser.add_argument("--out", type=Path, help="default: benchmarks/swap.json; with --quick nothing is written")
    options = parser.parse_args()
    if options.quick:
        options.swaps, options.rollbacks, options.seconds, options.tokens = 2, 1, 4.0, 12
    if "all" in options.backend:
        options.backend = list(BACKENDS)
    return options


def estimate(options: argparse.Namespace) -> float:
    """Seconds for one backend."""
    changes = int(options.swaps + options.rollbacks)
    return START_S + (int(options.swaps) + 1) * VERSION_S + changes * (float(options.seconds) + AFTER_S + CHANGE_S)


async def _in_time(seconds: float, work: Coroutine[Any, Any, dict[str, Any]]) -> dict[str, Any]:
    async with asyncio.timeout(seconds):
        return await work


def _has(path: Path, backend: str, form: dict[str, Any], swaps: int) -> bool:
    """Tell whether the file has these figures. Writing some of them makes a commit dirty, but not another one."""

    def clean(row: dict[str, Any]) -> dict[str, Any]:
        return {**{key: row.get(key) for key in form}, "commit": str(row["commit"]).removesuffix("-dirty")}

    rows = [r for r in (json.loads(path.read_text()) if path.exists() else []) if r["backend"] == backend]
    return any(clean(row) == clean(form) and sum(c["kind"] == "swap" for c in row["changes"]) == swaps for row in rows)


def _keep(path: Path, result: dict[str, Any]) -> None:
    """Beside the figures of other backends."""
    rows = [r for r in (json.loads(path.read_text()) if path.exists() else []) if r["backend"] != result["backend"]]
    path.write_text(json.dumps(sorted([*rows, result], key=lambda r: str(r["backend"])), indent=2) + "\n")


if __name__ == "__main__":
    main()
