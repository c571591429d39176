"""`make demo`: watch a real model learn what one person likes, while it keeps answering.

Plays a person who likes answers that come to an end by themselves (within 96 tokens). Chats through the official
`openai` SDK pointed at a real `rlproxy serve`, rates by all three channels (in the chat, over HTTP, by the CLI), lets
training start by itself, keeps one more client asking all the while, and measures on held-out prompts.

    python scripts/demo.py [--quick] [--ratings 96] [--json FILE]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import aiohttp
from openai import AsyncOpenAI
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table

ROOT = Path(__file__).resolve().parent.parent
HOME = ROOT / ".demo"
ADAPTERS = ROOT / "adapters_out" / "demo"
CLI = [sys.executable, "-m", "proxy.cli"]
MODEL = "smollm2"
TEMPERATURE, MAX_TOKENS, AT_ONCE = 0.8, 96, 16
ROUND = 32  # ratings that start a run
PATIENCE_S = 900.0  # for one version; a demo that hangs should say so

console = Console()


@dataclass
class Told:
    """One answer as the person sees it."""

    prompt: str
    text: str
    id: str
    adapter: str
    liked: bool
    prompt_token_ids: list[int]
    token_ids: list[int]


@dataclass
class Loop:
    """The client that never stops asking."""

    served: int = 0
    failed: list[str] = field(default_factory=list)
    in_swap: int = 0  # answers under way while a version went live
    by_version: dict[str, int] = field(default_factory=dict)
    first_seen: dict[str, float] = field(default_factory=dict)  # adapter -> when its first answer was there
    started: list[tuple[float, float]] = field(default_factory=list)


class Demo:
    def __init__(self, url: str, model: str) -> None:
        self.url = url
        self.model = model
        self.client = AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=600)
        self.http = aiohttp.ClientSession(base_url=url)
        self.loop = Loop()
        self.swaps: list[float] = []
        self.channels = {"chat": 0, "http": 0, "cli": 0}

    async def close(self) -> None:
        await self.client.close()
        await self.http.close()

    # Talking

    async def ask(
        self, prompt: str, *, stream: bool, model: str = "", keep: bool = True, seed: int | None = None
    ) -> Told:
        """One question through the SDK. With `keep` false nothing is captured: held-out prompts stay held out."""
        sent: dict[str, Any] = {
            "model": model or self.model,
            "messages": [{"role": "user", "content": prompt}],
            "temperature": TEMPERATURE,
            "max_tokens": MAX_TOKENS,
            "seed": seed,
            "extra_body": {"return_token_ids": True},
            "extra_headers": {} if keep else {"x-rl-capture": "off"},
        }
        if not stream:
            raw = await self.client.chat.completions.with_raw_response.create(**sent)
            answer = raw.parse()
            choice = answer.choices[0]
            extra = {**(answer.model_extra or {}), **(choice.model_extra or {})}
            text, reason, id = choice.message.content or "", choice.finish_reason, answer.id
            prompt_ids, ids = extra.get("prompt_token_ids") or [], extra.get("token_ids") or []
        else:
            raw = await self.client.chat.completions.with_raw_response.create(**sent, stream=True)
            text, reason, id, prompt_ids, ids = "", None, "", [], []
            async for chunk in raw.parse():
                id = chunk.id
                prompt_ids = (chunk.model_extra or {}).get("prompt_token_ids") or prompt_ids
                for choice in chunk.choices:
                    text += choice.delta.content or ""
                    ids += (choice.model_extra or {}).get("token_ids") or []
                    reason = choice.finish_reason or reason
        return Told(prompt, text, id, raw.headers["x-rl-adapter"], reason == "stop", prompt_ids, ids)

    async def keep_asking(self, prompts: list[str], stop: asyncio.Event) -> None:
        """One more client, in a loop; any error counts as a failed request."""
        n = 0
        while not stop.is_set():
            began = time.monotonic()
            try:
                told = await self.ask(prompts[n % len(prompts)], stream=n % 2 == 0)
            except Exception as error:  # whatever it is, a person would have seen it
                self.loop.failed.append(repr(error))
            else:
                ended = time.monotonic()
                self.loop.served += 1
                self.loop.by_version[told.adapter] = self.loop.by_version.get(told.adapter, 0) + 1
                self.loop.first_seen.setdefault(told.adapter, ended)
                self.loop.started.append((began, ended))
            n += 1
            await asyncio.sleep(0.2)

    # Rating, by three channels

    async def rate(self, told: Told, n: int) -> None:
        word = "good" if told.liked else "bad"
        channel = ("chat", "http", "cli")[n % 3]
        if channel == "chat":
            messages = [
                {"role": "user", "content": told.prompt},
                {"role": "assistant", "content": told.text},
                {"role": "user", "content": f"/rl {word}"},
            ]
            said = await self.client.chat.completions.create(model=self.model, messages=messages)  # type: ignore[arg-type]
            if f"rated {word}" not in (said.choices[0].message.content or ""):
                raise RuntimeError(f"/rl {word} was answered: {said.choices[0].message.content}")
        elif channel == "http":
            async with self.http.post("/v1/feedback", json={"completion_id": told.id, "rating": word}) as response:
                if response.status != 201:
                    raise RuntimeError(
                        f"POST /v1/feedback was answered with {response.status}: {await response.text()}"
                    )
        else:
            command = [*CLI, word, "--id", told.id, "--home", str(HOME), "--json"]
            process = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE, cwd=ROOT)
            await process.communicate()
            if process.returncode:
                raise RuntimeError(f"{' '.join(command)} ended with {process.returncode}")
        self.channels[channel] += 1

    # Watching

    async def status(self) -> dict[str, Any]:
        async with self.http.get("/rl/status") as response:
            return dict(await response.json())

    async def watch_run(self, before: dict[str, Any], progress: Progress) -> dict[str, Any]:
        """Until the run that the last rating set off has ended; shows its steps."""
        bar = progress.add_task("training starts by itself", total=None)
        deadline = time.monotonic() + PATIENCE_S
        last_id = (before["last_run"] or {}).get("id", 0)
        while time.monotonic() < deadline:
            status = await self.status()
            run, live = status["last_run"], status["live"]
            if run and run["id"] > last_id and run["status"] in ("rejected", "empty", "failed"):
                done(progress, bar, f"run {run['id']}: {run['status']}, {run['reason']}")
                return status
            if live != before["live"]:
                self.swaps.append(time.monotonic())
                done(progress, bar, f"v{live} is live: {run['reason']}")
                return status
            seen = status["training"]["progress"]
            if step := seen.get("step"):
                what = f"training v{before['live'] + 1}: loss {step['loss']:+.3f}, kept {step['acceptance']:.0%}"
                progress.update(bar, description=what, total=step["steps"] + 1, completed=step["step"])
            elif phase := seen.get("phase"):
                progress.update(bar, description=f"training: {phase['phase']}")
            await asyncio.sleep(0.25)
        raise RuntimeError(f"no version after {PATIENCE_S:.0f} s; see `rlproxy status --home {HOME}`")


def done(progress: Progress, bar: TaskID, what: str) -> None:
    """A finished step: its bar goes, a line with its time stays (also where there is no terminal)."""
    seconds = next(task.elapsed or 0 for task in progress.tasks if task.id == bar)
    progress.remove_task(bar)
    progress.console.print(f"[green]✓[/green] {what} [dim]({seconds:.0f} s)[/dim]")


async def at_once(work: Iterable[Callable[[], Awaitable[Any]]], done: Callable[[], None]) -> list[Any]:
    slots = asyncio.Semaphore(AT_ONCE)

    async def one(job: Callable[[], Awaitable[Any]]) -> Any:
        async with slots:
            result = await job()
        done()
        return result

    return list(await asyncio.gather(*(one(job) for job in work)))


async def held_out(demo: Demo, prompts: list[str], version: int, progress: Progress) -> list[Told]:
    name = f"v{version}" if version else "base"
    bar = progress.add_task(f"held-out prompts, {name}", total=len(prompts))
    jobs = [
        lambda p=p, i=i: demo.ask(p, stream=False, model=f"{demo.model}@{name}", keep=False, seed=1000 + i)  # type: ignore[misc]
        for i, p in enumerate(prompts)
    ]
    told = await at_once(jobs, lambda: progress.advance(bar))
    liked = sum(t.liked for t in told) / len(told)
    done(progress, bar, f"held-out prompts, {name}: {liked:.0%} liked")
    return told


async def chat_and_rate(demo: Demo, prompts: list[str], progress: Progress, live: int) -> float:
    """One round: ask, judge, rate. Returns the moment of the last rating."""
    bar = progress.add_task(f"chatting and rating {f'v{live}' if live else 'base'}", total=len(prompts))
    good = 0

    async def one(n: int, prompt: str) -> None:
        nonlocal good
        told = await demo.ask(prompt, stream=n % 2 == 0)
        good += told.liked
        await demo.rate(told, n)

    await at_once([lambda n=n, p=p: one(n, p) for n, p in enumerate(prompts)], lambda: progress.advance(bar))  # type: ignore[misc]
    done(progress, bar, f"rated {len(prompts)}: {good} good, {len(prompts) - good} bad")
    return time.monotonic()


# The story


def read_prompts() -> dict[str, list[str]]:
    """scripts/prompts.txt: one a line, in sections `# rate` and `# held-out`."""
    sections: dict[str, list[str]] = {}
    for block in re.split(r"^# ", (ROOT / "scripts/prompts.txt").read_text(encoding="utf-8"), flags=re.M)[1:]:
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


async def story(url: str, quick: bool, ratings: int) -> dict[str, Any]:
    prompts = read_prompts()
    rated, held = (
        prompts["rate"][: ROUND if quick else ratings],
        prompts["held-out"][:: 3 if quick else 1][: 24 if quick else 80],
    )
    demo = Demo(url, MODEL)
    stop = asyncio.Event()
    asker = asyncio.create_task(demo.keep_asking(prompts["rate"][::-1], stop))
    rows: list[dict[str, Any]] = []
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    try:
        with Progress(*columns, console=console) as progress:
            rows.append({"version": 0, "told": await held_out(demo, held, 0, progress), "ratings": 0})
            for start in range(0, len(rated), ROUND):
                before = await demo.status()
                last_rating = await chat_and_rate(demo, rated[start : start + ROUND], progress, before["live"])
                if before["ratings"]["needed"] > before["ratings"]["fresh"] + ROUND:
                    continue  # the gate said no last time, and wants more ratings than this round brought
                status = await demo.watch_run(before, progress)
                live = status["live"]
                if live == before["live"]:
                    continue
                while f"v{live}" not in demo.loop.first_seen:
                    await asyncio.sleep(0.05)
                told = await held_out(demo, held, live, progress)
                rows.append({
                    "version": live, "told": told, "ratings": start + ROUND, "run": status["last_run"],
                    "rating_to_live_s": demo.loop.first_seen[f"v{live}"] - last_rating,
                })  # fmt: skip
        await asyncio.sleep(1)
    finally:
        stop.set()
        await asyncio.gather(asker, return_exceptions=True)
        final = await demo.status()
        await demo.close()
    loop = demo.loop
    loop.in_swap = sum(began <= swap <= ended for swap in demo.swaps for began, ended in loop.started)
    return {"rows": rows, "loop": loop, "channels": demo.channels, "status": final}


def coherence(rows: list[dict[str, Any]]) -> dict[str, float]:
    """Mean NLL of each version's held-out replies under the base model, in a process of its own."""
    lines = [
        json.dumps({"group": str(row["version"]), "prompt_token_ids": t.prompt_token_ids, "token_ids": t.token_ids})
        for row in rows
        for t in row["told"]
    ]
    with console.status("scoring the replies under the base model"):
        done = subprocess.run(
            [sys.executable, str(ROOT / "scripts/coherence.py")],
            input="\n".join(lines), capture_output=True, text=True, check=True, cwd=ROOT,
        )  # fmt: skip
    return dict(json.loads(done.stdout))


def report(found: dict[str, Any], nll: dict[str, float], seconds: float) -> dict[str, Any]:
    table = Table("version", "ratings", "liked", "base NLL", "words", "rating → live", "run", title="held-out prompts")
    out = []
    for row in found["rows"]:
        told, run = row["told"], row.get("run")
        line = {
            "version": row["version"],
            "ratings": row["ratings"],
            "liked": sum(t.liked for t in told) / len(told),
            "base_nll": nll[str(row["version"])],
            "words": sum(len(t.text.split()) for t in told) / len(told),
            "rating_to_live_s": row.get("rating_to_live_s"),
            "run_s": run["ended_at"] - run["started_at"] if run else None,
            "gate": run["gate"] if run else None,
            "metrics": run["metrics"] if run else None,
        }
        out.append(line)
        table.add_row(
            f"v{line['version']}" if line["version"] else "base",
            str(line["ratings"]),
            f"{line['liked']:.0%}",
            f"{line['base_nll']:.2f}",
            f"{line['words']:.0f}",
            f"{line['rating_to_live_s']:.0f} s" if line["rating_to_live_s"] else "",
            f"{line['run_s']:.0f} s" if line["run_s"] else "",
        )
    console.print(table)
    first, last = found["rows"][0]["told"], found["rows"][-1]["told"]
    for before, after in list(zip(first, last, strict=True))[:2]:
        console.print(
            f"\n[b]{before.prompt}[/b]\n[dim]base[/dim]  {before.text.strip()}\n[dim]now[/dim]   {after.text.strip()}"
        )
    loop = found["loop"]
    console.print(
        f"\nThe client that never stopped asking: [b]{loop.served}[/b] requests served, "
        f"[b]{len(loop.failed)}[/b] failed; {loop.in_swap} were under way in the moment of a swap. "
        f"Ratings: {found['channels']}. {seconds:.0f} s in all."
    )
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": machine(),
        "commit": commit(),
        "held_out": len(first),
        "versions": out,
        "served": loop.served,
        "by_version": loop.by_version,
        "in_swap": loop.in_swap,
        "failed": loop.failed,
        "channels": found["channels"],
        "seconds": seconds,
    }


def commit() -> str:
    found = subprocess.run(["git", "describe", "--always", "--dirty"], capture_output=True, text=True, cwd=ROOT)
    return found.stdout.strip()


def machine() -> str:
    names = (
        re.findall(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text()) if Path("/proc/cpuinfo").exists() else []
    )
    return f"{names[0] if names else platform.processor() or platform.machine()}, {os.cpu_count()} cores"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="32 ratings, one version, 24 held-out prompts")
    parser.add_argument("--ratings", type=int, default=96)
    parser.add_argument("--json", type=Path, help="write the figures there")
    args = parser.parse_args()
    began = time.monotonic()
    server = start_server()
    try:
        url = asyncio.run(address_of(server))
        console.print(f"rlproxy is at [b]{url}[/b]; the model answers, and a person who likes short answers sits down.")
        found = asyncio.run(story(url, args.quick, args.ratings))
    except (RuntimeError, aiohttp.ClientError) as error:
        console.print(f"[red]The demo ended early:[/red] {error}\nIts log: {HOME / 'serve.log'}")
        return 1
    finally:
        server.terminate()
        server.wait(60)
    figures = report(found, coherence(found["rows"]), time.monotonic() - began)
    target = args.json or HOME / "result.json"
    target.write_text(json.dumps(figures, indent=1) + "\n")
    console.print(
        f"Figures: {target}. Look around: rlproxy serve --home {HOME.name}, then rlproxy status --home {HOME.name}"
    )
    return 1 if figures["failed"] or len(figures["versions"]) < 2 else 0


if __name__ == "__main__":
    sys.exit(main())
