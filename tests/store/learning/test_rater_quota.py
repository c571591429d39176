"""How much of a run one rater may be."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scripts.harness.records import claim, put, rating
from store.learning.rater_quota import (
    FEW,
    LEAST_VOICE,
    OWNER,
    QuotaCandidate,
    is_judge,
    parts,
    shared_weight,
    voice,
    within,
    within_judges,
)
from store.store import Store

PEOPLE = [OWNER, "ann", "bob", "eve"]
RATINGS = st.lists(
    st.tuples(
        st.sampled_from(PEOPLE),
        st.integers(0, 60),
        st.sampled_from([LEAST_VOICE, 0.3, 0.5, 1.0, 10.0, 100.0]),
        st.booleans(),
    ),
    max_size=120,
    unique_by=lambda drawn: drawn[:2],  # one live rating a rater and completion
)
LIGHT = st.lists(st.tuples(st.sampled_from(PEOPLE), st.integers(0, 300)), max_size=200, unique=True)
SHARES = st.sampled_from([0.5, 0.6, 0.75, 0.9]) | st.floats(0.5, 1)


def candidates(drawn: list[tuple[str, int, float, bool]]) -> list[QuotaCandidate]:
    return [QuotaCandidate(f"{who}-{n}", f"c{n}", -1.0, who, weight, teaches) for who, n, weight, teaches in drawn]


def one_each(counts: dict[str, int]) -> list[QuotaCandidate]:
    """So many ratings of each, all of different completions."""
    return [QuotaCandidate(f"{who}-{n}", f"{who}-{n}", 1.0, who) for who, count in counts.items() for n in range(count)]


def weighed(ratings: list[QuotaCandidate]) -> dict[str, float]:
    """What each rater is of the training."""
    found = dict.fromkeys((one.rater for one in ratings), 0.0)
    for completion in {one.completion_id for one in ratings}:
        voices = {one.rater: one for one in ratings if one.completion_id == completion}
        for who, part in parts(voices).items():
            found[who] += part
    return found


@given(RATINGS, SHARES)
def test_nobody_is_above_the_bound_and_nothing_is_left_out_for_nothing(
    drawn: list[tuple[str, int, float, bool]], share: float
) -> None:
    ratings = candidates(drawn)
    kept = within(ratings, share, dict.fromkeys(PEOPLE, FEW))
    gone = [one for one in ratings if one not in kept]
    assert kept == [one for one in ratings if one not in gone] and all(one.rater != OWNER for one in gone)
    now = weighed(kept)
    total = sum(now.values())
    if not gone:
        assert all(part <= share * total + 1e-6 for who, part in now.items() if who != OWNER)
        return
    (cut,) = {one.rater for one in gone}
    assert now.get(cut, 0.0) <= share * total + 1e-6
    assert [one for one in ratings if one.rater == cut][-len(gone) :] == gone  # the last ones
    before = weighed([*kept, gone[0]])
    assert before[cut] > share * sum(before.values()) - 1e-6  # one more would be too many
    for who, part in now.items():  # and nobody else is above it by more than that one would have made up for
        if who != OWNER:
            assert part <= share * sum(before.values()) + 1e-6


@given(LIGHT, SHARES)
def test_where_all_weigh_the_same_nobody_at_all_is_above_it(drawn: list[tuple[str, int]], share: float) -> None:
    ratings = [QuotaCandidate(f"{who}-{n}", f"{who}-{n}", 1.0, who) for who, n in drawn]
    now = weighed(within(ratings, share, dict.fromkeys(PEOPLE, FEW)))
    assert all(part <= share * sum(now.values()) + 1e-6 for who, part in now.items() if who != OWNER)


STORED = st.sampled_from([0.0, -0.0, 5e-324, 1e-300, 1e300, 1.7e308, float("inf"), -1.0]) | st.floats(allow_nan=False)
OF_RATERS = st.sampled_from([5e-324, 1e-300, 0.1, 1.0, 10.0]) | st.floats(0, 10, exclude_min=True)


@given(st.dictionaries(st.sampled_from(PEOPLE), st.tuples(STORED, OF_RATERS, st.booleans()), min_size=1), SHARES)
def test_no_weight_that_is_stored_is_too_small_or_too_large(
    drawn: dict[str, tuple[float, float, bool]], share: float
) -> None:
    of_one = [QuotaCandidate(who, "c", -1.0, who, voice(w, of), teaches) for who, (w, of, teaches) in drawn.items()]
    assert all(0 < part <= 100 for part in parts({one.rater: one for one in of_one}).values())
    assert 0 < shared_weight([one.weight for one in of_one]) <= 100
    ratings = [one._replace(id=f"{one.id}-{n}", completion_id=f"{one.id}-{n}") for one in of_one for n in range(20)]
    assert within(ratings, share, dict.fromkeys(PEOPLE, FEW)) or len(drawn) == 1


@pytest.mark.parametrize("weight", [0.5, 0.3, 1e-6, 10.0])
def test_an_odd_weight_does_not_empty_the_run(weight: float) -> None:
    """Two who must not be above half: their weights can never be equal."""
    ratings = [*one_each({"ann": 20}), QuotaCandidate("odd", "odd", 1.0, "eve", weight), *one_each({"eve": 20})]
    assert len(within(ratings, 0.5, {"ann": 20, "eve": 21, "bob": FEW})) >= 30


def left(counts: dict[str, int], others: dict[str, int]) -> dict[str, int]:
    kept = within(one_each(counts), 0.5, others)
    return {who: sum(one.rater == who for one in kept) for who in counts}


def test_one_person_alone_has_no_bound() -> None:
    assert left({"ann": 300}, {"ann": 900, OWNER: FEW - 1}) == {"ann": 300}
    assert left({OWNER: 300, "ann": 1}, {OWNER: 300, "ann": 50}) == {OWNER: 300, "ann": 1}
    assert left({"eve": 300}, {"eve": 300, "ann": FEW}) == {"eve": 0}  # others have, only not lately


def test_who_rates_what_others_rate_too_is_that_much_less_of_it() -> None:
    """Three who agree on ten answers are ten voices in training, not thirty."""
    three = [QuotaCandidate(f"{who}-{n}", f"c{n}", 1.0, who) for who in ("ann", "bob", "dan") for n in range(10)]
    kept = within([*three, *one_each({"eve": 90})], 0.75, {"ann": 10, "bob": 10, "dan": 10, "eve": 90})
    assert sum(one.rater == "eve" for one in kept) == 30


async def test_a_flood_is_dampened_and_shown(store: Store) -> None:
    await put(store, *(f"c{n}" for n in range(60)))
    for n in range(10):
        await store.ratings.rate(rating(f"c{n}", rater="ann"))
    for n in range(10, 60):
        await store.ratings.rate(rating(f"c{n}", -1.0, rater="eve"))
    fresh = await store.samples.fresh(live=0, max_version_gap=8, share=0.5)
    assert fresh.dampened == {"eve": 40} and fresh.total == 20
    assert await claim(store, min_total=21, share=0.5) is None
    run, samples = await claim(store, limit=30, min_total=20, share=0.5)
    raters = [sample.rating.rater for sample in samples]
    assert (raters.count("ann"), raters.count("eve"), run.samples) == (10, 10, 20)


async def test_the_weight_that_the_settings_give_a_rater_counts(store: Store) -> None:
    await put(store, *(f"c{n}" for n in range(20)))
    for n in range(20):
        await store.ratings.rate(rating(f"c{n}", rater="ann" if n < 10 else "eve"))
    fresh = await store.samples.fresh(live=0, max_version_gap=8, share=0.5, raters={"eve": 5.0})
    assert fresh.dampened == {"eve": 8}
    _, samples = await claim(store, share=0.5, raters={"eve": 5.0})
    assert [sample.rating.rater for sample in samples].count("eve") == 2


BY_ALL = st.lists(
    st.tuples(
        st.sampled_from([OWNER, "ann", "judge:m", "judge:own"]),
        st.integers(0, 40),
        st.sampled_from([0.01, 0.5, 1.0]),
        st.booleans(),
    ),
    max_size=120,
    unique_by=lambda drawn: drawn[:2],
)


@given(BY_ALL, st.sampled_from([0.1, 0.5, 0.9, 1.0]))
def test_judges_have_their_share_beside_people_and_outvote_nobody_alone(
    drawn: list[tuple[str, int, float, bool]], share: float
) -> None:
    ratings = candidates(drawn)
    kept = within_judges(ratings, share)
    people = [one for one in ratings if not is_judge(one.rater)]
    assert [one for one in kept if not is_judge(one.rater)] == people
    if not people or share >= 1:
        assert kept == ratings
        return
    counts = [(is_judge(one.rater), max(one.weight, 1.0 if one.teaches else 0.0)) for one in kept]
    total = sum(count for _, count in counts)
    assert sum(count for judge, count in counts if judge) <= share * total * (1 + 1e-6)
