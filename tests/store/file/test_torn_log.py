"""A log that cannot be read to its end: what was acknowledged is not given up in silence."""

from __future__ import annotations

import asyncio
import random
import shutil
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from scripts.harness.records import put
from store.copies import backup, encryption
from store.errors import StoreDamaged
from store.file import integrity, schema, torn_log
from store.file.db_key import Secret
from store.store import Store

LOG = f"{schema.NAME}-wal"
MANY = 40


async def killed(home: Path, into: Path, secret: Secret | None = None) -> None:
    """A home as a kill leaves it: all that was written is in the log."""
    store = await Store.open(home, secret)
    for n in range(MANY):
        await put(store, f"c{n}")
    shutil.copytree(home, into)
    await store.close()
    (into / f"{schema.NAME}-shm").unlink()


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    folder = tmp_path_factory.mktemp("killed")
    asyncio.run(killed(folder / "a", folder / "b"))
    return (folder / "b" / LOG).read_bytes()


async def done(home: Path) -> int:
    store = await Store.open(home)
    try:
        assert await store.checked()
        return (await store.stats.counts())["done"]
    finally:
        await store.close()


@pytest.mark.parametrize("secret", [None, Secret("ab" * 32)], ids=["clear", "encrypted"])
async def test_a_broken_frame_in_the_middle_is_told_and_nothing_is_lost(tmp_path: Path, secret: Secret | None) -> None:
    if secret is not None:
        pytest.importorskip("sqlcipher3")
    home = tmp_path / "b"
    await killed(tmp_path / "a", home, secret)
    log = home / LOG
    before = bytearray(log.read_bytes())
    before[len(before) // 2] ^= 1
    log.write_bytes(before)
    for _ in range(2):  # the next start says it again
        with pytest.raises(StoreDamaged, match=r"Copy the file first; then `truncate -s [0-9]+ ") as told:
            await Store.open(home, secret)
        assert log.read_bytes() == before and integrity.noted(home / schema.NAME) is not None
    end = int(str(told.value).split("truncate -s ")[1].split()[0])
    log.write_bytes(before[:end])
    store = await Store.open(home, secret)
    assert await store.checked() and 0 < (await store.stats.counts())["done"] < MANY
    await store.close()
    assert integrity.noted(home / schema.NAME) is None


async def test_a_last_write_that_a_power_cut_has_halved_is_none(tmp_path: Path) -> None:
    await killed(tmp_path / "a", tmp_path / "b")
    log = tmp_path / "b" / LOG
    raw = log.read_bytes()
    log.write_bytes(raw[:-1000])
    assert await done(tmp_path / "b") == MANY - 1


KEY = Secret("ab" * 32)


def broken(home: Path) -> bytes:
    """The log, with a byte in its middle that is another one."""
    log = home / LOG
    raw = bytearray(log.read_bytes())
    raw[len(raw) // 2] ^= 1
    log.write_bytes(raw)
    return bytes(raw)


@pytest.mark.parametrize("act", ["encrypt", "encrypt again", "decrypt"])
async def test_a_home_is_not_converted_over_a_broken_log(tmp_path: Path, act: str) -> None:
    """SQLite would give up what is behind the damage as soon as it closes the database."""
    pytest.importorskip("sqlcipher3")
    home = tmp_path / "b"
    await killed(tmp_path / "a", home, None if act == "encrypt" else KEY)
    raw = broken(home)
    with pytest.raises(StoreDamaged, match="writes behind it cannot be read"), encryption.owned(home):
        pass
    convert = encryption.decrypt if act == "decrypt" else encryption.encrypt
    with pytest.raises(StoreDamaged, match="writes behind it cannot be read"):
        convert(home, KEY, lambda *_: None)
    assert (home / LOG).read_bytes() == raw


async def test_a_restore_keeps_the_broken_log_of_what_it_replaces(tmp_path: Path) -> None:
    home = tmp_path / "b"
    await killed(tmp_path / "a", home)
    backup.backup(tmp_path / "a" / schema.NAME, tmp_path / "copy.db")
    raw = broken(home)
    kept = backup.restore(home, tmp_path / "copy.db").old_database
    assert kept is not None and kept.with_name(f"{kept.name}-wal").read_bytes() == raw


def test_each_frame_but_the_last_ones(log: bytes) -> None:
    assert torn_log.look(log) is None
    log = log[: torn_log.HEADER + 180 * (torn_log.FRAME + torn_log.PAGE)]  # about 100 of the schema
    frame = torn_log.FRAME + torn_log.PAGE
    frames = range(torn_log.HEADER, len(log), frame)
    ends = [at + frame for at in frames if log[at + 4 : at + 8] != bytes(4)]  # of whole transactions
    for n, at in enumerate([*frames[:: len(frames) // 6], *frames[-4:]]):
        for byte in ((0, 9, 2000), (5, 17, 4000))[n % 2]:  # page, salt, content; size, checksum, content
            broken = bytearray(log)
            broken[at + byte] ^= 0x10
            torn = torn_log.look(bytes(broken))
            if at < ends[-2]:
                assert torn is not None and torn.offset == max((end for end in ends if end <= at), default=32), (
                    at,
                    byte,
                )
                assert torn_log.look(bytes(broken[: torn.offset])) is None
    for byte in range(1, torn_log.HEADER, 5):  # of its own header
        broken = bytearray(log)
        broken[byte] ^= 0x10
        assert (torn := torn_log.look(bytes(broken))) is not None and torn.offset == 0, byte


def test_a_log_that_began_anew_has_old_frames_behind(tmp_path: Path) -> None:
    """SQLite goes back to the beginning of a log that is in the file, and overwrites it frame by frame."""
    path = tmp_path / "x.db"
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("CREATE TABLE t (x)")
        for n in range(30):
            db.execute("INSERT INTO t VALUES (?)", (bytes(3000) + bytes([n]),))
        db.execute("PRAGMA wal_checkpoint(RESTART)")
        db.execute("INSERT INTO t VALUES (1)")
        raw = (tmp_path / "x.db-wal").read_bytes()
    assert len(raw) > 30 * 4096 and torn_log.look(raw) is None


@pytest.mark.parametrize("order", ["little", "big"])
@pytest.mark.parametrize("page", [512, 4096, 65536])
def test_checksums_of_many_frames_are_those_of_each(order: str, page: int) -> None:
    length = torn_log.FRAME + page
    for count in (1, 2, 5):
        for block in (b"\xff" * length * count, random.Random(count).randbytes(length * count)):
            found = torn_log._each(block, length, order)
            frames = [block[at : at + length] for at in range(0, len(block), length)]
            assert found == [torn_log._sums(one[:8] + one[torn_log.FRAME :], (0, 0), order) for one in frames]


def test_a_log_of_megabytes_is_looked_through_in_a_moment(log: bytes) -> None:
    """Word by word it took a second for 10 MB, and a kill may leave much more."""
    length = torn_log.FRAME + torn_log.PAGE
    frames = log[torn_log.HEADER : torn_log.HEADER + 128 * length]
    slow = cost(lambda: torn_log._sums(frames, (0, 0), "little"))
    fast = cost(lambda: torn_log._each(frames * 4, length, "little"))
    assert fast < 2 * slow  # for four times as much


@pytest.mark.parametrize("size", [0, 4, 511, 4095, 1 << 31])
def test_a_log_of_pages_that_no_database_has(log: bytes, size: int) -> None:
    """Its header adds up, so somebody wrote it. SQLite takes nothing of it, and neither a start nor this breaks."""
    header = log[:8] + size.to_bytes(4, "big") + log[12:24]
    order = "big" if log[3] & 1 else "little"
    sums = torn_log._sums(header, (0, 0), order)
    hostile = header + b"".join(one.to_bytes(4, "big") for one in sums) + log[torn_log.HEADER :]
    torn = torn_log.look(hostile)
    assert torn is not None and torn.offset == 0


def cost(work: Callable[[], Any]) -> float:
    began = time.process_time()
    work()
    return time.process_time() - began
