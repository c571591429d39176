"""Base64 apart from the messages: cut and put back to the byte, stored once, gone with its last message."""

from __future__ import annotations

import asyncio
import base64
import os
import random
import signal
import sys
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scripts.harness.records import HI, end, new, put, rating
from store.captured import blobs
from store.captured.blobs import cut, whole
from store.captured.tree import chain, message_hash
from store.records import Message
from store.store import Store

ROOT = Path(__file__).resolve().parents[3]
PICTURE = random.Random(1).randbytes(3000)
CODED = base64.b64encode(PICTURE).decode()
OTHER = random.Random(2).randbytes(3001)


def said(*parts: dict[str, Any]) -> Message:
    return Message("user", orjson.dumps({"content": list(parts)}, option=orjson.OPT_SORT_KEYS))


def image(data: bytes = PICTURE) -> dict[str, Any]:
    url = "data:image/png;base64," + base64.b64encode(data).decode()
    return {"type": "image_url", "image_url": {"url": url}}


TEXT = {"type": "text", "text": 'what is this? "data":"no" ;base64,'}
FORMS = [
    image(),
    {"type": "input_audio", "input_audio": {"data": CODED, "format": "wav"}},
    {"type": "file", "file": {"filename": "a.pdf", "file_data": f"data:application/pdf;base64,{CODED}"}},
    {"type": "file", "file": {"filename": "a.pdf", "file_data": CODED}},
    {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": CODED}},
    {"type": "image", "source": {"data": base64.encodebytes(PICTURE).decode()}},  # broken into lines
    {"type": "image", "source": {"data": CODED.rstrip("=")}},
    {"type": "image", "source": {"data": base64.urlsafe_b64encode(PICTURE).decode()}},
]


async def sizes(store: Store) -> tuple[int, int]:
    """Bytes of all messages, and how many blobs there are."""
    row = await store._reader.row(
        "SELECT (SELECT total(length(body)) FROM messages) AS size, (SELECT count(*) FROM blobs) AS count"
    )
    assert row is not None
    return int(row["size"]), int(row["count"])


# Cut and put back

parts = st.recursive(
    st.text() | st.binary(max_size=300).map(lambda b: "data:x;base64," + base64.b64encode(b).decode()),
    lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from(["data", "file_data", "url", "text"]), inner),
)


@given(parts)
def test_any_body_comes_back_to_the_byte(value: Any) -> None:
    body = orjson.dumps({"content": value})
    less, pieces = cut(body)
    assert whole(less, pieces) == body and len(less) <= len(body)


@given(st.binary(max_size=400) | st.lists(st.sampled_from([b";base64,", b'"data":"', b'"', b"A" * 64])).map(b"".join))
def test_any_bytes_come_back_too(body: bytes) -> None:
    assert whole(*cut(body)) == body


@pytest.mark.parametrize("size", [2999, 3000, 3001, 6000, 9000, 9001])
def test_large_ones_are_coded_piece_by_piece(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blobs, "CODED_BYTES", 3000)
    data = random.Random(size).randbytes(size)
    body = said(image(data)).body
    less, pieces = cut(body)
    assert pieces[0].data == data and pieces[0].coded and whole(less, pieces) == body
    padded = base64.b64encode(data[:2999]) + base64.b64encode(data[:2999])  # padding in the middle is nobody's base64
    assert cut(b'{"data":"' + padded + b'"}')[1][0].coded is False


@pytest.mark.parametrize("part", FORMS)
def test_every_form_of_base64_is_cut(part: dict[str, Any]) -> None:
    body = said(TEXT, part, TEXT).body
    less, pieces = cut(body)
    assert len(pieces) == 1 and len(less) < 300 and whole(less, pieces) == body


def test_pictures_are_kept_as_they_are_not_as_text() -> None:
    (piece,) = cut(said(image()).body)[1]
    assert piece.data == PICTURE and piece.coded


@pytest.mark.parametrize(
    "text",
    ["<img src='data:image/png;base64," + CODED + "'> what is it?", "see ;base64, " + "word " * 50, "x" * 500],
)
def test_text_stays_text(text: str) -> None:
    body = said({"type": "text", "text": text}).body
    assert cut(body) == (body, [])


# In the store


@pytest.mark.parametrize("part", FORMS)
async def test_out_of_the_messages_and_whole_again_where_it_is_read(store: Store, part: dict[str, Any]) -> None:
    prompt = (Message("system", said(part).body), said(TEXT, part), HI, said(TEXT))
    reply = Message("assistant", said(part).body)
    await store.completions.record([new("a", prompt=prompt)], [end("a", reply=reply)])
    size, count = await sizes(store)
    assert size < 2000 and count == 1
    found = await store.completions.get("a")
    assert found is not None and found.new.prompt == prompt and found.end is not None and found.end.reply == reply
    talk = (*prompt[1:], reply)
    assert await store.completions.messages(chain(talk)[-1]) == talk
    (row,) = [row async for row in store.transfer.export()]
    assert row["messages"][1]["content"] == [TEXT, part] and row["reply"]["content"] == [part]


async def test_sent_with_every_turn_and_in_other_conversations_it_is_stored_once(store: Store) -> None:
    history: list[Message] = []
    for turn in range(10):
        history += [said(image(), {"type": "text", "text": f"turn {turn}"}), HI]
        await put(store, f"a{turn}", prompt=tuple(history[:-1]))
        await put(store, f"b{turn}", prompt=(said(TEXT), *history[:-1]))
    size, count = await sizes(store)
    assert count == 1 and size < 20 * 400
    found = await store.completions.get("b9")
    assert found is not None and found.new.prompt[1:] == tuple(history[:-1])


async def test_it_goes_with_the_last_message_that_has_it(store: Store) -> None:
    await put(store, "a", prompt=(said(image()),))
    await put(store, "b", prompt=(said(TEXT, image(), image(OTHER)),))
    assert (await sizes(store))[1] == 2
    await store.completions.forget(["b"])
    assert (await sizes(store))[1] == 1
    found = await store.completions.get("a")
    assert found is not None and found.new.prompt == (said(image()),)
    await store.ratings.rate(rating("a"))
    assert await store.completions.expire(2000.0) == 0 and (await sizes(store))[1] == 1, "what is rated stays"
    await store.completions.forget(["a"])
    assert await sizes(store) == (0, 0)
    await put(store, "c", prompt=(said(image()),))
    assert await store.completions.expire(2000.0) == 1 and await sizes(store) == (0, 0)


async def test_nobody_gets_anothers_picture_by_what_they_write(store: Store) -> None:
    await put(store, "a", prompt=(said(image()),))
    row = await store._reader.row("SELECT body, hex(b.hash) AS hash FROM messages, blobs b WHERE cut = 1")
    assert row is not None
    for body in (row["body"], b'{"content":[{"blob":"' + row["hash"].encode() + b'"}]}'):
        await put(store, f"mine {body!r}", prompt=(Message("user", body),))
        found = await store.completions.get(f"mine {body!r}")
        assert found is not None and found.new.prompt == (Message("user", body),)


async def test_two_bodies_that_differ_in_their_picture_only_are_two_messages(store: Store) -> None:
    for id, data in (("a", PICTURE), ("b", OTHER)):
        await put(store, id, prompt=(said(image(data)),))
    for id, data in (("a", PICTURE), ("b", OTHER)):
        found = await store.completions.get(id)
        assert found is not None and found.new.prompt == (said(image(data)),)


# A kill

WRITES = """
import asyncio, itertools, sys
from pathlib import Path
from store.store import Store
from scripts.harness.records import put
from tests.store.captured.test_blobs import image, said, TEXT

async def main():
    store = await Store.open(Path(sys.argv[1]))
    for n in itertools.count():
        await put(store, f"c{n}", prompt=(said(image(bytes([n % 256]) * 50_000), TEXT), said(image())))
        if n % 3 == 2:
            await store.completions.forget([f"c{n - 1}"])
        print(n, flush=True)

asyncio.run(main())
"""


async def test_a_kill_leaves_no_message_without_its_blob_and_no_blob_without_its_message(tmp_path: Path) -> None:
    child = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        WRITES,
        str(tmp_path),
        stdout=asyncio.subprocess.PIPE,
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )
    assert child.stdout is not None
    acknowledged = -1
    while acknowledged < 40:
        acknowledged = int(await child.stdout.readline())
    child.send_signal(signal.SIGKILL)
    rest = await child.stdout.read()
    acknowledged = max([acknowledged, *(int(n) for n in rest.split())])
    await child.wait()

    store = await Store.open(tmp_path)
    try:
        for n in range(acknowledged - 5, acknowledged + 1):
            found = await store.completions.get(f"c{n}")
            if n % 3 == 1:
                continue  # forgotten, or about to be
            assert found is not None
            assert found.new.prompt == (said(image(bytes([n % 256]) * 50_000), TEXT), said(image()))
            parent = None
            for message in found.new.prompt:
                parent = message_hash(parent, message.role, message.body)
            assert parent == found.prompt_hash
        for sql in (
            "SELECT 1 FROM blobs b WHERE NOT EXISTS (SELECT 1 FROM message_blobs m WHERE m.blob = b.hash)",
            "SELECT 1 FROM message_blobs m WHERE NOT EXISTS (SELECT 1 FROM blobs b WHERE b.hash = m.blob)",
            "SELECT 1 FROM message_blobs m WHERE NOT EXISTS (SELECT 1 FROM messages x WHERE x.hash = m.message)",
        ):
            assert await store._reader.rows(sql) == []
    finally:
        await store.close()
