"""Swaps in a served home: adapters for its versions, who answers, and a kill in the middle."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from safetensors.numpy import save_file

from scripts.harness.lora import random_adapter
from scripts.harness.records import claim, put, rating
from scripts.harness.serving import Serving
from store.learning.versions import WAITING
from store.records import Adapter
from store.store import Store

ENOUGH_S = 60.0


def with_manifest(folder: Path) -> Path:
    """As a run leaves it: every file with its hash."""
    files = {f.name: hashlib.sha256(f.read_bytes()).hexdigest() for f in folder.iterdir()}
    (folder / "manifest.json").write_text(json.dumps({"format": 1, "files": files, "metrics": {}, "gate": {}}))
    return folder


def make_adapters(weights: Path, folder: Path) -> list[Path]:
    """Two good ones, one that no server can read though its hashes are right, and one that rotted."""
    folders = [random_adapter(weights, folder / f"v{n}", seed=n, size=0.3) for n in (1, 2, 3, 4)]
    save_file({"nothing.lora": np.zeros(1)}, folders[2] / "adapter_model.safetensors")
    folders = [with_manifest(one) for one in folders]
    (folders[3] / "adapter_model.safetensors").write_bytes(b"rot")
    return folders


async def published(home: Path, adapters: list[Path]) -> None:
    """A home with these versions, none of them live."""
    store = await Store.open(home)
    for version, folder in enumerate(adapters, 1):
        await put(store, f"c{version}", model="small")
        await store.ratings.rate(rating(f"c{version}"))
        run = (await claim(store, model="small", version=version))[0]
        adapter = Adapter(version, 0, run.id, "small", str(folder), 0.0, {})
        await store.runs.publish(run.id, adapter, {"status": "passed"}, 0.0)
    await store.meta.set(WAITING, None)  # else the newest would go live at the start, as after a crash
    await store.close()


async def says(served: Serving, model: str = "small") -> tuple[str, str]:
    """What it says, and which version it says it is."""
    async with asyncio.timeout(ENOUGH_S):
        answer, label = await served.chat("Say something", model=model, temperature=0, max_tokens=12)
    return answer["choices"][0]["message"]["content"], label


async def answers(served: Serving, texts: dict[str, str]) -> str:
    """The version that answers, by all that tells it."""
    text, label = await says(served)
    live = (await served.status())["live"]
    assert label == (f"v{live}" if live else "base") and text == texts[label], (label, live, text, texts)
    return label


def promote(served: Serving, version: int) -> asyncio.Task[tuple[int, Any]]:
    async def ask() -> tuple[int, Any]:
        async with served.http.post(f"/rl/promote/{version}") as response:
            return response.status, await response.json()

    return asyncio.create_task(ask())


async def kill_and_start(served: Serving, swap: asyncio.Task[tuple[int, Any]], stopped: psutil.Process | None) -> None:
    killing = asyncio.create_task(served.kill())
    if stopped is not None:
        await asyncio.sleep(0.5)
        with contextlib.suppress(psutil.NoSuchProcess):  # it may have been ended already
            stopped.resume()  # only a process that runs can see that its parent has gone
    await killing
    await asyncio.wait({swap})
    swap.exception()
    await served.start()


async def still(served: Serving, texts: dict[str, str], version: str, *words: str) -> None:
    """That version answers, and `status` says why no other one does."""
    problem = (await served.status())["problem"]
    assert problem is not None and all(word in problem for word in (*words, f"{version} still answers")), problem
    assert await answers(served, texts) == version
