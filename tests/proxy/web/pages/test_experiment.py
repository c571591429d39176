"""The experiment on the versions page: how it stands, and that an admin starts and stops it."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest

from scripts.harness.in_process import Proxy
from store.records import NewRating
from tests.harness.visits import Visit
from tests.proxy.versions.conftest import versions as versions  # a fixture
from tests.proxy.versions.test_experiments import rated_talks, talk
from tests.proxy.web.pages.test_pages import sign_in


def cells(page: str, version: str) -> list[str]:
    """The texts of the row of an arm."""
    row = re.search(rf'<tr><th scope="row">{version}</th>(.*?)</tr>', page, re.DOTALL)
    assert row, page
    return [re.sub(r"<[^>]*>|\s+", " ", cell).strip() for cell in re.findall(r"<td.*?</td>", row[1], re.DOTALL)]


async def test_it_is_started_seen_and_stopped(proxy: Proxy, versions: list[Path], visit: Visit) -> None:
    await proxy.post("/rl/promote/1")
    page = await visit.get("/versions")
    assert "None has run yet" in page and '<option value="1">' not in page.split('class="ask"')[0]
    panel = await visit.post("/page/experiment/start", version="2", share="60")
    assert "v2 against v1" in panel and ">runs<" in panel and "60 %" in panel and "Start</button>" not in panel
    assert "v3 against" not in await visit.post("/page/experiment/start", 409, version="3")
    assert "Stop</button>" in await visit.get("/versions")
    panel = await visit.post("/page/experiment/stop")
    assert "Stopped by" in panel and "Start</button>" in panel
    assert "No experiment is running." in await visit.post("/page/experiment/stop", 409)
    assert (await proxy.get("/rl/experiments"))["ended"][0]["share"] == 0.6


async def test_people_count_and_judges_stand_beside(proxy: Proxy, versions: list[Path], visit: Visit) -> None:
    await proxy.post("/rl/promote/1")
    await visit.get("/versions")
    await visit.post("/page/experiment/start", version="2")
    arms: dict[str, list[str]] = {"v1": [], "v2": []}
    for number in range(12):
        version, id = await talk(proxy, f"talk-{number}")
        arms[version].append(id)
    assert all(len(ids) >= 2 for ids in arms.values()), arms
    await proxy.rate(completion_id=arms["v2"][0], rating="good")
    await proxy.rate(completion_id=arms["v1"][0], rating="bad")
    for id in arms["v1"]:
        await proxy.store.ratings.rate(NewRating(id, "judge:x", 1.0, human=False))
    page = await visit.get("/page/experiment")
    of_candidate, of_parent = cells(page, "v2"), cells(page, "v1")
    assert of_candidate[0] == "1 of 1" and of_candidate[1].startswith("100 %") and of_candidate[3] == "–"
    assert of_parent[0] == "0 of 1" and of_parent[3] == f"{len(arms['v1'])} of {len(arms['v1'])}"
    assert int(of_candidate[2]) + int(of_parent[2]) == 12
    running = (await proxy.get("/rl/experiments"))["running"]
    assert f"{running['up']:.3g} of 20" in page and f"{running['down']:.3g} of 10" in page
    assert "198 more rated conversations" in page and 'value="2"' in page


async def test_the_last_one_keeps_its_figures(proxy: Proxy, versions: list[Path], visit: Visit) -> None:
    await proxy.post("/rl/promote/1")
    await visit.get("/versions")
    await visit.post("/page/experiment/start", version="2")
    version, id = await talk(proxy, "before")
    await proxy.store.ratings.rate(NewRating(id, "judge:x", 1.0, human=False))
    await rated_talks(proxy, 60, {"v2": True, "v1": False})
    async with asyncio.timeout(30):
        while (await proxy.get("/rl/experiments"))["running"] is not None:
            await asyncio.sleep(0.02)
    page = await visit.get("/versions")
    assert ">promoted<" in page and "liked more" in page and "Stop</button>" not in page
    assert cells(page, version)[3] == "1 of 1", "a judge's rating, after the end as before it"
    assert cells(page, "v2")[0] == re.sub(r"^(\d+).*", r"\1 of \1", cells(page, "v2")[0])


@pytest.mark.parametrize(
    ("act", "form", "status"),
    [
        ("start", {}, 400), ("start", {"version": "x"}, 400), ("start", {"version": "٣"}, 400),
        ("start", {"version": "2", "share": "nan"}, 400), ("start", {"version": "2", "share": "1"}, 400),
        ("start", {"version": "9"}, 404), ("start", {"version": "1"}, 409), ("dance", {}, 404),
    ],
)  # fmt: skip
async def test_what_is_refused(
    proxy: Proxy, versions: list[Path], visit: Visit, act: str, form: dict[str, str], status: int
) -> None:
    await proxy.post("/rl/promote/1")
    await visit.get("/versions")
    await visit.post(f"/page/experiment/{act}", status, **form)
    assert (await proxy.get("/rl/experiments"))["running"] is None


async def test_only_an_admin_starts_and_stops(proxy: Proxy, versions: list[Path]) -> None:
    await proxy.stop()
    await proxy.start(server__api_key="use-key", server__admin_key="admin-key")
    visit = await sign_in(proxy, "use-key", "Ann")
    page = await visit.get("/versions")
    assert "Compared on live traffic" in page and "Start</button>" not in page
    for act in ("start", "stop"):
        assert "admin" in await visit.post(f"/page/experiment/{act}", 403, version="1")
    await visit.http.close()
    boss = await sign_in(proxy, "admin-key")
    await boss.get("/versions")
    assert "Stop</button>" in await boss.post("/page/experiment/start", version="1")
    await boss.http.close()
