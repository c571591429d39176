"""`make demo`: watch a real model learn what one person likes, while it keeps answering.

Plays a person who likes answers that come to an end by themselves (within 96 tokens). Chats through the official
`openai` SDK pointed at a real `rlproxy serve`, and rates by all three channels (in the chat, over HTTP, by the CLI).
Training starts by itself, and one more client keeps asking all the while. Held-out prompts measure the result.

    python -m scripts.demo [--quick] [--ratings 64] [--json FILE]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import aiohttp
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from scripts.demo.person import CLI, HOME, ROOT, Person, Reply, chat_and_rate, console, held_out
from scripts.demo.report import Scoring, report
from scripts.harness.circumstances import commit

ADAPTERS = ROOT / "adapters_out" / "demo"
MODEL = "smollm2"
ROUND = 32  # ratings that start a run


def read_prompts() -> dict[str, list[str]]:
    """scripts/bench/prompts.txt: one a line, in sections `# rate` and `# held-out`."""
    sections: dict[str, list[str]] = {}
    for block in re.split(r"^# ", (ROOT / "scripts/bench/prompts.txt").read_text(encoding="utf-8"), flags=re.M)[1:]:
        name, *lines = block.splitlines()
        sections[name.strip()] = [line for line in lines if line.strip()]
    return sections


def start_server() -> subprocess.Popen[bytes]:
    """A real `rlproxy serve` on a fresh home."""
    for folder in (HOME, ADAPTERS):
        shutil.rmtree(folder, ignore_errors=True)
    HOME.mkdir()
    env = {k: v for k, v in os.environ.items() if not k.startswith("RLPROXY_")}
    env |= {"RLPROXY_TRAIN__ADAPTERS_DIR": str(ADAPTERS), "RLPROXY_BACKEND__MODEL": MODEL}
    env |= {"RLPROXY_TRAIN__NICE": "0", "RLPROXY_TRAIN__STAND_STILL_S": "0"}  # a person waits for the whole of it
    command = [*CLI, "serve", "--home", str(HOME), "--port", "0", "--start-at", str(ROUND)]
    with (HOME / "serve.log").open("wb") as log:
        return subprocess.Popen(command, cwd=ROOT, env=env, stdout=log, stderr=log)


async def address_of(server: subprocess.Popen[bytes]) -> str:
    with console.status("starting `rlproxy serve` (the first time it gets the model)"):
        while server.poll() is None:
            try:
                return str(json.loads((HOME / "serving.json").read_text())["url"])
            except (OSError, ValueError):
                await asyncio.sleep(0.1)
    raise RuntimeError(f"rlproxy serve ended with {server.returncode}:\n{(HOME / 'serve.log').read_text()[-2000:]}")


async def learn(
    person: Person, prompts: list[str], measure: Callable[[int], None], progress: Progress
) -> dict[str, Any] | None:
    """Rate a round and watch the run that it sets off; the version that went live by it, None where none did."""
    old_status = await person.status()
    last_rating = await chat_and_rate(person, prompts, progress, old_status["live"])
    if old_status["ratings"]["needed"] > old_status["ratings"]["fresh"] + ROUND:
        return None  # the gate said no last time, and wants more ratings than this round brought
    measure(old_status["live"])  # beside the run: the server answers somebody all the while anyway
    status = await person.watch_run(old_status, progress)
    live = status["live"]
    if live == old_status["live"]:
        return None
    while f"v{live}" not in person.loop.first_seen:
        await asyncio.sleep(0.05)
    return {
        "version": live,
        "run": status["last_run"],
        "rating_to_live_s": person.loop.first_seen[f"v{live}"] - last_rating,
        "rated_at": time.time() - (time.monotonic() - last_rating),
    }


async def story(url: str, quick: bool, ratings: int) -> dict[str, Any]:
    prompts = read_prompts()
    rated, held_out_prompts = (
        prompts["rate"][: ROUND if quick else ratings],
        prompts["held-out"][:: 6 if quick else 2][: 12 if quick else 40],
    )
    person = Person(url, MODEL)
    stop = asyncio.Event()
    requester = asyncio.create_task(person.keep_asking(prompts["rate"][::-1], stop))
    rows: list[dict[str, Any]] = [{"version": 0, "ratings": 0}]
    measured: dict[int, asyncio.Task[list[Reply]]] = {}  # by version
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    try:
        with Progress(*columns, console=console) as progress:

            def measure(version: int) -> None:
                if version not in measured:
                    measured[version] = asyncio.create_task(held_out(person, held_out_prompts, version, progress))

            for start in range(0, len(rated), ROUND):
                row = await learn(person, rated[start : start + ROUND], measure, progress)
                if row is not None:
                    rows.append({**row, "ratings": start + ROUND})
            scoring = Scoring()  # begins while the last version is asked
            for row in rows:
                measure(row["version"])
            for row in rows:
                row["replies"] = await measured[row["version"]]
                await asyncio.to_thread(scoring.add, row["version"], row["replies"])
        await asyncio.sleep(1)
    finally:
        stop.set()
        await asyncio.gather(requester, return_exceptions=True)
        final = await person.status()
        await person.close()
    loop = person.loop
    loop.in_swap = sum(began <= swap <= ended for swap in person.swaps for began, ended in loop.started)
    return {"rows": rows, "loop": loop, "channels": person.channels, "status": final, "scoring": scoring}


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="32 ratings, one version, 12 held-out prompts")
    parser.add_argument("--ratings", type=int, default=64)
    parser.add_argument("--json", type=Path, help="write the figures there")
    args = parser.parse_args()
    began, tree = time.monotonic(), commit()  # it may move on while this runs
    server = start_server()
    try:
        url = asyncio.run(address_of(server))
        console.print(f"rlproxy is at [b]{url}[/b]; the model answers, and a person who likes short answers sits down.")
        first_question = time.monotonic()
        outcome = asyncio.run(story(url, args.quick, args.ratings))
    except (RuntimeError, aiohttp.ClientError) as error:
        console.print(f"[red]The demo ended early:[/red] {error}\nIts log: {HOME / 'serve.log'}")
        return 1
    finally:
        server.terminate()
        server.wait(60)
    figures = report(outcome, outcome["scoring"].collect(), time.monotonic() - began, tree)
    figures["first_question_s"] = time.monotonic() - first_question
    target = args.json or HOME / "result.json"
    target.write_text(json.dumps(figures, indent=1) + "\n")
    if args.quick:
        console.print(
            f"Learned and measured {figures['first_question_s'] / 60:.1f} minutes after the first question. The whole, "
            "with two versions and 40 held-out prompts: [b]FULL=1 make demo[/b], fifteen minutes."
        )
    console.print(
        f"Figures: {target}. Look around: rlproxy serve --home {HOME.name}, then rlproxy status --home {HOME.name}"
    )
    return 1 if figures["failed"] or len(figures["versions"]) < 2 else 0


if __name__ == "__main__":
    sys.exit(main())
