"""A run says what it leaves out: rated answers about pictures, and what was undone meanwhile."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from proxy.core.errors import BackendDown
from proxy.training import served_prompts
from scripts.harness.in_process import Proxy
from tests.harness.forgetting import lines
from tests.harness.runs import rated, until
from tests.proxy.images.test_examiner import URL, about, ask


async def test_rated_answers_about_pictures_are_counted_and_left_out(proxy: Proxy) -> None:
    for urls in ((URL,), (URL, "https://x/y.png")):
        await proxy.rate(completion_id=await ask(proxy, about(*urls)), rating="good")
    await rated(proxy, 4)
    await until(proxy, live=1)
    folder = proxy.home / "runs" / "r00001"
    choices = {choice["name"]: choice for choice in json.loads((folder / "run.json").read_text())["choices"]}
    assert choices["pictures_left_out"]["value"] == 2
    assert choices["pictures_left_out"]["why"] == (
        "has a picture: 1, remote image: 1 (the weights are not on this machine)"
    )
    assert len(lines(folder)) == 4 and "image_url" not in (folder / "samples.jsonl").read_text()


async def test_where_there_are_none_nothing_is_said(proxy: Proxy) -> None:
    await rated(proxy, 4)
    await until(proxy, live=1)
    choices = json.loads((proxy.home / "runs" / "r00001" / "run.json").read_text())["choices"]
    assert "pictures_left_out" not in {choice["name"] for choice in choices}


async def test_a_rating_that_is_undone_before_the_run_folder_is_written_does_not_train(
    proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server goes away between the claim and the folder, as it renders the prompts."""
    monkeypatch.setattr("proxy.training.run_supervisor.RECHECK_S", 0.05)
    add, back = served_prompts.add, asyncio.Event()

    async def add_once_back(*arguments: Any) -> Any:
        if not back.is_set():
            raise BackendDown("the server is away")
        return await add(*arguments)

    monkeypatch.setattr(served_prompts, "add", add_once_back)
    await rated(proxy, 4)
    while not await proxy.store.runs.unfinished():
        await asyncio.sleep(0.01)
    async with proxy.http.delete("/v1/feedback/last") as response:
        undone = await response.json()
    back.set()
    await until(proxy, live=1)
    trained = lines(proxy.home / "runs" / "r00001")
    assert len(trained) == 3 and undone["id"] not in {line["rating"] for line in trained}
