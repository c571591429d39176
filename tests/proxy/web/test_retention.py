"""How long unrated completions are kept: the settings' days, a person's days, and back."""

from __future__ import annotations

import asyncio
import math
import os
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from config.settings import load
from proxy.core.errors import BadRequest
from proxy.web.retention import KEY, LONGEST, Retention, as_it_is, days_of
from scripts.harness.records import claim, put, rating
from store.errors import StoreError
from store.file import schema
from store.store import Store

DAY = 86400


async def opened(home: Path) -> tuple[Store, Retention]:
    store = await Store.open(home)
    retention = Retention(store, load({"home": home}, environ={}).settings)
    await retention.start()
    return store, retention


async def test_a_persons_days_win_outlive_a_restart_and_are_taken_back(tmp_path: Path) -> None:
    store, retention = await opened(tmp_path)
    assert (retention.days, retention.chosen) == (7.0, None)
    await retention.choose(30.0, "ann")
    await store.close()
    store, retention = await opened(tmp_path)
    assert retention.chosen is not None and (retention.days, retention.chosen.by) == (30.0, "ann")
    await retention.choose(None, "bob")
    assert retention.days == 7.0
    log = [(line["actor"], line["detail"]) for line in await store.meta.audit_log() if line["act"] == "retention"]
    assert log == [
        ("bob", {"days": 7.0, "before": 30.0, "from": "settings"}),
        ("ann", {"days": 30.0, "before": 7.0, "from": "page"}),
    ]
    await store.close()
    store, retention = await opened(tmp_path)
    assert retention.chosen is None
    await store.close()


async def test_what_runs_kept_to_compare_goes_whether_they_had_a_result_or_not(tmp_path: Path) -> None:
    store, retention = await opened(tmp_path)
    await put(store, "a", "b")
    await store.ratings.rate(rating("a"))
    open_run, _ = await claim(store, held_share=0.0)
    files = [Path(tmp_path, "runs", name, "calibration.jsonl") for name in ("r00007", Path(open_run.folder).name, "r9")]
    for file, days in zip(files, (9, 9, 1), strict=True):
        file.parent.mkdir(parents=True)
        file.write_text("{}\n")
        os.utime(file, (time.time() - days * DAY,) * 2)
    await retention._expire()
    assert [file.exists() for file in files] == [False, True, True]  # the second one's run is open
    await store.runs.end(open_run.id, "failed", "cancelled", None)
    await retention._expire()
    assert [file.exists() for file in files] == [False, False, True]
    await store.close()


async def test_fewer_days_hold_at_once(tmp_path: Path) -> None:
    store, retention = await opened(tmp_path)
    now = time.time()
    await put(store, "old", created_at=now - 5 * DAY)
    await put(store, "rated", created_at=now - 5 * DAY)
    await put(store, "new", created_at=now - 1 * DAY)
    await store.ratings.rate(rating("rated"))
    assert [await retention.would_go(days) for days in (7.0, 2.0, 0.5)] == [0, 1, 2]
    running = asyncio.create_task(retention.run())
    await asyncio.sleep(0)
    await retention.choose(2.0, "ann")
    while await store.completions.get("old") is not None:
        await asyncio.sleep(0.01)
    assert await store.completions.get("new") is not None and await store.completions.get("rated") is not None
    running.cancel()
    await store.close()


async def test_config_show_says_where_it_comes_from(tmp_path: Path) -> None:
    rows = load({"home": tmp_path}, environ={}).describe()
    assert as_it_is(rows, tmp_path) == rows  # before the first start
    store, retention = await opened(tmp_path)
    assert as_it_is(rows, tmp_path) == rows
    await retention.choose(30.0, "ann")
    changed = [row for row in as_it_is(rows, tmp_path) if row not in rows]  # while rlproxy runs
    assert [(row.key, row.value, row.source) for row in changed] == [
        (KEY, "30.0", "set on the page by ann, over default")
    ]
    await store.close()
    assert len([row for row in as_it_is(rows, tmp_path) if row not in rows]) == 1
    (tmp_path / schema.NAME).write_bytes(b"no database" * 1000)
    with pytest.raises(StoreError, match="not known"):
        as_it_is(rows, tmp_path)


async def test_of_an_encrypted_database_config_show_says_that_it_cannot_know(tmp_path: Path) -> None:
    settings = load({"home": tmp_path, "store.key_from": "env"}, environ={})
    (tmp_path / schema.NAME).write_bytes(b"noise" * 1000)
    rows = settings.describe()
    (changed,) = [row for row in as_it_is(rows, tmp_path) if row not in rows]
    assert changed.key == KEY and "the page may have set another" in changed.source


@given(st.text() | st.floats().map(str))
def test_days_are_a_number_that_makes_sense(text: str) -> None:
    try:
        days = days_of(text)
    except BadRequest:
        return
    assert 0 < days <= LONGEST and math.isfinite(days) and float(text) == days


@pytest.mark.parametrize("text", ["", "x", "0", "-1", "nan", "inf", "1e9", "７ days"])
def test_other_days_are_refused(text: str) -> None:
    with pytest.raises(BadRequest, match="above 0"):
        days_of(text)
