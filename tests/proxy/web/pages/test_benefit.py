"""What the ratings bought, on the page and in the report."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from proxy.checks import results
from proxy.web.pages import report
from proxy.web.pages.benefit import SamePrompts, base_against, benefit
from proxy.web.pages.progress import version_shares
from scripts.harness.in_process import Proxy
from scripts.harness.records import adapter, claim, put, rating
from store.copies.read_only import look
from store.records import Message
from store.store import Store
from tests.harness.visits import Visit


async def answered(store: Store, prompt: str, version: int, liked: bool, model: str = "m") -> None:
    id = f"{model}-{version}-{prompt}"
    served = model if version == 0 else f"{model}@v{version}"
    await put(
        store, id, version=version, served_model=served, prompt=(Message("user", f'{{"content":"{prompt}"}}'.encode()),)
    )
    await store.ratings.rate(rating(id, 1.0 if liked else -1.0))


async def published(store: Store, version: int, created_at: float) -> None:
    run, _ = await claim(store, version=version, live=version - 1, held_share=0.0)
    row = adapter(version, run.id)
    await store.runs.publish(run.id, row.__class__(**{**_fields(row), "created_at": created_at}), {}, 0.0)


def _fields(row: Any) -> dict[str, Any]:
    return {name: getattr(row, name) for name in row.__slots__}


def summary(first: int, second: int) -> dict[str, Any]:
    shares = [
        {"version": v, "name": f"v{v}", "all": {"passed": 10 + v, "failed": 5, "share": 0.6}} for v in (0, second)
    ]
    pair = {"first": first, "second": second, "prompts": 20, "better": 4, "worse": 1, "p": 0.375, "slices": []}
    return {"file": "checks.toml", "versions": shares, "comparisons": [pair]}


async def test_versions_stand_beside_the_base_on_the_same_prompts(store: Store) -> None:
    for n in range(6):
        await answered(store, f"q{n}", 0, liked=n < 2)
        await answered(store, f"q{n}", 1, liked=n != 0)
    await answered(store, "base alone", 0, liked=True)
    await answered(store, "v1 alone", 1, liked=True)
    await answered(store, "q0", 2, liked=True, model="other")  # of another base
    found = await benefit(store, await version_shares(store), None)
    (row,) = found["same_prompts"]
    assert row == SamePrompts(version=1, prompts=6, base_liked=2, liked=5, better=4, worse=1)
    assert round(row.p, 3) == 0.375


async def test_how_many_ratings_it_took(store: Store) -> None:
    for n in range(10):
        await answered(store, f"b{n}", 0, liked=n < 3)
    await published(store, 1, time.time())
    for n in range(10):
        await answered(store, f"one{n}", 1, liked=n < 8)
    await published(store, 2, time.time())
    for n in range(10):
        await answered(store, f"two{n}", 2, liked=n < 8)
    found = await benefit(store, await version_shares(store), None)
    assert found["adaptation"] == (1, 0.8, 1, 10)  # v2 is no better: the first of the best


async def test_too_few_ratings_say_nothing(store: Store) -> None:
    await answered(store, "q", 0, liked=True)
    found = await benefit(store, await version_shares(store), None)
    assert found == {"same_prompts": [], "adaptation": None, "own_checks": None}


def test_the_newest_evaluation_of_base_and_live_counts() -> None:
    newest = base_against([summary(1, 3), summary(0, 3), summary(0, 3) | {"file": "old.toml"}], 3)
    assert newest is not None and (newest["file"], newest["base"]["passed"], newest["better"]) == ("checks.toml", 10, 4)
    assert base_against([summary(0, 3)], 2) is None and base_against([summary(0, 3)], 0) is None


async def test_the_page_and_the_report_show_it(proxy: Proxy, visit: Visit) -> None:
    assert "Compared with doing nothing" not in await visit.get("/progress")
    for n in range(10):
        await answered(proxy.store, f"q{n}", 0, liked=n < 3)
    await published(proxy.store, 1, time.time())
    for n in range(10):
        await answered(proxy.store, f"q{n}", 1, liked=n < 9)
    await proxy.store.versions.point(1, "x", "me")
    asked = summary(0, 1)
    asked["versions"].append({"version": -1, "name": "base+examples", "all": {"passed": 9, "failed": 6, "share": 0.6}})
    asked["comparisons"].append({**asked["comparisons"][0], "first": -1, "better": 3, "worse": 2, "p": 1.0})
    results.keep(proxy.home, asked)
    page = await visit.get("/progress")
    assert "v1 was the first with 95 % of the best share, after 10 ratings" in page and "6, 0" in page
    assert "the base passes 10 and v1 11 of 20 prompts: better on 4, worse on 1" in page
    assert "in its prompt the base passes 9; v1 is better on 3 and worse on 2 of them (p = 1)" in page
    async with look(proxy.home) as store:
        assert "On your own checks (checks.toml)" in await report.html(store, has_text=True, home=proxy.home)
        shared = await report.html(store, has_text=False, home=proxy.home)
    assert "Compared with doing nothing" in shared and "checks.toml" not in shared


async def test_nothing_of_it_hangs_on_a_folder_that_is_not_there(store: Store, tmp_path: Path) -> None:
    found = await benefit(store, [], tmp_path / "none")
    assert found["own_checks"] is None
