"""A full disk: answers keep coming, nothing is claimed to be stored that is not, and it recovers by itself."""

from __future__ import annotations

import random
import sqlite3
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from scripts.fakes.backend import FakeBackend
from scripts.fakes.launcher import FakeLauncher
from scripts.harness.in_process import Proxy
from store.file.schema import NAME


async def limit_pages(proxy: Proxy, pages: int) -> None:
    """The database may not grow beyond this many pages: to SQLite the same as a full disk."""
    await proxy.store._writer.submit(lambda db: db.execute(f"PRAGMA max_page_count = {pages}").fetchone())


async def test_relaying_goes_on_and_capture_comes_back(proxy: Proxy) -> None:
    kept = await proxy.chat("before")
    await kept.read()
    await limit_pages(proxy, 1)  # SQLite raises it to the present size: full from now on
    big = "x" * 200_000
    lost = []
    for stream in (False, True):
        response = await proxy.chat(big, stream=stream)
        body = await response.read()
        assert response.status == 200 and (body.endswith(b"data: [DONE]\n\n") if stream else b"You said" in body)
        lost.append(response.headers["x-rl-completion-id"])
    for id in lost:
        status, answer = await proxy.rate(completion_id=id, rating="good")
        assert status in (404, 507), answer
    async with proxy.http.get("/metrics") as metrics:
        assert "rlproxy_completions_not_stored_total 2.0" in await metrics.text()

    assert "not captured" in (await proxy.get("/rl/status"))["problem"]

    await limit_pages(proxy, 1_000_000)
    after = await proxy.chat(big)
    await after.read()
    assert (await proxy.rate(completion_id=after.headers["x-rl-completion-id"], rating="good"))[0] == 201
    assert (await proxy.get("/rl/status"))["problem"] is None
    assert (await proxy.rate(completion_id=kept.headers["x-rl-completion-id"], rating="good"))[0] == 201


async def test_a_rating_that_is_not_stored_is_not_acknowledged(proxy: Proxy) -> None:
    id = (await proxy.chat("a")).headers["x-rl-completion-id"]
    await limit_pages(proxy, 1)
    status, answer = await proxy.rate(completion_id=id, rating="good", comment="y" * 19_000)
    assert status == 507 and "not stored" in answer["error"]["message"]
    await limit_pages(proxy, 1_000_000)
    assert await proxy.store.ratings.live(id, "owner") is None
    assert (await proxy.rate(completion_id=id, rating="good"))[0] == 201


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A real one of 3 MiB, where we may mount."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", str(folder)], capture_output=True)
    if mounted.returncode:
        pytest.skip("needs the right to mount a tmpfs; the tests above fill the database instead")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


async def test_a_disk_that_is_really_full(tmp_path: Path, small_disk: Path, backend: FakeBackend) -> None:
    proxy = Proxy(small_disk / "home", backend, FakeLauncher())
    await proxy.start()
    try:
        kept, lost = [], []
        for n in range(30):
            response = await proxy.chat(f"{n} " + random.Random(n).randbytes(60_000).hex())
            assert response.status == 200 and b"You said" in await response.read()
            id = response.headers["x-rl-completion-id"]
            row = await proxy.store.completions.get(id)
            (kept if row is not None and row.status == "done" else lost).append(id)
        assert kept and len(lost) > 5
        assert "not captured" in (await proxy.get("/rl/status"))["problem"]
        # Somebody makes room.
        subprocess.run(["mount", "-o", "remount,size=30m", str(small_disk)], check=True)
        after = await proxy.chat("after " + "z" * 60_000)
        await after.read()
        assert (await proxy.rate(completion_id=after.headers["x-rl-completion-id"], rating="good"))[0] == 201
        assert (await proxy.get("/rl/status"))["problem"] is None
        for id in kept:
            row = await proxy.store.completions.get(id)
            assert row is not None and row.status == "done"
        assert (await proxy.store.stats.counts())["pending"] == 0, "what was begun and could not be ended"
    finally:
        await proxy.stop()
    with closing(sqlite3.connect(small_disk / "home" / NAME)) as db:
        assert db.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
