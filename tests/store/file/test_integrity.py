"""A file that a kill left is checked while it is used; until then, and once it is damaged, it stays as it is.

Bytes are flipped in each kind of page of a real database. Whatever SQLite's own check finds, the store has to find and
say, and neither write into that file nor delete from it.
"""

from __future__ import annotations

import asyncio
import shutil
import sqlite3
import struct
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from scripts.harness.records import put, rating
from store.copies import backup
from store.errors import StoreDamaged, StoreError
from store.file import driver, integrity, meta, schema
from store.file.db_key import Secret
from store.store import Store
from tests.harness.held_checks import PAGE, Held

KEY = Secret("ab" * 32)
HEADER = 100  # bytes at the beginning of the first page
KINDS = {2: "index, interior", 5: "table, interior", 10: "index, leaf", 13: "table, leaf"}


async def fill(home: Path, secret: Secret | None = None) -> None:
    """All kinds of pages, and some that are free."""
    store = await Store.open(home, secret)
    for n in range(300):
        await put(
            store, f"c{n}", request=b"x" * (9000 if n % 10 == 0 else 200), session=f"s{n}", asked=f"words {n} " * 9
        )
    for n in range(0, 300, 3):
        await store.ratings.rate(rating(f"c{n}"))
    while await store.inbox.index_words():
        pass
    await store.completions.forget([f"c{n}" for n in range(1, 300, 4)])
    await store.close()


def unclean(home: Path, secret: Secret | None = None) -> None:
    """As after a kill, with nothing in the log."""
    with closing(driver.connect(home / schema.NAME, secret, with_names=True)) as db:
        meta.set_meta(db, schema.CLEAN, False)


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    home = tmp_path_factory.mktemp("filled")
    asyncio.run(fill(home))
    unclean(home)
    return (home / schema.NAME).read_bytes()


@pytest.fixture(scope="module")
def filled_encrypted(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    pytest.importorskip("sqlcipher3")
    home = tmp_path_factory.mktemp("dark")
    asyncio.run(fill(home, KEY))
    unclean(home, KEY)
    return (home / schema.NAME).read_bytes()


def kinds(data: bytes) -> dict[str, list[int]]:
    """Numbers of pages, from 1."""
    trunk, _ = struct.unpack(">II", data[32:40])
    free: set[int] = set()
    found: dict[str, list[int]] = {"freelist": [], "overflow": []}
    while trunk:
        found["freelist"].append(trunk)
        at = (trunk - 1) * PAGE
        following, count = struct.unpack(">II", data[at : at + 8])
        free |= {trunk, *struct.unpack(f">{count}I", data[at + 8 : at + 8 + 4 * count])}
        trunk = following
    for page in range(2, len(data) // PAGE + 1):
        if page not in free:
            at = (page - 1) * PAGE
            tree = struct.unpack(">H", data[at + 3 : at + 5])[0] > 0 and data[at + 7] == 0
            found.setdefault(KINDS[data[at]] if tree and data[at] in KINDS else "overflow", []).append(page)
    return found


def verdict(data: bytes, folder: Path, secret: Secret | None) -> bool:
    """Whether SQLite's own check finds something, on a copy."""
    copy = folder / "copy.db"
    for beside in folder.glob("copy.db*"):
        beside.unlink()
    copy.write_bytes(data)
    try:
        with closing(driver.connect(copy, secret, read_only=True, immutable=True)) as db:
            return integrity.quick(db) != "ok"
    except driver.errors(StoreError):
        return True


async def life(home: Path, secret: Secret | None) -> bool:
    """Everything that would write into the file or delete from it; whether damage was said."""
    try:
        store = await Store.open(home, secret)
    except StoreError:
        return True
    try:
        sound = await store.checked()
        for act in (
            lambda: put(store, "new"),
            lambda: store.ratings.rate(rating("c2")),
            lambda: store.completions.expire(1e12),
            lambda: store.erasure.forget("session", "s3", "test"),
            lambda: store.meta.set("x", 1),
        ):
            try:
                await act()
                assert sound
            except (StoreError, *driver.errors()):
                sound = store.integrity.state == "sound"
        return store.integrity.state == "damaged"
    finally:
        await store.close()


def found_and_left_alone(data: bytes, home: Path, secret: Secret | None = None) -> bool:
    for beside in home.glob(f"{schema.NAME}*"):
        beside.unlink()
    path = home / schema.NAME
    path.write_bytes(data)
    said = asyncio.run(life(home, secret))
    if said:
        assert path.read_bytes() == data, "a damaged file was written to"
        with pytest.raises(StoreError):  # known by now
            asyncio.run(life_refused(home, secret))
        assert path.read_bytes() == data
    return said


async def life_refused(home: Path, secret: Secret | None) -> None:
    await (await Store.open(home, secret)).close()


STRUCTURE = {"freelist": (4, 8), "overflow": (0, 4)}  # which bytes of such a page tell of it


@pytest.mark.parametrize("kind", [*KINDS.values(), "overflow", "freelist"])
@pytest.mark.parametrize("first_s", [0.0, 5.0], ids=["beside", "before"])
def test_damage_in_each_kind_of_page_is_found(
    filled: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, first_s: float
) -> None:
    monkeypatch.setattr(integrity, "FIRST_S", first_s)
    pages = kinds(filled)[kind]
    assert pages
    for page in pages[:: max(1, len(pages) // 4)]:
        data = bytearray(filled)
        first, last = STRUCTURE.get(kind, (0, 1))
        for at in range((page - 1) * PAGE + first, (page - 1) * PAGE + last):
            data[at] ^= 0x55
        assert found_and_left_alone(bytes(data), tmp_path), page


@pytest.mark.parametrize("at", [4, 9], ids=["no rows", "another place of the first"])
def test_who_cannot_tell_how_the_last_stop_was_checks(filled: bytes, tmp_path: Path, at: int) -> None:
    (tmp_path / "whole.db").write_bytes(filled)
    with closing(sqlite3.connect(tmp_path / "whole.db")) as db:
        (page,) = db.execute("SELECT rootpage FROM sqlite_schema WHERE name = 'meta'").fetchone()
    data = bytearray(filled)
    data[(page - 1) * PAGE + at] ^= 4
    assert verdict(bytes(data), tmp_path, None) and found_and_left_alone(bytes(data), tmp_path)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    where=st.floats(0, 1, exclude_max=True), at=st.integers(0, PAGE - 1), flip=st.integers(1, 255), first=st.booleans()
)
def test_whatever_the_check_finds_is_said(
    filled: bytes, tmp_path: Path, where: float, at: int, flip: int, first: bool
) -> None:
    data = bytearray(filled)
    page = int(where * len(data) // PAGE)
    data[page * PAGE + (at % 32 if first else at)] ^= flip  # half of them where a page says what it is
    if verdict(bytes(data), tmp_path, None):
        assert found_and_left_alone(bytes(data), tmp_path)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(where=st.floats(0, 1, exclude_max=True), at=st.integers(0, PAGE - 1), flip=st.integers(1, 255))
def test_in_an_encrypted_file_too(filled_encrypted: bytes, tmp_path: Path, where: float, at: int, flip: int) -> None:
    data = bytearray(filled_encrypted)
    data[int(where * len(data) // PAGE) * PAGE + at] ^= flip
    if verdict(bytes(data), tmp_path, KEY):
        assert found_and_left_alone(bytes(data), tmp_path, KEY)


async def test_until_the_check_has_passed_the_file_stays_as_it_is(filled: bytes, tmp_path: Path, held: Held) -> None:
    path = tmp_path / schema.NAME
    path.write_bytes(filled)
    store = await Store.open(tmp_path)
    assert store.integrity.state == "checking" and "last stop was not a clean one" in str(store.integrity.doubt)
    await put(store, "new", request=b"y" * 3_000_000)
    assert await store.ratings.rate(rating("new")) and await store.completions.get("new") is not None
    assert (await store.erasure.forget("session", "s2", "test")).completions == ("c2",)
    assert path.read_bytes() == filled
    held.go.set()
    assert await store.checked()
    assert await store._writer.empty_log()
    assert path.read_bytes() != filled and not (tmp_path / f"{schema.NAME}-wal").stat().st_size
    await store.close()
    assert not list(tmp_path.glob(f"{schema.NAME}-*")), "a clean stop leaves the file alone"
    store = await Store.open(tmp_path)
    assert store.integrity.state == "sound" and await store.completions.get("new") is not None
    await store.close()


async def test_a_stop_in_the_middle_of_a_check_is_quick_and_the_next_start_checks(
    filled: bytes, tmp_path: Path, held: Held
) -> None:
    path = tmp_path / schema.NAME
    path.write_bytes(filled)
    store = await Store.open(tmp_path)
    await put(store, "new")
    await store.close()
    assert path.read_bytes() == filled
    held.go.set()
    store = await Store.open(tmp_path)
    assert await store.checked() and await store.completions.get("new") is not None
    await store.close()


async def test_damage_that_is_met_while_it_is_used_ends_all_writing(filled: bytes, tmp_path: Path) -> None:
    """After a clean stop nothing is checked; a page that cannot be read says it itself."""
    path = tmp_path / schema.NAME
    path.write_bytes(filled)
    store = await Store.open(tmp_path)
    assert await store.checked()
    await store._writer.empty_log()
    with closing(sqlite3.connect(path)) as db:
        (root,) = db.execute("SELECT rootpage FROM sqlite_schema WHERE name = 'ratings'").fetchone()
    with path.open("r+b") as file:
        file.seek((root - 1) * PAGE)
        file.write(b"\xff" * PAGE)
    before = path.read_bytes()
    told = asyncio.create_task(store.damage())
    with pytest.raises(StoreDamaged, match="restore a backup"):
        await store.ratings.rate(rating("c2"))
    assert "is damaged" in await told
    with pytest.raises(StoreDamaged):
        await put(store, "more")
    await store.close()
    assert path.read_bytes() == before
    with pytest.raises(StoreDamaged):
        await Store.open(tmp_path)


async def test_the_note_is_of_that_file_alone(filled: bytes, tmp_path: Path) -> None:
    path, good = tmp_path / schema.NAME, tmp_path / "good.db"
    good.write_bytes(filled)
    bad = bytearray(filled)
    bad[(kinds(filled)["table, leaf"][0] - 1) * PAGE] ^= 0xFF
    told: list[str] = []

    async def opened() -> None:
        await (await Store.open(tmp_path, tell=told.append)).close()

    path.write_bytes(bad)
    with pytest.raises(StoreDamaged):
        await opened()
    note = integrity.note_of(path)
    assert note.stat().st_mode & 0o777 == 0o600 and note.read_text()
    shutil.copy(good, path)  # by hand: it is checked before anything else, and good
    await opened()
    assert "are checked first" in told[-1] and not note.exists()
    path.write_bytes(bad)
    with pytest.raises(StoreDamaged):
        await opened()
    kept = backup.restore(tmp_path, good).old_database
    assert kept is not None and kept.read_bytes() == bad and not note.exists()
    await opened()
    path.write_bytes(bad)
    with pytest.raises(StoreDamaged):
        await opened()
    path.rename(tmp_path / "aside.db")  # to start empty
    await opened()
    assert not note.exists()


async def test_a_damaged_one_is_not_brought_up_to_date(tmp_path: Path, filled: bytes, newest: int) -> None:
    path = tmp_path / schema.NAME
    bad = bytearray(filled)
    bad[(kinds(filled)["table, leaf"][0] - 1) * PAGE] ^= 0xFF
    path.write_bytes(bad)
    with pytest.raises(StoreError):
        await Store.open(tmp_path)
    assert path.read_bytes() == bad and not (tmp_path / backup.FOLDER).exists()


async def test_what_was_written_before_damage_was_found_stays_in_the_log(
    filled: bytes, tmp_path: Path, held: Held
) -> None:
    path, log = tmp_path / schema.NAME, tmp_path / f"{schema.NAME}-wal"
    bad = bytearray(filled)
    bad[(kinds(filled)["overflow"][0] - 1) * PAGE] ^= 0xFF
    path.write_bytes(bad)
    store = await Store.open(tmp_path)
    await put(store, "new", request=b"y" * 100_000)
    held.go.set()
    assert not await store.checked()
    await store.close()
    assert path.read_bytes() == bad and log.stat().st_size > 100_000
    with closing(driver.connect(path, None, read_only=True)) as db:
        assert db.execute("SELECT status FROM completions WHERE id = 'new'").fetchone() == ("done",)


async def test_a_check_that_passes_takes_no_damage_back(filled: bytes, tmp_path: Path, held: Held) -> None:
    path = tmp_path / schema.NAME
    path.write_bytes(filled)
    store = await Store.open(tmp_path)
    (tmp_path / "noise").write_bytes(b"no database" * 1000)
    with closing(sqlite3.connect(tmp_path / "noise")) as db, pytest.raises(sqlite3.DatabaseError) as met:
        db.execute("SELECT 1 FROM sqlite_schema")
    assert isinstance(store.integrity.note_damage(met.value), StoreDamaged)
    held.go.set()
    assert not await store.checked()
    await store.close()
    assert store.integrity.state == "damaged" and integrity.note_of(path).exists() and path.read_bytes() == filled
