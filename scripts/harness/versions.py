"""Versions in a proxy's home without a run: empty adapters, or real ones that make the model say something else."""

from __future__ import annotations

import hashlib
import json
import shutil
import time
from pathlib import Path
from typing import Any

from scripts.fakes.launcher import write_adapter
from scripts.harness.in_process import Proxy
from store.learning.samples import SampleRequirements
from store.records import Adapter

QUESTION = "Name three colours and say why you like them."


async def publish(proxy: Proxy, version: int) -> Path:
    """An adapter as a run would have left it; it is not live."""
    folder = proxy.home / "adapters_out" / "fake" / f"v{version:04d}"
    write_adapter(folder)
    run = await proxy.store.samples.claim(
        SampleRequirements(
            model="fake",
            live=0,
            max_version_gap=8,
            limit=10,
            held_share=0,
            folder_of=lambda run: str(proxy.home / "runs" / str(run)),
            version=version,
            min_total=1,
        )
    )
    assert run is not None, "publish needs a fresh rating"
    manifest = json.loads((folder / "manifest.json").read_text())
    adapter = Adapter(version, 0, run.id, "fake", str(folder), time.time(), manifest)
    await proxy.store.runs.publish(run.id, adapter, {"status": "passed"}, 0.0)
    return folder


async def with_real_versions(proxy: Proxy, adapters: list[Path]) -> None:
    """One version for each adapter, with its files; none is live."""
    await proxy.post("/rl/pause")
    for version, adapter in enumerate(adapters, 1):
        await proxy.say(f"Say {version}.", max_tokens=8)
        status, rated = await proxy.rate(completion_id="last", rating="good")
        assert status == 201, rated
        folder = await publish(proxy, version)
        manifest: dict[str, Any] = json.loads((folder / "manifest.json").read_text())
        for name in manifest["files"]:
            shutil.copy(adapter / name, folder / name)
            manifest["files"][name] = hashlib.sha256((folder / name).read_bytes()).hexdigest()
        (folder / "manifest.json").write_text(json.dumps(manifest))
