"""How much of a run one rater may be."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from store.share import FEW, OWNER, caps
from store.store import Store
from tests.store.making import claim, put, rating

PEOPLE = st.sampled_from([OWNER, "ann", "bob", "eve"])
COUNTS = st.dictionaries(PEOPLE, st.integers(1, 300))


@given(COUNTS, COUNTS, st.floats(0.5, 1))
def test_nobody_is_above_the_bound_and_nothing_is_left_out_for_nothing(
    counts: dict[str, int], more: dict[str, int], share: float
) -> None:
    others = {who: counts.get(who, 0) + more.get(who, 0) for who in {*counts, *more}}
    bounds = caps(counts, share, others)
    kept = {who: bounds.get(who, count) for who, count in counts.items()}
    assert OWNER not in bounds and all(0 <= kept[who] < counts[who] for who in bounds)
    for who, count in kept.items():
        if who != OWNER and sum(others.values()) - others[who] >= FEW:
            assert count <= share * sum(kept.values()) + 1e-6
    for who in bounds:  # one more of anybody's would be too many
        assert kept[who] + 1 > share * (sum(kept.values()) + 1) - 1e-6


def test_one_person_alone_has_no_bound() -> None:
    assert caps({"ann": 300}, 0.5, {"ann": 900, OWNER: FEW - 1}) == {}
    assert caps({OWNER: 300, "ann": 1}, 0.5, {OWNER: 300, "ann": 50}) == {}
    assert caps({"eve": 300}, 0.5, {"eve": 300, "ann": FEW}) == {"eve": 0}  # others have, only not lately


async def test_a_flood_is_dampened_and_shown(store: Store) -> None:
    await put(store, *(f"c{n}" for n in range(60)))
    for n in range(10):
        await store.rate(rating(f"c{n}", rater="ann"))
    for n in range(10, 60):
        await store.rate(rating(f"c{n}", -1.0, rater="eve"))
    fresh = await store.fresh(live=0, max_version_gap=8, share=0.5)
    assert fresh.dampened == {"eve": 40} and fresh.total == 20
    assert await claim(store, min_total=21, share=0.5) is None
    run, samples = await claim(store, limit=30, min_total=20, share=0.5)
    raters = [sample.rating.rater for sample in samples]
    assert (raters.count("ann"), raters.count("eve"), run.samples) == (10, 10, 20)
