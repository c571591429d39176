"""Versions for tests of swaps: adapters, good ones and two that are not, and a home that has them."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from scripts.harness.lora import random_adapter
from scripts.harness.records import claim, put, rating
from store.learning.versions import WAITING
from store.records import Adapter
from store.store import Store


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
