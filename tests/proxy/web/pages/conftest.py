"""A proxy whose page is asked as a browser asks it: a cookie, and the token out of the page."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

import pytest

from scripts.harness.in_process import Proxy
from tests.harness.visits import Visit

if TYPE_CHECKING:
    from playwright.async_api import Browser


@pytest.fixture
async def visit(proxy: Proxy) -> AsyncIterator[Visit]:
    visit = Visit(proxy.url)
    yield visit
    await visit.http.close()


@pytest.fixture
async def browser() -> AsyncIterator[Browser]:
    from playwright.async_api import async_playwright  # only `make test-browser` installs it

    chromium = shutil.which("chromium")
    assert chromium, "scripts/test_browser installs it"
    async with async_playwright() as playwright:
        started = await playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        yield started
        await started.close()
