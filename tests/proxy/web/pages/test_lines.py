"""The page's choice of a line: there only where a home has several."""

from __future__ import annotations

import pytest

from scripts.harness.in_process import Proxy
from tests.harness.lines import create, rate, until_live


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("proxy.training.run_supervisor.RECHECK_S", 0.02)


async def page(proxy: Proxy, path: str, chosen: str = "") -> str:
    """The page of a browser that has chosen this line."""
    headers = {"cookie": f"rlproxy_line={chosen}"} if chosen else {}
    async with proxy.http.get(path, headers=headers) as response:
        assert response.status == 200
        asked = "?line=" in path
        assert ("rlproxy_line" in response.headers.get("set-cookie", "")) is asked
        return await response.text()


async def test_a_home_of_one_line_has_no_choice(proxy: Proxy) -> None:
    for path in ("/", "/progress", "/versions", "/compare", "/data"):
        assert 'aria-label="Lines"' not in await page(proxy, path)


async def test_the_chosen_line_is_shown_and_stays_chosen(proxy: Proxy) -> None:
    await create(proxy, "ann")
    await rate(proxy, "ann", 4)
    await until_live(proxy, "ann", 1)
    await rate(proxy, "common", 3)
    assert "?line=ann" in await page(proxy, "/versions")
    assert 'href="/versions/1"' not in await page(proxy, "/versions")
    assert 'href="/versions/1"' in await page(proxy, "/versions?line=ann")
    assert 'href="/versions/1"' in await page(proxy, "/page/lineage", "ann")
    assert "0 of" in await page(proxy, "/page/count", "ann")
    assert 'href="/versions/1"' not in await page(proxy, "/versions?line=common")
    assert "3 of 4" in await page(proxy, "/page/count")
    assert 'href="/versions/1"' not in await page(proxy, "/versions?line=nobody")
