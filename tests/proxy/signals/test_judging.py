"""The judge at work: its queue, budget and consent, what its labels become, and what a person's word does to them."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from datetime import datetime
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from config.sections import BackendSection, Judge, Redaction, Signals
from proxy.backends.openai_compatible import OpenAICompatible
from proxy.conversation.answer_on_screen import AnswerOnScreen
from proxy.conversation.modalities import FURTHER
from proxy.conversation.redaction import Redactor
from proxy.conversation.underway import AnswersInProgress
from proxy.core.events import Events
from proxy.signals.answer_check import AnswerFlagger
from proxy.signals.follower import Follower
from proxy.signals.judging import JudgingLoop, SignalSources
from proxy.signals.own import OwnSignals
from proxy.signals.trust import UNSEEN
from scripts.harness.records import claim, put, rating
from scripts.harness.rule_judge import FakeJudge
from store.errors import StoreError
from store.records import NewSignal
from store.store import Store

ROOT = Path(__file__).resolve().parents[3]
At = tuple[Store, aiohttp.ClientSession]


def judging(store: Store, judge: FakeJudge | None, own: OwnSignals | None = None, **settings: Any) -> JudgingLoop:
    defaults: dict[str, Any] = {"mode": "on", "url": judge.url if judge else "", "model": "rule", "votes": 1}
    return JudgingLoop(
        Judge(**(defaults | settings)),
        store,
        OpenAICompatible(BackendSection(url="http://127.0.0.1:9", model="m")),
        Redactor(Redaction()),
        Events(),
        SignalSources(
            Follower(store, AnswerOnScreen(store, Redactor(Redaction()), AnswersInProgress())),
            own or OwnSignals(Signals()),
            AnswerFlagger(Signals(), store),
        ),
        now=lambda: datetime(2026, 11, 24, 12, 0),
    )


async def at_work(at: At, judge: FakeJudge | None, **settings: Any) -> JudgingLoop:
    made = judging(at[0], judge, **settings)
    await made.start(at[1])
    return made


async def until_done(made: JudgingLoop) -> None:
    while await made.look() | await made.ask():
        pass


async def followed(store: Store, id: str, said: str, **fields: Any) -> None:
    """A completion and what a person typed after it."""
    await put(store, id, asked="what?", **fields)
    await store.signals.add(NewSignal(id, "message", said))


async def measured(store: Store, made: JudgingLoop, *, wrong: int = 0, count: int = 60) -> None:
    """So many turns that the judge and a person have both looked at; of the newest the person says the contrary."""
    for n in range(count):
        good = n % 2 == 0
        await followed(store, f"shared{n}", "that works" if good else "no, shorter")
        agrees = n < count - wrong
        await store.ratings.rate(rating(f"shared{n}", 1.0 if good == agrees else -1.0))
    await until_done(made)
    await made.settle()


async def judged(store: Store) -> list[tuple[str, float, float, str | None]]:
    rows = await store.signals._reader.rows(
        "SELECT completion_id, value, weight, comment FROM ratings WHERE source = 'judge' AND live = 1 ORDER BY seq"
    )
    return [tuple(row) for row in rows]


async def test_a_trusted_judge_rates_with_half_a_voice_and_the_persons_words(at: At, judge: FakeJudge) -> None:
    made = await at_work(at, judge)
    await measured(at[0], made)
    await followed(at[0], "new", "no, shorter")
    await until_done(made)
    assert await judged(at[0]) == [("new", -1.0, 0.5, "no, shorter")]
    (row,) = (await at[0].completions.many(["new"]))[0].ratings
    assert (row.rater, row.human) == ("judge:rule", False)


async def test_in_shadow_it_labels_and_rates_nothing(at: At, judge: FakeJudge) -> None:
    made = await at_work(at, judge, mode="shadow")
    await measured(at[0], made)
    await followed(at[0], "new", "no, shorter")
    await until_done(made)
    (signal,) = await at[0].signals.of("new")
    assert (signal.label, signal.value, signal.hint) == ("correction", -1.0, "no, shorter")
    assert await judged(at[0]) == []
    assert "shadow" in (await made.report())["judges"][1]["state"]


@pytest.mark.parametrize("wrong", ["constant", "inverted", "praising"])
async def test_a_wrong_judge_stays_in_shadow(at: At, wrong: str) -> None:
    def rule(request: str, reply: str, follow_up: str) -> str:
        if wrong == "constant":
            return "correction"
        return "solved" if wrong == "praising" or "shorter" in follow_up else "correction"

    judge = FakeJudge(rule)
    await judge.start()
    try:
        made = await at_work(at, judge)
        await measured(at[0], made)
        await followed(at[0], "new", "no, shorter")
        await until_done(made)
        assert await judged(at[0]) == []
    finally:
        await judge.stop()


async def test_one_that_turns_bad_is_back_in_shadow_before_the_next_claim(at: At, judge: FakeJudge) -> None:
    made = await at_work(at, judge, max_share=1.0)
    await measured(at[0], made)
    for n in range(10):
        await followed(at[0], f"new{n}", "no, shorter")
    await until_done(made)
    assert len(await judged(at[0])) == 10
    for n in range(50):  # people find the contrary from now on
        await followed(at[0], f"late{n}", "no, shorter" if n % 2 else "that works")
        await at[0].ratings.rate(rating(f"late{n}", 1.0 if n % 2 else -1.0))
    await until_done(made)
    await made.settle()  # as right before a claim
    assert await judged(at[0]) == []
    _, samples = await claim(at[0], judge_share=1.0)
    assert samples and all(sample.rating.human for sample in samples)
    newest, *_, oldest = [line["detail"]["trains"] for line in await at[0].meta.audit_log() if line["act"] == "judge"]
    assert newest == [] and ["rule", "bad"] in oldest  # it trained, and does not any more


async def test_a_persons_rating_takes_its_place_at_once(at: At, judge: FakeJudge) -> None:
    made = await at_work(at, judge)
    await measured(at[0], made)
    await followed(at[0], "new", "no, shorter")
    await until_done(made)
    await at[0].ratings.rate(rating("new", 1.0))
    assert await judged(at[0]) == []
    await made.settle()
    assert await judged(at[0]) == []


async def test_half_of_a_run_at_most(at: At, judge: FakeJudge) -> None:
    made = await at_work(at, judge)
    await measured(at[0], made)
    for n in range(200):
        await followed(at[0], f"new{n}", "that works")
    await until_done(made)
    _, samples = await claim(at[0], limit=1000)
    people = sum(s.rating.weight for s in samples if s.rating.human)
    judges = sum(s.rating.weight for s in samples if not s.rating.human)
    assert 0 < judges <= people == 60


async def test_follow_ups_alone_train_once_the_judge_is_trusted(at: At, judge: FakeJudge) -> None:
    made = await at_work(at, judge)
    await measured(at[0], made)
    (run, _) = await claim(at[0], limit=1000)
    await at[0].runs.end(run.id, "done", "passed", None)
    await put(at[0], "of a person", asked="what?")
    await at[0].ratings.rate(rating("of a person", 1.0))
    for n in range(40):
        await followed(at[0], f"new{n}", "no, shorter")
    await until_done(made)
    fresh = await at[0].samples.fresh(live=0, max_version_gap=8)
    assert (fresh.total, fresh.from_judges, fresh.most) == (2, 40, 40)  # the person's, and one that weighs as much
    run, samples = await claim(at[0], limit=1000, min_total=32)
    assert len(samples) == 40 and not any(s.rating.human or s.is_held for s in samples)
    await at[0].runs.end(run.id, "done", "passed", None)
    fresh = await at[0].samples.fresh(live=0, max_version_gap=8)
    assert (fresh.total, fresh.from_judges) == (1, 0)  # the person's rating is there still, for the next one


async def test_people_go_first(at: At, judge: FakeJudge) -> None:
    made = await at_work(at, judge)
    await measured(at[0], made)
    for n in range(100):
        await followed(at[0], f"new{n}", "no, shorter")
    await until_done(made)
    _, samples = await claim(at[0], limit=1000, min_total=32)
    assert sum(s.rating.human for s in samples) == 60  # and as much of the judge


async def test_what_nobody_has_looked_at_for_long_is_taken_back(at: At, judge: FakeJudge) -> None:
    made = await at_work(at, judge)
    await measured(at[0], made)
    for n in range(UNSEEN + 1):
        await followed(at[0], f"new{n}", "no, shorter")
    await until_done(made)
    assert await judged(at[0]) == []
    await at[0].ratings.rate(rating("new0", -1.0))
    made.rated()
    await until_done(made)
    assert len(await judged(at[0])) == UNSEEN  # of all but the one that the person rated


async def test_nothing_leaves_this_machine_before_it_is_accepted(at: At, judge: FakeJudge) -> None:
    made = await at_work(at, None, url="https://judge.example.org")
    assert made.server.leaves and not made.server.accepted and "another machine" in made.statement()
    await followed(at[0], "a", "no, shorter")
    assert not await made.ask()
    assert "--accept" in (await made.blocking_reason() or "")
    await made.accept("admin")
    assert made.server.accepted and await made.blocking_reason() is None
    other = await at_work(at, None, url="https://elsewhere.example.org")
    assert not other.server.accepted  # what was accepted was another address


async def test_it_keeps_to_its_hours_and_its_budget(at: At, judge: FakeJudge) -> None:
    night = await at_work(at, judge, hours=("22:00-07:00",))
    assert "judge.hours" in (await night.blocking_reason() or "")
    poor = await at_work(at, judge, daily_tokens=150)
    for n in range(5):
        await followed(at[0], f"c{n}", "no, shorter")
    await until_done(poor)
    assert len(judge.requests) == 2  # one turn, two questions of 100 tokens each
    assert "judge.daily_tokens" in (await poor.blocking_reason() or "")
    assert (await poor.report())["cost"] == {"today": 200, "all": 200, "daily": 150}
    assert len(await at[0].signals.waiting(10)) == 4


@pytest.mark.parametrize("mood", ["down", "garbage", "error", "slow"])
async def test_a_judge_that_fails_costs_no_request_and_no_turn(
    at: At, judge: FakeJudge, mood: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("proxy.signals.judge.TOTAL_S", 0.2)
    made = await at_work(at, judge)
    await followed(at[0], "a", "no, shorter")
    if mood == "down":
        await judge.stop()
    judge.garbage = b"<html>" if mood in ("garbage", "error") else None
    judge.status = 500 if mood == "error" else 200
    judge.delay_s = 5.0 if mood == "slow" else 0.0
    await until_done(made)
    (signal,) = await at[0].signals.of("a")
    if mood == "garbage":  # it has answered: that costs what it costs, and says nothing
        assert (signal.state, signal.value) == ("labelled", 0.0) and signal.tokens > 0
    else:
        assert signal.state == "waiting" and made.problem is not None
        assert "waits" in (await made.blocking_reason() or "")


async def test_the_queue_outlives_a_restart_and_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = await Store.open(tmp_path)
    monkeypatch.setattr("store.learning.signals.MOST_WAITING", 5)
    for n in range(8):
        await put(store, f"c{n}")
        await store.signals.note([NewSignal(f"c{n}", "message", "no")], 0)
    await store.close()
    store = await Store.open(tmp_path)
    assert [signal.completion_id for signal in await store.signals.waiting(10)] == [f"c{n}" for n in range(3, 8)]
    (dropped,) = await store.signals.of("c0")
    assert (dropped.state, dropped.why) == ("dropped", "the queue was full")
    await store.close()


async def test_secrets_are_out_of_what_is_sent(at: At, judge: FakeJudge) -> None:
    made = await at_work(at, judge)
    key = "sk-ant-api03-" + "a1B2c3D4" * 8
    await followed(at[0], "a", f"no, my key is {key}")
    await until_done(made)
    assert judge.requests and key not in str(judge.requests)


async def test_votes_ties_and_refutations(at: At, judge: FakeJudge) -> None:
    made = await at_work(at, judge, votes=3)
    judge.refutes = True
    await followed(at[0], "a", "no, shorter")
    await until_done(made)
    (signal,) = await at[0].signals.of("a")
    assert (signal.label, signal.value) == ("nothing", 0.0) and (signal.why or "").startswith("refuted")
    assert len(judge.requests) == 4
    assert [request["temperature"] for request in judge.requests] == [0.6, 0.6, 0.6, 0.0]


async def test_another_model_is_another_judge(at: At, judge: FakeJudge) -> None:
    made = await at_work(at, judge)
    await measured(at[0], made)
    await followed(at[0], "new", "no, shorter")
    await until_done(made)
    other = await at_work(at, judge, model="other")
    await other.settle()
    assert await judged(at[0]) == [] and (await other.report())["judges"][1]["bad"]["shared"] == 0


async def test_people_are_asked_about_a_turn_drawn_at_random(at: At, judge: FakeJudge) -> None:
    made = await at_work(at, judge)
    assert await made.question() is None
    for n in range(5):
        await followed(at[0], f"c{n}", "no, shorter")
    await until_done(made)
    id = await made.question()
    assert id is not None and await made.question() == id  # the same until it is answered
    await at[0].ratings.rate(rating(id, -1.0))
    assert await made.question() is None  # and the next one in a few hours


async def test_a_full_disk_keeps_the_queue_and_loses_no_turn(at: At, judge: FakeJudge) -> None:
    made = await at_work(at, judge)
    for n in range(3):
        await followed(at[0], f"c{n}", "no, shorter " + "x" * 3000)

    async def pages(most: int) -> None:
        await at[0]._writer.submit(lambda db: db.execute(f"PRAGMA max_page_count = {most}").fetchone())

    await pages(1)  # SQLite raises it to the present size: full from now on
    with contextlib.suppress(StoreError):
        for n in range(200):
            await put(at[0], f"filler{n}", asked="y" * 20_000)
    with contextlib.suppress(StoreError):
        await until_done(made)
    assert len(await at[0].signals.waiting(10)) + len([s for s in await at[0].signals.everything() if s.label]) == 3
    await pages(1_000_000)
    await until_done(made)
    assert [signal.label for signal in await at[0].signals.everything()] == ["correction"] * 3


KILLED = """
import asyncio, sys
from pathlib import Path
from scripts.harness.records import put
from store.records import NewSignal
from store.store import Store

async def main():
    store = await Store.open(Path(sys.argv[1]))
    for n in range(10_000):
        await put(store, f"c{n}")
        await store.signals.note([NewSignal(f"c{n}", "message", "no, shorter")], n + 1)
        print(n, flush=True)

asyncio.run(main())
"""


async def test_kill_9_keeps_the_queue(tmp_path: Path, judge: FakeJudge, http: aiohttp.ClientSession) -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", KILLED, str(tmp_path / "home"), stdout=asyncio.subprocess.PIPE, cwd=ROOT
    )
    assert process.stdout is not None
    said = -1
    while said < 20:
        said = int(await process.stdout.readline())
    process.kill()
    rest = (await process.stdout.read()).split()
    await process.wait()
    said = int(rest[-1]) if rest else said
    store = await Store.open(tmp_path / "home")
    try:
        waiting = await store.signals.waiting(10_000)
        assert said + 1 <= len(waiting) <= said + 2  # each that was acknowledged, and at most the one after it
        made = await at_work((store, http), judge)
        await until_done(made)
        assert {signal.label for signal in await store.signals.everything()} == {"correction"}
    finally:
        await store.close()


async def thanked(store: Store, id: str) -> None:
    await put(store, id, asked="what?")
    await store.signals.add(NewSignal(id, "message", "thanks", label="nothing", why="politeness is no verdict"))


async def test_what_a_person_went_on_from_stands_beside_what_is_bad(at: At, judge: FakeJudge) -> None:
    made = await at_work(at, judge)
    await measured(at[0], made)
    await followed(at[0], "task", "and in winter?")
    await thanked(at[0], "thanked")
    await until_done(made)
    assert await judged(at[0]) == []  # nothing is bad, so there is nothing to compare them with
    for id in ("bad1", "bad2"):
        await followed(at[0], id, "no, shorter")
    await until_done(made)
    assert {(id, value) for id, value, _, _ in await judged(at[0])} == {
        ("bad1", -1.0), ("bad2", -1.0), ("task", 0.0), ("thanked", 0.0),
    }  # fmt: skip


async def test_where_bad_answers_are_thanked_for_going_on_says_nothing(at: At, judge: FakeJudge) -> None:
    made = await at_work(at, judge)
    await measured(at[0], made)
    for n in range(15):
        await thanked(at[0], f"polite{n}")
        await at[0].ratings.rate(rating(f"polite{n}", -1.0))
    await followed(at[0], "bad", "no, shorter")
    await followed(at[0], "task", "and in winter?")
    made.rated()
    await until_done(made)
    assert [id for id, *_ in await judged(at[0])] == ["bad"]


async def test_own_code_scores_what_its_first_look_finds_and_nothing_older(at: At, tmp_path: Path) -> None:
    module = tmp_path / "my_signals.py"
    module.write_text("def score(completion, next):\n    return -1\n")
    own = OwnSignals(Signals(module=module))
    made = judging(at[0], None, own)
    await followed(at[0], "older", "no, shorter")
    await put(at[0], "first", session="talk")
    await put(at[0], "again", session="talk", created_at=1002.0)  # the same question: a signal of the first answer
    try:
        await until_done(made)
    finally:
        await own.stop()
    assert await judged(at[0]) == [("first", -1.0, 0.5, None)]


async def test_no_token_is_spent_on_what_never_trains(at: At, judge: FakeJudge) -> None:
    store, made = at[0], await at_work(at, judge)
    await followed(store, "further", "no, longer", untrainable=FURTHER)
    await followed(store, "own", "no, shorter")
    await until_done(made)
    (dropped,), (labelled,) = await store.signals.of("further"), await store.signals.of("own")
    assert (dropped.state, dropped.label) == ("dropped", None) and "a further model's" in str(dropped.why)
    assert labelled.state == "labelled" and judge.requests
    assert "no, longer" not in str(judge.requests)
