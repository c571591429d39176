"""The ids of prompts: whole when read, once on disk, gone with the last prompt that needs them."""

from __future__ import annotations

import random
import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from scripts.harness.records import end, new
from store.captured.prompt_ids import BLOCK
from store.file import schema
from store.store import Store
from tests.store.engines import in_file

IDS = BLOCK // 4
_ids = random.Random(1)
LONG = [_ids.randrange(50_000) for _ in range(20 * IDS)]


async def put(store: Store, id: str, ids: list[int] | None, session: str | None = None) -> None:
    await store.completions.record([new(id, session=session)], [end(id, prompt_token_ids=ids)])


async def read(store: Store, id: str) -> list[int] | None:
    found = await store.completions.get(id)
    assert found is not None and found.end is not None
    return found.end.prompt_token_ids


async def blocks(store: Store) -> int:
    row = await store._reader.row("SELECT count(*) AS count FROM prompt_blocks")
    assert row is not None
    return int(row["count"])


async def test_they_are_read_as_they_were_written(store: Store) -> None:
    lengths = [0, 1, IDS - 1, IDS, IDS + 1, 2 * IDS, 5 * IDS + 7]
    for length in lengths:
        await put(store, f"c{length}", LONG[:length])
    await put(store, "none", None)
    assert [await read(store, f"c{length}") == LONG[:length] for length in lengths] == [True] * len(lengths)
    assert await read(store, "none") is None
    exported = {line["id"]: line["prompt_token_ids"] async for line in store.transfer.export() if line.get("id")}
    assert exported[f"c{5 * IDS + 7}"] == LONG[: 5 * IDS + 7]


async def test_what_turns_share_is_stored_once(store: Store) -> None:
    for turn in range(1, 11):
        await put(store, f"c{turn}", LONG[: turn * 2 * IDS - 5])
    assert await blocks(store) == 19
    other = [1, *LONG]  # alike, and each id one place later: nothing is shared
    await put(store, "other", other[: 3 * IDS])
    assert await blocks(store) == 22
    await put(store, "parted", [*LONG[: 4 * IDS], 7, *LONG[: 2 * IDS]])
    assert await blocks(store) == 24
    assert await read(store, "parted") == [*LONG[: 4 * IDS], 7, *LONG[: 2 * IDS]]


async def test_a_long_conversation_grows_with_what_is_new(store: Store) -> None:
    async def size(turns: range) -> int:
        before = await bytes_of_ids(store)
        for turn in turns:
            await put(store, f"c{turn}", LONG[: 100 * turn])
        return await bytes_of_ids(store) - before

    await size(range(1, 41))
    early, _, late = await size(range(41, 81)), await size(range(81, 161)), await size(range(161, 201))
    assert late < 1.5 * early


async def bytes_of_ids(store: Store) -> int:
    row = await store._reader.row(
        """SELECT (SELECT total(length(ids)) FROM prompt_blocks)
        + (SELECT total(length(prompt_token_ids)) FROM completions) AS size"""
    )
    assert row is not None
    return int(row["size"])


async def test_they_go_with_the_last_prompt_that_needs_them(store: Store) -> None:
    await put(store, "a", LONG[: 3 * IDS], session="s")
    await put(store, "b", LONG[: 6 * IDS], session="t")
    await put(store, "c", [*LONG[: 2 * IDS], 1, *LONG[: 2 * IDS]], session="t")
    assert await blocks(store) == 8
    assert await store.completions.forget(["b"]) == 1
    assert await blocks(store) == 5 and await read(store, "a") == LONG[: 3 * IDS]
    await store.erasure.forget("session", "s", "admin")
    assert await blocks(store) == 4 and await read(store, "c") == [*LONG[: 2 * IDS], 1, *LONG[: 2 * IDS]]
    await store.erasure.forget("session", "t", "admin")
    assert await blocks(store) == 0


@in_file
async def test_what_was_forgotten_is_not_in_the_file(store: Store, tmp_path: Path) -> None:
    marked = [0x5EC12E7, *LONG[: 2 * IDS]]
    mark = (0x5EC12E7).to_bytes(4, "little")
    await put(store, "secret", marked, session="s")
    assert mark in b"".join(file.read_bytes() for file in tmp_path.glob(f"{schema.NAME}*"))
    await store.erasure.forget("session", "s", "admin")
    assert mark not in b"".join(file.read_bytes() for file in tmp_path.glob(f"{schema.NAME}*"))


@settings(max_examples=30, deadline=None)
@given(turns=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3 * IDS)), min_size=1, max_size=6), drop=st.data())
async def test_any_prompts_in_any_order(turns: list[tuple[int, int]], drop: st.DataObject) -> None:
    """Each prompt is one of four beginnings and a length; some are deleted again."""
    with tempfile.TemporaryDirectory() as folder:
        store = await Store.open(Path(folder))
        prompts = {f"c{n}": [start, *LONG[:length]] for n, (start, length) in enumerate(turns)}
        try:
            for id, ids in prompts.items():
                await put(store, id, ids)
            gone = drop.draw(st.sets(st.sampled_from(sorted(prompts))))
            await store.completions.forget(sorted(gone))
            for id in prompts.keys() - gone:
                assert await read(store, id) == prompts[id]
            left = [prompts[id] for id in prompts.keys() - gone]
            assert await blocks(store) == len({tuple(ids[:at]) for ids in left for at in range(IDS, len(ids) + 1, IDS)})
        finally:
            await store.close()
