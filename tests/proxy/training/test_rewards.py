from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.training.rewards import Scheme, Worth, binary, normalised, weighted_median, worth
from store.learning.opinion import Moments
from store.learning.rater_quota import FULL_VOICE, shared_weight
from store.records import Rating

NOTHING = Moments(0, 0.0, 0.0)
SCHEMES: list[Scheme] = ["binary", "ordinal", "normalised", "hybrid"]

values = st.floats(-1, 1)
weights = st.floats(0.01, 10)
pairs = st.lists(st.tuples(values, weights), min_size=1, max_size=12)
scales = st.sampled_from(["thumb", "stars", "unit"])


def rated(rater: str, value: float, **fields: Any) -> Rating:
    defaults: dict[str, Any] = {
        "id": f"rt-{rater}", "completion_id": "c", "comment": None, "correction": None, "weight": 1.0,
        "source": "http", "source_event_id": None, "created_at": 1.0, "live": True, "retracted_at": None,
    }  # fmt: skip
    return Rating(rater=rater, value=value, **(defaults | fields))


def of(fresh: list[Rating], standing: list[Rating] | None = None, scheme: Scheme = "ordinal", **more: Any) -> Worth:
    defaults: dict[str, Any] = {"raters": {}, "moments": NOTHING}
    return worth(fresh, standing or fresh, scheme=scheme, **(defaults | more))


def moments_of(given_values: list[float]) -> Moments:
    return Moments(len(given_values), sum(given_values), sum(v * v for v in given_values))


many = st.lists(st.tuples(values, weights, scales), min_size=1, max_size=8).map(
    lambda drawn: [rated(f"r{n}", v, weight=w, scale=s) for n, (v, w, s) in enumerate(drawn)]
)
history = st.lists(values, max_size=50).map(moments_of)


@given(many, st.sampled_from(SCHEMES), history)
def test_a_reward_is_never_outside(ratings: list[Rating], scheme: Scheme, before: Moments) -> None:
    found = of(ratings, scheme=scheme, moments=before)
    assert -1 <= found.reward <= 1 and 0 < found.weight <= 100


@given(many, st.sampled_from(SCHEMES), history, st.randoms())
def test_the_order_of_raters_does_not_matter(ratings: list[Rating], scheme: Scheme, before: Moments, dice: Any) -> None:
    shuffled = dice.sample(ratings, len(ratings))
    first, second = (of(some, scheme=scheme, moments=before) for some in (ratings, shuffled))
    assert first.reward == second.reward and first.weight == pytest.approx(second.weight)


@given(values, values, history)
def test_a_better_value_is_never_worth_less(one: float, other: float, before: Moments) -> None:
    low, high = sorted((one, other))
    assert binary(low) <= binary(high)
    assert normalised(low, before) <= normalised(high, before)


@given(values, weights, st.sampled_from(["binary", "ordinal", "hybrid"]))
def test_one_rater_is_taken_at_their_word(value: float, weight: float, scheme: Scheme) -> None:
    found = of([rated("ann", value, weight=weight)], scheme=scheme)
    assert found.reward == (binary(value) if scheme == "binary" else value)
    assert found.weight == weight


@given(values, st.integers(2, 9))
def test_raters_who_agree_are_one_voice(value: float, count: int) -> None:
    found = of([rated(f"r{n}", value) for n in range(count)])
    assert (found.reward, found.weight) == (value, FULL_VOICE)


@given(pairs)
def test_the_median_has_no_more_than_half_of_the_weight_on_either_side(drawn: list[tuple[float, float]]) -> None:
    middle = weighted_median(drawn)
    half = sum(weight for _, weight in drawn) / 2 * (1 + 1e-9)
    assert sum(weight for value, weight in drawn if value < middle) <= half
    assert sum(weight for value, weight in drawn if value > middle) <= half
    assert min(drawn)[0] <= middle <= max(drawn)[0]


@given(st.lists(weights, min_size=1))
def test_weights_add_up_to_one_voice(drawn: list[float]) -> None:
    assert max(drawn) <= shared_weight(drawn) <= max(FULL_VOICE, *drawn)


def test_two_who_disagree_cancel_out_and_a_third_decides() -> None:
    assert of([rated("ann", 1.0), rated("bob", -1.0)]).reward == 0.0
    assert of([rated("ann", 1.0), rated("bob", -1.0), rated("cyd", 1.0)]).reward == 1.0
    assert of([rated("ann", 1.0), rated("bob", -1.0)], raters={"bob": 2.0}).reward == -1.0


def test_a_late_dissenter_does_not_turn_around_what_others_found() -> None:
    before = [rated(name, 1.0, comment="fine") for name in ("ann", "bob", "cyd")]
    late = rated("dan", -1.0, weight=0.5, comment="too long")
    found = of([late], [late, *before])
    assert found == Worth(1.0, 0.5, "too long", None, ("rt-dan",))


def test_a_rating_that_was_replaced_meanwhile_has_no_second_voice() -> None:
    claimed = rated("ann", 1.0)
    assert of([claimed], [rated("ann", -1.0, id="rt-2"), rated("bob", 1.0)]).reward == 1.0


def test_words_of_who_found_the_opposite_do_not_ride_along() -> None:
    """They would teach in full, while their rater's part of the run is that of a light like."""
    disliked = rated("ann", -1.0, comment="too long")
    liked = rated("eve", 1.0, comment="name our product", weight=0.01, created_at=2.0)
    assert of([disliked, liked]).comment == "too long"


def test_comments_are_joined_newest_first_and_the_newest_correction_counts() -> None:
    ratings = [
        rated("ann", -1.0, created_at=1.0, comment="too long", correction="old"),
        rated("bob", -1.0, created_at=3.0, comment="no list"),
        rated("cyd", -1.0, created_at=2.0, comment="too long", correction="new"),
    ]
    found = of(ratings)
    assert found.comment == "no list\ntoo long" and found.correction == "new"
    assert found.ratings == ("rt-bob", "rt-cyd", "rt-ann")


def test_hybrid_is_half_thumb_and_half_stars() -> None:
    thumb, stars = rated("ann", 1.0, scale="thumb"), rated("bob", -0.5, scale="stars")
    assert of([thumb, stars], scheme="hybrid").reward == 0.25
    assert of([thumb], scheme="hybrid").reward == 1.0
    assert of([stars], scheme="hybrid").reward == -0.5


def test_the_first_ratings_are_no_z_scores_of_themselves() -> None:
    assert normalised(1.0, NOTHING) == 1.0 and normalised(-0.5, NOTHING) == -0.5
    assert normalised(1.0, moments_of([1.0])) > 0.8


def test_for_who_gives_four_or_five_stars_to_everything_four_is_bad() -> None:
    before = moments_of([0.5] * 100 + [1.0] * 100)
    assert normalised(0.5, before) < -0.3 and normalised(1.0, before) > 0.3 and normalised(-1.0, before) == -1.0


def test_thumb_and_stars_of_one_person_are_both_in_a_hybrid_reward() -> None:
    both = [rated("r", 0.5, scale="stars", counterpart=1.0)]
    assert of(both, scheme="hybrid").reward == 0.75 and of(both, scheme="ordinal").reward == 0.5
    assert of([rated("r", 1.0, scale="thumb", counterpart=0.5)], scheme="hybrid").reward == 0.75
