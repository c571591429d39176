"""Episodes on the page: rewards over time, success by version, and one with its turns."""

from __future__ import annotations

import re
from typing import Any

import pytest

from proxy.feedback import episodes
from proxy.web.pages.episodes import HEIGHT, POINTS, WIDTH, lines
from scripts.harness.in_process import Proxy
from tests.harness.episodes import ask, open_one, reward
from tests.harness.visits import Visit


def test_a_line_is_a_mean_of_eight_from_minus_one_below_to_one_above() -> None:
    (line,) = lines([(0.0, 1.0, 1, "train")] * 8 + [(0.0, -1.0, 1, "train")] * 8)
    assert [y for _, y in line.points] == [0, HEIGHT] and line.points[0][0] < line.points[1][0]
    assert lines([]) == []


def test_lines_stay_inside_and_are_never_long() -> None:
    rewards: list[Any] = [(0.0, at % 2, 1, "eval" if at % 5 == 0 else "train") for at in range(5000)]
    found = lines(rewards)
    assert [line.split for line in found] == ["train", "eval"]
    for line in found:
        assert len(line.points) <= POINTS and all(0 <= x <= WIDTH and 0 <= y <= HEIGHT for x, y in line.points)


async def test_without_episodes_the_page_says_how_they_begin(proxy: Proxy, visit: Visit) -> None:
    assert "There are no episodes yet." in await visit.get("/episodes")
    assert "/episodes" not in await visit.get("/progress")
    assert "There is no such episode." in await visit.get("/episodes/nobody", 404)


async def test_a_list_with_success_by_version_and_rewards_over_time(
    proxy: Proxy, visit: Visit, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(episodes, "LATELY_S", 1e9)
    for at in range(4):
        await ask(proxy, f"a{at}", "one")
        await reward(proxy, f"a{at}", reward=at % 2, group="g", group_size=4)
    await open_one(proxy, id="e", split="eval")
    await ask(proxy, "e", "one")
    await reward(proxy, "e", reward=1)
    await ask(proxy, "broken", "one")
    await reward(proxy, "broken", error="<b>the sandbox died</b>")
    page = await visit.get("/episodes")
    assert "5 rewarded, 0 open, 1 with an error" in page and "2 of 4" in page and "1 of 1" in page
    assert "6 ended in the last minute." in page and "wait." not in page
    assert page.count("<polyline") == 2 and "<b>the sandbox" not in page
    assert re.findall(r'href="/episodes/(\w+)"', page) == ["broken", "e", "a3", "a2", "a1", "a0"]
    assert '<a href="/episodes">episodes</a>' in await visit.get("/progress")


async def test_one_episode_with_its_turns_and_nothing_that_a_model_says_is_markup(proxy: Proxy, visit: Visit) -> None:
    await open_one(proxy, id="a1", task="<script>alert(1)</script>")
    _, first, _ = await ask(proxy, "a1", "<img src=x>")
    await reward(proxy, "a1", reward=0.25, completion_id=first["id"])
    await reward(proxy, "a1", reward=1, comment="<i>fine</i>")
    page = await visit.get("/episodes/a1")
    assert f'href="/completions/{first["id"]}"' in page and "reward 0.25" in page and "segment 0" in page
    assert not re.search(r"<script>|<img|<i>", page)


async def test_many_are_listed_in_pages(proxy: Proxy, visit: Visit) -> None:
    for at in range(52):
        await open_one(proxy, id=f"a{at}")
    first = await visit.get("/episodes")
    (more,) = re.findall(r'href="(/episodes\?before=\d+)"', first)
    assert re.findall(r'href="/episodes/(\w+)"', await visit.get(more)) == ["a1", "a0"]
    assert "?before=" not in await visit.get(more)
    await visit.get("/episodes?before=x", 400)
