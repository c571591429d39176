"""Kills in the middle: of the relay, of the database, of both. What was acknowledged is there, once."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest

from scripts.harness.postgres import PostgresServer
from scripts.harness.records import end, new
from store.captured.completions import STOPPED
from store.errors import StoreError
from store.postgres.spool import NAME, REFUSED, Spool
from store.store import Store

pytestmark = pytest.mark.postgres
ROOT = Path(__file__).parents[3]
WRITE_FOR_EVER = """
import asyncio, sys
from pathlib import Path
from scripts.harness.records import end, new
from store.store import Store

async def one(store, id):
    if id.endswith("0"):
        store.completions.begin([new(id)])
        await store.completions.finish([end(id)])
    else:
        await store.completions.record([new(id)], [end(id)])
    print(id, flush=True)

async def main(home, url, name):
    store = await Store.open(home, url=url)
    running = asyncio.create_task(store.sharing.run())
    for at in range(10**6):
        await asyncio.gather(*(one(store, f"{name}-{at}-{side}") for side in range(4)))

asyncio.run(main(Path(sys.argv[1]), sys.argv[2], sys.argv[3]))
"""


async def test_what_was_acknowledged_is_there_once_whoever_is_killed(durable: PostgresServer, tmp_path: Path) -> None:
    url = durable.url(durable.create())
    acknowledged: list[str] = []
    dice = random.Random(7)
    for life in range(4):
        process = subprocess.Popen(
            [sys.executable, "-c", WRITE_FOR_EVER, str(tmp_path / "relay"), url, f"life{life}"],
            stdout=subprocess.PIPE, text=True, cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT)},
        )  # fmt: skip
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(dice.randint(10, 40))]
        is_away = life % 2 == 1
        if is_away:
            durable.kill()
            lines += [process.stdout.readline() for _ in range(dice.randint(5, 20))]  # into the spool
            if life == 3:  # it is back, and the deliveries are cut off
                durable.start()
                await asyncio.sleep(dice.random())
                is_away = False
        process.send_signal(signal.SIGKILL)
        lines += process.stdout.readlines()
        process.wait()
        process.stdout.close()
        acknowledged += [line.strip() for line in lines if line.endswith("\n")]
        if is_away:
            durable.start()
    store = await Store.open(tmp_path / "relay", url=url)
    assert store.sharing is not None
    await store.sharing.completions.deliver()
    stored = {row["id"]: row async for row in store.transfer.export()}
    assert len(acknowledged) > 100 and set(acknowledged) <= set(stored)
    assert {stored[id]["status"] for id in acknowledged} == {"done"}
    assert {row["error"] for row in stored.values() if row["status"] != "done"} <= {STOPPED}
    await store.close()


async def test_a_line_that_a_kill_has_cut_is_left_out(tmp_path: Path) -> None:
    spool = Spool(tmp_path)
    await spool.append([(new("a"), end("a"))])
    await spool.append([(new("b"), end("b"))])
    await spool.close()
    file = tmp_path / NAME
    file.write_bytes(file.read_bytes()[:-7])
    again = Spool(tmp_path)
    assert again.ids == {"a"}
    await again.append([(new("c"), end("c"))])
    batch = await again.next()
    assert [answer[0].id for answer in batch.answers] == ["a", "c"]
    assert batch.answers[0] == (new("a"), end("a"))
    await again.note_delivered(batch)
    assert file.stat().st_size == 0 and again.is_empty
    await again.close()


def as_written_by_another(file: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """The lines of a spool, each with other fields of the completion, and its own checksum."""
    lines = []
    for line in file.read_bytes().splitlines():
        fields, ended = orjson.loads(line.partition(b" ")[2])
        change(fields)
        text = orjson.dumps([fields, ended])
        lines.append(b"%08x %s\n" % (zlib.crc32(text), text))
    file.write_bytes(b"".join(lines))


async def test_a_line_of_an_older_rlproxy_has_the_defaults(tmp_path: Path) -> None:
    spool = Spool(tmp_path)
    await spool.append([(new("a"), end("a"))])
    await spool.close()
    as_written_by_another(
        tmp_path / NAME, lambda fields: [fields.pop(name) for name in ("lessons", "redacted", "line")]
    )
    spool = Spool(tmp_path)
    assert (await spool.next()).answers == [(new("a"), end("a"))]
    await spool.close()


async def test_what_a_newer_rlproxy_has_spooled_is_set_aside_once_and_not_lost(database: str, tmp_path: Path) -> None:
    """Also at the end of the file, where a kill leaves half a line."""
    spool = Spool(tmp_path)
    await spool.append([(new("a"), end("a"))])
    await spool.append([(new("b"), end("b"))])
    await spool.close()
    as_written_by_another(tmp_path / NAME, lambda fields: fields.update(of_a_newer_one=1))
    lines = (tmp_path / NAME).read_bytes()
    spool = Spool(tmp_path)
    for _ in range(3):  # the database is away: it is tried again and again
        await spool.next()
    await spool.close()
    assert (tmp_path / REFUSED).read_bytes() == lines
    store = await Store.open(tmp_path, url=database)
    assert store.sharing is not None
    await store.sharing.completions.deliver()
    assert store.sharing.completions.spool.is_empty and store.sharing.refused is not None
    await store.close()
    assert (tmp_path / REFUSED).read_bytes() == lines


async def test_what_the_database_refuses_is_kept_and_told_after_a_restart_too(database: str, tmp_path: Path) -> None:
    store = await Store.open(tmp_path, url=database)
    assert store.sharing is not None and store.sharing.refused is None
    spool = store.sharing.completions.spool
    await spool.append([(new("a"), end("a"))])
    batch = await spool.next()
    spool.keep_refused(batch, "it is too large for an index")
    await spool.note_delivered(batch)
    for _ in range(2):
        assert store.sharing is not None and store.sharing.refused is not None
        assert store.sharing.refused.startswith("1 spooled answers were not delivered")
        assert f"They are in {tmp_path / REFUSED}" in store.sharing.refused
        await store.close()
        store = await Store.open(tmp_path, url=database)
    await store.close()


FULL = """
import asyncio, resource, signal, sys
from pathlib import Path
from scripts.harness.records import end, new
from store.errors import StoreError
from store.postgres.spool import Spool

async def main():
    spool = Spool(Path(sys.argv[1]))
    await spool.append([(new("a"), end("a"))])
    size = spool.size
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size + 100, resource.RLIM_INFINITY))
    try:
        await spool.append([(new("b"), end("b"))])
    except StoreError as error:
        print(error)
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    await spool.append([(new("c"), end("c"))])
    print([answer[0].id for answer in (await spool.next()).answers])
    await spool.close()

asyncio.run(main())
"""


def test_a_disk_that_takes_half_a_line_keeps_the_others(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", FULL, str(tmp_path)], cwd=ROOT, capture_output=True, text=True,
                          env=os.environ | {"PYTHONPATH": str(ROOT)})  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "was not stored" in done.stdout and "['a', 'c']" in done.stdout


async def test_what_was_forgotten_while_its_end_was_spooled_does_not_come_back(database: str, tmp_path: Path) -> None:
    store = await Store.open(tmp_path, url=database)
    assert store.sharing is not None
    await store.completions.begin([new("a"), new("b")])
    assert await store.sharing.end_abandoned() == 2
    await store.erasure.forget("completion", "a", "ann")
    await store.sharing.completions.spool.append([(new(id), end(id)) for id in "ab"])
    assert await store.sharing.completions.deliver() == 2
    assert await store.completions.get("a") is None and await store.completions.get("b") is not None
    await store.close()


async def test_a_relay_that_was_taken_for_gone_delivers_all_the_same(database: str, tmp_path: Path) -> None:
    """Another relay has ended its rows meanwhile."""
    store = await Store.open(tmp_path, url=database)
    assert store.sharing is not None
    await store.completions.begin([new("a")])
    assert await store.sharing.end_abandoned() == 1
    await store.sharing.completions.spool.append([(new("a"), end("a"))])
    await store.sharing.completions.deliver()
    completion = await store.completions.get("a")
    assert completion is not None and completion.status == "done" and completion.end is not None
    assert completion.end.text == "hi"
    assert (await store.inbox.get("a")) is not None
    with pytest.raises(StoreError):
        await store.completions.finish([end("a")])
    await store.close()


async def test_a_server_that_is_frozen_holds_no_answer_up(durable: PostgresServer, tmp_path: Path) -> None:
    store = await Store.open(tmp_path, url=durable.url(durable.create()))
    assert store.sharing is not None
    running = asyncio.create_task(store.sharing.run())
    with durable.frozen():
        async with asyncio.timeout(30):
            await store.completions.record([new("a")], [end("a")])
    async with asyncio.timeout(60):
        while store.sharing.spooled:
            await asyncio.sleep(0.05)
    assert [row["id"] async for row in store.transfer.export()] == ["a"]
    running.cancel()
    await asyncio.wait({running})
    await store.close()
