"""Measured trust: which judges may train, and how soon one that turns bad is found out."""

from __future__ import annotations

import random

import pytest

from proxy.signals import trust as module
from proxy.signals.trust import EACH, FEWEST, LEAST_KAPPA, Pair, interval, kappa, trust


def pairs(count: int, agree: float, seed: int = 1, judge: float | None = None) -> list[Pair]:
    """Half good, half bad in turn by the person; the judge agrees so often, or always says `judge`."""
    draw = random.Random(seed)
    people = [1.0 if at % 2 else -1.0 for at in range(count)]
    return [(p, judge if judge is not None else p if draw.random() < agree else -p) for p in people]


def test_kappa_by_hand() -> None:
    # Cohen's example in short: 20 both, 5 and 10 apart, 15 neither: p_o = 0.7, p_e = 0.5.
    assert kappa((20, 5, 10, 15)) == pytest.approx(0.4)
    assert kappa((25, 0, 0, 25)) == 1.0 and kappa((50, 0, 0, 0)) == 0.0 and kappa((0, 0, 0, 0)) == 0.0


def test_the_interval_holds_the_value_and_is_always_the_same() -> None:
    cells = (24, 6, 4, 26)
    low, high = interval(cells)
    assert low < kappa(cells) < high and interval(cells) == (low, high)
    assert interval((240, 60, 40, 260))[0] > low


def test_a_good_judge_trains_on_both_sides() -> None:
    found = trust(pairs(60, 0.95))
    assert found.bad.trusted and found.good.trusted
    assert found.bad.weight == 0.5  # kappa is above that


def test_one_that_nobody_looks_at_any_more_is_not_trusted() -> None:
    good = pairs(60, 0.95)
    assert trust(good, module.UNSEEN).bad.trusted
    late = trust(good, module.UNSEEN + 1)
    assert not late.trusted and "since a person last rated" in str(late.bad.reason)
    assert "of 15 turns" in str(trust(good[:10], module.UNSEEN + 1).bad.reason)  # what was lacking before is said first


@pytest.mark.parametrize("judge", [-1.0, 0.0, 1.0])
def test_a_constant_judge_never_trains(judge: float) -> None:
    found = trust(pairs(200, 0, judge=judge))
    assert not found.trusted and found.bad.kappa == 0 and found.good.kappa == 0


def test_an_inverted_judge_never_trains() -> None:
    found = trust(pairs(200, 0.0))
    assert not found.trusted and found.bad.kappa == -1


def test_a_judge_that_only_finds_complaints_is_trusted_in_those() -> None:
    found = trust([(person, judge if judge < 0 else 0.0) for person, judge in pairs(60, 0.95)])
    assert found.bad.trusted and not found.good.trusted


def test_few_turns_or_few_of_a_kind() -> None:
    assert trust(pairs(FEWEST - 1, 1.0)).bad.reason == f"{FEWEST - 1} of {FEWEST} turns that a person has rated, too"
    lopsided = [(-1.0, -1.0)] * 55 + [(1.0, 1.0)] * (EACH - 1)
    assert "of each kind" in (trust(lopsided[-60:]).bad.reason or "")


def test_a_judge_that_is_always_right_is_trusted_with_the_fewest_turns() -> None:
    verdict = trust(pairs(FEWEST, 1.0))
    assert verdict.bad.trusted and verdict.good.trusted
    assert verdict.bad.low < 0.8, "fifteen turns are not certainty"


def test_few_turns_do_not_make_a_mediocre_judge_trusted() -> None:
    """The sequential error over 60 looks; scripts.bench.signals.trust_errors has it for more judges and looks."""
    trusted = 0
    for seed in range(100):
        shared = pairs(60, 0.6, seed)  # a kappa of 0.2
        windows = (shared[-count:] for count in range(FEWEST, 61))
        # The lower bound is below kappa, and costs 2,000 draws: most windows need none.
        trusted += any(trust(window).bad.trusted for window in windows if kappa_of_bad(window) >= LEAST_KAPPA)
    assert trusted <= 6


def kappa_of_bad(window: list[Pair]) -> float:
    return kappa([window.count(cell) for cell in ((-1.0, -1.0), (-1.0, 1.0), (1.0, -1.0), (1.0, 1.0))])


def test_people_who_cancel_out_are_no_turn() -> None:
    assert trust([(0.0, 1.0)] * 100).bad.shared == 0


@pytest.mark.parametrize("seed", range(5))
def test_a_judge_that_turns_random_is_back_in_shadow_within_50_turns(seed: int) -> None:
    draw, found = random.Random(seed), pairs(module.WINDOW, 0.95, seed)
    assert trust(found).bad.trusted
    for at in range(50):
        found.insert(0, (1.0 if at % 2 else -1.0, draw.choice((-1.0, 1.0))))
        if not trust(found).trusted:
            return
    raise AssertionError("still trusted")
