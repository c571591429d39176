"""The other views over HTTP: progress, versions, why, compare, data."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from proxy.checks.statistics import wilson
from proxy.web.pages.filters import seconds, sentence, short, verdict
from scripts.fakes.cloud import KEY, FakeCloud
from scripts.harness.in_process import Proxy
from scripts.harness.seeding import history
from store.copies import backup
from store.file import schema
from store.records import Rating
from store.store import Store
from tests.harness.llamacpp import make_proxy
from tests.harness.runs import rated, until
from tests.harness.visits import Visit
from tests.proxy.web.pages.test_inbox import asked


async def seeded(proxy: Proxy) -> list[str]:
    await proxy.stop()
    store = await Store.open(proxy.home)
    made = await history(store, proxy.home, days=30)
    await store.close()
    await proxy.start(backend__model="fake", train__start_at=10_000)
    return made


async def again(proxy: Proxy) -> Visit:
    visit = Visit(proxy.url)
    await visit.get("/")
    return visit


async def test_progress_says_what_training_waits_for(proxy: Proxy, visit: Visit) -> None:
    assert "No run yet." in await visit.get("/progress")
    assert "Waits: there are no fresh ratings." in await visit.get("/page/training")
    await rated(proxy, 2)
    waits = await visit.get("/page/training")
    assert "2 fresh ratings, which no run has used yet (2 good, 0 bad); 4 start a run." in waits
    assert "Paused." in await visit.post("/page/training/pause")
    assert "Resume" in await visit.get("/page/training")
    assert "Waits" in await visit.post("/page/training/resume")
    assert "There is no run to cancel." in await visit.post("/page/training/cancel", 409)
    await visit.post("/page/training/dance", 404)
    await visit.post("/page/training/train")
    await until(proxy, live=1)
    page = await visit.get("/progress")
    assert '<a href="/versions/1">v1</a>' in page and "2 of 2" in page


@pytest.mark.parametrize("line", ["no model `m`", "no model `m`."])
def test_a_sentence_ends_once(line: str) -> None:
    assert sentence(line) == "No model `m`."


async def test_the_plots(proxy: Proxy) -> None:
    await seeded(proxy)
    visit = await again(proxy)
    page, plots = await visit.get("/progress"), await visit.get("/page/plots")
    assert plots in page, "they are there at once"
    assert "Share of good ratings over time" in plots and "good ratings: each day (dots)" in plots
    assert 25 <= plots.count(" bad</title>") <= 31, "a dot for each day, which says what it is of"
    assert plots.count('class="mark-line"') == 4, "two versions, in two plots"
    assert "in 8 steps" in plots and "curves of the last run, by step" in plots
    assert page.count('class="interval"') == 3 and "style=" not in plots
    await visit.http.close()


async def test_plots_of_nothing_and_of_one_day(proxy: Proxy, visit: Visit) -> None:
    assert "Nothing has been rated yet." in await visit.get("/page/plots")
    await rated(proxy, 2)
    assert "All ratings are of one hour" in await visit.get("/page/plots")


async def test_versions_and_why(proxy: Proxy) -> None:
    made = await seeded(proxy)
    visit = await again(proxy)
    page = await visit.get("/versions")
    assert page.index(">v2</a>") < page.index(">v1</a>") < page.index("the model as it came")
    assert "base_nll" in page and "Roll back to v1" in page
    assert "does it still make sense to the model that it came from?" in page, "not the trainer's name alone"
    assert ">skipped</td>" in page and "too few to tell from chance" in page, "that did not pass"
    why = await visit.get("/versions/v2")
    assert why.count("<li class=") == len(made) == 24
    assert "tokens trained" in why and "not used: token" in why and "surprise" in why
    assert why.count("tokens trained, by its comment") == 1 and "-0.000" not in why
    assert "Roll back to v2" in await visit.post("/page/versions/rollback")
    assert (await proxy.get("/rl/adapters"))["live"] == 1
    await visit.post("/page/versions/promote", version="2")
    assert (await proxy.get("/rl/adapters"))["live"] == 2
    assert "live already" in await visit.post("/page/versions/promote", 409, version="2")
    await proxy.store.versions.withdraw(1, "people liked it less", "rlproxy")
    assert "Roll back to" not in await visit.get("/versions")
    await visit.post("/page/versions/promote", 404, version="9")
    await visit.post("/page/versions/promote", 400, version="x")
    await visit.post("/page/versions/dance", 404)
    await visit.post("/page/versions/promote", version="0")
    assert (await proxy.get("/rl/adapters"))["live"] == 0
    await visit.http.close()


async def test_everything_known_of_a_completion(proxy: Proxy, visit: Visit) -> None:
    await rated(proxy, 4)
    await until(proxy, live=1)
    response = await proxy.chat("hello", "hi", "and more", temperature=0.5, headers={"x-rl-user": "ann"})
    id = response.headers["x-rl-completion-id"]
    for said in ("bad", "good"):
        await proxy.rate(completion_id=id, rating=said, comment=f"it was {said}")
    page = await visit.get(f"/completions/{id}")
    for known in (id, "hi", "and more", "temperature 0.5", "fake@v1", "ann", "it was bad", "replaced", "it was good"):
        assert known in page, known
    assert "No run has taken it: it waits for the next run." in page
    first = (await proxy.get("/rl/completions?version=0&limit=1"))["data"][0]["id"]
    page = await visit.get(f"/completions/{first}")
    assert "Run 1 " in page and "to train on" in page and '<a href="/versions/1">v1</a>' in page


async def compared(proxy: Proxy, visit: Visit, **form: Any) -> list[str]:
    location = await visit.post("/page/compare", 303, **form)
    query = parse_qs(urlsplit(location).query)
    return [query["a"][0], query["b"][0]]


async def test_a_pick_is_two_ratings(proxy: Proxy, visit: Visit) -> None:
    await rated(proxy, 4)
    await until(proxy, live=1)
    await visit.get("/compare")
    pair = await compared(proxy, visit, prompt="which?", left="1", right="0")
    assert {r["model"] for r in proxy.backend.requests[-2:]} == {"fake", "fake@v1"}
    found = [await proxy.store.inbox.get(id) for id in pair]
    assert {row.version for row in found if row} == {0, 1} and {row.turn for row in found if row} == {"side"}
    page = await visit.get(f"/compare?a={pair[0]}&b={pair[1]}")
    assert "is better" in page and ">v1" not in re.sub(r"(?s)<header.*?</header>", "", page)
    await visit.post("/page/compare/pick", 303, better=pair[1], worse=pair[0], a=pair[0], b=pair[1])
    values = [(await proxy.store.ratings.history(id))[0] for id in pair]
    assert [(r.value, r.source) for r in values] == [(-1.0, "compare"), (1.0, "compare")]
    page = await visit.get(f"/compare?a={pair[0]}&b={pair[1]}")
    assert "better" in page and ">v1" in page


async def test_two_tries_of_one_version_and_once_more_for_a_captured_prompt(proxy: Proxy, visit: Visit) -> None:
    (id,) = await asked(proxy, "hello")
    await visit.get("/compare")
    pair = await compared(proxy, visit, prompt="hello", left="0", right="0")
    assert len(set(pair)) == 2
    assert "Ask again" in await visit.get(f"/compare?about={id}")
    pair = await compared(proxy, visit, about=id, left="0")
    assert id in pair and len(set(pair)) == 2
    await visit.post("/page/compare/pick", 303, better=id, worse=next(p for p in pair if p != id))
    assert (await proxy.store.ratings.history(id))[0].value == 1.0


@pytest.mark.parametrize("dialect", ["chat/completions", "messages"])
async def test_a_captured_prompt_is_asked_again_as_it_was(proxy: Proxy, visit: Visit, dialect: str) -> None:
    parameters = {"type": "object", "properties": {"city": {"type": "string"}}}
    body: dict[str, Any] = {"model": "fake", "max_tokens": 99, "messages": [{"role": "user", "content": "weather?"}]}
    if dialect == "messages":
        body["tools"] = [{"name": "look", "description": "Looks.", "input_schema": parameters}]
        call = {"type": "tool_use", "id": "c1", "name": "look", "input": {"city": "Oslo"}}
        result = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c1", "content": "rain"}]}
        body["messages"] += [{"role": "assistant", "content": [call]}, result]
    else:
        function = {"name": "look", "description": "Looks.", "parameters": parameters}
        body["tools"] = [{"type": "function", "function": function}]
        call = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"city":"Oslo"}'}}
        result = {"role": "tool", "tool_call_id": "c1", "content": "rain"}
        body["messages"] += [{"role": "assistant", "content": "", "tool_calls": [call]}, result]
    async with proxy.http.post(f"/v1/{dialect}", json=body) as response:
        id = response.headers["x-rl-completion-id"]
    await visit.get("/compare")
    await compared(proxy, visit, about=id, left="0")
    before, now = proxy.backend.requests[-2:]
    assert now["messages"][1]["tool_calls"] == before["messages"][1]["tool_calls"]
    assert now["messages"][1]["tool_calls"][0]["function"]["arguments"] == '{"city":"Oslo"}'
    assert now["tools"] == before["tools"]


async def test_a_model_that_is_not_ours_is_asked_again_by_its_name(tmp_path: Path) -> None:
    cloud = FakeCloud()
    await cloud.start()
    proxy = make_proxy(tmp_path / "home", kind="openai", url=f"{cloud.url}/v1", api_key=KEY)
    await proxy.start()
    id = (await proxy.chat("hello", model="gpt-9")).headers["x-rl-completion-id"]
    visit = await again(proxy)
    page = await visit.get(f"/compare?about={id}")
    assert "Ask gpt-9 again" in page and "<select" not in page
    assert id in await compared(proxy, visit, about=id)
    assert [body["model"] for body in cloud.requests] == ["gpt-9", "gpt-9"]
    for path in ("/compare", "/versions"):
        page = await visit.get(path)
        assert "no versions of it" in page and "<textarea" not in page
    assert "no versions of it" in await visit.post("/page/compare", 501, prompt="hello")
    assert len(cloud.requests) == 2
    await visit.http.close()
    await proxy.stop()
    await cloud.stop()


async def test_two_choices_of_one_request_are_compared(proxy: Proxy, visit: Visit) -> None:
    response = await proxy.chat("hello", n=2)
    id = response.headers["x-rl-completion-id"]
    page = await visit.get(f"/compare?about={id}")
    assert "the other choice of the same request" in page and f"/compare?a={id}&amp;b={id}.1" in page
    assert "B is better" in await visit.get(f"/compare?a={id}&b={id}.1")
    await visit.post("/page/compare/pick", 303, better=f"{id}.1", worse=id)
    values = [(await proxy.store.ratings.history(choice))[0].value for choice in (id, f"{id}.1")]
    assert values == [-1.0, 1.0]


async def test_what_cannot_be_compared(proxy: Proxy, visit: Visit) -> None:
    one, other = await asked(proxy, "one", "other")
    await visit.get("/compare")
    assert "two answers to one prompt" in await visit.post("/page/compare/pick", 400, better=one, worse=other)
    await visit.post("/page/compare/pick", 400, better=one, worse=one)
    await visit.post("/page/compare/pick", 404, better=one, worse="none")
    await visit.post("/page/compare", 400, prompt=" ")
    await visit.post("/page/compare", 404, about="none")
    assert "There is no version v7" in await visit.post("/page/compare", 404, prompt="x", left="7", right="0")
    assert await proxy.store.ratings.history(one) == []


async def test_compare_asks_with_a_key_where_one_is_needed(proxy: Proxy) -> None:
    await proxy.stop()
    await proxy.start(server__api_key="use-key", server__admin_key="admin-key")
    visit = Visit(proxy.url)
    await visit.get("/login")
    await visit.post("/login", 303, key="use-key", name="Ann")
    await visit.get("/compare")
    pair = await compared(proxy, visit, prompt="x", left="0", right="0")
    row = await proxy.store.inbox.get(pair[0])
    assert row is not None and row.user == "Ann"
    await visit.http.close()


async def test_data_is_looked_at_before_it_goes(proxy: Proxy, visit: Visit) -> None:
    await asked(proxy, "secret", x_rl_session="s")
    page = await visit.get("/data?session=s")
    assert 'value="session" selected' in page and "after 7 days" in page and "/rl/export?rated" in page
    assert "1 completions" in await visit.post("/page/forget", kind="session", name="s")
    assert await proxy.store.inbox.any()
    assert "Nothing was forgotten" in await visit.post("/page/forget", 400, kind="session", name="s", sure="no")
    assert "Forgotten" in await visit.post("/page/forget", kind="session", name="s", sure="yes")
    assert not await proxy.store.inbox.any()
    await visit.post("/page/forget", 404, kind="session", name="s")
    await visit.post("/page/forget", 400, kind="everything", name="s")
    assert "a session; 1 completions" in await visit.get("/data")


async def test_what_learned_from_it_and_copies_of_it_go_with_it(proxy: Proxy, visit: Visit) -> None:
    for _ in range(4):
        (id,) = await asked(proxy, "secret", x_rl_session="s")
        await proxy.rate(completion_id=id, rating="good")
    async with asyncio.timeout(10):
        while (await proxy.store.versions.pointer()).live != 1:
            await asyncio.sleep(0.02)
    await asyncio.to_thread(backup.backup, proxy.home / schema.NAME, proxy.home / "saved")
    await visit.get("/data")
    shown = await visit.post("/page/forget", kind="session", name="s")
    assert 'name="retrain"' in shown and 'name="purge"' in shown and "<code>saved</code>" in shown
    shown = await visit.post("/page/forget", kind="session", name="s", sure="yes", retrain="yes", purge="yes")
    assert "They are withdrawn: v1 learned from what was forgotten" in shown
    assert (await proxy.store.versions.pointer()).live == 0 and not (proxy.home / "saved").exists()
    assert '<span class="mark warn">gone</span>' in await visit.get("/versions")


@pytest.mark.parametrize(
    ("good", "rated", "low", "high"), [(5, 10, 0.2366, 0.7634), (0, 5, 0.0, 0.4345), (9, 9, 0.7009, 1.0)]
)
def test_the_interval_is_wilsons(good: int, rated: int, low: float, high: float) -> None:
    found = wilson(good, rated)
    assert found is not None and found.share == good / rated
    assert (found.low, found.high) == (pytest.approx(low, abs=1e-4), pytest.approx(high, abs=1e-4))
    assert wilson(0, 0) is None


def test_words() -> None:
    assert [short(x) for x in (None, 3, 0.12345, 1234.5, True)] == ["–", "3", "0.123", "1.23e+03", "True"]
    assert [seconds(x) for x in (3, 89, 90, 7200)] == ["3 s", "89 s", "2 min", "2.0 h"]

    def said(value: float, scale: Any) -> str:
        return verdict(Rating("r", "c", "me", value, None, None, 1.0, "x", None, 0.0, True, None, scale=scale))

    assert [said(1.0, "thumb"), said(-1.0, "unit"), said(0.5, "stars"), said(0.3, "unit")] == [
        "good", "bad", "4 of 5", "+0.3",
    ]  # fmt: skip


async def test_how_long_things_are_kept_is_set_and_taken_back(proxy: Proxy, visit: Visit) -> None:
    await asked(proxy, "hello")
    page = await visit.get("/data")
    assert "go after 7 days" in page and "settings say so" in page
    assert "<b>0 unrated completions</b> would go" in await visit.post("/page/retention", days="30")
    assert "go after 7 days" in await visit.get("/data")  # looked, not done
    assert "kept for 30 days now" in await visit.post("/page/retention", days="30", sure="yes")
    page = await visit.get("/data")
    assert "go after 30 days" in page and "Set here by owner" in page and "Back to 7 days" in page
    assert "number above 0" in await visit.post("/page/retention", 400, days="-1", sure="yes")
    assert "<b>1 unrated completion</b> would go" in await visit.post("/page/retention", days="0.0000001")
    assert "as the settings say" in await visit.post("/page/retention", back="1", sure="yes")
    assert "settings say so" in await visit.get("/data")
