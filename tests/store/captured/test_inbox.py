"""The list that pages show: kept by triggers, filtered in any combination, searched."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from scripts.harness.records import end, new, put, rating
from store.captured import inbox
from store.records import CompletionQuery, Message
from store.store import Store
from tests.store.engines import in_file


async def rows(store: Store) -> dict[str, tuple[int, float]]:
    found = await store._reader.rows("SELECT c.id, l.rated, l.opinion FROM listed l JOIN completions c USING (seq)")
    return {row["id"]: (row["rated"], row["opinion"]) for row in found}


async def test_a_completion_is_listed_when_it_ends(store: Store) -> None:
    await store.completions.begin([new("a"), new("b")])
    await store.ratings.rate(rating("b", 0.5))  # while it streams
    assert await rows(store) == {} and not await store.inbox.any()
    await store.completions.finish([end("a"), end("b", status="partial")])
    assert await rows(store) == {"a": (0, 0.0), "b": (1, 0.5)} and await store.inbox.any()
    await store.completions.forget(["a"])
    assert set(await rows(store)) == {"b"}


async def test_ratings_are_counted(store: Store) -> None:
    await put(store, "a")
    one = await store.ratings.rate(rating("a", 1.0))
    await store.ratings.rate(rating("a", -0.5))  # in its place
    await store.ratings.rate(rating("a", 1.0, rater="ann"))
    assert await rows(store) == {"a": (2, 0.5)}
    await store.ratings.retract(one.id)  # not live any more: nothing changes
    assert await rows(store) == {"a": (2, 0.5)}
    await store.erasure.forget("rater", "ann", "x")
    assert await rows(store) == {"a": (1, -0.5)}


FIELDS: dict[str, Any] = {
    "session": st.sampled_from([None, "s", "t"]), "version": st.sampled_from([None, 0, 1]),
    "turn": st.sampled_from(["main", "side"]), "model": st.sampled_from(["m", "n"]),
}  # fmt: skip
ROW = st.fixed_dictionaries(
    {
        **FIELDS,
        "rated": st.booleans(),
        "word": st.sampled_from(["egg", "sea"]),
        "talk": st.sampled_from([None, b"1", b"2"]),
    }
)
FILTER = st.fixed_dictionaries(
    {
        "session": st.sampled_from([None, "s"]), "version": st.sampled_from([None, 0, 1]),
        "turn": st.sampled_from([None, "main"]), "model": st.sampled_from([None, "m"]), "unrated": st.booleans(),
        "search": st.sampled_from([None, "egg", "egg hel"]),
    }
)  # fmt: skip


def talks(made: list[dict[str, Any]], ids: list[str]) -> dict[Any, list[str]]:
    """These completions, newest first, by what they are turns of."""
    found: dict[Any, list[str]] = {}
    for id in ids:
        found.setdefault(made[int(id[1:])]["talk"] or id, []).append(id)
    return found


async def all_pages(store: Store, wanted: CompletionQuery) -> list[str]:
    found: list[str] = []
    while True:
        page = await store.inbox.page(wanted)
        found += [row.id for row in page.rows]
        if page.before_seq is None:
            return found
        wanted = replace(wanted, before_seq=page.before_seq)


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(made=st.lists(ROW, max_size=12), wanted=FILTER, look=st.integers(1, 4))
async def test_any_filters_together(
    store: Store, monkeypatch: pytest.MonkeyPatch, made: list[dict[str, Any]], wanted: dict[str, Any], look: int
) -> None:
    monkeypatch.undo()
    for row in (await store.inbox.page(CompletionQuery(limit=1000))).rows:
        await store.completions.forget([row.id])
    for n, row in enumerate(made):
        fields = {key: value for key, value in row.items() if key in FIELDS}
        begun = any(earlier["talk"] == row["talk"] for earlier in made[:n])
        fields |= {"above": row["talk"] if begun else None, "asked": row["word"]}
        await store.completions.record(
            [new(f"c{n}", **fields)], [end(f"c{n}", text="hello", thread=row["talk"] or b"none")]
        )
        if row["rated"]:
            await store.ratings.rate(rating(f"c{n}"))
    expected = [
        f"c{n}"
        for n, row in enumerate(made)
        if all(wanted[key] in (None, row[key]) for key in FIELDS)
        and not (wanted["unrated"] and row["rated"])
        and (wanted["search"] is None or row["word"] == "egg")
    ][::-1]
    assert await all_pages(store, CompletionQuery(**wanted)) == expected
    monkeypatch.setattr(inbox, "LOOK", look)  # what one page does not reach, the next one does
    assert await all_pages(store, CompletionQuery(**wanted, limit=2)) == expected
    if wanted["search"] is None:
        newest = [ids[0] for ids in talks(made, expected).values()]
        assert await all_pages(store, CompletionQuery(**wanted, limit=2, newest_of_each=True)) == newest


PLANS: list[tuple[dict[str, Any], str]] = [
    ({}, "INTEGER PRIMARY KEY (rowid<?)"),
    ({"turn": "main"}, "INTEGER PRIMARY KEY (rowid<?)"),
    ({"turn": "main", "unrated": True}, "INDEX listed_unrated (seq<?)"),
    ({"turn": "main", "unrated": True, "model": "m"}, "INDEX listed_unrated (seq<?)"),
    ({"turn": "main", "model": "m"}, "INDEX listed_model (model=? AND rowid<?)"),
    ({"unrated": True, "version": 1, "model": "m"}, "INDEX listed_version (version=? AND rowid<?)"),
    ({"unrated": True, "version": 1, "session": "s"}, "INDEX listed_session (session=? AND rowid<?)"),
    ({"unrated": True, "version": 1, "conversation": 1}, "INDEX listed_conversation (conversation=? AND rowid<?)"),
]


async def steps(store: Store, asked: tuple[str, dict[str, Any]]) -> list[str]:
    return [row["detail"] for row in await store._reader.rows(f"EXPLAIN QUERY PLAN {asked[0]}", asked[1])]


@in_file
@pytest.mark.parametrize(("fields", "index"), PLANS)
async def test_each_filter_has_its_index_and_nothing_is_sorted(
    store: Store, fields: dict[str, Any], index: str
) -> None:
    looked = ["CO-ROUTINE looked", f"SEARCH l USING {index}", "SCAN i"]
    newer = ["CORRELATED SCALAR SUBQUERY 2", "SEARCH n USING INDEX listed_conversation (conversation=? AND rowid>?)"]
    assert await steps(store, inbox.query(CompletionQuery(**fields))) == looked
    found = await steps(store, inbox.query(CompletionQuery(**fields, newest_of_each=True)))
    assert [step.replace("COVERING ", "") for step in found] == looked + newer
    found = await steps(store, inbox.query(CompletionQuery(search="egg", **fields)))
    assert found.pop(1).startswith("SCAN search VIRTUAL TABLE INDEX")
    assert found == ["CO-ROUTINE looked", "SEARCH l USING INTEGER PRIMARY KEY (rowid=?)", "SCAN i"]


@in_file
@pytest.mark.parametrize(("fields", "index"), [*PLANS, ({"search": "egg"}, "")])
async def test_a_page_looks_through_so_many_and_no_more(store: Store, fields: dict[str, Any], index: str) -> None:
    for asked in (inbox.query(CompletionQuery(**fields)), inbox.reach(CompletionQuery(**fields))):
        assert asked[0].count("LIMIT :look") == 1 and asked[1]["look"] == inbox.LOOK == 10_000
        inner = asked[0][: asked[0].index("LIMIT :look")]
        assert "turn" not in inner  # it has no index: rows without the turn that is wanted count, too
    plan = await steps(store, inbox.reach(CompletionQuery(**fields)))
    assert not [step for step in plan if "TEMP B-TREE" in step] and any(index in step for step in plan)


async def test_how_many_turns_stand_behind_one(store: Store) -> None:
    for n in range(4):
        above = f"t{n - 1}".encode() if n else None
        await store.completions.record(
            [new(f"c{n}", asked="word", above=above)], [end(f"c{n}", thread=f"t{n}".encode())]
        )
    await put(store, "alone")
    await store.ratings.rate(rating("c1"))
    alone, last = (await store.inbox.page(CompletionQuery(newest_of_each=True))).rows
    assert (alone.id, last.id, last.conversation) == ("alone", "c3", last.seq - 3)
    assert (await store.inbox.page(CompletionQuery(newest_of_each=True))).hidden_turns == {last.seq: 3}
    assert (await store.inbox.page(CompletionQuery(newest_of_each=True, unrated=True))).hidden_turns == {last.seq: 2}
    found = await store.inbox.page(CompletionQuery(search="word", turn="main"))
    assert [row.id for row in found.rows] == ["c3", "c2", "c1", "c0"] and set(found.hidden_turns.values()) == {3}
    assert [row.id for row in (await store.inbox.page(CompletionQuery(conversation=last.conversation))).rows] == [
        "c3", "c2", "c1", "c0",
    ]  # fmt: skip
    assert [row.id for row in (await store.inbox.page(CompletionQuery(conversation=alone.conversation))).rows] == [
        "alone"
    ]


@pytest.mark.parametrize("text", ['"', "a*", "NEAR(a b)", "AND", "a:b", "-a", "^a", "ünïcode", "'", "\x00", "  "])
async def test_any_text_can_be_searched_for(store: Store, text: str) -> None:
    await put(store, "a")
    await store.inbox.page(CompletionQuery(search=text))


async def test_accents_and_beginnings(store: Store) -> None:
    await store.completions.record([new("a", asked="Die Rhône")], [end("a", text="Genève")])
    for text in ("rhone", "RHÔ", "gen rho", "die"):
        assert [row.id for row in (await store.inbox.page(CompletionQuery(search=text))).rows] == ["a"], text
    assert (await store.inbox.page(CompletionQuery(search="hone"))).rows == []


async def test_a_listed_completion_has_what_a_list_shows(store: Store) -> None:
    call = b'{"content":"","tool_calls":[{"function":{"name":"look"}}]}'
    await store.completions.record(
        [new("a", asked="q"), new("b")],
        [end("a", text="x" * 9000), end("b", reply=Message("assistant", call), text="")],
    )
    b, a = (await store.inbox.page(CompletionQuery())).rows
    assert (a.asked, len(a.text), a.length, a.calls) == ("q", inbox.SHOWN_CHARACTERS, 9000, None)
    assert b.calls is not None and b.calls.body == call
    assert a.prompt_hash is not None and [s.id for s in await store.inbox.siblings(a.prompt_hash)] == ["b", "a"]
    assert await store.inbox.models() == ["m"] and await store.inbox.get("none") is None


async def test_figures(store: Store) -> None:
    for n, value in enumerate((1.0, 1.0, -1.0, 0.0)):
        await put(store, f"c{n}", version=n // 2)
        await store.ratings.rate(rating(f"c{n}", value))
    await put(store, "side", version=1, turn="side")
    await store.ratings.rate(rating("side"))
    assert [(v.version, v.good, v.bad) for v in await store.stats.verdicts()] == [(0, 2, 0), (1, 0, 1)]
    (day,) = await store.stats.days(0.0, 3600.0)
    assert (day.good, day.bad, day.rated) == (3, 1, 5) and (day.starts_at + 3600) % 86400 == 0
    assert await store.stats.days(day.starts_at + 2 * 86400, 3600.0) == []
