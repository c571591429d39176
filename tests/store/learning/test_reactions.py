"""Links, and reactions: whatever the order in which they come, the newest that is still there counts."""

from __future__ import annotations

import random
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from scripts.harness.records import new, put, rating
from store.errors import LinkTaken, UnknownCompletion
from store.learning import reactions
from store.records import Link, NewReaction
from store.store import Store


def reaction(event: str, emoji: str, value: float | None, at: float, **fields: str) -> NewReaction:
    message = fields.pop("message", "c 1")
    return NewReaction(
        fields.pop("completion", "a"), "me", fields.pop("platform", "slack"), event, message, emoji, value, at
    )


async def live(store: Store) -> float | None:
    found = await store.ratings.live("a", "me")
    return None if found is None else found.value


async def test_a_link_leads_to_its_completion(store: Store) -> None:
    await put(store, "a", "b")
    await store.reactions.link(Link("slack", "general", "1", "a"))
    await store.reactions.link(Link("slack", "general", "1", "b", "U1"))
    assert await store.reactions.linked("slack", "general", "1") == Link("slack", "general", "1", "b", "U1")
    assert await store.reactions.linked("slack", "other", "1") is None
    with pytest.raises(UnknownCompletion):
        await store.reactions.link(Link("slack", "general", "2", "no"))


async def test_a_link_is_replaced_by_its_own_key_only(store: Store) -> None:
    await put(store, "a", "b")
    await store.reactions.link(Link("slack", "general", "1", "a", key="k1"))
    for key in ("k2", None):
        with pytest.raises(LinkTaken):
            await store.reactions.link(Link("slack", "general", "1", "b", key=key))
    assert await store.reactions.linked("slack", "general", "1") == Link("slack", "general", "1", "a", key="k1")
    await store.reactions.link(Link("slack", "general", "1", "b", key="k1"))
    await store.reactions.link(Link("slack", "general", "1", "a", key="k2"), whosever=True)
    assert await store.reactions.linked("slack", "general", "1") == Link("slack", "general", "1", "a", key="k2")


async def test_the_newest_link_of_a_channel_is_never_another_persons(store: Store) -> None:
    await put(store, "a", "b", "c")
    for at, (id, person) in enumerate((("a", None), ("b", "U1"), ("c", "U2"))):
        await store.reactions.link(Link("slack", "general", str(at), id, person))
    found = [await store.reactions.newest_linked("slack", "general", person) for person in ("U1", "U2", "U3")]
    assert [[(one.completion_id, one.person) for one in each] for each in found] == [
        [("b", "U1")], [("c", "U2")], [("a", None)],
    ]  # fmt: skip
    assert await store.reactions.newest_linked("telegram", "general", "U1") == []


async def test_the_newest_answer_of_each_key(store: Store) -> None:
    for id, key in (("a", "k1"), ("b", "k2"), ("c", "k1"), ("d", None)):
        await put(store, id, session="s", key=key)
        await store.reactions.link(Link("slack", "general", id, id, key=key))
    for found in (await store.reactions.newest_in("s"), await store.reactions.newest_linked("slack", "general", "U1")):
        assert [(one.completion_id, one.key) for one in found] == [("d", None), ("c", "k1"), ("b", "k2")]
    assert await store.reactions.newest_in("t") == []


async def test_a_reaction_rates_changes_and_goes(store: Store) -> None:
    await put(store, "a")
    up = await store.reactions.react(reaction("1", "👍", 1.0, 1))
    assert up.result == "rated" and up.rating is not None
    assert (up.rating.source, up.rating.source_event_id) == ("slack", "1")
    down = await store.reactions.react(reaction("2", "👎", -1.0, 2))
    assert down.rating is not None and down.rating.replaced == up.rating.id
    back = await store.reactions.react(reaction("3", "👎", None, 3))  # the thumb is still there
    assert (back.result, await live(store)) == ("rated", 1.0)
    gone = await store.reactions.react(reaction("4", "👍", None, 4))
    assert (gone.result, await live(store)) == ("retracted", None)
    assert (await store.reactions.react(reaction("5", "👍", None, 5))).result == "nothing"


async def test_an_event_twice_or_late_changes_nothing(store: Store) -> None:
    await put(store, "a")
    await store.reactions.react(reaction("2", "👍", None, 2))  # it overtook the next one
    assert (await store.reactions.react(reaction("1", "👍", 1.0, 1))).result == "late"
    assert await live(store) is None
    await store.reactions.react(reaction("3", "👍", 1.0, 3))
    assert (await store.reactions.react(reaction("3", "👎", -1.0, 4))).result == "duplicate"
    assert len(await store.ratings.history("a")) == 1


async def test_one_word_for_the_whole_message_takes_the_place_of_all(store: Store) -> None:
    await put(store, "a")
    await store.reactions.react(reaction("1", "👍", 1.0, 1))
    await store.reactions.react(reaction("2", "", -1.0, 3))
    assert await live(store) == -1.0
    assert (await store.reactions.react(reaction("3", "👍", 1.0, 2))).result == "late"
    await store.reactions.react(reaction("4", "", None, 4))
    assert await live(store) is None


async def test_what_was_typed_is_not_taken_back_by_an_emoji(store: Store) -> None:
    await put(store, "a")
    await store.reactions.react(reaction("1", "👍", 1.0, 1))
    typed = await store.ratings.rate(rating("a", -0.5, comment="well"))
    assert (await store.reactions.react(reaction("2", "👍", None, 2))).result == "nothing"
    assert await store.ratings.live("a", "me") == typed
    same = await store.ratings.rate(rating("a", 1.0, comment="because"))
    assert (await store.reactions.react(reaction("3", "👍", 1.0, 3))).result == "same"
    assert await store.ratings.live("a", "me") == same  # with its comment
    assert (await store.reactions.react(reaction("4", "👎", -1.0, 4))).result == "rated"


async def test_reactions_and_links_go_with_their_completion(store: Store) -> None:
    await put(store, "a")
    await store.reactions.react(reaction("1", "👍", 1.0, 1))
    await store.reactions.link(Link("slack", "c", "1", "a"))
    await store.completions.forget(["a"])
    assert await store._reader.rows("SELECT 1 FROM reactions UNION SELECT 1 FROM links") == []
    with pytest.raises(UnknownCompletion):
        await store.reactions.react(reaction("2", "👍", 1.0, 2))
    await put(store, "a")
    assert (await store.reactions.react(reaction("2", "👍", 1.0, 2))).result == "rated"  # it was not taken before


async def test_events_are_known_for_a_while(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    assert await store.reactions.first_time("slack", "1")
    assert not await store.reactions.first_time("slack", "1")
    assert await store.reactions.first_time("telegram", "1")
    monkeypatch.setattr(reactions, "RETENTION_S", -1.0)
    assert await store.reactions.first_time("slack", "1")


async def test_what_was_said_is_newest_first_and_only_what_a_person_saw(store: Store) -> None:
    await put(store, "a", session="s")
    await put(store, "b", session="t")
    await put(store, "side", session="s", turn="side")
    await put(store, "c", session="s")
    await store.completions.begin([new("open", session="s")])
    assert [one.completion_id for one in await store.reactions.newest_answers([], 9)] == ["c", "b", "a"]
    assert [one.completion_id for one in await store.reactions.newest_answers(["t", "s"], 2)] == ["c", "b"]
    assert await store.reactions.newest_answers(["nobody"], 9) == []


# What a person did, in order: put an emoji there, take it away, or (Telegram's way) say what is there now.
deeds = st.lists(
    st.tuples(st.sampled_from(["👍", "👎", "5", ""]), st.sampled_from([1.0, -1.0, 0.5, None])), min_size=1, max_size=8
)


@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(deeds, st.integers())
async def test_any_order_of_events_ends_in_the_same_rating(done: list[tuple[str, float | None]], seed: int) -> None:
    events = [reaction(str(at), emoji, value, float(at)) for at, (emoji, value) in enumerate(done)]
    present: dict[str, tuple[int, float]] = {}
    for at, (emoji, value) in enumerate(done):
        if emoji == "":
            present.clear()
        present.pop(emoji, None)
        if value is not None:
            present[emoji] = (at, value)
    wanted = max(present.values())[1] if present else None

    shuffled = [*events, *events]  # each of them twice
    random.Random(seed).shuffle(shuffled)
    with tempfile.TemporaryDirectory() as home:
        store = await Store.open(Path(home))
        await put(store, "a")
        for event in shuffled:
            await store.reactions.react(event)
        found = await live(store)
        await store.close()
    assert found == wanted


async def test_of_long_answers_their_beginnings_are_read(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stranger's command on a message that nobody linked had 250 answers read and compared, however long."""
    monkeypatch.setattr(reactions, "MOST_SEEN", 1)
    await put(store, "a", session="s")
    completion = await store.completions.get("a")
    assert completion is not None and completion.end is not None and len(completion.end.text) > 1
    for sessions in ([], ["s"]):
        (answer,) = await store.reactions.newest_answers(sessions, 9)
        assert answer.text == completion.end.text[:1]
