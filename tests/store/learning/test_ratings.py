from __future__ import annotations

import asyncio
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from scripts.harness.records import end, new, put, rating
from store.errors import EventTaken, NoAnswer, StoreError, UnknownCompletion, UnknownRating
from store.learning.opinion import Moments
from store.records import Message, Scale
from store.store import Store


async def test_the_last_rating_of_a_rater_wins_and_the_history_stays(store: Store) -> None:
    await put(store, "a")
    first = await store.ratings.rate(rating("a", 1.0, comment="good"))
    second = await store.ratings.rate(rating("a", -1.0))
    other = await store.ratings.rate(rating("a", 0.5, rater="her"))

    assert second.replaced == first.id
    assert await store.ratings.live("a", "me") == second
    assert [one.id for one in await store.ratings.history("a")] == [other.id, second.id, first.id]
    assert [one.live for one in await store.ratings.history("a")] == [True, True, False]
    assert first.id.startswith("rt-")
    assert len(first.id) == 23


async def test_the_same_rating_again_is_the_one_that_is_there(store: Store) -> None:
    await put(store, "a")
    first = await store.ratings.rate(rating("a", -1.0, comment="too long", scale="thumb"))
    for again in ({}, {"comment": "too long"}, {"source": "page"}, {"correction": ""}):
        found = await store.ratings.rate(rating("a", -1.0, scale="thumb", **again))
        assert found == replace(first, duplicate=True), again
    others = ({"scale": "unit"}, {"weight": 0.5}, {"comment": "no"}, {"comment": ""}, {"correction": "b"})
    for other in others:
        assert not (await store.ratings.rate(rating("a", -1.0, **{"scale": "thumb", **other}))).duplicate, other
    event = await store.ratings.rate(rating("a", -1.0, scale="thumb", weight=1.0, source="bot", source_event_id="e1"))
    assert not event.duplicate and event.source_event_id == "e1"  # it is known by its id from now on
    assert len(await store.ratings.history("a")) == 2 + len(others)


async def test_words_stay_while_the_judgement_stays_on_its_side(store: Store) -> None:
    await put(store, "a")

    async def words(value: float, **given: str) -> tuple[str | None, str | None]:
        found = await store.ratings.rate(rating("a", value, **given))
        return found.comment, found.correction

    assert await words(-1.0, comment="too long") == ("too long", None)
    assert await words(-1.0, correction="Short.") == ("too long", "Short.")
    assert await words(-0.5, comment="still too long") == ("still too long", "Short.")
    assert await words(0.0) == ("still too long", "Short.")
    assert await words(-1.0, comment="") == (None, "Short.")  # what is given empty is taken away
    # A liked reply with a correction would be imitated and replaced at once, and praise of it is no reason against it.
    assert await words(1.0, comment="great") == ("great", None)
    assert await words(0.5) == ("great", None)
    assert await words(-1.0, correction="Short.") == (None, "Short.")
    assert (await store.ratings.rate(rating("a", -1.0, rater="her"))).correction is None
    live = await store.ratings.live("a", "me")
    assert live is not None
    await store.ratings.retract(live.id)
    assert await words(-1.0) == (None, None)  # what is taken back is taken back with its words


async def test_thumb_and_stars_of_one_rater_stand_side_by_side(store: Store) -> None:
    await put(store, "a")

    async def rate(value: float, scale: Scale, rater: str = "me") -> float | None:
        return (await store.ratings.rate(rating("a", value, scale=scale, rater=rater))).counterpart

    assert await rate(1.0, "thumb") is None
    assert await rate(0.5, "stars") == 1.0
    assert await rate(1.0, "stars") == 1.0  # the thumb stays beside the new stars
    assert await rate(0.5, "stars", "her") is None  # another person's thumb is not hers
    assert await rate(-1.0, "thumb") is None  # a change of mind
    assert await rate(-0.5, "stars") == -1.0
    assert await rate(0.0, "stars") is None  # three stars are on no side


async def test_an_event_is_stored_once_even_after_it_was_taken_back(store: Store) -> None:
    await put(store, "a", "b")
    first = await store.ratings.rate(rating("a", source="slack", source_event_id="e1"))
    again = await store.ratings.rate(rating("a", source="slack", source_event_id="e1"))
    assert again.duplicate and again.id == first.id
    for other in (
        rating("b", source="slack", source_event_id="e1"),
        rating("a", -1.0, source="slack", source_event_id="e1"),
    ):
        with pytest.raises(EventTaken) as told:
            await store.ratings.rate(other)
        assert told.value.rating == first
    hers = await store.ratings.rate(rating("b", -1.0, rater="her", source="slack", source_event_id="e1"))
    assert not hers.duplicate
    found = [await store.ratings.of_event("slack", "e1", rater) for rater in ("me", "her", "nobody")]
    assert [one and one.id for one in found] == [first.id, hers.id, None]
    await store.ratings.retract(first.id)
    assert (await store.ratings.rate(rating("a", source="slack", source_event_id="e1"))).live is False
    assert await store.ratings.live("a", "me") is None
    assert not (await store.ratings.rate(rating("a", source="discord", source_event_id="e1"))).duplicate


async def test_ratings_by_how_the_ids_of_their_events_begin(store: Store) -> None:
    await put(store, "a", "b")
    for at, (id, event, rater) in enumerate((("a", "f:0", "me"), ("a", "f:1", "me"), ("b", "f2:0", "her"))):
        await store.ratings.rate(rating(id, 1.0 - at, source="there", source_event_id=event, rater=rater))
    await store.ratings.rate(rating("b", source="elsewhere", source_event_id="f:2"))

    async def found(prefix: str, **only: object) -> list[str | None]:
        rows = await store.ratings.of_events("there", prefix, **only)  # type: ignore[arg-type]
        return [one.source_event_id for one in rows]

    assert await found("f:") == ["f:1", "f:0"] and await found("f:", live=True) == ["f:1"]
    assert await found("") == ["f2:0", "f:1", "f:0"] and await found("", rater="her") == ["f2:0"]
    assert await found("g") == []


async def test_retracting_twice_is_retracting_once(store: Store) -> None:
    await put(store, "a")
    given = await store.ratings.rate(rating("a"))
    gone = await store.ratings.retract(given.id)
    assert (gone.live, gone.retracted_at is not None) == (False, True)
    assert await store.ratings.retract(given.id) == gone
    assert await store.ratings.get(given.id) == gone
    with pytest.raises(UnknownRating):
        await store.ratings.retract("rt-no")


async def test_retracting_a_rating_that_was_replaced_leaves_the_new_one(store: Store) -> None:
    await put(store, "a")
    old = await store.ratings.rate(rating("a"))
    current = await store.ratings.rate(rating("a", -1.0))
    assert (await store.ratings.retract(old.id)).retracted_at is None
    assert await store.ratings.live("a", "me") == current


async def test_only_a_known_completion_is_rated(store: Store) -> None:
    with pytest.raises(UnknownCompletion):
        await store.ratings.rate(rating("no"))


@pytest.mark.parametrize("value", [1.01, -1.01, float("nan"), float("inf")])
async def test_a_value_out_of_range_reaches_nothing(store: Store, value: float) -> None:
    with pytest.raises(ValueError, match="between -1 and 1"):
        await store.ratings.rate(rating("no", value))


@pytest.mark.parametrize("weight", [0.0, -1.0, 5e-324, 0.009, 11.0, float("nan"), float("inf")])
async def test_a_weight_has_bounds(store: Store, weight: float) -> None:
    with pytest.raises(ValueError, match=r"from 0\.01 to 10"):
        await store.ratings.rate(rating("no", weight=weight))


async def test_undo_finds_the_newest_live_one_of_the_rater(store: Store) -> None:
    await put(store, "a", session="s")
    await put(store, "b", session="t")
    a = await store.ratings.rate(rating("a"))
    b = await store.ratings.rate(rating("b"))
    await store.ratings.rate(rating("b", rater="her"))
    assert await store.ratings.last("me") == b
    assert await store.ratings.last("me", session="s") == a
    await store.ratings.retract(b.id)
    assert await store.ratings.last("me") == a
    assert await store.ratings.last("nobody") is None


acts = st.lists(
    st.tuples(
        st.sampled_from(["a", "b"]),
        st.sampled_from(["me", "her"]),
        st.sampled_from([-1.0, 0.0, 1.0]),
        st.one_of(st.none(), st.sampled_from(["e1", "e2", "e3"])),
        st.booleans(),
    ),
    max_size=12,
)


@given(acts)
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_one_live_rating_a_rater_and_one_rating_an_event(acts: list[tuple[str, str, float, str | None, bool]]) -> None:
    async def play(home: Path) -> None:
        store = await Store.open(home)
        try:
            await put(store, "a", "b")
            expected: dict[tuple[str, str], str] = {}  # what is live, by completion and rater
            events: dict[tuple[str, str], str] = {}
            said: dict[str, tuple[str, float]] = {}
            known: dict[str, tuple[str, float]] = {}
            for completion, rater, value, event, retract in acts:
                named = (event or "", rater)
                if event is not None and named in events and said[events[named]] != (completion, value):
                    with pytest.raises(EventTaken):
                        await store.ratings.rate(rating(completion, value, rater=rater, source_event_id=event))
                    continue
                stored = await store.ratings.rate(rating(completion, value, rater=rater, source_event_id=event))
                live = known.get(expected.get((completion, rater), ""))
                again = events.get(named) if event is not None else live[0] if live and live[1] == value else None
                assert stored.duplicate == (again is not None)
                if stored.duplicate:
                    assert stored.id == again
                    continue
                known[stored.id] = (stored.id, value)
                said[stored.id] = (completion, value)
                if event is not None:
                    events[named] = stored.id
                assert stored.replaced == expected.get((completion, rater))
                expected[completion, rater] = stored.id
                if retract:
                    await store.ratings.retract(stored.id)
                    del expected[completion, rater]
            found = [one for id in ("a", "b") for one in await store.ratings.history(id) if one.live]
            assert {(one.completion_id, one.rater): one.id for one in found} == expected
            assert len(found) == len(expected)
        finally:
            await store.close()

    with tempfile.TemporaryDirectory() as home:
        asyncio.run(play(Path(home)))


async def test_votes_are_one_a_completion(store: Store) -> None:
    await put(store, "liked", "split", "disliked", "so-so", version=3)
    await put(store, "other", version=2)
    await store.completions.record([new("side", version=3, turn="side")], [end("side")])
    for id in ("liked", "split", "disliked", "so-so", "other", "side"):
        await store.ratings.rate(rating(id, {"disliked": -0.5, "so-so": 0.0}.get(id, 1.0)))
    await store.ratings.rate(rating("split", -1.0, rater="her"))
    assert [vote.good for vote in await store.opinions.votes(3)] == [True, False]
    assert [vote.good for vote in await store.opinions.votes(2)] == [True] and await store.opinions.votes(9) == []


async def test_moments_are_of_live_ratings(store: Store) -> None:
    assert await store.opinions.moments() == Moments(0, 0.0, 0.0)
    await put(store, "a", "b")
    await store.ratings.rate(rating("a", 1.0))
    await store.ratings.rate(rating("a", -1.0))
    await store.ratings.rate(rating("b", 0.5))
    assert await store.opinions.moments() == Moments(2, -0.5, 1.25)


async def test_a_rating_remembers_what_it_was_given_as(store: Store) -> None:
    await put(store, "a")
    stored = await store.ratings.rate(rating("a", 1.0, scale="stars"))
    assert stored.scale == "stars" and await store.ratings.get(stored.id) == stored
    with pytest.raises(StoreError):
        await store.ratings.rate(rating("a", 1.0, scale="hearts"))


@pytest.mark.parametrize("status", ["error", "partial"])
async def test_what_has_no_answer_takes_no_rating(store: Store, status: str) -> None:
    await store.completions.record([new("a")], [end("a", status=status, reply=None, error="out of memory")])
    with pytest.raises(NoAnswer, match="out of memory"):
        await store.ratings.rate(rating("a"))
    assert await store.ratings.history("a") == []


@pytest.mark.parametrize(
    "body",
    ['{"content":""}', '{"content":null}', "{}", '{"content":null,"tool_calls":[]}',
     '{"content":[{"type":"text","text":""}]}', '{"content":" \\n"}'],
)  # fmt: skip
async def test_a_reply_that_was_cut_before_its_words_takes_no_rating(store: Store, body: str) -> None:
    reply = Message("assistant", body.encode())
    await store.completions.record([new("a")], [end("a", status="partial", reply=reply, text="")])
    with pytest.raises(NoAnswer, match="cut before it had words"):
        await store.ratings.rate(rating("a"))
    assert await store.ratings.history("a") == []
    await store.completions.record([new("b")], [end("b", reply=reply, text="")])  # it ended so by itself
    assert (await store.ratings.rate(rating("b", -1.0))).live


@pytest.mark.parametrize(
    "body",
    ['{"content":"a"}', '{"content":null,"tool_calls":[{"id":"c"}]}', '{"content":"","refusal":"No."}',
     '{"content":[{"type":"audio","transcript":"a"}]}', '{"content":"","reasoning_content":"thinks"}'],
)  # fmt: skip
async def test_a_reply_of_any_words_takes_one(store: Store, body: str) -> None:
    reply = Message("assistant", body.encode())
    await store.completions.record([new("a")], [end("a", reply=reply, text="")])
    assert (await store.ratings.rate(rating("a"))).live


async def test_a_spoken_reply_has_its_words_beside_it(store: Store) -> None:
    await store.completions.record([new("a")], [end("a", reply=Message("assistant", b"{}"), text="Good day.")])
    assert (await store.ratings.rate(rating("a"))).live
