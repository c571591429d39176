"""Screenshots of the page, from a home with a made-up history: docs/images/page-*.png.

`python -m scripts.docs.screenshots [--only NAME]` needs Chromium (Debian's; `scripts/test_browser` installs it). The
server behind the proxy is the tests' fake one: what it says is not the point here.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import shutil
import sys
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from aiohttp import web
from playwright.async_api import Browser, Page, async_playwright

from config.settings import load
from proxy.app import make_app
from proxy.backends.vllm import VLLM
from scripts.fakes import backend as fake
from scripts.fakes.launcher import FakeLauncher
from scripts.harness.seeding import history, newest
from store.store import Store

ROOT = Path(__file__).resolve().parents[2]
IMAGES = ROOT / "docs" / "images"
FLAGS = ("--no-sandbox", "--force-color-profile=srgb", "--font-render-hinting=none")
PHONE = {"width": 390, "height": 844}
DESK = {"width": 1100, "height": 860}


class Talker(fake.FakeBackend):
    """Answers as the made-up versions would."""

    def _words(self, body: dict[str, Any], index: int) -> list[str]:
        text = "The Loire, the Rhône and the Seine."
        if body["model"] != "smollm2@v2":
            text = "Certainly! I would be happy to help. There are many rivers in France. Three of them are: " + text
        return [word + " " for word in text.split()]


@contextlib.asynccontextmanager
async def serving(home: Path, *, seeded: bool, retention_days: int = 60) -> AsyncIterator[str]:
    fake.MODEL = "smollm2"
    backend, launcher = Talker(), FakeLauncher()
    launcher.hold = True
    await backend.start()
    flags: dict[str, Any] = {
        "home": home, "backend.kind": "vllm", "backend.url": backend.url, "backend.model": "smollm2",
        "train.weights": "/nowhere", "train.start_at": 250, "train.min_free_memory_gb": 0,
        "store.retention_days": retention_days,
    }  # fmt: skip
    settings = load(flags, environ={}).settings
    store = await Store.open(home)
    if seeded:
        await history(store, home)
        await newest(store)
    launcher.progress = [
        {"event": "phase", "phase": "train"},
        *(
            {"event": "step", "step": n, "steps": 12, "loss": 0.06 + 0.4 / n, "acceptance": 0.97, "eta_s": 42.0}
            for n in range(2, 8)
        ),
    ]
    runner = web.AppRunner(
        make_app(settings, store, VLLM(settings.backend), launcher),  # it starts no server
        handler_cancellation=True,
        shutdown_timeout=1,
    )
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()
        await store.close()
        await backend.stop()


async def shoot(page: Page, url: str, name: str, *, whole: bool = False) -> None:
    await page.goto(url)
    if await page.locator("#plots").count():
        await page.wait_for_selector("#training progress")
    await page.wait_for_timeout(200)
    await page.screenshot(path=IMAGES / f"page-{name}.png", full_page=whole)
    print(f"docs/images/page-{name}.png")


async def look(browser: Browser, **options: Any) -> Page:
    return await (await browser.new_context(**options)).new_page()


async def main(only: str | None) -> None:
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        sys.exit("Chromium is not here; scripts/test_browser installs it.")
    IMAGES.mkdir(exist_ok=True)

    def is_selected(name: str) -> bool:
        return only in (None, name)

    with tempfile.TemporaryDirectory() as folder:
        async with async_playwright() as playwright:
            browser = await playwright.chromium.launch(executable_path=chromium, args=FLAGS)
            if is_selected("first"):
                async with serving(Path(folder) / "empty", seeded=False) as url:
                    await shoot(await look(browser, viewport={"width": 1100, "height": 560}), url, "first")
            async with serving(Path(folder) / "home", seeded=True) as url:
                desk = await look(browser, viewport=DESK)
                dark = await look(browser, viewport=DESK, color_scheme="dark")
                phone = await look(browser, viewport=PHONE, device_scale_factor=2, has_touch=True, is_mobile=True)
                shots = [
                    (desk, "/", "inbox", False),
                    (dark, "/", "inbox-dark", False),
                    (phone, "/", "phone", False),
                    (desk, "/versions", "versions", True),
                    (desk, "/versions/2", "why", False),
                    (desk, "/completions/rl-today-3", "completion", True),
                    (desk, "/compare", "compare-ask", False),
                    (desk, "/data", "data", False),
                ]
                for page, path, name, whole in shots:
                    if is_selected(name):
                        await shoot(page, url + path, name, whole=whole)
                if is_selected("compare"):
                    await desk.goto(f"{url}/compare")
                    await desk.fill("#prompt", "Name three rivers of France.")
                    await desk.click("text=Ask both")
                    await desk.wait_for_selector(".pair")
                    await desk.screenshot(path=IMAGES / "page-compare.png")
                if is_selected("progress"):
                    await desk.goto(f"{url}/progress")
                    await desk.click("text=Train now")
                    await desk.wait_for_selector("text=7 of 12")
                    await shoot(desk, f"{url}/progress", "progress", whole=True)
            await browser.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", help="one of them")
    asyncio.run(main(parser.parse_args().only))
