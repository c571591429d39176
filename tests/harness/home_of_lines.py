"""A home with lines, and a version live in each, before anything serves it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from scripts.harness.records import claim, put, rating
from store.line_records import StoredLine
from store.records import Adapter
from store.store import Store
from tests.harness.swaps import with_manifest


async def prepare_lines(home: Path, model: str, adapters: Mapping[str, Path]) -> None:
    """Make versions 1, 2, …, one of each line. adapters: a PEFT folder by line."""
    store = await Store.open(home)
    for version, (name, folder) in enumerate(adapters.items(), 1):
        await store.lines.create(StoredLine(name, 0, 1.0, None, (), ()), "test")
        await put(store, name, model=model, line=name)
        await store.ratings.rate(rating(name))
        run = (await claim(store, model=model, version=version, line=name))[0]
        made = Adapter(version, 0, run.id, model, str(with_manifest(folder)), 0.0, {}, line=name)
        await store.runs.publish(run.id, made, {"status": "passed"}, 0.0)
        await store.versions.point(version, "made", "rlproxy", name)
    await store.close()
