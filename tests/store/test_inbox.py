"""The list that pages show: kept by triggers, filtered in any combination, searched."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from store import inbox, schema
from store.records import Message, Wanted
from store.store import Store
from tests.store.making import end, new, put, rating


async def rows(store: Store) -> dict[str, tuple[int, float]]:
    found = await store._reader.rows("SELECT c.id, l.rated, l.opinion FROM listed l JOIN completions c USING (seq)")
    return {row["id"]: (row["rated"], row["opinion"]) for row in found}


async def test_a_completion_is_listed_when_it_ends(store: Store) -> None:
    await store.begin([new("a"), new("b")])
    await store.rate(rating("b", 0.5))  # while it streams
    assert await rows(store) == {} and not await store.any_completion()
    await store.finish([end("a"), end("b", status="partial")])
    assert await rows(store) == {"a": (0, 0.0), "b": (1, 0.5)} and await store.any_completion()
    await store.forget(["a"])
    assert set(await rows(store)) == {"b"}


async def test_ratings_are_counted(store: Store) -> None:
    await put(store, "a")
    one = await store.rate(rating("a", 1.0))
    await store.rate(rating("a", -0.5))  # in its place
    await store.rate(rating("a", 1.0, rater="ann"))
    assert await rows(store) == {"a": (2, 0.5)}
    await store.retract(one.id)  # not live any more: nothing changes
    assert await rows(store) == {"a": (2, 0.5)}
    await store.forget_for_good("rater", "ann", "x")
    assert await rows(store) == {"a": (1, -0.5)}


FIELDS: dict[str, Any] = {
    "session": st.sampled_from([None, "s", "t"]), "version": st.sampled_from([None, 0, 1]),
    "turn": st.sampled_from(["main", "side"]), "model": st.sampled_from(["m", "n"]),
}  # fmt: skip
ROW = st.fixed_dictionaries({**FIELDS, "rated": st.booleans(), "word": st.sampled_from(["egg", "sea"])})
FILTER = st.fixed_dictionaries(
    {
        "session": st.sampled_from([None, "s"]), "version": st.sampled_from([None, 0, 1]),
        "turn": st.sampled_from([None, "main"]), "model": st.sampled_from([None, "m"]), "unrated": st.booleans(),
        "search": st.sampled_from([None, "egg", "egg hel"]),
    }
)  # fmt: skip


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(made=st.lists(ROW, max_size=12), wanted=FILTER)
async def test_any_filters_together(store: Store, made: list[dict[str, Any]], wanted: dict[str, Any]) -> None:
    for row in await store.inbox(Wanted(limit=1000)):
        await store.forget([row.id])
    for n, row in enumerate(made):
        fields = {key: value for key, value in row.items() if key in FIELDS}
        await store.record([new(f"c{n}", asked=row["word"], **fields)], [end(f"c{n}", text="hello")])
        if row["rated"]:
            await store.rate(rating(f"c{n}"))
    expected = [
        f"c{n}"
        for n, row in enumerate(made)
        if all(wanted[key] in (None, row[key]) for key in FIELDS)
        and not (wanted["unrated"] and row["rated"])
        and (wanted["search"] is None or row["word"] == "egg")
    ][::-1]
    assert [row.id for row in await store.inbox(Wanted(**wanted))] == expected
    paged: list[str] = []
    before = None
    while page := await store.inbox(Wanted(**wanted, limit=2, before_seq=before)):
        paged += [row.id for row in page]
        before = page[-1].seq
    assert paged == expected


PLANS: list[tuple[dict[str, Any], str]] = [
    ({}, "SEARCH l USING INTEGER PRIMARY KEY (rowid<?)"),
    ({"turn": "main"}, "SEARCH l USING INTEGER PRIMARY KEY (rowid<?)"),
    ({"turn": "main", "unrated": True}, "SEARCH l USING INDEX listed_unrated (seq<?)"),
    ({"turn": "main", "unrated": True, "model": "m"}, "SEARCH l USING INDEX listed_unrated (seq<?)"),
    ({"turn": "main", "model": "m"}, "SEARCH l USING INDEX listed_model (model=? AND rowid<?)"),
    ({"unrated": True, "version": 1, "model": "m"}, "SEARCH l USING INDEX listed_version (version=? AND rowid<?)"),
    ({"unrated": True, "version": 1, "session": "s"}, "SEARCH l USING INDEX listed_session (session=? AND rowid<?)"),
]


@pytest.mark.parametrize(("fields", "plan"), PLANS)
async def test_each_filter_has_its_index_and_nothing_is_sorted(store: Store, fields: dict[str, Any], plan: str) -> None:
    sql, values = inbox.query(Wanted(**fields))
    assert [row["detail"] for row in await store._reader.rows(f"EXPLAIN QUERY PLAN {sql}", values)] == [plan]
    sql, values = inbox.query(Wanted(search="egg", **fields))
    steps = [row["detail"] for row in await store._reader.rows(f"EXPLAIN QUERY PLAN {sql}", values)]
    assert steps[1:] == ["SEARCH l USING INTEGER PRIMARY KEY (rowid=?)"] and "VIRTUAL TABLE INDEX" in steps[0]


@pytest.mark.parametrize("text", ['"', "a*", "NEAR(a b)", "AND", "a:b", "-a", "^a", "ünïcode", "'", "\x00", "  "])
async def test_any_text_can_be_searched_for(store: Store, text: str) -> None:
    await put(store, "a")
    await store.inbox(Wanted(search=text))


async def test_accents_and_beginnings(store: Store) -> None:
    await store.record([new("a", asked="Die Rhône")], [end("a", text="Genève")])
    for text in ("rhone", "RHÔ", "gen rho", "die"):
        assert [row.id for row in await store.inbox(Wanted(search=text))] == ["a"], text
    assert await store.inbox(Wanted(search="hone")) == []


async def test_a_listed_completion_has_what_a_list_shows(store: Store) -> None:
    call = b'{"content":"","tool_calls":[{"function":{"name":"look"}}]}'
    await store.record(
        [new("a", asked="q"), new("b")],
        [end("a", text="x" * 9000), end("b", reply=Message("assistant", call), text="")],
    )
    b, a = await store.inbox(Wanted())
    assert (a.asked, len(a.text), a.length, a.calls) == ("q", inbox.SHOWN, 9000, None)
    assert b.calls is not None and b.calls.body == call
    assert a.prompt_hash is not None and [s.id for s in await store.siblings(a.prompt_hash)] == ["b", "a"]
    assert await store.models() == ["m"] and await store.listed("none") is None


async def test_an_older_database_gets_its_list(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / schema.NAME)) as db:
        for script in sorted(files("store").joinpath("migrations").iterdir(), key=lambda f: f.name)[:5]:
            db.executescript(script.read_text(encoding="utf-8"))
        db.executescript("""
            INSERT INTO messages VALUES (x'01', NULL, 'user',
                CAST('{"content":[{"type":"text","text":"the question"}]}' AS BLOB), 0);
            INSERT INTO messages VALUES (x'02', x'01', 'assistant', CAST('{"content":"so"}' AS BLOB), 0);
            INSERT INTO messages VALUES (x'03', x'02', 'tool', CAST('{"content":"a result"}' AS BLOB), 0);
            INSERT INTO completions (id, request_id, choice, created_at, dialect, backend, model, served_model,
                version, turn, turn_rule, streamed, sampling, request, status, prompt_hash, text)
            VALUES ('a', 'a', 0, 1, 'chat', 'vllm', 'm', 'm', 1, 'main', 'd', 0, '{}', x'7b7d', 'done', x'03', 'hi');
            INSERT INTO ratings (id, completion_id, rater, value, weight, source, created_at, live)
            VALUES ('rt-1', 'a', 'owner', -1.0, 1.0, 'http', 2.0, 1);
            PRAGMA user_version = 5;
        """)
    store = await Store.open(tmp_path)
    try:
        (row,) = await store.inbox(Wanted(search="question"))
        assert row.asked == "the question" and row.ratings[0].value == -1.0
        assert await rows(store) == {"a": (1, -1.0)}
    finally:
        await store.close()


async def test_figures(store: Store) -> None:
    for n, value in enumerate((1.0, 1.0, -1.0, 0.0)):
        await put(store, f"c{n}", version=n // 2)
        await store.rate(rating(f"c{n}", value))
    await put(store, "side", version=1, turn="side")
    await store.rate(rating("side"))
    assert [(v.version, v.good, v.bad) for v in await store.verdicts()] == [(0, 2, 0), (1, 0, 1)]
    (day,) = await store.days(0.0, 3600.0)
    assert (day.good, day.bad, day.rated) == (3, 1, 5) and (day.at + 3600) % 86400 == 0
    assert await store.days(day.at + 2 * 86400, 3600.0) == []
