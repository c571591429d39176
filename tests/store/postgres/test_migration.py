"""A home from SQLite to PostgreSQL and back: every row, also where it was killed in between."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from scripts.harness.postgres import PostgresServer
from scripts.harness.records import end, new, put, rated
from store.errors import StoreError
from store.file import schema
from store.line_records import StoredLine
from store.postgres import migration
from store.records import CompletionQuery, Message
from store.store import Store

pytestmark = pytest.mark.postgres


class Killed(BaseException):
    pass


async def fill(home: Path) -> list[dict[str, object]]:
    store = await Store.open(home)
    await rated(store, 12, session="s", user="u\0x")
    prompt = tuple(Message("user" if n % 2 == 0 else "assistant", b'"%d"' % n) for n in range(40))
    await store.completions.record(
        [new("long", prompt=prompt, request=b'{"tools":"%s"}' % (b"x" * 2000))],
        [end("long", prompt_token_ids=list(range(3000)))],
    )
    await store.completions.record([new("gone")], [end("gone")])
    await store.completions.forget(["gone"])
    await store.meta.audit("me", "x", {"y": 1})
    await put(store, "words", asked="needle")
    await store.lines.create(StoredLine("ann", 0, 5.0, None, ("ann",), ()), "me")
    await put(store, "of ann", line="ann")
    rows = [row async for row in store.transfer.export()]
    await store.close()
    return rows


def quiet(table: str, count: int, total: int) -> None:
    pass


async def test_there_and_back(postgres: PostgresServer, tmp_path: Path) -> None:
    rows = await fill(tmp_path / "old")
    url = postgres.url(postgres.create())
    report = migration.to_postgres(tmp_path / "old", url, None, quiet)
    assert report.rows["completions"] == 15 and report.rows["ratings"] == 12

    store = await Store.open(tmp_path / "relay", url=url)
    assert [row async for row in store.transfer.export()] == rows
    page = await store.inbox.page(CompletionQuery(search="needle"))
    assert [row.id for row in page.rows] == ["words"]
    await put(store, "later")  # numbers go on: those of deleted rows are not given again
    later = await store.answers.get("later")
    assert later is not None and later.seq == 17
    assert [line.name for line in await store.lines.all()] == ["ann"]
    assert (await store.lines.counts())["ann"].completions == 1
    audit = await store.meta.audit_log()
    there = [row async for row in store.transfer.export()]
    with pytest.raises(StoreError, match="was at work in this database"):
        migration.to_sqlite(tmp_path / "back", url, quiet)
    await store.close()

    migration.to_sqlite(tmp_path / "back", url, quiet)
    with closing(sqlite3.connect(tmp_path / "back" / schema.NAME)) as db:
        assert db.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    back = await Store.open(tmp_path / "back")
    assert [row async for row in back.transfer.export()] == there
    assert await back.meta.audit_log() == audit
    assert list(await back.lines.pointers()) == ["common", "ann"]
    page = await back.inbox.page(CompletionQuery(search="needle"))
    assert [row.id for row in page.rows] == ["words"]
    await put(back, "at home again")
    await back.close()


@pytest.mark.parametrize("stop", [1, 5, 9])
async def test_a_kill_costs_a_batch_and_the_next_call_goes_on(
    postgres: PostgresServer, tmp_path: Path, stop: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(migration, "BATCH", 3)
    rows = await fill(tmp_path / "old")
    url = postgres.url(postgres.create())
    calls: list[str] = []

    def killed(table: str, count: int, total: int) -> None:
        calls.append(table)
        if len(calls) == 3 * stop:
            raise Killed

    with pytest.raises(Killed):
        migration.to_postgres(tmp_path / "old", url, None, killed)
    with pytest.raises(StoreError, match="has not come to its end"):
        await Store.open(tmp_path / "relay", url=url)
    migration.to_postgres(tmp_path / "old", url, None, quiet)
    store = await Store.open(tmp_path / "relay", url=url)
    assert [row async for row in store.transfer.export()] == rows
    await store.close()

    calls.clear()
    with pytest.raises(Killed):
        migration.to_sqlite(tmp_path / "back", url, killed)
    assert not (tmp_path / "back" / schema.NAME).exists()
    migration.to_sqlite(tmp_path / "back", url, quiet)
    back = await Store.open(tmp_path / "back")
    assert [row async for row in back.transfer.export()] == rows
    await back.close()


async def test_a_database_in_use_is_not_written_into(database: str, tmp_path: Path) -> None:
    await fill(tmp_path / "old")
    store = await Store.open(tmp_path / "relay", url=database)
    await put(store, "theirs")
    await store.close()
    with pytest.raises(StoreError, match="of its own, so nothing was copied"):
        migration.to_postgres(tmp_path / "old", database, None, quiet)


async def test_a_database_with_anything_in_it_stays_what_it_is(database: str, tmp_path: Path) -> None:
    await fill(tmp_path / "old")
    store = await Store.open(tmp_path / "relay", url=database)
    with pytest.raises(StoreError, match="was at work in this database"):
        migration.to_postgres(tmp_path / "old", database, None, quiet)
    await store.lines.create(StoredLine("theirs", 0, 5.0, None, (), ()), "me")
    await store.close()
    with pytest.raises(StoreError, match="of its own, so nothing was copied"):
        migration.to_postgres(tmp_path / "old", database, None, quiet)
    store = await Store.open(tmp_path / "relay", url=database)  # and not: the migration has not come to its end
    assert [line.name for line in await store.lines.all()] == ["theirs"]
    await store.close()
