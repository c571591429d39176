"""The page in Chromium: every act by keyboard, two browsers at once, accessible, nothing that its policy forbids."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Browser, Page, Route, expect

from scripts.harness.in_process import Proxy
from scripts.harness.seeding import history, newest
from tests.proxy.web.pages.test_inbox import asked, talk

pytestmark = pytest.mark.browser
AXE = Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")).expanduser() / "rlproxy/axe/node_modules/axe-core/axe.min.js"
PHONE: dict[str, Any] = {"viewport": {"width": 375, "height": 720}, "has_touch": True, "is_mobile": True}


async def live(page: Page) -> None:
    await page.wait_for_selector("html[data-live=yes]")


class Watched:
    """Pages whose console is read: what a policy forbids, and any error, fails the test."""

    def __init__(self, browser: Browser, url: str) -> None:
        self._browser = browser
        self._url = url
        self.complaints: list[str] = []

    async def open(self, path: str = "/", **more: Any) -> Page:
        context = await self._browser.new_context(base_url=self._url, **more)
        page = await context.new_page()
        page.on("console", lambda said: self.complaints.append(said.text) if said.type == "error" else None)
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        await page.goto(path)
        await live(page)
        return page


class Held:
    """A request of the page that waits until it may go."""

    def __init__(self) -> None:
        self.came, self.may_go = asyncio.Event(), asyncio.Event()

    async def hold(self, route: Route) -> None:
        self.came.set()
        await self.may_go.wait()
        await route.continue_()


@pytest.fixture
async def watched(browser: Browser, proxy: Proxy) -> AsyncIterator[Watched]:
    found = Watched(browser, proxy.url)
    yield found
    assert found.complaints == []


async def one_rating(proxy: Proxy, id: str) -> Any:
    found = await proxy.store.inbox.get(id)
    assert found is not None
    return found.ratings[0] if found.ratings else None


async def test_the_first_request_appears_by_itself(proxy: Proxy, watched: Watched) -> None:
    page = await watched.open()
    await expect(page.locator("#base-url")).to_have_text(f"{proxy.url}/v1")
    await asked(proxy, "hello")
    await expect(page.locator("article.turn .asked")).to_have_text("hello")


async def test_the_first_key_shows_which_answer_keys_are_for(proxy: Proxy, watched: Watched) -> None:
    """It did nothing, and nothing said why."""
    await asked(proxy, "first", "second")
    page = await watched.open()
    await page.keyboard.press("g")
    focused = page.locator("article.turn:focus")
    await expect(focused.locator(".asked")).to_have_text("second")
    await expect(page.locator(".rating")).to_have_count(0)
    await page.keyboard.press("g")
    await expect(focused.locator(".rating")).to_have_text("good")


async def test_every_act_of_the_inbox_by_keyboard(proxy: Proxy, watched: Watched) -> None:
    first, second = await asked(proxy, "first", "second")
    page = await watched.open()
    await page.keyboard.press("j")
    focused = page.locator("article.turn:focus")
    await expect(focused.locator(".asked")).to_have_text("second")
    await page.keyboard.press("j")
    await expect(focused.locator(".asked")).to_have_text("first")
    await page.keyboard.press("g")
    await expect(focused.locator(".rating")).to_have_text("good")
    assert (await one_rating(proxy, first)).value == 1.0
    for key, said in (("b", "bad"), ("1", "1 of 5"), ("5", "5 of 5"), ("4", "4 of 5")):
        await page.keyboard.press(key)
        await expect(focused.locator(".rating")).to_have_text(said)
    await page.keyboard.press("u")
    await expect(focused.locator(".rating")).to_have_count(0)
    assert await one_rating(proxy, first) is None

    await page.keyboard.press("k")
    await expect(focused.locator(".asked")).to_have_text("second")
    await page.keyboard.press("c")
    await page.keyboard.type("too long: b g 1")  # letters are letters while one types
    await page.keyboard.press("Control+Enter")
    await expect(focused.locator(".rating")).to_contain_text("too long: b g 1")
    assert (await one_rating(proxy, second)).comment == "too long: b g 1"
    await page.keyboard.press("e")
    await expect(page.locator("textarea")).to_have_value("You said: second ")
    await page.keyboard.press("Control+a")
    await page.keyboard.type("Second.")
    await page.keyboard.press("Control+Enter")
    await expect(focused.locator(".correction")).to_contain_text("Second.")
    rating = await one_rating(proxy, second)
    assert (rating.value, rating.correction) == (-1.0, "Second.")
    await page.keyboard.press("c")
    await expect(page.locator("textarea")).to_be_focused()
    await page.keyboard.press("Escape")
    await expect(page.locator("textarea")).to_have_count(0)
    await expect(focused.locator(".asked")).to_have_text("second")
    await page.keyboard.press("o")
    await expect(page.locator("h1")).to_have_text("One answer")
    assert page.url.endswith(second)
    await live(page)
    await page.keyboard.press("j")
    await page.keyboard.press("g")
    await expect(page.locator(".rating")).to_contain_text("good")


@pytest.mark.parametrize("form_first", [True, False])
async def test_a_rating_from_elsewhere_takes_no_form_away(proxy: Proxy, watched: Watched, form_first: bool) -> None:
    """A person presses a key while the row that another's rating changed is on its way."""
    (answer,) = await asked(proxy, "first")
    page = await watched.open()
    await page.keyboard.press("j")
    row, form = Held(), Held()
    await page.route(f"**/page/completions/{answer}", row.hold)
    await page.route(f"**/page/completions/{answer}/correct", form.hold)
    await proxy.rate(completion_id=answer, rating="good", rater="ann")
    await asyncio.wait_for(row.came.wait(), 10)
    await page.keyboard.press("e")
    await asyncio.wait_for(form.came.wait(), 10)
    for held, path in ((form, "/correct"), (row, "")) if form_first else ((row, ""), (form, "/correct")):
        async with page.expect_response(f"**/page/completions/{answer}{path}"):
            held.may_go.set()
    await expect(page.locator("textarea")).to_be_focused()
    await page.keyboard.type("typed ")
    await expect(page.locator("textarea")).to_have_value("You said: first typed ")
    await page.keyboard.press("Escape")
    await expect(page.locator("article.turn .rating")).to_contain_text("good by ann")


async def test_a_comment_sent_before_its_form_is_there(proxy: Proxy, watched: Watched) -> None:
    (answer,) = await asked(proxy, "first")
    page = await watched.open()
    await page.keyboard.press("j")
    form = Held()
    await page.route(f"**/page/completions/{answer}/comment", form.hold)
    await page.keyboard.press("c")
    await asyncio.wait_for(form.came.wait(), 10)
    await page.keyboard.type("too long")
    await page.keyboard.press("Control+Enter")
    form.may_go.set()
    await expect(page.locator("article.turn .rating")).to_contain_text("too long")
    assert (await one_rating(proxy, answer)).comment == "too long"


async def test_what_is_copied_from_an_answer_is_a_signal(proxy: Proxy, watched: Watched) -> None:
    await asked(proxy, "tell me of bees in spring")
    page = await watched.open()
    said = page.locator("article.turn .said").first
    await expect(said).to_contain_text("bees in spring")
    await page.locator("article.turn .asked").first.select_text()  # the question is not the answer
    await page.keyboard.press("Control+c")
    async with page.expect_response(lambda response: response.url.endswith("/copied")):
        await said.select_text()
        await page.keyboard.press("Control+c")
    await page.keyboard.press("Control+c")  # once for each answer
    (found,) = await proxy.store.signals.everything()
    assert (found.kind, found.label, found.value, found.judge) == ("copied", "solved", 1.0, "rules")


async def test_search_and_filters_by_keyboard(proxy: Proxy, watched: Watched) -> None:
    (egg, _) = await asked(proxy, "boil an egg", "the sea")
    await proxy.rate(completion_id=egg, rating="good")
    page = await watched.open()
    await page.keyboard.press("/")
    await page.keyboard.type("egg")
    await page.keyboard.press("Enter")
    await expect(page.locator(".asked")).to_have_text(["boil an egg"])
    assert page.url.endswith("/?q=egg")
    await page.goto("/")
    await page.get_by_label("Unrated").focus()
    await page.keyboard.press("Space")
    await expect(page.locator(".asked")).to_have_text(["the sea"])


async def test_two_browsers_see_each_others_ratings_within_a_second(proxy: Proxy, watched: Watched) -> None:
    await asked(proxy, "one", "two")
    here, there = await watched.open(), await watched.open()
    row, seen = here.locator("article.turn").first, there.locator("article.turn").first
    for key, said in (("g", "good"), ("b", "bad"), ("3", "3 of 5")):
        await row.focus()
        await here.keyboard.press(key)
        await expect(row.locator(".rating")).to_have_text(said)
        began = time.monotonic()
        await expect(seen.locator(".rating")).to_have_text(said, timeout=1000)
        assert time.monotonic() - began < 1
    await there.locator("article.turn").first.focus()
    await there.keyboard.press("u")
    await expect(row.locator(".rating")).to_have_count(0, timeout=1000)
    await proxy.rate(completion_id="last", rating="good", rater="ann", comment="from elsewhere")
    for page in (here, there):
        await expect(page.locator(".rating").first).to_contain_text("good by ann: from elsewhere", timeout=1000)


async def test_new_answers_arrive_and_what_one_types_stays(proxy: Proxy, watched: Watched) -> None:
    await asked(proxy, "old")
    page = await watched.open()
    await page.keyboard.press("j")
    await page.keyboard.press("c")
    await page.keyboard.type("half a sent")
    await asked(proxy, "new")
    await proxy.rate(completion_id="last", rating="bad")
    await expect(page.locator(".asked")).to_have_text(["new", "old"])
    await expect(page.locator("textarea")).to_have_value("half a sent")
    await expect(page.locator("textarea")).to_be_focused()
    unrated = await watched.open("/?unrated=1")
    await asked(proxy, "newer")
    await expect(unrated.locator(".asked")).to_have_text(["newer", "old"])


async def test_a_conversation_unfolds_by_keyboard(proxy: Proxy, watched: Watched) -> None:
    ids = await talk(proxy, "a1", "a2", "a3")
    await asked(proxy, "alone")
    page = await watched.open()
    focused, asks = page.locator("article.turn:focus .asked"), page.locator(".asked:visible")
    await expect(asks).to_have_text(["alone", "a3"])
    await page.keyboard.press("j")
    await page.keyboard.press("j")
    await expect(focused).to_have_text("a3")
    await page.keyboard.press("t")
    await expect(asks).to_have_text(["alone", "a3", "a2", "a1"])
    for said in ("a2", "a1", "a1"):
        await page.keyboard.press("j")
        await expect(focused).to_have_text(said)
    await page.keyboard.press("g")
    await expect(page.locator("article.turn:focus .rating")).to_have_text("good")
    assert (await one_rating(proxy, ids[0])).value == 1.0
    await page.keyboard.press("t")  # folded again: what one was in is not to be seen any more
    await expect(focused).to_have_text("a3")
    await page.keyboard.press("k")
    await expect(focused).to_have_text("alone")
    # What is rated elsewhere is seen in the fold, too.
    await page.get_by_text("2 earlier turns").press("Enter")
    await proxy.rate(completion_id=ids[1], rating="bad", rater="ann")
    await expect(page.locator(".earlier .rating")).to_have_text(["bad by ann", "good"])


async def test_a_turn_arrives_in_its_conversation(proxy: Proxy, watched: Watched) -> None:
    await talk(proxy, "a1", "a2")
    await asked(proxy, "alone")
    idle, busy = await watched.open(), await watched.open()
    await idle.get_by_text("1 earlier turn").click()
    await idle.mouse.move(1, 1)  # nobody points at it any more
    await expect(idle.locator(".asked:visible")).to_have_text(["alone", "a2", "a1"])
    await idle.evaluate("document.activeElement.blur()")
    for key in "jjc":
        await busy.keyboard.press(key)
    await busy.keyboard.type("half a sent")
    await (await proxy.chat("a1", "You said: a1 ", "a2", "You said: a2 ", "a3")).read()
    # Nobody is in it: it moves up, unfolded as it was.
    await expect(idle.locator(".asked:visible")).to_have_text(["a3", "a2", "a1", "alone"])
    await expect(idle.locator("#list > .talk")).to_have_count(2)
    # Somebody is: it stays where it is, and the turn comes above what they look at.
    await expect(busy.locator(".asked:visible")).to_have_text(["alone", "a3", "a2"])
    await expect(busy.locator("textarea")).to_have_value("half a sent")
    await expect(busy.locator("textarea")).to_be_focused()
    await busy.keyboard.press("Escape")
    await busy.keyboard.press("k")
    await expect(busy.locator("article.turn:focus .asked")).to_have_text("a3")
    await busy.keyboard.press("g")
    await expect(busy.locator("article.turn:focus .rating")).to_have_text("good")
    await expect(idle.locator(".rating")).to_have_text("good")


async def test_what_one_points_at_stays_where_it_is(proxy: Proxy, watched: Watched) -> None:
    await asked(proxy, "first")
    page = await watched.open()
    await page.mouse.wheel(0, 5000)
    good = page.get_by_role("button", name="Good")
    await good.hover()
    place = await good.bounding_box()
    await asked(proxy, "second", "third")
    await expect(page.locator("article.turn")).to_have_count(3)
    assert place is not None
    hovered = await page.evaluate(
        "([x, y]) => document.elementFromPoint(x, y).closest('article.turn').querySelector('.asked').textContent",
        [place["x"] + 3, place["y"] + 3],
    )
    assert hovered == "first"
    await page.mouse.down()
    await page.mouse.up()
    notice = page.locator("#told")
    await expect(notice).to_contain_text("Rated good. The answer begins: “You said: first”. 1 of 4 ratings")
    box, head = await notice.bounding_box(), await page.locator("header.head").bounding_box()
    assert box is not None and head is not None  # it has room of its own, and covers nothing
    assert box["y"] + box["height"] <= head["y"] + head["height"]


async def test_a_proxy_that_is_gone_is_said(proxy: Proxy, browser: Browser) -> None:
    await asked(proxy, "hello")
    page = await (await browser.new_context()).new_page()
    await page.goto(proxy.url)
    await live(page)
    await proxy.stop()
    await expect(page.locator("#told")).to_contain_text("rlproxy does not answer", timeout=15000)
    await proxy.start()


async def test_older_ones_come_below(proxy: Proxy, watched: Watched) -> None:
    await asked(proxy, *(f"q{i}" for i in range(40)))
    page = await watched.open()
    await expect(page.locator("article.turn")).to_have_count(30)
    await page.get_by_text("Older").focus()
    await page.keyboard.press("Enter")
    await expect(page.locator("article.turn")).to_have_count(40)


async def test_training_is_watched_paused_and_cancelled(proxy: Proxy, watched: Watched) -> None:
    proxy.launcher.hold = True
    step = {"event": "step", "step": 2, "steps": 8, "loss": 0.25, "acceptance": 0.9, "eta_s": 30.0}
    proxy.launcher.progress = [{"event": "phase", "phase": "train"}, step]
    (id,) = await asked(proxy, "hello")
    await proxy.rate(completion_id=id, rating="good")
    page = await watched.open("/progress")
    page.on("dialog", lambda dialog: asyncio.ensure_future(dialog.accept()))
    training = page.locator("#training")
    await page.get_by_role("button", name="Train now").press("Enter")
    await expect(training.locator("progress")).to_have_attribute("value", "2")
    for said in ("stage 3 of 5: training, step 2 of 8", "0.25", "90 %", "30 s"):
        await expect(training).to_contain_text(said)
    await expect(page.locator("#pulse")).to_contain_text("run 1 is under way")
    await expect(page.locator("#count")).to_contain_text("run 1: stage 3 of 5: training, step 2 of 8")
    await page.get_by_role("button", name="Pause").press("Enter")
    await expect(training).to_contain_text("Run 1 waits: paused")
    await page.get_by_role("button", name="Resume").press("Enter")
    await expect(training).to_contain_text("2 of 8")
    await page.get_by_role("button", name="Cancel the run").press("Enter")
    await expect(training).to_contain_text("1 fresh ratings")
    assert (await proxy.get("/rl/runs/1"))["reason"] == "cancelled by a person"


async def seeded(proxy: Proxy) -> None:
    await proxy.stop()
    proxy.backend.adapters = {}
    from store.store import Store

    store = await Store.open(proxy.home)
    await history(store, proxy.home)
    await newest(store)
    await store.close()
    await proxy.start(backend__model="fake", train__start_at=10_000)


async def test_plots_are_drawn(proxy: Proxy, browser: Browser) -> None:
    await seeded(proxy)
    watched = Watched(browser, proxy.url)
    page = await watched.open("/progress")
    await expect(page.locator("#plots figure svg")).to_have_count(4)
    await expect(page.locator("svg.interval")).to_have_count(3)
    assert watched.complaints == []


async def test_versions_are_promoted_rolled_back_and_compared(proxy: Proxy, browser: Browser) -> None:
    await seeded(proxy)
    watched = Watched(browser, proxy.url)
    page = await watched.open("/versions")
    page.on("dialog", lambda dialog: asyncio.ensure_future(dialog.accept()))
    live = page.locator(".version.is-live h2")
    await expect(live).to_contain_text("v2")
    await page.get_by_role("button", name="Roll back to v1").press("Enter")
    await expect(live).to_contain_text("v1")
    await expect(page.locator("#pulse .live")).to_have_text("v1")
    await page.get_by_role("button", name="Promote").first.press("Enter")
    await expect(live).to_contain_text("v2")
    await page.get_by_role("link", name="Why: its ratings").first.press("Enter")
    await expect(page.locator(".samples li")).to_have_count(24)
    await page.goto("/versions")
    await page.get_by_label("Prompt").fill("Which is better?")
    await page.get_by_role("button", name="Ask both").press("Enter")
    await expect(page.locator(".pair .said")).to_have_text(["You said: Which is better? "] * 2)
    assert [r["model"] for r in proxy.backend.requests[-2:]] == ["fake@v2", "fake@v1"]
    assert "v2" not in await page.locator(".pair").inner_text()  # hidden until the pick
    await page.keyboard.press("b")
    await expect(page.locator(".answer.better h2")).to_contain_text("better")
    rows = (await proxy.get("/rl/completions?limit=2"))["data"]
    assert sorted(c["ratings"][0]["value"] for c in rows) == [-1.0, 1.0] and {c["version"] for c in rows} == {1, 2}
    assert watched.complaints == []


async def test_data_is_forgotten_by_keyboard(proxy: Proxy, watched: Watched) -> None:
    (one,) = await asked(proxy, "secret", x_rl_session="s")
    await asked(proxy, "other")
    page = await watched.open("/data")
    await page.get_by_label("Forget").select_option("session")
    await page.get_by_label("Its id or name").press("s")
    await page.keyboard.press("Enter")
    await expect(page.locator("#forgetting")).to_contain_text("1 completions")
    await expect(page.get_by_role("button", name="Forget for good")).to_be_focused()
    await page.keyboard.press("Enter")
    await expect(page.locator("#forgetting")).to_contain_text("Forgotten: 1 completions and 0 ratings")
    assert await proxy.store.completions.get(one) is None
    async with page.expect_download() as download:
        await page.get_by_text("All, as JSON lines").click()
    path = await (await download.value).path()
    assert "other" in path.read_text() and "secret" not in path.read_text()


async def test_how_long_things_are_kept_is_set_by_keyboard(proxy: Proxy, watched: Watched) -> None:
    page = await watched.open("/data")
    await page.get_by_label("Keep them for").fill("30")
    await page.keyboard.press("Enter")
    await expect(page.locator("#retaining")).to_contain_text("0 unrated completions would go at once")
    await expect(page.get_by_role("button", name="Keep them for 30 days")).to_be_focused()
    await page.keyboard.press("Enter")
    await expect(page.locator("#retaining")).to_contain_text("kept for 30 days now")
    await page.reload()
    await page.get_by_role("button", name="Back to 7 days").press("Enter")
    await page.get_by_role("button", name="Keep them for 7 days").press("Enter")
    await expect(page.locator("#retaining")).to_contain_text("as the settings say")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", ["desk", "phone"])
async def test_axe_finds_nothing_serious(proxy: Proxy, browser: Browser, scheme: Any, size: str) -> None:
    await seeded(proxy)
    watched = Watched(browser, proxy.url)
    page = await watched.open("/", color_scheme=scheme, bypass_csp=True, **(PHONE if size == "phone" else {}))
    rated = "/completions/rl-today-3"
    pair = "/compare?a=rl-today-1&b=rl-000000000000000000000001"
    others = (rated, "/compare", pair, "/data", "/episodes", "/login", "/completions/none")
    for path in ("/", "/progress", "/versions", "/versions/2", *others):
        await page.goto(path)
        if path == "/":
            await page.keyboard.press("j")
            await page.keyboard.press("e")
            await expect(page.locator("textarea")).to_be_focused()
        if path == "/progress":
            await page.wait_for_selector("#training progress")
        await page.add_script_tag(path=AXE)
        found = await page.evaluate("axe.run(document, {resultTypes: ['violations']})")
        serious = [
            (path, v["id"], [n["html"][:200] for n in v["nodes"]])
            for v in found["violations"]
            if v["impact"] in ("serious", "critical")
        ]
        assert serious == []
        wide = await page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        assert wide <= 0, f"{path} is wider than the screen"


async def test_off_loopback_one_signs_in(proxy: Proxy, browser: Browser) -> None:
    await proxy.stop()
    await proxy.start(server__api_key="use-key", server__admin_key="admin-key")
    context = await browser.new_context(base_url=proxy.url)
    page = await context.new_page()
    await page.goto("/versions")
    await expect(page.get_by_label("Key")).to_be_focused()
    await page.keyboard.type("wrong")
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("alert")).to_be_visible()
    await page.get_by_label("Key").fill("use-key")
    await page.keyboard.press("Enter")
    await expect(page.locator("h1")).to_have_text("Versions")
    await live(page)  # the cookie opens the events, too
    await page.get_by_text("Sign out").press("Enter")
    await expect(page.get_by_label("Key")).to_be_visible()
