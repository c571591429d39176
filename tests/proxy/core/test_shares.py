"""No holder takes what others need, and nothing is lost on the way."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from proxy.core.sharing.shares import Shares


def fill(shares: Shares, holder: str) -> int:
    count = 0
    while shares.take(holder) is None:
        count += 1
    return count


def test_one_holder_takes_three_quarters_and_the_next_one_still_gets_something() -> None:
    shares = Shares(1024)
    taken = [fill(shares, f"key {n}") for n in range(5)]
    assert taken[0] == 768 and all(taken) and sum(taken) < 1024
    assert shares.refusal("key 0") == "share" and shares.refusal("somebody new") is None


def test_the_only_place_may_be_taken_and_then_all_are_taken() -> None:
    shares = Shares(1)
    assert shares.take("a") is None
    assert shares.refusal("a") == shares.refusal("b") == "full"
    assert shares.take("an admin", reserve=1) is None
    shares.give_back("a")
    assert shares.refusal("b") == "full" and shares.refusal("b", reserve=1) is None


def test_an_amount_is_taken_whole_or_not_at_all() -> None:
    shares = Shares(100)
    assert shares.take("a", 90) is None and shares.take("b", 11) == "full" and shares.in_use == 90
    assert shares.take("a", 1) == "share" and shares.take("b", 10) is None and shares.in_use == 100


def test_large_amounts_leave_room_for_one_of_the_same_size() -> None:
    shares = Shares(100)
    while shares.take("a", 22) is None:
        pass
    assert shares.held_by("a") == 66 and shares.take("b", 22) is None


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 40), st.booleans()), max_size=80))
def test_all_that_is_taken_can_be_given_back(acts: list[tuple[str, int, bool]]) -> None:
    shares, taken = Shares(100), []
    for holder, amount, back in acts:
        if back and taken:
            shares.give_back(*taken.pop(amount % len(taken)))
        elif shares.take(holder, amount + 1) is None:
            taken.append((holder, amount + 1))
        assert shares.in_use == sum(amount for _, amount in taken) <= 100
        assert shares.held_by("a") == sum(amount for holder, amount in taken if holder == "a")
    for one in taken:
        shares.give_back(*one)
    assert shares.in_use == 0 and not shares._held_by
