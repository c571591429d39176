from __future__ import annotations

import math

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from scripts.harness.records import HELLO, HI, adapter, claim, end, new, put, rated, rating
from store.errors import RunEnded, StoreError, UnknownAdapter, UnknownRun
from store.learning.samples import FEWEST_TO_HOLD, QuotaCandidate, hold_back, to_hold
from store.line_records import Pointer
from store.records import Fresh
from store.store import Store


async def test_fresh_counts_what_a_run_could_take(store: Store) -> None:
    await put(store, "good", "bad", "so-so", version=5)
    await put(store, "stale", version=1)
    await put(store, "ahead", version=8)
    await put(store, "foreign", version=None)
    await store.completions.record([new("cut", version=5)], [end("cut", status="partial")])
    await store.completions.record([new("failed", version=5)], [end("failed", status="error")])
    await store.completions.begin([new("open", version=5), new("empty", version=5)])
    for id, value in [("good", 1.0), ("bad", -0.5), ("so-so", 0.0)]:
        await store.ratings.rate(rating(id, value))
    for id in ("stale", "ahead", "foreign", "cut", "empty", "failed", "open"):
        await store.ratings.rate(rating(id))
    await store.completions.finish([end("empty", reply=None)])
    taken_back = await store.ratings.rate(rating("good", rater="her"))
    await store.ratings.retract(taken_back.id)

    assert await store.samples.fresh(live=5, max_version_gap=3) == Fresh(good=3, bad=1, neutral=1, stale=1)
    assert await store.samples.fresh(live=5, max_version_gap=2) == Fresh(good=2, bad=1, neutral=1, stale=2)
    assert (await store.samples.fresh(live=5, max_version_gap=3, before_run=99)).total == 0
    run, _ = await claim(store, live=5, max_version_gap=3)
    await store.runs.end(run.id, "rejected", "so be it", None)
    await put(store, "new", version=5)
    await store.ratings.rate(rating("new"))
    seen = await store.samples.fresh(live=5, max_version_gap=3, before_run=run.id)
    assert seen == Fresh(good=3, bad=1, neutral=1, stale=1)
    assert (await store.samples.fresh(live=5, max_version_gap=3)).good == 4


async def test_a_claim_takes_the_newest_whole(store: Store) -> None:
    ids = await rated(store, 5, prompt=(HELLO, HI, HELLO))
    run, samples = await claim(store, limit=3, version=4)

    assert (run.status, run.version, run.parent, run.samples, run.held) == ("claimed", 4, 0, 3, 0)
    assert run.folder == "runs/r00001"
    assert [sample.rating.id for sample in samples] == ids[:1:-1]
    assert samples[0].messages == (HELLO, HI, HELLO)
    assert samples[0].completion.end is not None
    assert samples[0].completion.end.token_ids == [3]
    assert samples == await store.samples.of_run(run.id)


async def test_a_claim_waits_for_enough_even_if_it_takes_fewer(store: Store) -> None:
    assert await claim(store, min_total=0) is None
    await rated(store, 4)
    assert await claim(store, min_total=5) is None
    assert await store.runs.recent() == []
    _, samples = await claim(store, min_total=4, limit=2)
    assert len(samples) == 2


async def test_replies_of_another_model_train_where_they_are_asked_for_and_nowhere_else(store: Store) -> None:
    await rated(store, 3, version=None)
    await put(store, "ours")
    await store.ratings.rate(rating("ours"))
    assert await store.samples.fresh(live=0, max_version_gap=8) == Fresh(good=1, bad=0, neutral=0, stale=0)
    assert await store.samples.fresh(live=90, max_version_gap=8, foreign=True) == Fresh(
        good=2, bad=1, neutral=0, stale=0
    )
    run, samples = await claim(store, live=90, foreign=True)
    assert run.parent == 90 and {s.completion.new.version for s in samples} == {None}
    assert (await store.samples.fresh(live=0, max_version_gap=8)).total == 1


async def test_one_run_at_a_time(store: Store) -> None:
    await rated(store, 4)
    run, _ = await claim(store, limit=2)
    assert await claim(store) is None
    await store.runs.started(run.id)
    assert await claim(store) is None
    assert [one.id for one in await store.runs.unfinished()] == [run.id]


@pytest.mark.parametrize("status", ["rejected", "empty", "failed"])
async def test_a_run_without_an_adapter_gives_its_samples_back(store: Store, status: str) -> None:
    await rated(store, 3)
    run, _ = await claim(store)
    assert (await store.samples.fresh(live=0, max_version_gap=8)).total == 0
    await store.runs.end(run.id, status, "no better", {"status": status})  # type: ignore[arg-type]

    ended = await store.runs.get(run.id)
    assert ended is not None
    assert (ended.status, ended.reason, ended.result) == (status, "no better", {"status": status})
    assert ended.ended_at is not None
    assert (await store.samples.fresh(live=0, max_version_gap=8)).total == 3
    again, samples = await claim(store)
    assert (again.id, len(samples)) == (run.id + 1, 3)


async def test_a_published_run_has_used_its_samples_for_good(store: Store) -> None:
    await rated(store, 3)
    run, _ = await claim(store)
    await store.runs.started(run.id)
    await store.runs.publish(run.id, adapter(1, run.id), {"reason": "better"}, 0.25)

    ended = await store.runs.get(run.id)
    assert ended is not None
    assert (ended.status, ended.attempts, ended.reason) == ("done", 1, "better")
    assert await store.versions.get(1) == adapter(1, run.id)
    assert await store.versions.all() == [adapter(1, run.id)]
    assert await store.versions.next() == 2
    assert await store.meta.get("baseline", 0.0) == 0.25
    assert await claim(store) is None
    assert await store.runs.unfinished() == []
    with pytest.raises(RunEnded):
        await store.runs.end(run.id, "failed", "late", None)


async def test_publish_is_all_or_nothing(store: Store) -> None:
    await rated(store, 2)
    run, _ = await claim(store, limit=1)
    await store.runs.publish(run.id, adapter(1, run.id), {}, 0.1)
    second, _ = await claim(store)
    with pytest.raises(StoreError, match=r"adapters[._](version|pkey)"):
        await store.runs.publish(second.id, adapter(1, second.id), {}, 0.9)
    assert [one.id for one in await store.runs.unfinished()] == [second.id]
    assert await store.meta.get("baseline", 0.0) == 0.1


async def test_a_rating_that_replaced_a_used_one_is_fresh(store: Store) -> None:
    await put(store, "a")
    await store.ratings.rate(rating("a"))
    run, _ = await claim(store)
    await store.runs.publish(run.id, adapter(1, run.id), {}, 0.0)
    await store.ratings.rate(rating("a", -1.0))
    assert await store.samples.fresh(live=0, max_version_gap=8) == Fresh(good=0, bad=1, neutral=0, stale=0)


async def test_a_judgement_that_a_run_took_is_not_fresh_again_until_another_one_trained(store: Store) -> None:
    none, good, bad = Fresh(0, 0, 0, 0), Fresh(1, 0, 0, 0), Fresh(0, 1, 0, 0)

    async def fresh() -> Fresh:
        return await store.samples.fresh(live=0, max_version_gap=8)

    async def trained(version: int) -> None:
        run, _ = await claim(store)
        await store.runs.publish(run.id, adapter(version, run.id), {}, 0.0)

    await put(store, "a")
    first = await store.ratings.rate(rating("a"))
    await trained(1)
    await store.ratings.retract(first.id)
    assert (await store.ratings.rate(rating("a"))).id != first.id and await fresh() == none
    await store.ratings.rate(rating("a", -1.0))
    assert await fresh() == bad
    await store.ratings.rate(rating("a"))
    assert await fresh() == none
    assert await fresh() == none and await claim(store) is None
    await store.ratings.rate(rating("a", -1.0))
    await trained(2)
    await store.ratings.rate(rating("a"))  # a changed mind, twice, and each was heard
    assert await fresh() == good


async def test_what_a_failed_run_gives_back_is_fresh_again_also_by_its_repetition(store: Store) -> None:
    await put(store, "a")
    first = await store.ratings.rate(rating("a"))
    run, _ = await claim(store)
    await store.ratings.retract(first.id)
    again = await store.ratings.rate(rating("a"))
    assert await store.samples.fresh(live=0, max_version_gap=8) == Fresh(0, 0, 0, 0)  # a run has it still
    await store.runs.end(run.id, "failed", "why", None)
    assert await store.samples.fresh(live=0, max_version_gap=8) == Fresh(1, 0, 0, 0)
    run, samples = await claim(store)
    assert [sample.rating.id for sample in samples] == [again.id]


async def test_held_samples_serve_later_gates_while_their_rating_lives(store: Store) -> None:
    await rated(store, 32)
    run, samples = await claim(store)
    held = [sample for sample in samples if sample.is_held]
    assert (run.held, len(held)) == (4, 4)
    assert await store.samples.recent_held("m", 10) == []
    await store.runs.publish(run.id, adapter(1, run.id), {}, 0.0)
    assert await store.samples.recent_held("m", 10) == held
    assert await store.samples.recent_held("m", 1) == held[:1]
    await store.ratings.retract(held[0].rating.id)
    assert await store.samples.recent_held("m", 10) == held[1:]


async def test_a_run_takes_completions_whole(store: Store) -> None:
    await put(store, "a", "b", "c")
    for completion, rater in [("a", "ann"), ("b", "ann"), ("c", "ann"), ("c", "bob"), ("a", "bob")]:
        await store.ratings.rate(rating(completion, rater=rater))
    run, samples = await claim(store, limit=2, min_total=5)
    assert run.samples == 2
    assert {(s.rating.completion_id, s.rating.rater) for s in samples} == {
        ("a", "ann"), ("a", "bob"), ("c", "ann"), ("c", "bob")}  # fmt: skip
    assert (await store.samples.fresh(live=0, max_version_gap=8)).total == 1


async def test_no_gate_is_asked_about_what_trained(store: Store) -> None:
    await rated(store, 64)
    run, first = await claim(store, held_share=0.25)
    await store.runs.publish(run.id, adapter(1, run.id), {}, 0.0)
    held = {s.completion.new.id for s in first if s.is_held}
    for at in range(64):
        await store.ratings.rate(rating(f"c{at}", rater="her"))
    again, samples = await claim(store, held_share=0.5, version=2)
    assert {s.completion.new.id for s in samples if s.is_held} <= held and again.held > 0
    trains = {s.completion.new.id for s in samples if not s.is_held}
    assert not trains & {s.completion.new.id for s in await store.samples.recent_held("m", 100)}


async def test_attempts_are_counted(store: Store) -> None:
    await rated(store, 1)
    run, _ = await claim(store)
    await store.runs.started(run.id)
    await store.runs.started(run.id)
    started = await store.runs.get(run.id)
    assert started is not None
    assert (started.status, started.attempts) == ("running", 2)
    with pytest.raises(UnknownRun):
        await store.runs.started(99)
    assert await store.runs.get(99) is None


async def test_the_pointer_remembers_where_it_was(store: Store) -> None:
    await rated(store, 2)
    for version in (1, 2):
        run, _ = await claim(store, limit=1)
        await store.runs.publish(run.id, adapter(version, run.id), {}, 0.0)

    assert (await store.versions.pointer()).live == 0
    await store.versions.point(1, "run 1", "learner")
    await store.versions.point(2, "run 2", "learner")
    again = await store.versions.point(2, "again", "me")
    assert (again.live, again.previous, again.reason) == (2, 1, "again")
    assert await store.versions.pointer() == again
    back = await store.versions.point(0, "rollback", "me")
    assert back == Pointer(0, 2, back.changed_at, "rollback", "me")
    with pytest.raises(UnknownAdapter):
        await store.versions.point(7, "no such", "me")
    log = await store.meta.audit_log(10)
    assert [entry["detail"]["live"] for entry in log] == [0, 2, 2, 1]
    assert (log[0]["actor"], log[0]["act"], log[0]["detail"]["was"]) == ("me", "point", 2)


async def test_a_withdrawn_version_says_why(store: Store) -> None:
    await rated(store, 1)
    run, _ = await claim(store)
    await store.runs.publish(run.id, adapter(1, run.id), {}, 0.0)
    await store.versions.withdraw(1, "people liked it less", "rlproxy")
    found = await store.versions.get(1)
    assert found is not None and found.withdrawn == "people liked it less"
    assert (await store.meta.audit_log(1))[0]["act"] == "withdraw"
    with pytest.raises(UnknownAdapter):
        await store.versions.withdraw(7, "no such", "rlproxy")


candidates = st.lists(st.tuples(st.integers(0, 40), st.sampled_from([-1.0, -0.5, 0.0, 0.5, 1.0])), max_size=60).map(
    lambda drawn: [QuotaCandidate(f"r{at}", f"c{of}", value) for at, (of, value) in enumerate(drawn)]
)


@given(candidates, st.floats(0, 0.5), st.integers(0, 20))
def test_what_is_held_back_shares_no_completion_with_what_trains(
    ratings: list[QuotaCandidate], share: float, first: int
) -> None:
    before = {rating.id for rating in ratings[:first]}
    held = hold_back(ratings, share, before)
    sides = [{r.completion_id for r in ratings if (r.id in held) == side} for side in (True, False)]
    assert not sides[0] & sides[1]
    assert held == hold_back(list(reversed(ratings)), share, before)
    assert before <= held
    if share == 0 or len({r.completion_id for r in ratings}) < FEWEST_TO_HOLD:
        assert sides[0] == {r.completion_id for r in ratings if r.id in before}


@given(st.integers(0, 40), st.integers(0, 40), st.integers(0, 10), st.floats(0.01, 0.5))
@example(40, 5, 2, 0.34375)  # where the largest group once got more than its share
@example(5, 40, 2, 0.3203125)
def test_the_share_held_back_has_good_and_bad(good: int, bad: int, neutral: int, share: float) -> None:
    values = [1.0] * good + [-1.0] * bad + [0.0] * neutral
    ratings = [QuotaCandidate(f"r{at}", f"c{at}", value) for at, value in enumerate(values)]
    held = hold_back(ratings, share)
    if len(ratings) < FEWEST_TO_HOLD:
        return
    signs = [r.value for r in ratings if r.id in held]
    assert len(held) == max(to_hold(len(ratings), share), (good > 0) + (bad > 0))
    assert (1.0 in signs) == (good > 0) or not good
    assert (-1.0 in signs) == (bad > 0) or not bad
    grown = len(held) / len(ratings)
    assert abs(signs.count(1.0) - grown * good) <= 2
    assert abs(signs.count(-1.0) - grown * bad) <= 2


def test_the_share_held_back_grows_with_the_data() -> None:
    held = {count: to_hold(count, 0.125) for count in (8, 15, 16, 24, 32, 64, 128, 256)}
    assert held == {8: 0, 15: 0, 16: 2, 24: 3, 32: 4, 64: 12, 128: 32, 256: 64}
    assert all(to_hold(count, 0.5) <= math.ceil(count / 2) for count in range(1000))


@given(st.integers(0, 1000), st.integers(0, 1000), st.floats(0, 0.5))
def test_no_smaller_run_holds_more(one: int, other: int, share: float) -> None:
    fewer, more = sorted((one, other))
    assert to_hold(fewer, share) <= to_hold(more, share)


async def test_what_was_held_back_once_never_trains(store: Store) -> None:
    """The run was rejected: its ratings come again, beside new ones that might have won the lot."""
    await rated(store, 32)
    run, samples = await claim(store)
    held = {s.rating.id for s in samples if s.is_held}
    assert len(held) == 4
    await store.runs.end(run.id, "rejected", "no better", None)
    for at in range(32, 64):
        await put(store, f"c{at}")
        await store.ratings.rate(rating(f"c{at}"))
    again, samples = await claim(store, version=2)
    assert again.held == 12
    assert held < {s.rating.id for s in samples if s.is_held}


def test_a_good_and_a_bad_answer_to_one_prompt_are_held_back_together_or_not_at_all() -> None:
    ratings = [
        QuotaCandidate(f"r{at}", f"c{at}", 1.0 if at % 2 else -1.0, prompt=f"p{at // 2}".encode()) for at in range(64)
    ]
    held = hold_back(ratings, 0.125)
    assert len(held) == to_hold(64, 0.125)
    prompts = [rating.prompt for rating in ratings if rating.id in held]
    assert all(prompts.count(prompt) == 2 for prompt in prompts)
