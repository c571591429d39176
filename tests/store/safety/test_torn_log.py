"""A log that cannot be read to its end: what was acknowledged is not given up in silence."""

from __future__ import annotations

import asyncio
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from scripts.harness.records import put
from store import schema
from store.errors import StoreDamaged
from store.safety import integrity, torn_log
from store.safety.db_key import Secret
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
        return (await store.counts())["done"]
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
    assert await store.checked() and 0 < (await store.counts())["done"] < MANY
    await store.close()
    assert integrity.noted(home / schema.NAME) is None


async def test_a_last_write_that_a_power_cut_has_halved_is_none(tmp_path: Path) -> None:
    await killed(tmp_path / "a", tmp_path / "b")
    log = tmp_path / "b" / LOG
    raw = log.read_bytes()
    log.write_bytes(raw[:-1000])
    assert await done(tmp_path / "b") == MANY - 1


def test_each_frame_but_the_last_ones(log: bytes) -> None:
    assert torn_log.look(log) is None
    log = log[: torn_log.HEADER + 60 * (torn_log.FRAME + torn_log.PAGE)]
    frame = torn_log.FRAME + torn_log.PAGE
    frames = range(torn_log.HEADER, len(log), frame)
    ends = [at + frame for at in frames if log[at + 4 : at + 8] != bytes(4)]  # of whole transactions
    for n, at in enumerate([*frames[:: len(frames) // 6], *frames[-4:]]):
        for byte in ((0, 9, 2000), (5, 17, 4000))[n % 2]:  # page, salt, content; size, checksum, content
            broken = bytearray(log)
            broken[at + byte] ^= 0x10
            torn = torn_log.look(bytes(broken))
            if at < ends[-2]:
                assert torn is not None and torn.at == max((end for end in ends if end <= at), default=32), (at, byte)
                assert torn_log.look(bytes(broken[: torn.at])) is None
    for byte in range(1, torn_log.HEADER, 5):  # of its own header
        broken = bytearray(log)
        broken[byte] ^= 0x10
        assert (torn := torn_log.look(bytes(broken))) is not None and torn.at == 0, byte


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
