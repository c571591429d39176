"""The store alone: commits a second, a long conversation on disk, reads and start-up with a million completions.

    python -m scripts.bench.store.alone [--completions N] [--home DIR] [--quick] [--json FILE]

Writes benchmarks/store.json; `--quick` takes 100,000 completions and writes nothing unless told where. The large home
is kept in ~/.cache/rlproxy/bench and filled on where an earlier run stopped, so that it is made once. Writes go through
`store.completions.begin` and `finish`, as the proxy's do, with synchronous=FULL. What the disk can do at most stands
beside them: 4 kB written over and over, each time with fdatasync.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any
from zlib import crc32

from scripts.harness.circumstances import circumstances
from store.file.schema import NAME
from store.records import (
    CompletionQuery,
    FinishedCompletion,
    Message,
    NewCompletion,
    NewRating,
    Requester,
    ReturnedConversation,
)
from store.store import Store

ROOT = Path(__file__).resolve().parents[3]
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "rlproxy/bench"
WORDS = " ".join(topics.values()).split()
TURNS, QUESTION_WORDS, ANSWER_WORDS = 1000, 60, 180  # of one agent's conversation; words a turn
LETTERS_A_TOKEN = 4
TOOLS = 30  # of an agent, about 12 kB
SESSION = 20  # completions
BATCH, TIMES = 500, 15


def text(number: int, words: int) -> str:
    start = number * 131 % (len(WORDS) - words)
    return f"{number} " + " ".join(WORDS[start : start + words])


def as_ids(text: str) -> list[int]:
    """Make token ids, as many as a tokenizer might make of the text."""
    return [crc32(text[n : n + LETTERS_A_TOKEN].encode()) % 50_000 for n in range(0, len(text), LETTERS_A_TOKEN)]


def message(role: str, content: str) -> Message:
    return Message(role, json.dumps({"content": content}, ensure_ascii=False).encode())


def pair(id: str, prompt: tuple[Message, ...], reply: str, **about: Any) -> tuple[NewCompletion, FinishedCompletion]:
    now = time.time()
    new = NewCompletion(
        id=id, request_id=id, choice=0, created_at=about.pop("at", now), dialect="chat", backend="vllm", model="m",
        served_model="m", version=about.pop("version", 0), session=about.pop("session", None), user=None, turn="main",
        turn_rule="default", streamed=True, prompt=prompt, request=about.pop("request", b'{"model":"m","stream":true}'),
        sampling={"temperature": 1.0, "top_p": 1.0}, asked=reply[:60],
    )  # fmt: skip
    tokens = len(reply) // LETTERS_A_TOKEN
    end = FinishedCompletion(
        id=id, status="done", finished_at=now, reply=message("assistant", reply), text=reply, finish_reason="stop",
        usage={"prompt_tokens": 9, "completion_tokens": tokens}, exact=True,
        token_ids=list(range(tokens)), prompt_token_ids=about.pop("ids", list(range(32))), logprobs=[-0.5] * tokens,
        thread=about.pop("thread", None),
    )  # fmt: skip
    return new, end


async def commits(at_once: int, seconds: float, folder: Path, url: str = "", name: str = "c") -> dict[str, Any]:
    """Answers that end one after another in so many conversations, each waiting for its commit."""
    store = await Store.open(folder, url=url)
    took: list[float] = []
    over = time.perf_counter() + seconds

    async def client(number: int) -> None:
        n = 0
        while time.perf_counter() < over:
            n += 1
            began = time.perf_counter()
            question = message("user", text(n + number, QUESTION_WORDS))
            new, end = pair(f"{name}{number}-{n}", (question,), text(n, ANSWER_WORDS))
            await store.completions.record([new], [end])
            took.append(time.perf_counter() - began)

    start, commits_before, cpu = time.perf_counter(), store.commits, time.process_time()
    await asyncio.gather(*(client(number) for number in range(at_once)))
    spent = time.perf_counter() - start
    figures = {
        "at_once": at_once, "completions_per_s": round(len(took) / spent, 1),
        "commits_per_s": round((store.commits - commits_before) / spent, 1),
        "completions_per_commit": round(len(took) / (store.commits - commits_before), 2),
        "cpu_ms": round((time.process_time() - cpu) / len(took) * 1000, 3),
        "p50_ms": round(statistics.median(took) * 1000, 2),
        "p99_ms": round(sorted(took)[int(len(took) * 0.99)] * 1000, 2),
    }  # fmt: skip
    await store.close()
    print(figures, flush=True)
    return figures


def disk(seconds: float, folder: Path) -> float:
    """4 kB with fdatasync, so many a second."""
    file = os.open(folder / "probe", os.O_RDWR | os.O_CREAT)
    writes, over = 0, time.perf_counter() + seconds
    while time.perf_counter() < over:
        os.pwrite(file, b"x" * 4096, 0)
        os.fdatasync(file)
        writes += 1
    os.close(file)
    return round(writes / seconds, 1)


async def conversation(turns: int, folder: Path) -> dict[str, Any]:
    """One agent that sends all of it again at every turn. Growth by hundreds of turns, and the time a turn takes."""
    store = await Store.open(folder)
    history: list[Message] = [message("system", "You are an agent. " + text(0, 1500))]
    ids = as_ids(history[0].body.decode())  # of all that is said so far, as vLLM says them again with every answer
    tools = json.dumps(
        {
            "model": "m",
            "stream": True,
            "tools": [{"name": f"tool{n}", "description": text(n, 60)} for n in range(TOOLS)],
        }
    )
    steps, new_bytes, size, took = [], 0, 0, []
    for turn in range(1, turns + 1):
        question, answer = text(2 * turn, QUESTION_WORDS), text(2 * turn + 1, ANSWER_WORDS)
        history.append(message("user", question))
        ids += as_ids(question)
        new, end = pair(f"t{turn}", tuple(history), answer, ids=list(ids), request=tools.encode())
        began = time.thread_time()
        await store.completions.record([new], [end])
        took.append(time.thread_time() - began)
        history.append(message("assistant", answer))
        ids += as_ids(answer)
        new_bytes += len(question) + len(answer)
        if turn % (turns // 10) == 0:
            await store._writer.empty_log()
            size_before, size = size, (folder / NAME).stat().st_size
            steps.append({"turns": turn, "bytes": size, "a_turn": (size - size_before) // (turns // 10)})
    await store.close()
    sent = sum(len(m.body) for m in history)
    figures = {
        "turns": turns, "tools_bytes": len(tools), "steps": steps, "new_text_bytes": new_bytes,
        "bytes_of_new_text": round(size / new_bytes, 2), "conversation_bytes": sent,
        "sent_again_and_again_bytes": sent * turns // 2,
        "growth_last_of_second": round(steps[-1]["a_turn"] / steps[1]["a_turn"], 3),
    }  # fmt: skip
    print({k: v for k, v in figures.items() if k != "steps"}, flush=True)
    return figures


async def fill(home: Path, count: int) -> float:
    """Sessions of 20 turns, a rating in twenty. Goes on where an earlier run stopped; seconds."""
    start = time.perf_counter()
    store = await Store.open(home)
    store._writer._db.execute("PRAGMA synchronous = OFF")  # only to fill it
    row = await store._reader.row("SELECT count(*) AS n FROM completions")
    assert row is not None
    now = time.time()
    for first in range(int(row["n"]), count, BATCH):
        starts = range(first, first + BATCH, SESSION)
        completions = [pair for n in starts for pair in session(n, now - (count - n) * 0.5)]
        await store.completions.record([new for new, _ in completions], [end for _, end in completions])
        rated = [n for n in range(first, first + BATCH) if n % 20 == 7]
        await asyncio.gather(*(store.ratings.rate(NewRating(f"c{n}", "owner", 1.0 if n % 3 else -1.0)) for n in rated))
        if first % 50_000 == 0:
            print(f"{first:,} completions, {time.perf_counter() - start:.0f} s", flush=True)
    while await store.inbox.index_words():
        pass
    store._writer._db.execute("PRAGMA synchronous = FULL")
    await store.close()
    return round(time.perf_counter() - start, 1)


def session(first: int, start: float) -> list[tuple[NewCompletion, FinishedCompletion]]:
    history: list[Message] = []
    pairs = []
    for n in range(first, first + SESSION):
        answer = text(n, 40)
        history.append(message("user", text(n, 12)))
        about = {"at": start + n - first, "version": n * 8 // 10**6, "session": f"s{first}", "thread": thread_name(n)}
        pairs.append(pair(f"c{n}", tuple(history), answer, **about))
        history.append(message("assistant", answer))
    return pairs


def thread_name(n: int) -> bytes:
    return f"thread {n}".encode().ljust(32, b".")


async def median_ms(call: Callable[[int], Awaitable[Any]]) -> dict[str, float]:
    took = []
    for n in range(TIMES):
        began = time.perf_counter()
        await call(n)
        took.append((time.perf_counter() - began) * 1000)
    return {"ms": round(statistics.median(took), 3), "worst_ms": round(max(took), 3)}


async def reads(home: Path, count: int) -> dict[str, Any]:
    store = await Store.open(home)
    try:
        lookups: dict[str, Callable[[int], Awaitable[Any]]] = {
            "one by its id": lambda n: store.completions.get(f"c{(n * 7919 + 13) % count}"),
            "the reply of a thread": lambda n: store.completions.find_reply(
                ReturnedConversation(thread_name(n * 7919 % count), b"", (), "m", None), [Requester(None, None)]
            ),
            "the last of a session": lambda n: store.answers.newest(
                session=f"s{n * 7919 % count // SESSION * SESSION}"
            ),
            "the last of all": lambda n: store.answers.newest(),
            "newest 50": lambda n: store.completions.page(limit=50),
            "a page in the middle": lambda n: store.inbox.page(CompletionQuery(before_seq=count // 2 + n)),
            "a search, two words": lambda n: store.inbox.page(CompletionQuery(search="walrus operator")),
            "ratings that may train": lambda n: store.samples.fresh(live=7, max_version_gap=99),
        }
        return {name: await median_ms(lookup) for name, lookup in lookups.items()}
    finally:
        await store.close()


async def openings(home: Path) -> dict[str, float]:
    """To an open store: after a clean stop, and after a kill, when the file is checked while it is used."""

    async def opened() -> tuple[float, float]:
        began = time.perf_counter()
        store = await Store.open(home)
        took = time.perf_counter() - began
        await store.checked()
        checked = time.perf_counter() - began
        await store.close()
        return took, checked

    clean = statistics.median([(await opened())[0] for _ in range(5)])
    killed = await asyncio.create_subprocess_exec(sys.executable, "-c", _KILLED, str(home), cwd=ROOT)
    await killed.wait()
    after_kill, checked = (round(s * 1000, 1) for s in await opened())
    return {"clean_ms": round(clean * 1000, 1), "after_a_kill_ms": after_kill, "checked_ms": checked}


_KILLED = """
import asyncio, os, sys
from pathlib import Path
from store.store import Store
async def main():
    await Store.open(Path(sys.argv[1]))
    os.kill(os.getpid(), 9)
asyncio.run(main())
"""


async def measure(count: int, home: Path, seconds: float, turns: int) -> dict[str, Any]:
    report: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(dir=CACHE) as name:  # on a disk, not in memory
        folder = Path(name)
        report["disk_syncs_per_s"] = disk(min(seconds, 2.0), folder)
        report["commits"] = []
        for at_once in (1, 16, 64, 256):
            (folder / str(at_once)).mkdir()
            report["commits"].append(await commits(at_once, seconds, folder / str(at_once)))
        (folder / "conversation").mkdir()
        report["conversation"] = await conversation(turns, folder / "conversation")
    filled = await fill(home, count)
    report["large"] = {
        "completions": count, "bytes": (home / NAME).stat().st_size, "filled_s": filled,
        "open": await openings(home), "reads": await reads(home, count),
    }  # fmt: skip
    print(json.dumps(report["large"], indent=1), flush=True)
    return report


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--completions", type=int, default=1_000_000)
    parser.add_argument("--home", type=Path, help="of the large store; default ~/.cache/rlproxy/bench/store-N")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    count = 100_000 if arguments.quick else arguments.completions
    home = arguments.home or CACHE / f"store-{count}"
    for folder in (CACHE, home):
        folder.mkdir(parents=True, exist_ok=True)
    about = circumstances()
    report = asyncio.run(measure(count, home, 1.0 if arguments.quick else 3.0, 200 if arguments.quick else TURNS))
    result = about | report
    target = arguments.json or (None if arguments.quick else ROOT / "benchmarks/store.json")
    if target is not None:
        target.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
