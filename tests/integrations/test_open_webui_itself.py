"""Open WebUI itself in Chromium, with our function in it: from a click on its own thumb to a stored rating and back.

Real: the `open-webui` package with its server and page, the browser, `rlproxy serve`. Fake: the model.
`scripts/test_openwebui` installs the package and runs these tests.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from playwright.async_api import Page, async_playwright, expect

from scripts.fakes.backend import MODEL, FakeBackend
from scripts.fakes.platforms.open_webui import FUNCTION
from scripts.harness.command import rlproxy
from scripts.harness.serving import Serving

pytestmark = [pytest.mark.openwebui, pytest.mark.timeout(560)]

COMMAND = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "rlproxy/open-webui/bin/open-webui"
CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
ANN = {"name": "Ann", "email": "ann@example.org", "password": "not-a-secret"}
START_S, SOON_S = 240.0, 20.0
# No model hub, no embeddings, nothing to look up.
OFFLINE = {
    "OFFLINE_MODE": "true", "HF_HUB_OFFLINE": "1", "RAG_EMBEDDING_ENGINE": "openai", "ENABLE_OLLAMA_API": "false",
    "ENABLE_VERSION_UPDATE_CHECK": "false", "ENABLE_FORWARD_USER_INFO_HEADERS": "true", "WEBUI_SECRET_KEY": "of-a-test",
    "SCARF_NO_ANALYTICS": "true", "DO_NOT_TRACK": "true", "ANONYMIZED_TELEMETRY": "false",
}  # fmt: skip


class WebUI:
    def __init__(self, folder: Path, serving: Serving) -> None:
        self.serving = serving
        self.data = folder / "data"
        self._log = folder / "open-webui.log"
        with socket.socket() as one:
            one.bind(("127.0.0.1", 0))
            self.port = one.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"

    @property
    def log(self) -> str:
        return self._log.read_text()[-8000:]

    async def start(self) -> None:
        self.data.mkdir()
        env = {**os.environ, **OFFLINE, "DATA_DIR": str(self.data), "OPENAI_API_KEYS": "none"}
        env["OPENAI_API_BASE_URLS"] = f"{self.serving.url}/v1"
        with self._log.open("wb") as log:
            self._process = await asyncio.create_subprocess_exec(
                str(COMMAND), "serve", "--host", "127.0.0.1", "--port", str(self.port),
                cwd=self.data, env=env, stdout=log, stderr=log,
            )  # fmt: skip
        self.http = aiohttp.ClientSession(base_url=self.url)
        async with asyncio.timeout(START_S):
            while not await self._healthy():
                assert self._process.returncode is None, self.log
                await asyncio.sleep(0.5)
        self.token = (await self.ask("POST", "/api/v1/auths/signup", ANN))["token"]
        self.http.headers["authorization"] = f"Bearer {self.token}"
        await self.ask("POST", "/api/v1/users/user/settings/update", {"ui": {"version": "0.12.4"}})  # no news first
        content = {"id": "rlproxy_thumbs", "name": "rlproxy thumbs", "content": FUNCTION.read_text()}
        made = await self.ask("POST", "/api/v1/functions/create", {**content, "meta": {"description": "thumbs"}})
        assert made["type"] == "event"
        await self.points_at(self.serving.url)
        assert (await self.ask("POST", "/api/v1/functions/id/rlproxy_thumbs/toggle"))["is_active"]

    async def stop(self) -> None:
        await self.http.close()
        if self._process.returncode is None:
            self._process.terminate()
        await self._process.wait()

    async def points_at(self, url: str) -> None:
        """The function's valve."""
        await self.ask("POST", "/api/v1/functions/id/rlproxy_thumbs/valves/update", {"url": url})

    async def ask(self, method: str, path: str, body: Any = None) -> Any:
        async with self.http.request(method, path, json=body) as response:
            assert response.status == 200, f"{path}: {response.status} {await response.text()}"
            return await response.json()

    async def feedback(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = await self.ask("GET", "/api/v1/evaluations/feedbacks/all/export")
        return found

    async def _healthy(self) -> bool:
        try:
            async with self.http.get("/health") as response:
                return response.status == 200
        except aiohttp.ClientError:
            return False

    # rlproxy

    async def main_turns(self) -> list[dict[str, Any]]:
        """Oldest first."""
        async with self.serving.http.get("/rl/completions", params={"limit": "200", "turn": "main"}) as response:
            return list(reversed((await response.json())["data"]))

    async def ratings(self) -> list[list[dict[str, Any]]]:
        """Those that count, of each main turn."""
        async with self.serving.http.get("/rl/export", params={"turn": "main"}) as response:
            rows = [json.loads(line) for line in (await response.text()).splitlines()]
        return [row["ratings"] for row in sorted(rows, key=lambda row: float(row["created_at"]))]

    async def come_to(self, holds: Callable[[list[list[dict[str, Any]]]], bool]) -> None:
        """Returns when this holds of the ratings of each main turn."""
        ratings: list[list[dict[str, Any]]] = []
        try:
            async with asyncio.timeout(SOON_S):
                while not holds(ratings := await self.ratings()):
                    await asyncio.sleep(0.1)
        except TimeoutError:
            raise AssertionError(f"{ratings}\n{self.log}") from None


class Person:
    """Ann, at Open WebUI's page."""

    def __init__(self, page: Page, ui: WebUI) -> None:
        self.page = page
        self.ui = ui

    async def asks(self, text: str, answer: str) -> None:
        await self.page.locator("#chat-input").click()
        await self.page.keyboard.type(text)
        await self.page.keyboard.press("Enter")
        await expect(self.answers.last).to_contain_text(answer, timeout=60_000)
        await expect(self.thumbs("Good")).to_have_count(await self.answers.count(), timeout=60_000)

    @property
    def answers(self) -> Any:
        return self.page.locator("#response-content-container")

    def thumbs(self, which: str) -> Any:
        return self.page.get_by_label(f"{which} Response")

    async def presses(self, which: str, number: int) -> None:
        thumb = self.thumbs(which).nth(number)
        await expect(thumb).to_be_enabled(timeout=30_000)
        await thumb.click(force=True)  # those of older answers show themselves under the mouse

    async def hears(self, text: str) -> None:
        await expect(self.page.locator("[data-sonner-toast]").filter(has_text=text).first).to_be_visible(timeout=20_000)

    async def edits(self, number: int, text: str) -> None:
        await (
            self.page.locator(".edit-response-message-button, [aria-label='Edit']:not(.edit-user-message-button)")
            .nth(number)
            .click(force=True)
        )
        await self.page.locator("[id^='message-edit-'], [id^='edit-output'], .chat-assistant textarea").last.fill(text)
        await self.page.locator("#confirm-edit-message-button").click()


@pytest.fixture
async def ui(backend: FakeBackend, tmp_path: Path) -> AsyncIterator[WebUI]:
    if not COMMAND.exists() or CHROMIUM is None:
        pytest.skip("Open WebUI or Chromium is not installed; `make test-openwebui` does that and runs this test")
    backend.wants = ("no such tool", {})
    serving = Serving(
        tmp_path / "home",
        tmp_path / "no-weights",
        "--backend",
        "openai",
        "--backend-url",
        backend.url,
        "--model",
        MODEL,
    )
    await serving.start()
    ui = WebUI(tmp_path, serving)
    try:
        await ui.start()
        yield ui
    finally:
        await ui.stop()
        await serving.stop()


@asynccontextmanager
async def at(ui: WebUI) -> AsyncIterator[Person]:
    async with async_playwright() as playwright:
        flags = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
        browser = await playwright.chromium.launch(executable_path=CHROMIUM, args=flags)
        page = await browser.new_page(viewport={"width": 1300, "height": 1400})
        await page.add_init_script(f"localStorage.token = {json.dumps(ui.token)}")
        await page.goto(f"{ui.url}/?models={MODEL}")
        await page.wait_for_selector("#chat-input", timeout=60_000)
        try:
            yield Person(page, ui)
        except BaseException:
            await page.screenshot(path=ui.data.parent / "broken.png")
            raise
        finally:
            await browser.close()


def is_only(value: float, **words: str) -> Callable[[list[list[dict[str, Any]]]], bool]:
    """Of the first answer alone there is one rating that counts, and it is Ann's."""
    wanted = {"rater": ANN["email"], "value": value, "comment": None, "correction": None, **words}

    def holds(ratings: list[list[dict[str, Any]]]) -> bool:
        first, *others = ratings
        return [{key: one[key] for key in wanted} for one in first] == [wanted] and not any(others)

    return holds


async def test_from_a_click_to_a_rating_and_back(ui: WebUI, backend: FakeBackend, tmp_path: Path) -> None:
    async with at(ui) as ann:
        await ann.asks("Name a colour please", "You said: Name a colour please")
        await ann.asks("And another one", "You said: And another one")
        assert len(await ui.main_turns()) == 2

        await ann.presses("Good", 0)  # of the older answer
        await ann.hears("Rated good in rlproxy: “You said: Name a colour please”")
        await ui.come_to(is_only(1.0))

        await ann.presses("Bad", 0)
        await ui.come_to(is_only(-1.0))
        form = ann.page.locator("[id^='message-feedback-']")
        await form.get_by_label("Rate 3 out of 10").click()
        await form.get_by_text("Too verbose").click()
        await form.locator("textarea").fill("one word would do")
        await form.get_by_role("button", name="Save").click()
        await ann.hears("Rated 3 of 10 in rlproxy")
        await ui.come_to(is_only(-0.5556, comment="Too verbose: one word would do"))

        await ann.edits(0, "Blue.")
        await ann.hears("with your comment and correction")
        await ui.come_to(is_only(-0.5556, comment="Too verbose: one word would do", correction="Blue."))

        (feedback,) = await ui.feedback()
        await ui.ask("DELETE", f"/api/v1/evaluations/feedback/{feedback['id']}")
        await ui.come_to(lambda ratings: ratings == [[], []])

        backend.wants = None  # Open WebUI's own tools: one message of two answers
        await ann.asks("What time is it?", "It is ")
        before = await ui.main_turns()
        await ann.presses("Good", 2)
        await ui.come_to(lambda ratings: len(ratings[-1]) == 1 and not any(ratings[:-1]))
        assert before[-1]["text"].startswith("It is ") and len(before) == 4

        await ui.points_at("http://127.0.0.1:9")
        await ann.presses("Bad", 1)
        await ann.hears("Not rated in rlproxy: Cannot connect to host 127.0.0.1:9")
    await its_own_files_bring_what_was_missed(ui, tmp_path)


async def its_own_files_bring_what_was_missed(ui: WebUI, folder: Path) -> None:
    """Its database, and what its admin panel exports."""
    code, out, _ = await rlproxy(ui.serving.home, "import", "open-webui", str(ui.data / "webui.db"))
    assert (code, out) == (0, "1 rating taken, 1 were here before, 0 could not be placed\n")
    ratings = await ui.ratings()
    assert [len(one) for one in ratings] == [0, 1, 0, 1]
    assert (ratings[1][0]["rater"], ratings[1][0]["value"]) == (ANN["email"], -1.0)
    (file := folder / "export.json").write_text(json.dumps(await ui.feedback()))
    code, out, _ = await rlproxy(ui.serving.home, "import", "open-webui", str(file))
    assert (code, out) == (0, "0 ratings taken, 2 were here before, 0 could not be placed\n")


async def test_our_buttons_are_gone(ui: WebUI) -> None:
    """Beside its own thumbs there is no second pair."""
    async with at(ui) as ann:
        await ann.asks("Name a colour please", "You said: Name a colour please")
        await expect(ann.thumbs("Good")).to_have_count(1)
        await expect(ann.page.get_by_label(re.compile("rlproxy"))).to_have_count(0)
