from __future__ import annotations

import asyncio
import resource
import sqlite3
import threading
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import store.file.writer
from store.errors import StoreClosed, StoreError, StoreFull
from store.file.integrity import Integrity
from store.file.writer import GROUP, Writer


@pytest.fixture
async def writer(tmp_path: Path) -> AsyncIterator[Writer]:
    db = sqlite3.connect(tmp_path / "x.db", isolation_level=None, check_same_thread=False)
    db.execute("PRAGMA journal_mode = WAL")
    db.execute("PRAGMA wal_autocheckpoint = 0")
    db.execute("PRAGMA busy_timeout = 10")
    db.execute("CREATE TABLE t (x UNIQUE)")
    writer = Writer(db, Integrity(tmp_path / "x.db"))
    yield writer
    await writer.stop()


def insert(value: Any) -> Any:
    return lambda db: db.execute("INSERT INTO t VALUES (?)", (value,)).rowcount


def insert_all(db: sqlite3.Connection, rows: Sequence[Any]) -> None:
    db.executemany("INSERT INTO t VALUES (?)", [(row,) for row in rows])


def values(db: sqlite3.Connection) -> list[Any]:
    return [row[0] for row in db.execute("SELECT x FROM t ORDER BY rowid")]


@contextmanager
def held_up(writer: Writer) -> Iterator[None]:
    """The writer waits inside an operation, so what is submitted here comes after it as one group."""
    entered, go = threading.Event(), threading.Event()

    def wait(_db: sqlite3.Connection) -> None:
        entered.set()
        go.wait(10)

    writer.submit(wait)
    entered.wait(10)
    try:
        yield
    finally:
        go.set()


async def test_all_who_wait_share_one_commit(writer: Writer) -> None:
    with held_up(writer):
        waiting = [writer.submit(insert(value)) for value in range(100)]
    await asyncio.gather(*waiting)
    assert writer.commits == 2  # the one that held it up, and the hundred
    assert await writer.submit(values) == list(range(100))


async def test_a_group_has_an_end(writer: Writer) -> None:
    with held_up(writer):
        waiting = [writer.submit(insert(value)) for value in range(GROUP + 1)]
    await asyncio.gather(*waiting)
    assert writer.commits == 3


async def test_a_stop_does_not_forget_what_nobody_waits_for(writer: Writer, tmp_path: Path) -> None:
    writer.submit(insert(1))
    await writer.stop()
    with sqlite3.connect(tmp_path / "x.db") as db:
        assert values(db) == [1]


async def test_an_end_at_once_does_not_forget_it_either(writer: Writer, tmp_path: Path) -> None:
    writer.submit(insert(1))
    assert writer.end_at_once(10.0)
    with sqlite3.connect(tmp_path / "x.db") as db:
        assert values(db) == [1]
    with pytest.raises(StoreClosed):
        await writer.submit(insert(2))


async def test_an_end_at_once_waits_no_longer_than_told(writer: Writer) -> None:
    with held_up(writer):
        assert not writer.end_at_once(0.01)


async def test_an_operation_that_fails_undoes_only_itself(writer: Writer) -> None:
    def half(db: sqlite3.Connection) -> None:
        insert("half")(db)
        raise KeyError("mine")

    with held_up(writer):
        waiting = [writer.submit(one) for one in (insert(1), half, insert(1), insert(2))]
    first, failed, double, last = await asyncio.gather(*waiting, return_exceptions=True)

    assert (first, last) == (1, 1)
    assert isinstance(failed, KeyError)
    assert isinstance(double, StoreError)
    assert "UNIQUE" in str(double)
    assert await writer.submit(values) == [1, 2]


async def test_nobody_hears_of_success_before_the_commit(writer: Writer, tmp_path: Path) -> None:
    other = sqlite3.connect(tmp_path / "x.db")
    for value in range(20):
        await writer.submit(insert(value))
        assert other.execute("SELECT count(*) FROM t").fetchone() == (value + 1,)
    other.close()


async def test_a_caller_that_went_away_harms_nobody(writer: Writer) -> None:
    with held_up(writer):
        gone, stays = writer.submit(insert(1)), writer.submit(insert(2))
        gone.cancel()
    assert await stays == 1
    assert await writer.submit(values) == [1, 2]


async def test_a_full_database_is_told_to_those_it_meets_and_goes_on_when_there_is_space(writer: Writer) -> None:
    def limit(pages: int) -> Any:
        return lambda db: db.execute(f"PRAGMA max_page_count = {pages}").fetchone()[0]

    await writer.submit(limit(12))
    with held_up(writer):
        waiting = [writer.submit(insert(value)) for value in (1, b"x" * 100_000, 2)]
    small, large, small_too = await asyncio.gather(*waiting, return_exceptions=True)
    assert isinstance(large, StoreFull)
    assert "free some space" in str(large)
    assert (small, small_too) == (1, 1)

    await writer.submit(limit(10_000))
    assert await writer.submit(insert(b"x" * 100_000)) == 1
    assert len(await writer.submit(values)) == 3


async def test_a_disk_that_refuses_the_commit_fails_all_of_it_and_keeps_what_was_there(writer: Writer) -> None:
    await writer.submit(insert("before"))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1, hard))  # no file of this process may grow
    try:
        with held_up(writer):
            waiting = [writer.submit(insert(value)) for value in range(3)]
        outcomes = await asyncio.gather(*waiting, return_exceptions=True)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

    assert [isinstance(outcome, StoreError) for outcome in outcomes] == [True] * 3
    assert await writer.submit(values) == ["before"]
    assert await writer.submit(insert("after")) == 1


async def test_stop_ends_what_is_queued_and_refuses_what_comes_later(writer: Writer, tmp_path: Path) -> None:
    with held_up(writer):
        waiting = [writer.submit(insert(value)) for value in range(5)]
        stopping = asyncio.create_task(writer.stop())
        await asyncio.sleep(0)
        late = writer.submit(insert("late"))
    assert await asyncio.gather(*waiting) == [1] * 5
    await stopping
    with pytest.raises(StoreClosed):
        await late
    other = sqlite3.connect(tmp_path / "x.db")
    assert values(other) == list(range(5))
    other.close()


async def test_the_wal_does_not_grow_for_ever(writer: Writer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store.file.writer, "CHECKPOINT_CHANGES", 10)
    for value in range(200):
        await writer.submit(insert(value.to_bytes(2, "big") * 1000))
    assert (tmp_path / "x.db-wal").stat().st_size < 500_000  # all of it is above 1.5 MB


async def test_while_another_program_holds_the_database_writes_fail_and_then_go_on(
    writer: Writer, tmp_path: Path
) -> None:
    other = sqlite3.connect(tmp_path / "x.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    outcomes = await asyncio.gather(*(writer.submit(insert(value)) for value in range(3)), return_exceptions=True)
    assert ["locked" in str(outcome) for outcome in outcomes] == [True] * 3
    other.execute("ROLLBACK")
    other.close()
    assert await writer.submit(insert(1)) == 1


async def test_rows_of_one_turn_of_the_loop_are_one_call_in_one_commit_and_keep_their_place(writer: Writer) -> None:
    calls: list[int] = []

    def counted(db: sqlite3.Connection, rows: Sequence[Any]) -> None:
        calls.append(len(rows))
        insert_all(db, rows)

    waiting = [writer.submit_rows(counted, [value]) for value in range(50)]
    assert writer.waiting == 50
    await asyncio.gather(*waiting)
    assert (writer.commits, calls) == (1, [50])
    first, then = writer.submit_rows(insert_all, ["first"]), writer.submit(values)
    assert (await then)[-1] == "first" and first.done()


async def test_of_rows_that_share_a_call_only_those_that_fail_are_told_so(writer: Writer) -> None:
    waiting = [writer.submit_rows(insert_all, [value]) for value in (1, 2, 2, 3)]
    outcomes = await asyncio.gather(*waiting, return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [type(None), type(None), StoreError, type(None)]
    assert await writer.submit(values) == [1, 2, 3]


async def test_a_stop_does_not_forget_rows(writer: Writer) -> None:
    stored = writer.submit_rows(insert_all, [1])
    await writer.stop()
    await stored
    with pytest.raises(StoreClosed):
        await writer.submit_rows(insert_all, [2])
