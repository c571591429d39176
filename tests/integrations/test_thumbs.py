"""The browser snippet in real Chromium, behind a server as its README tells to have one."""

from __future__ import annotations

import asyncio
import re
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from aiohttp import web

from scripts.harness.in_process import Proxy

SNIPPET = Path(__file__).parents[2] / "integrations/browser/thumbs.js"
CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
PAGE = """<!doctype html><p id="answer">Forty-two.</p><script type="module">
import { thumbs } from "/thumbs.js";
thumbs(document.querySelector("#answer"), "%s", { rater: "ann" });
const buttons = document.querySelectorAll("#answer button");
const done = async () => {
  do { await new Promise((again) => setTimeout(again, 20)); } while (buttons[0].disabled);
  return [...buttons].map((one) => one.ariaPressed).join() + " " + (buttons[0].parentNode.title || "-");
};
const said = [];
for (const which of [%s]) { buttons[which].click(); said.push(await done()); }
document.body.dataset.said = said.join(" | ");
await fetch("/over", { method: "POST", body: document.body.dataset.said });
</script>"""


class Site:
    """A person's own server: its page, and `/v1/feedback` passed on under its own name."""

    def __init__(self, proxy: Proxy, folder: Path) -> None:
        self._proxy = proxy
        self._folder = folder
        self.page = ""

    async def start(self) -> None:
        app = web.Application()
        app.add_routes([
            web.get("/", self._page), web.get("/thumbs.js", self._snippet), web.post("/over", self._over),
            web.route("*", "/v1/feedback{rest:.*}", self._pass_on),
        ])  # fmt: skip
        self._runner = web.AppRunner(app)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}/"

    async def stop(self) -> None:
        await self._runner.cleanup()

    async def taps(self, completion: str, *which: int) -> list[str]:
        """Which thumb is pressed after each tap, and what is said on the box."""
        self.page = PAGE % (completion, ",".join(map(str, which)))
        self._said = asyncio.get_running_loop().create_future()
        flags = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run")
        flags += ("--disable-background-networking", "--disable-component-update", "--disable-sync")
        browser = await asyncio.create_subprocess_exec(
            str(CHROMIUM), *flags, f"--user-data-dir={self._folder}", "--remote-debugging-port=0", self.url,
            stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL,
        )  # fmt: skip
        try:
            async with asyncio.timeout(60):
                return str(await self._said).split(" | ")
        finally:
            browser.terminate()
            await browser.wait()

    async def _page(self, request: web.Request) -> web.Response:
        return web.Response(text=self.page, content_type="text/html")

    async def _snippet(self, request: web.Request) -> web.Response:
        return web.Response(text=SNIPPET.read_text(), content_type="text/javascript")

    async def _over(self, request: web.Request) -> web.Response:
        self._said.set_result(await request.text())
        return web.Response()

    async def _pass_on(self, request: web.Request) -> web.Response:
        kept = {key: request.headers[key] for key in ("host", "origin", "content-type") if key in request.headers}
        async with self._proxy.http.request(
            request.method, request.path_qs, data=await request.read(), headers=kept
        ) as response:
            return web.Response(body=await response.read(), status=response.status, content_type="application/json")


@pytest.fixture
async def site(proxy: Proxy, tmp_path: Path) -> AsyncIterator[Site]:
    if CHROMIUM is None:
        pytest.skip("there is no Chromium here; on Debian: `make test-browser` installs it")
    site = Site(proxy, tmp_path / "browser")
    await site.start()
    yield site
    await site.stop()


@pytest.mark.browser
async def test_taps_rate_and_take_back(proxy: Proxy, site: Site) -> None:
    id = (await (await proxy.chat("hello")).json())["id"]
    assert await site.taps(id, 0, 1, 1, 0) == ["true,false -", "false,true -", "false,false -", "true,false -"]
    ratings = await proxy.store.ratings.history(id)
    assert [(one.rater, one.value, one.source) for one in ratings if one.live] == [("ann", 1.0, "page")]
    assert len(ratings) == 3


@pytest.mark.browser
async def test_what_is_refused_is_said(site: Site) -> None:
    (said,) = await site.taps("rl-unknown", 0)
    assert said.startswith("false,false Not rated: There is no completion rl-unknown")


def test_it_is_short() -> None:
    code = [line for line in SNIPPET.read_text().splitlines() if not line.startswith("//")]
    assert len(code) <= 30 and not re.search(r"innerHTML|eval", "\n".join(code))
