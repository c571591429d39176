"""Rows of pictures: which blobs have one, what is written of it, and that it goes with its blob."""

from __future__ import annotations

import base64
import hashlib
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import orjson
import pytest

from scripts.harness.records import end, new
from store.captured.images import begins_as_image
from store.file import driver, schema
from store.file.db_key import Secret
from store.image_records import DecodedImage
from store.records import Message
from store.store import Store
from tests.store.engines import in_file

PNG = b"\x89PNG\r\n\x1a\n" + bytes(range(200))
WEBP = b"RIFF\x10\0\0\0WEBP" + bytes(range(200))
FOUND = DecodedImage(hashlib.sha256(PNG).digest(), len(PNG), "PNG", 3, 2, b"small")


def said(*data: bytes, coded: str | None = None) -> Message:
    texts = [coded] if coded is not None else [base64.b64encode(piece).decode() for piece in data]
    parts = [{"type": "image_url", "image_url": {"url": f"data:image/png;base64,{text}"}} for text in texts]
    return Message("user", orjson.dumps({"content": parts}, option=orjson.OPT_SORT_KEYS))


async def put(store: Store, id: str, message: Message) -> None:
    await store.completions.begin([new(id, prompt=(message,))])
    await store.completions.finish([end(id)])


@pytest.mark.parametrize("data", [PNG, WEBP, b"GIF89a" + bytes(80), b"\xff\xd8\xff\xe0" + bytes(80)])
async def test_what_begins_as_a_picture_waits(store: Store, data: bytes) -> None:
    assert begins_as_image(data)
    await put(store, "a", said(data, data))
    waiting = await store.images.waiting()
    assert waiting is not None and (waiting.data, waiting.coded) == (data, True)
    assert await store.images.counts() == {"waiting": 1}
    assert await store.images.is_waiting(hashlib.sha256(data).digest())


@pytest.mark.parametrize("data", [b"RIFF\x10\0\0\0WAVE" + bytes(80), b"%PDF-1.7" + bytes(80), b"<svg>" + bytes(80)])
async def test_other_files_do_not(store: Store, data: bytes) -> None:
    await put(store, "a", said(data))
    assert await store.images.waiting() is None and await store.images.counts() == {}


@pytest.mark.parametrize("text", [base64.encodebytes(PNG).decode(), base64.b64encode(PNG + b"!").decode().rstrip("=")])
async def test_odd_base64_waits_as_it_is_written(store: Store, text: str) -> None:
    await put(store, "a", said(coded=text))
    waiting = await store.images.waiting()
    assert waiting is not None and not waiting.coded and waiting.data.startswith(b"iVBORw0KGgo")


async def test_what_was_found_is_read_by_its_hash_and_by_its_message(store: Store) -> None:
    await put(store, "a", said(PNG, WEBP))
    waiting = await store.images.waiting()
    assert waiting is not None and FOUND.sha256 is not None
    while waiting.data != PNG:
        assert await store.images.note_decoded(waiting.blob, DecodedImage(None, 9, reason="broken"))
        waiting = await store.images.waiting()
        assert waiting is not None
    assert await store.images.note_decoded(waiting.blob, FOUND)
    first, *_ = (await store.images.of_last_messages(["a", "b"]))["a"]
    assert (first.state, first.format, first.width, first.height) == ("decoded", "PNG", 3, 2)
    assert await store.images.by_sha256([FOUND.sha256, b"x"]) == {FOUND.sha256: first}
    assert await store.images.thumbnail(FOUND.sha256) == b"small"


async def test_many_hashes_at_once(store: Store) -> None:
    assert await store.images.by_sha256([n.to_bytes(32, "big") for n in range(1200)]) == {}


async def test_it_goes_with_its_last_message_and_does_not_come_back(store: Store) -> None:
    await put(store, "a", said(PNG))
    await put(store, "b", said(PNG, WEBP))
    waiting = await store.images.waiting()
    assert waiting is not None
    await store.erasure.forget("completion", "b", "test")
    assert await store.images.counts() == {"waiting": 1}
    await store.erasure.forget("completion", "a", "test")
    assert await store.images.counts() == {}
    assert not await store.images.note_decoded(waiting.blob, FOUND)
    assert await store.images.counts() == {}


@in_file
async def test_each_query_finds_its_rows_by_an_index(store: Store) -> None:
    from store.captured import images

    for sql, values in (
        (images._WAITING, ()),
        (images._OF_LAST_MESSAGES, ("[]",)),
        (images._THUMBNAIL, (b"",)),
        (images._IS_WAITING, (b"",)),
    ):
        plan = await store._reader.rows(f"EXPLAIN QUERY PLAN {sql}", values)
        scans = [row["detail"] for row in plan if row["detail"].startswith("SCAN ")]
        assert {*scans} <= {"SCAN i USING INDEX images_waiting", "SCAN j VIRTUAL TABLE INDEX 1:"}  # those that wait


async def test_in_an_encrypted_home_no_byte_of_it_is_in_the_clear(tmp_path: Path) -> None:
    store = await Store.open(tmp_path, Secret("ab" * 32))
    thumbnail = bytes(range(255, 55, -1))
    await put(store, "a", said(PNG))
    waiting = await store.images.waiting()
    assert waiting is not None
    assert await store.images.note_decoded(waiting.blob, replace(FOUND, thumbnail=thumbnail))
    assert await store.images.thumbnail(FOUND.sha256 or b"") == thumbnail
    await store.close()
    for file in tmp_path.iterdir():
        data = file.read_bytes()
        assert PNG[8:72] not in data and thumbnail[:64] not in data, file.name


def older(path: Path) -> None:
    """A home of schema 6 with pictures in it."""
    with closing(driver.connect(path, None, with_names=True)) as db:
        schema.migrate(db, 6)
        add_rows(db)


def add_rows(db: sqlite3.Connection) -> None:
    remote = {
        "content": [{"type": "image_url", "image_url": {"url": "https://x/y.png"}}, {"type": "text", "text": "?"}]
    }
    rows: list[tuple[bytes, bytes | None, str, bytes, int]] = [
        (b"1", None, "user", said(b"").body, 1),
        (b"2", b"1", "assistant", b'{"content":"red"}', 0),
        (b"3", b"2", "user", b'{"content":"sure?"}', 0),
        (b"4", None, "user", orjson.dumps(remote), 0),
        (b"5", None, "user", b'{"content":["image_url",3,null]}', 0),
        (b"6", None, "user", said(b"", b"").body, 1),
    ]
    db.executemany("INSERT INTO messages VALUES (?, ?, ?, ?, ?)", rows)
    db.execute("INSERT INTO blobs VALUES (?, ?)", (b"p", PNG))
    db.execute("INSERT INTO blobs VALUES (?, ?)", (b"s", b"sound" * 20))
    db.execute("INSERT INTO message_blobs VALUES (?, 40, ?, 1)", (b"1", b"p"))
    db.execute("INSERT INTO message_blobs VALUES (?, 40, ?, 1)", (b"6", b"s"))
    for id, prompt, reason in (
        ("one", b"3", "has_image"), ("far", b"4", "has_image"), ("odd", b"5", None), ("two", b"6", "has_image"),
        ("text", b"2", None),
    ):  # fmt: skip
        db.execute(
            """INSERT INTO completions (id, request_id, choice, created_at, dialect, backend, model, served_model, turn,
            turn_rule, streamed, sampling, request, status, prompt_hash, untrainable)
            VALUES (?, ?, 0, 1.0, 'chat', 'vllm', 'm', 'm', 'main', 'default', 0, '{}', x'7b7d', 'done', ?, ?)""",
            (id, id, prompt, reason),
        )


async def test_pictures_of_an_older_home_are_counted_and_wait(tmp_path: Path) -> None:
    older(tmp_path / schema.NAME)
    store = await Store.open(tmp_path)
    try:
        rows = await store._reader.rows("SELECT id, images, untrainable FROM completions ORDER BY seq")
        assert [tuple(row) for row in rows] == [
            ("one", 1, "has_image"), ("far", 1, "remote_image"), ("odd", 0, None), ("two", 2, "has_image"),
            ("text", 0, None),
        ]  # fmt: skip
        waiting = await store.images.waiting()
        assert waiting is not None and waiting.data == PNG and await store.images.counts() == {"waiting": 1}
    finally:
        await store.close()
