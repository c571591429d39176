"""The pages as one file: its plots, its model, and in Chromium, opened from disk, where nothing is asked for."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Browser

from proxy.web.pages import report
from scripts.harness.records import put, rating
from scripts.harness.seeding import date_ratings, history, newest
from store.copies.read_only import look
from store.store import Store
from tests.proxy.web.pages.test_browser import AXE, PHONE


async def html_of(home: Path, *, has_text: bool = True) -> str:
    async with look(home) as store:
        return await report.html(store, has_text=has_text)


async def test_weeks_of_history(tmp_path: Path) -> None:
    store = await Store.open(tmp_path)
    await history(store, tmp_path)
    await store.close()
    text = await html_of(tmp_path)
    assert "Ratings, by day" in text and "Share of good ratings over time" in text
    assert [f"<h2>{name}" in text for name in ("v2", "v1", "base")] == [True] * 3
    assert "8 steps on 21 samples" in text


@pytest.mark.parametrize("model", ["/home/anna/models/m.gguf", "C:\\Users\\anna\\m.gguf", "anna/m.gguf", "m.gguf"])
async def test_the_path_of_a_model_is_not_for_others(tmp_path: Path, model: str) -> None:
    store = await Store.open(tmp_path)
    await put(store, "c1", model=model)
    await store.close()
    assert f"What {model} learned" in await html_of(tmp_path)
    assert "What m.gguf learned" in await html_of(tmp_path, has_text=False)


@pytest.mark.parametrize(("days", "unit"), [(1, "hour"), (60, "day"), (300, "week")])
async def test_ratings_by_hour_day_or_week(tmp_path: Path, days: int, unit: str) -> None:
    store = await Store.open(tmp_path)
    for n in range(300):
        await put(store, f"c{n}", created_at=time.time() - n * days * 86400 / 300)
        await store.ratings.rate(rating(f"c{n}"))
    await date_ratings(store)
    await store.close()
    text = await html_of(tmp_path)
    assert f"Ratings, by {unit}" in text and text.count("bar-good") >= 20


@pytest.mark.browser
@pytest.mark.parametrize("options", [{}, {"color_scheme": "dark"}, PHONE])
async def test_from_disk(browser: Browser, tmp_path: Path, options: dict[str, Any]) -> None:
    store = await Store.open(tmp_path / "home")
    await history(store, tmp_path / "home", days=30)
    await newest(store)
    await store.close()
    file = tmp_path / "report.html"
    report.write(file, await html_of(tmp_path / "home"))
    context = await browser.new_context(**options)
    shown = await context.new_page()
    asked: list[str] = []
    complaints: list[str] = []
    shown.on("request", lambda request: asked.append(request.url))
    shown.on("console", lambda said: complaints.append(said.text))
    await shown.goto(file.as_uri())
    assert asked == [file.as_uri()] and complaints == []
    for summary in await shown.locator("summary").all():
        await summary.click()
    assert await shown.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert await shown.evaluate(
        "[...document.querySelectorAll('svg')].every(s => s.getBoundingClientRect().width > 100)"
    )
    result = await shown.evaluate(AXE.read_text() + "; axe.run()")
    assert [(v["id"], v["nodes"][0]["html"]) for v in result["violations"]] == []
