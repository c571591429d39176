"""Copies that SQLite leaves of rows which it has spread over other pages go, too, and nothing else of the file does."""

from __future__ import annotations

import random
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from scripts.harness.records import end, new, rating
from store.copies import backup
from store.errors import NotOverwritten
from store.file import page_gaps, schema
from store.forgetting import forget
from store.records import CompletionQuery, FinishedCompletion, Message, NewCompletion, NewReaction
from store.store import Store
from tests.store.engines import in_file


def words(dice: random.Random, mark: str, count: int) -> str:
    more = (f"{mark}{dice.randrange(10**6)}" if dice.random() < 0.3 else "alpha beta" for _ in range(count))
    return " ".join([mark, *more])


def talk(dice: random.Random, mark: str) -> tuple[NewCompletion, FinishedCompletion]:
    """A completion of any shape, every word of which begins with its mark."""
    long = dice.choice([5, 20, 60, 200, 700, 3000])

    def said(role: str, length: int) -> Message:
        return Message(role, b'{"content":"%s"}' % words(dice, mark, length).encode())

    text = words(dice, mark, long)
    prompt = (said("system", dice.choice([3, 300])), said("user", long))
    ids = list(range(dice.choice([3, 5000])))
    name = dice.choice([None, f"{mark}session"])
    id = f"c{dice.randrange(10**9):09d}{mark[1:]}"
    return (
        new(id, prompt=prompt, asked=text[:2000], session=name, user=name, request=words(dice, mark, long).encode()),
        end(id, text=text, reply=said("assistant", long), prompt_token_ids=ids, usage=None),
    )


def marks(home: Path, mark: str) -> list[str]:
    files = (file for file in home.iterdir() if file.is_file() and file.name.startswith("rlproxy"))
    return [file.name for file in files if mark.encode() in file.read_bytes()]


@in_file
@pytest.mark.parametrize("seed", range(3))
async def test_whatever_the_shapes_nothing_stays(store: Store, tmp_path: Path, seed: int) -> None:
    dice = random.Random(seed)
    ids: list[tuple[str, str]] = []
    for n in range(0, 120, 4):
        some = [talk(dice, f"q{n + k:05d}z") for k in range(4)]
        for begun, _ in some:
            await store.completions.begin([begun])
        dice.shuffle(some)
        for _, ended in some:
            await store.completions.finish([ended])
        for begun, _ in some:
            mark = f"q{begun.id[10:]}"
            ids.append((begun.id, mark))
            if dice.random() < 0.4:
                await store.ratings.rate(rating(begun.id, dice.choice([1.0, -1.0]), comment=words(dice, mark, 30)))
        if dice.random() < 0.4:
            await store.inbox.index_words()
    dice.shuffle(ids)
    gone = ids[:60]
    for at, (id, mark) in enumerate(gone):
        await store.erasure.forget("completion", id, "ann")
        await store.erasure.overwrite_gaps()
        assert not marks(tmp_path, mark)
        if at % 10 == 0:  # what is in the writer's memory must not come back with the next row of a page
            await store.completions.record(*([one] for one in talk(dice, f"q{90000 + at}z")))
    await store.close()
    for id, mark in gone:
        assert not marks(tmp_path, mark), id
    again = await Store.open(tmp_path)
    try:
        for id, mark in ids[60:]:
            found = await again.completions.get(id)
            assert found is not None and found.end is not None and mark in found.end.text
        assert (await again.inbox.page(CompletionQuery(search="alpha"))).rows
    finally:
        await again.close()
    with closing(sqlite3.connect(tmp_path / schema.NAME)) as db:
        assert db.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


@in_file
async def test_a_page_that_does_not_add_up_is_left_alone(store: Store, tmp_path: Path) -> None:
    """A header with a flipped byte: what looks like a gap may be rows."""
    dice = random.Random(2)
    for n in range(60):
        await store.completions.record(*([one] for one in talk(dice, f"q{n:05d}z")))
    await store.erasure.forget("completion", (await store.completions.page())[3].new.id, "ann")
    file = tmp_path / schema.NAME
    data = file.read_bytes()
    pages = range(4096, len(data), 4096)
    trees = [at for at in pages if data[at] in (2, 5, 10, 13) and data[at + 3 : at + 5] > b"\0\2"]
    assert trees and all(page_gaps.adds_up(data[at : at + 4096], 4096) for at in trees)
    with file.open("r+b") as opened:
        opened.seek(trees[-1] + 4)
        opened.write(b"\2")  # rows, of which there are more
    broken = file.read_bytes()[trees[-1] : trees[-1] + 4096]
    with pytest.raises(NotOverwritten, match="may be damaged"):
        await store.erasure.overwrite_gaps()
    assert file.read_bytes()[trees[-1] : trees[-1] + 4096] == broken


@in_file
async def test_only_the_gaps_change(store: Store, tmp_path: Path) -> None:
    dice = random.Random(1)
    for n in range(60):
        await store.completions.record(*([one] for one in talk(dice, f"q{n:05d}z")))
    await store.reactions.react(
        NewReaction((await store.completions.page())[0].new.id, "ann", "slack", "1", "c 1", "up", 1.0, 1.0)
    )
    await store.erasure.forget("completion", (await store.completions.page())[3].new.id, "ann")
    file = tmp_path / schema.NAME
    before = file.read_bytes()
    await store.erasure.overwrite_gaps()
    after = file.read_bytes()
    changed = {at for at in range(len(before)) if before[at] != after[at] and at >= 4096 and after[at]}
    assert before != after and len(before) == len(after)
    # All that is not zero now is the line that says that it was done: a page or two of `meta`.
    assert len({at // 4096 for at in changed}) <= 2


async def test_what_a_kill_has_left_is_owed(store: Store, tmp_path: Path) -> None:
    await store.completions.record(*([one] for one in talk(random.Random(1), "q00001z")))
    assert not await store.erasure.overwrite_gaps()  # nothing was forgotten, nothing is read
    await store.erasure.forget("completion", (await store.completions.page())[0].new.id, "ann")
    assert await store.meta.get(forget.GAPS) is not None
    assert await store.erasure.overwrite_gaps() and await store.meta.get(forget.GAPS) is None
    assert not await store.erasure.overwrite_gaps()


@in_file
async def test_not_while_somebody_reads_or_the_file_is_checked(store: Store, tmp_path: Path) -> None:
    await store.completions.record(*([one] for one in talk(random.Random(1), "q00001z")))
    id = (await store.completions.page())[0].new.id
    with closing(sqlite3.connect(tmp_path / schema.NAME, isolation_level=None)) as shell:
        await store._writer.submit(lambda db: db.execute("PRAGMA busy_timeout = 0") and None)
        shell.execute("BEGIN")
        shell.execute("SELECT count(*) FROM completions").fetchone()
        await store.erasure.forget("completion", id, "ann")
        with pytest.raises(NotOverwritten, match="somebody reads"):
            await store.erasure.overwrite_gaps()
        shell.execute("COMMIT")
    store.integrity.state = "checking"
    with pytest.raises(NotOverwritten, match="check of it"):
        await store.erasure.overwrite_gaps()
    store.integrity.state = "sound"
    assert await store.erasure.overwrite_gaps()


@in_file
async def test_a_restored_backup_has_no_copies_either(store: Store, tmp_path: Path) -> None:
    dice = random.Random(0)
    for n in range(150):
        await store.completions.record(*([one] for one in talk(dice, f"q{n:05d}z")))
    await store.inbox.index_words()
    file = tmp_path / "elsewhere" / "b.db"
    file.parent.mkdir()
    backup.backup(tmp_path / schema.NAME, file)
    gone = dice.sample([found.new.id for found in await store.completions.page(limit=150)], 110)
    for id in gone:
        await store.erasure.forget("completion", id, "ann")
    await store.erasure.note_run_folders_cleaned({"completions": gone, "ratings": []})
    await store.close()
    kept = backup.restore(tmp_path, file).old_database
    assert kept is not None
    kept.unlink()
    assert not [id for id in gone if marks(tmp_path, f"q{id[10:]}")]


def test_where_the_gap_of_a_page_is() -> None:
    leaf = bytes([13, 0, 0, 0, 2, 0, 90, 0]) + bytes(4) + b"old" + bytes(75) + b"rows......"
    assert page_gaps.gap(leaf, 0, 100) == (12, 90)
    assert page_gaps.gap(bytes(7) + leaf, 7, 100) == (19, 97)
    inner = bytes([5, 0, 0, 0, 1, 0, 90, 0]) + bytes(92)
    assert page_gaps.gap(inner, 0, 100) == (14, 90)
    full, beyond = b"\x0d\0\0\xff\xff\0\5" + bytes(93), b"\x0d\0\0\0\0\xff\xff" + bytes(93)
    for other in (bytes(100), b"\1" + leaf[1:], full, beyond):
        assert page_gaps.gap(other, 0, 100) == (0, 0)
