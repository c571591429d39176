"""The person that `make demo` plays: chats through the `openai` SDK, rates by three channels, watches training.

Owns what is said to rlproxy and what came back. The order of it all is __main__'s, the table report's.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
from openai import AsyncOpenAI
from rich.console import Console
from rich.progress import Progress, TaskID

ROOT = Path(__file__).resolve().parents[2]
HOME = ROOT / ".demo"
CLI = [sys.executable, "-m", "proxy.cli"]
TEMPERATURE, MAX_TOKENS, AT_ONCE = 0.8, 96, 16
PATIENCE_S = 900.0  # without a sign of life; a demo that hangs should say so

console = Console()


@dataclass
class Reply:
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


class Person:
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
    ) -> Reply:
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
        return Reply(prompt, text, id, raw.headers["x-rl-adapter"], reason == "stop", prompt_ids, ids)

    async def keep_asking(self, prompts: list[str], stop: asyncio.Event) -> None:
        """One more client, in a loop; any error counts as a failed request."""
        n = 0
        while not stop.is_set():
            began = time.monotonic()
            try:
                reply = await self.ask(prompts[n % len(prompts)], stream=n % 2 == 0)
            except Exception as error:  # whatever it is, a person would have seen it
                self.loop.failed.append(repr(error))
            else:
                ended = time.monotonic()
                self.loop.served += 1
                self.loop.by_version[reply.adapter] = self.loop.by_version.get(reply.adapter, 0) + 1
                self.loop.first_seen.setdefault(reply.adapter, ended)
                self.loop.started.append((began, ended))
            n += 1
            await asyncio.sleep(0.2)

    # Rating, by three channels

    async def rate(self, reply: Reply, n: int) -> None:
        word = "good" if reply.liked else "bad"
        channel = ("chat", "http", "cli")[n % 3]
        if channel == "chat":
            messages = [
                {"role": "user", "content": reply.prompt},
                {"role": "assistant", "content": reply.text},
                {"role": "user", "content": f"/rl {word}"},
            ]
            completion = await self.client.chat.completions.create(model=self.model, messages=messages)  # type: ignore[arg-type]
            if f"rated {word}" not in (completion.choices[0].message.content or ""):
                raise RuntimeError(f"/rl {word} was answered: {completion.choices[0].message.content}")
        elif channel == "http":
            async with self.http.post("/v1/feedback", json={"completion_id": reply.id, "rating": word}) as response:
                if response.status != 201:
                    raise RuntimeError(
                        f"POST /v1/feedback was answered with {response.status}: {await response.text()}"
                    )
        else:
            command = [*CLI, word, "--id", reply.id, "--home", str(HOME), "--json"]
            process = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE, cwd=ROOT)
            await process.communicate()
            if process.returncode:
                raise RuntimeError(f"{' '.join(command)} ended with {process.returncode}")
        self.channels[channel] += 1

    # Watching

    async def status(self) -> dict[str, Any]:
        async with self.http.get("/rl/status") as response:
            return dict(await response.json())

    async def watch_run(self, old_status: dict[str, Any], progress: Progress) -> dict[str, Any]:
        """Until the run that the last rating set off has ended; shows its steps."""
        bar = progress.add_task("training starts by itself", total=None)
        last_change, newest = time.monotonic(), None
        last_id = (old_status["last_run"] or {}).get("id", 0)
        while time.monotonic() < last_change + PATIENCE_S:
            status = await self.status()
            training, run, live = status["training"]["progress"], status["last_run"], status["live"]
            if training != newest:
                last_change, newest = time.monotonic(), training
            if run and run["id"] > last_id and run["status"] in ("rejected", "empty", "failed", "cancelled"):
                finish(progress, bar, f"run {run['id']}: {run['status']}, {run['reason']}")
                return status
            if live != old_status["live"]:
                self.swaps.append(time.monotonic())
                finish(progress, bar, f"v{live} is live: {run['reason']}")
                return status
            if step := training.get("step"):
                text = f"training v{old_status['live'] + 1}: loss {step['loss']:+.3f}, kept {step['acceptance']:.0%}"
                progress.update(bar, description=text, total=step["steps"] + 1, completed=step["step"])
            elif phase := training.get("phase"):
                progress.update(bar, description=f"training: {phase['phase']}")
            await asyncio.sleep(0.25)
        raise RuntimeError(f"the run has said nothing for {PATIENCE_S:.0f} s")


def finish(progress: Progress, bar: TaskID, text: str) -> None:
    """A finished step: its bar goes, a line with its time stays (also where there is no terminal)."""
    seconds = next(task.elapsed or 0 for task in progress.tasks if task.id == bar)
    progress.remove_task(bar)
    progress.console.print(f"[green]✓[/green] {text} [dim]({seconds:.0f} s)[/dim]")


async def at_once(work: Iterable[Callable[[], Awaitable[Any]]], advance: Callable[[], None]) -> list[Any]:
    slots = asyncio.Semaphore(AT_ONCE)

    async def run_job(job: Callable[[], Awaitable[Any]]) -> Any:
        async with slots:
            result = await job()
        advance()
        return result

    return list(await asyncio.gather(*(run_job(job) for job in work)))


async def held_out(person: Person, prompts: list[str], version: int, progress: Progress) -> list[Reply]:
    name = f"v{version}" if version else "base"
    bar = progress.add_task(f"held-out prompts, {name}", total=len(prompts))
    jobs = [
        lambda p=p, i=i: person.ask(p, stream=False, model=f"{person.model}@{name}", keep=False, seed=1000 + i)
        for i, p in enumerate(prompts)
    ]
    replies = await at_once(jobs, lambda: progress.advance(bar))
    liked = sum(t.liked for t in replies) / len(replies)
    finish(progress, bar, f"held-out prompts, {name}: {liked:.0%} liked")
    return replies


async def chat_and_rate(person: Person, prompts: list[str], progress: Progress, live: int) -> float:
    """One round: ask, judge, rate. Returns the moment of the last rating."""
    bar = progress.add_task(f"chatting and rating {f'v{live}' if live else 'base'}", total=len(prompts))
    good = 0

    async def chat_once(n: int, prompt: str) -> None:
        nonlocal good
        reply = await person.ask(prompt, stream=n % 2 == 0)
        good += reply.liked
        await person.rate(reply, n)

    await at_once([lambda n=n, p=p: chat_once(n, p) for n, p in enumerate(prompts)], lambda: progress.advance(bar))  # type: ignore[misc]
    finish(progress, bar, f"rated {len(prompts)}: {good} good, {len(prompts) - good} bad")
    return time.monotonic()
