from __future__ import annotations

import asyncio
import os
import random
import signal
import sqlite3
import stat
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from scripts.harness.records import HELLO, HI, end, new, put, rating
from store.copies.export import Filter
from store.errors import StoreBusy, StoreClosed, StoreDamaged, StoreError
from store.file import schema
from store.file.integrity import Integrity
from store.store import Store

ROOT = Path(__file__).parents[2]

WRITE_FOR_EVER = """
import asyncio, sys
from pathlib import Path
from scripts.harness.records import end, new, rating
from store.store import Store

async def one(store, id):
    store.completions.begin([new(id)])
    await store.completions.finish([end(id)])
    given = await store.ratings.rate(rating(id))
    print(id, given.id, flush=True)

async def main(home, name):
    store = await Store.open(home)
    for at in range(10**6):
        await asyncio.gather(*(one(store, f"{name}-{at}-{side}") for side in range(4)))

asyncio.run(main(Path(sys.argv[1]), sys.argv[2]))
"""


async def test_what_was_acknowledged_survives_a_kill(tmp_path: Path) -> None:
    acknowledged: dict[str, str] = {}
    for life in range(5):
        process = subprocess.Popen(
            [sys.executable, "-c", WRITE_FOR_EVER, str(tmp_path), f"life{life}"],
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
        )
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(random.randint(1, 60))]
        process.send_signal(signal.SIGKILL)
        lines += process.stdout.readlines()
        process.wait()
        process.stdout.close()
        whole = [line.split() for line in lines if line.endswith("\n")]
        assert whole, "it never wrote anything"
        acknowledged |= dict(whole)

        store = await Store.open(tmp_path)  # the flag is not set: this runs the quick check
        try:
            for id, rating_id in acknowledged.items():
                found = await store.completions.get(id)
                assert found is not None
                assert (found.status, [one.id for one in found.ratings]) == ("done", [rating_id])
            assert (await store.stats.counts())["pending"] == 0
        finally:
            await store.close()
    with closing(sqlite3.connect(tmp_path / schema.NAME)) as db:
        assert db.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        assert db.execute("PRAGMA foreign_key_check").fetchall() == []


async def test_a_second_owner_is_told_who_the_first_is(store: Store, tmp_path: Path) -> None:
    with pytest.raises(StoreBusy, match=f"process {os.getpid()}") as caught:
        await Store.open(tmp_path)
    assert caught.value.pid == os.getpid()
    await store.close()
    await (await Store.open(tmp_path)).close()


async def test_the_files_are_for_their_owner_alone(store: Store, tmp_path: Path) -> None:
    await put(store, "a")
    for file in tmp_path.iterdir():
        assert stat.S_IMODE(file.stat().st_mode) & 0o077 == 0, file


async def test_a_closed_store_refuses(tmp_path: Path) -> None:
    store = await Store.open(tmp_path / "new" / "home")
    await store.close()
    await store.close()
    with pytest.raises(StoreClosed):
        await store.ratings.rate(rating("a"))


async def test_close_writes_what_is_queued(tmp_path: Path) -> None:
    store = await Store.open(tmp_path)
    store.completions.begin([new("a")])
    finishing = asyncio.ensure_future(store.completions.finish([end("a")]))
    await asyncio.sleep(0)
    await store.close()
    await finishing
    store = await Store.open(tmp_path)
    found = await store.completions.get("a")
    await store.close()
    assert found is not None
    assert found.status == "done"


async def test_opening_and_closing_leaks_no_file(tmp_path: Path) -> None:
    async def once() -> int:
        store = await Store.open(tmp_path)
        await put(store, f"c{len(os.listdir('/proc/self/fd'))}-{os.urandom(4).hex()}")
        await store.close()
        return len(os.listdir("/proc/self/fd"))

    first = await once()
    assert [await once() for _ in range(3)] == [first] * 3


async def test_only_a_store_that_was_not_closed_is_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checked: list[Path] = []
    monkeypatch.setattr(Integrity, "begin", lambda self, secret: checked.append(self._path))
    await (await Store.open(tmp_path)).close()
    await (await Store.open(tmp_path)).close()
    assert checked == []
    with closing(sqlite3.connect(tmp_path / schema.NAME)) as db, db:
        db.execute("UPDATE meta SET value = 'false' WHERE key = ?", (schema.CLEAN,))
    await (await Store.open(tmp_path)).close()
    assert checked == [tmp_path / schema.NAME]


async def test_a_damaged_file_is_said_to_be_damaged_and_lets_go_of_the_lock(tmp_path: Path) -> None:
    store = await Store.open(tmp_path)
    for at in range(50):
        await put(store, f"c{at}", request=b"x" * 4000)
    await store.close()
    path = tmp_path / schema.NAME
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("UPDATE meta SET value = 'false' WHERE key = ?", (schema.CLEAN,))
        (page,) = db.execute("SELECT rootpage FROM sqlite_schema WHERE name = 'completions'").fetchone()
        (size,) = db.execute("PRAGMA page_size").fetchone()
    with path.open("r+b") as file:
        file.seek((page - 1) * size + 8)
        file.write(b"\xff" * 200)
    for _ in range(2):
        with pytest.raises(StoreDamaged, match="restore a backup"):
            await Store.open(tmp_path)


async def test_what_is_no_database_is_not_touched(tmp_path: Path) -> None:
    (tmp_path / schema.NAME).write_text("my diary" * 1000)
    with pytest.raises(StoreError, match="not a database"):
        await Store.open(tmp_path)
    assert (tmp_path / schema.NAME).read_text() == "my diary" * 1000


async def test_a_database_of_a_newer_rlproxy_is_left_alone(tmp_path: Path) -> None:
    await (await Store.open(tmp_path)).close()
    with closing(sqlite3.connect(tmp_path / schema.NAME)) as db:
        db.execute("PRAGMA user_version = 999")
    with pytest.raises(StoreError, match="newer rlproxy"):
        await Store.open(tmp_path)


async def test_named_values_and_the_audit(store: Store) -> None:
    assert await store.meta.get("paused", False) is False
    await store.meta.set("paused", {"by": "me", "since": 1.5})
    await store.meta.set("paused", {"by": "her"})
    assert await store.meta.get("paused", False) == {"by": "her"}
    await store.meta.audit("me", "pause", {"why": "holiday"})
    await store.meta.audit("me", "resume", {})
    log = await store.meta.audit_log(1)
    assert [(entry["actor"], entry["act"], entry["detail"]) for entry in log] == [("me", "resume", {})]


async def test_export_gives_all_that_is_needed_to_train_elsewhere(store: Store) -> None:
    await put(store, *(f"c{at}" for at in range(60)), prompt=(HELLO, HI, HELLO))
    await store.completions.begin([new("open")])
    given = await store.ratings.rate(rating("c3", -1.0, comment="too long"))

    rows = [row async for row in store.transfer.export()]
    assert [row["id"] for row in rows] == [f"c{at}" for at in range(60)] + ["open"]
    (row,) = [row async for row in store.transfer.export(Filter(rated=True))]
    assert row["messages"] == [
        {"role": "user", "content": "hello"},
        {"role": "assistant", "content": "hi"},
        {"role": "user", "content": "hello"},
    ]
    assert row["reply"] == {"role": "assistant", "content": "hi"}
    assert (row["token_ids"], row["logprobs"], row["request"]) == ([3], [-0.5], {"stream": True})
    assert [(one["id"], one["value"], one["comment"]) for one in row["ratings"]] == [(given.id, -1.0, "too long")]
    assert rows[-1]["reply"] is None


async def test_a_process_that_never_closes_its_store_can_end(tmp_path: Path) -> None:
    """As one whose test, or start, failed half-way: no thread of ours keeps it."""
    code = "import asyncio, pathlib, sys, store.store as s; kept = asyncio.run(s.Store.open(pathlib.Path(sys.argv[1])))"
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", code, str(tmp_path), cwd=ROOT)
    try:
        async with asyncio.timeout(30):
            assert await process.wait() == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
