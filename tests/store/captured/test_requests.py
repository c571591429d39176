"""What a request says beside its messages: whole when read, once on disk where it is much, gone with the last."""

from __future__ import annotations

from pathlib import Path

from scripts.harness.records import end, new
from store.captured.requests import LEAST
from store.file import schema
from store.store import Store

TOOLS = b'{"tools":[' + b'{"type":"function","function":{"name":"read"}},' * 40 + b"{}]}"
SMALL = b'{"stream":true}'


async def put(store: Store, id: str, request: bytes) -> None:
    await store.completions.record([new(id, request=request)], [end(id)])


async def read(store: Store, id: str) -> bytes:
    found = await store.completions.get(id)
    assert found is not None
    return found.new.request


async def apart(store: Store) -> int:
    row = await store._reader.row("SELECT count(*) AS count FROM requests")
    assert row is not None
    return int(row["count"])


async def test_much_is_kept_once_and_little_where_it_is(store: Store) -> None:
    assert len(SMALL) < LEAST < len(TOOLS)
    for id, request in (("a", TOOLS), ("b", TOOLS), ("c", SMALL), ("d", TOOLS + b" "), ("e", b"")):
        await put(store, id, request)
    assert await apart(store) == 2
    assert [await read(store, id) for id in "abcde"] == [TOOLS, TOOLS, SMALL, TOOLS + b" ", b""]
    assert len(await store.completions.page()) == 5  # in brief, without them


async def test_it_goes_with_the_last_that_has_it(store: Store, tmp_path: Path) -> None:
    for id, session in (("a", "s"), ("b", "t")):
        await store.completions.record([new(id, request=TOOLS, session=session)], [end(id)])
    await store.erasure.forget("session", "s", "admin")
    assert await apart(store) == 1 and await read(store, "b") == TOOLS
    await store.erasure.forget("session", "t", "admin")
    assert await apart(store) == 0
    assert b'"name":"read"' not in b"".join(file.read_bytes() for file in tmp_path.glob(f"{schema.NAME}*"))


async def test_a_question_whose_answer_never_came_has_it_too(store: Store) -> None:
    await store.completions.begin([new("open", request=TOOLS)])
    assert await read(store, "open") == TOOLS
