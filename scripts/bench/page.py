"""The page with 100,000 completions: queries of its lists, pages over loopback, and the first paint in Chromium.

`python -m scripts.bench.page [--completions N] [--home DIR] [--no-browser]` writes benchmarks/page.json, with the plan
of each query. The home is made up. Answers have 120 words (of Python's own manual), token ids and log-probs. There are
two models, eight versions, and conversations of 20 turns. One turn in five is a side turn, two in five are rated, and
one run has used all ratings. Each query is asked 15 times, the median counts.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import random
import shutil
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import aiohttp
import structlog

from scripts.harness.circumstances import now
from store.captured import inbox
from store.learning.samples import SampleRequirements
from store.records import Adapter, CompletionQuery, FinishedCompletion, Message, NewCompletion, NewRating
from store.store import Store

ROOT = Path(__file__).resolve().parents[2]
TIMES, BATCH, DAYS = 15, 500, 60
PAINTED = "performance.getEntriesByName('first-contentful-paint')[0]?.startTime ?? 0"
QUERIES: dict[str, CompletionQuery] = {
    "newest": CompletionQuery(turn="main", newest_of_each=True),
    "newest, each turn": CompletionQuery(turn="main"),
    "newest, side turns too": CompletionQuery(),
    "page in the middle": CompletionQuery(turn="main", before_seq=50_000),
    "unrated": CompletionQuery(turn="main", unrated=True, newest_of_each=True),
    "turns of one conversation": CompletionQuery(turn="main", conversation=21),
    "one version": CompletionQuery(turn="main", version=3),
    "one model": CompletionQuery(turn="main", model="other"),
    "one session": CompletionQuery(turn="main", session="session-42"),
    "unrated of a version and a model": CompletionQuery(turn="main", unrated=True, version=3, model="other"),
    "nothing matches": CompletionQuery(turn="main", version=99, unrated=True),
    "nothing of the newest 10,000 matches": CompletionQuery(turn="none", newest_of_each=True),  # type: ignore[arg-type]
    "one rare version": CompletionQuery(turn="main", version=7, unrated=True, model="other"),
    "search, two words": CompletionQuery(turn="main", search="walrus operator"),
    "search, a very common word": CompletionQuery(turn="main", search="the"),
    "search, a letter": CompletionQuery(turn="main", search="a"),
    "search, the beginning of many words": CompletionQuery(turn="main", search="con"),
    "search, two words begun": CompletionQuery(turn="main", search="func argu"),
    "search, nothing found": CompletionQuery(turn="main", search="zanzibar"),
    "search, a very common word, and filters that leave nothing": CompletionQuery(
        turn="main", search="the", version=99
    ),
}


async def fill(store: Store, count: int) -> None:
    draw = random.Random(1)
    words = " ".join(topics.values()).split()

    def span(length: int) -> str:
        first = draw.randrange(len(words) - length)
        return " ".join(words[first : first + length])

    await store._writer.submit(lambda db: None)
    store._writer._db.execute("PRAGMA synchronous = OFF")  # only to fill it
    now = time.time()
    for start in range(0, count, BATCH):
        new, ended, rated = [], [], []
        for n in range(start, min(start + BATCH, count)):
            text, question = span(120), span(12)
            prompt = (Message("user", json.dumps({"content": question}).encode()),)
            created_at = now - (count - n) / count * DAYS * 86400
            new.append(
                NewCompletion(
                    id=f"c{n}", request_id=f"c{n}", choice=0, created_at=created_at, dialect="chat", backend="vllm",
                    model="other" if n % 7 == 0 else "smollm2", served_model="smollm2", version=n * 8 // count,
                    session=f"session-{n // 20}", user=None, turn="side" if n % 5 == 0 else "main", turn_rule="default",
                    streamed=True, prompt=prompt, request=b"{}", asked=question,
                    above=f"session-{n // 20}".encode() if n % 20 else None,
                )
            )  # fmt: skip
            ended.append(
                FinishedCompletion(
                    id=f"c{n}", status="done", finished_at=created_at, text=text, finish_reason="stop", exact=True,
                    reply=Message("assistant", json.dumps({"content": text}).encode()), token_ids=list(range(160)),
                    prompt_token_ids=list(range(200)), logprobs=[-0.5] * 160, thread=f"session-{n // 20}".encode(),
                )
            )  # fmt: skip
            if n % 5 in (1, 3):
                rated.append(NewRating(f"c{n}", "owner", 1.0 if draw.random() < 0.6 else -1.0, scale="thumb"))
        await store.completions.record(new, ended)
        await asyncio.gather(*(store.ratings.rate(rating) for rating in rated))
    dated = "UPDATE ratings SET created_at = (SELECT created_at FROM completions c WHERE c.id = completion_id)"
    await store._writer.submit(lambda db: db.execute(dated))
    claimed = await store.samples.claim(SampleRequirements(
        model="smollm2", live=7, max_version_gap=99, limit=count, held_share=0.0, folder_of=lambda run: "/nowhere",
        version=1, min_total=1,
    ))  # fmt: skip
    assert claimed is not None
    await store.runs.publish(claimed.id, Adapter(1, 0, claimed.id, "smollm2", "/nowhere", now, {}), {}, 0.0)
    await store.versions.withdraw(1, "made up", "bench")  # there are no files to go live with
    store._writer._db.execute("PRAGMA synchronous = FULL")


async def median(call: Callable[[], Awaitable[Any]]) -> float:
    took = []
    for _ in range(TIMES):
        began = time.perf_counter()
        await call()
        took.append(time.perf_counter() - began)
    return round(statistics.median(took) * 1000, 2)


async def queries(store: Store) -> list[dict[str, Any]]:
    figures = []
    for name, query in QUERIES.items():
        sql, values = inbox.query(query)
        plan = [row["detail"] for row in await store._reader.rows(f"EXPLAIN QUERY PLAN {sql}", values)]
        rows = len((await store.inbox.page(query)).rows)
        took = await median(lambda query=query: store.inbox.page(query))  # type: ignore[misc]
        figures.append({"query": name, "ms": took, "rows": rows, "plan": plan})
        print(f"{took:8.2f} ms  {rows:3} rows  {name}: {'; '.join(plan)}", flush=True)
    for name, ask in (
        ("ratings by day", lambda: store.stats.days(0.0, 0.0)),
        ("shares by version", store.stats.verdicts),
    ):
        figures.append({"query": name, "ms": await median(ask)})
        print(f"{figures[-1]['ms']:8.2f} ms  {name}", flush=True)
    return figures


async def pages(url: str, paths: Sequence[str]) -> list[dict[str, Any]]:
    figures = []
    async with aiohttp.ClientSession(base_url=url, cookie_jar=aiohttp.CookieJar(unsafe=True)) as http:

        async def get(path: str) -> int:
            async with http.get(path) as response:
                return len(await response.read())

        for path in paths:
            size = await get(path)
            figures.append({"path": path, "ms": await median(lambda path=path: get(path)), "bytes": size})  # type: ignore[misc]
            print(f"{figures[-1]['ms']:8.2f} ms  {size:7} bytes  {path}", flush=True)
    return figures


async def paint(url: str, paths: Sequence[str]) -> list[dict[str, Any]]:
    """First contentful paint, from the start of the navigation on, in a browser that is open already."""
    from playwright.async_api import async_playwright

    figures = []
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox", "--font-render-hinting=none"]
        )
        page = await browser.new_page(viewport={"width": 1100, "height": 900})
        await page.goto(url)
        for path in paths:
            took = []
            for _ in range(TIMES):
                await page.goto(url + path)
                while not (painted := await page.evaluate(PAINTED)):
                    await asyncio.sleep(0.05)
                took.append(painted)
                await page.wait_for_timeout(500)  # what it asks for after painting is not part of the next one
            figures.append({"path": path, "ms": round(statistics.median(took), 1), "worst_ms": round(max(took), 1)})
            print(f"{figures[-1]['ms']:8.1f} ms  first paint, worst {figures[-1]['worst_ms']} ms  {path}", flush=True)
        await browser.close()
    return figures


async def main(count: int, with_browser: bool, existing_home: Path | None) -> None:
    from scripts.docs.screenshots import serving

    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(40))
    report: dict[str, Any] = {
        "at": now(), "completions": count, "cores": os.cpu_count(),
        "python": platform.python_version(), "load_before": round(os.getloadavg()[0], 2),
    }  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        home = existing_home or Path(folder) / "home"
        store = await Store.open(home)
        if await store.completions.get(f"c{count - 1}") is None:
            began = time.perf_counter()
            await fill(store, count)
            report["fill_s"] = round(time.perf_counter() - began, 1)
            began = time.perf_counter()
            while await store.inbox.index_words():
                pass
            report["index_s"] = round(time.perf_counter() - began, 1)
        report["database_mb"] = round((home / "rlproxy.db").stat().st_size / 1e6)
        report["queries"] = await queries(store)
        await store.close()
        async with serving(home, seeded=False, retention_days=365) as url:
            paths = (
                "/",
                "/?unrated=1",
                "/?q=func+argu",
                "/progress",
                "/page/plots",
                "/versions",
                "/data",
                "/completions/c99999",
            )
            report["pages"] = await pages(url, paths)
            report["first_paint"] = await paint(url, ("/", "/?unrated=1", "/progress")) if with_browser else None
    (ROOT / "benchmarks" / "page.json").write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--completions", type=int, default=100_000)
    parser.add_argument("--no-browser", action="store_true")
    parser.add_argument("--home", type=Path, help="made once there, and kept for the next time")
    args = parser.parse_args()
    asyncio.run(main(args.completions, not args.no_browser, args.home))
