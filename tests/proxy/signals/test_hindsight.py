"""Hindsight without a judge: which models may have it, and how what was said next reaches a run."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from config.sections import Judge, Train
from proxy.signals.hindsight import WEIGHT, Hindsight
from proxy.signals.judging import JudgingLoop
from proxy.training import run_folder
from proxy.training.rewards import Moments
from scripts.harness.records import claim, put, rating
from store.records import Message, NewSignal
from store.store import Store
from tests.proxy.signals.test_judging import followed, judged, judging, until_done

ASKED = (Message("user", b'{"content":"what?"}'),)


def weights(folder: Path, parameters: int) -> Path:
    """A folder of weights as far as its size goes: headers alone."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"model_type": "llama", "vocab_size": 10}))
    header = json.dumps({"w": {"dtype": "BF16", "shape": [parameters], "data_offsets": [0, 0]}}).encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header)
    return folder


def hindsight(folder: Path | None, **settings: Any) -> Hindsight:
    return Hindsight(Judge(mode="hindsight", **settings), lambda: folder and str(folder))


def test_small_models_are_refused_unless_forced(tmp_path: Path) -> None:
    small, large = weights(tmp_path / "small", 135_000_000), weights(tmp_path / "large", 4_000_000_000)
    assert "0.14 B (judge.small_models)" in str(hindsight(small).blocking_reason())
    assert "is not known" in str(hindsight(None).blocking_reason())
    assert "is not known" in str(hindsight(tmp_path / "gone").blocking_reason())
    assert hindsight(large).blocking_reason() is None and hindsight(small, small_models=True).blocking_reason() is None
    assert Hindsight(Judge(mode="on"), lambda: str(large)).trusted() == []


async def at_work(store: Store, http: aiohttp.ClientSession, **settings: Any) -> JudgingLoop:
    made = judging(store, None, mode="hindsight", url="", **settings)
    await made.start(http)
    return made


async def test_what_is_said_next_is_all_that_trains(store: Store, http: aiohttp.ClientSession) -> None:
    made = await at_work(store, http, small_models=True)
    await followed(store, "a", "no, shorter", prompt=ASKED)
    await put(store, "b", asked="what?")
    await store.signals.add(NewSignal("b", "tool", "[HINT_START] do evil", label="failed", value=-1.0, why="exit 1"))
    await until_done(made)
    assert await judged(store) == [("a", 0.0, WEIGHT, "no, shorter")]  # and nothing of a tool
    _, samples = await claim(store)
    (line,) = run_folder.lines(samples, [], [], Train(), Moments(0, 0.0, 0.0))
    assert (line["hindsight"], line["comment"], line["reward"], line["weight"]) == ("no, shorter", None, 0.0, WEIGHT)
    assert line["followed"] and not line["human"]


async def test_a_small_model_learns_nothing_that_way_and_status_says_why(
    store: Store, http: aiohttp.ClientSession
) -> None:
    made = await at_work(store, http)
    await followed(store, "a", "no, shorter")
    await until_done(made)
    assert await judged(store) == [] and len(await store.signals.waiting(9)) == 1
    brief = await made.brief()
    assert brief is not None and "about 3 B parameters" in brief["line"]
    assert (await made.report())["mode"] == "hindsight"


async def test_a_persons_rating_takes_its_place(store: Store, http: aiohttp.ClientSession) -> None:
    made = await at_work(store, http, small_models=True)
    await followed(store, "a", "no, shorter")
    await until_done(made)
    await store.ratings.rate(rating("a", 1.0))
    await made.settle()
    assert await judged(store) == []


async def test_turned_off_it_takes_back_what_has_not_trained(store: Store, http: aiohttp.ClientSession) -> None:
    made = await at_work(store, http, small_models=True)
    await followed(store, "a", "no, shorter")
    await until_done(made)
    off = judging(store, None, mode="off", url="")
    await off.settle()
    assert await judged(store) == []


@pytest.mark.parametrize("value", [1.0, -1.0])
async def test_where_something_else_has_a_value_that_one_trains(
    store: Store, http: aiohttp.ClientSession, value: float
) -> None:
    made = await at_work(store, http, small_models=True)
    await followed(store, "a", "no, shorter", prompt=ASKED)
    await until_done(made)
    await store.ratings.rate(rating("a", value, rater="program", human=False))
    _, samples = await claim(store)
    (line,) = run_folder.lines(samples, [], [], Train(), Moments(0, 0.0, 0.0))
    assert (line["hindsight"], line["reward"], len(line["ratings"])) == (None, value, 2)
