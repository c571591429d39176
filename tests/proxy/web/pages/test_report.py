"""The report in Chromium, opened from disk: nothing is asked for, it fits a phone, and axe finds nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Browser

from proxy.cli.report import gather, page, sources
from scripts.harness.seeding import history, newest
from store.store import Store
from tests.proxy.web.pages.test_browser import AXE, PHONE

pytestmark = pytest.mark.browser


@pytest.mark.parametrize("options", [{}, {"color_scheme": "dark"}, PHONE])
async def test_from_disk(browser: Browser, tmp_path: Path, options: dict[str, Any]) -> None:
    store = await Store.open(tmp_path / "home")
    await history(store, tmp_path / "home", days=30)
    await newest(store)
    await store.close()
    found = gather.report(await sources.read(tmp_path / "home", None), text=True, now=1e9, offset=0)
    file = tmp_path / "report.html"
    page.write(file, page.html(found))
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
