"""The short form of `make chaos`: a few kills and power cuts, and proof that what they would break is found."""

from __future__ import annotations

import random
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from scripts.chaos import kills, power, steps
from scripts.chaos.check import possible, wrong
from scripts.chaos.people import Answer, Ledger, Reward, Step
from scripts.harness.records import put, rating
from store.file.db_key import Secret
from store.file.schema import NAME
from store.learning.episodes import NewReward
from store.store import Store


async def test_kills_at_random_instants(tmp_path: Path) -> None:
    tally = await kills.killed(8, tmp_path, seed=random.randrange(2**32))
    assert tally["wrong"] == [], tally
    assert tally["instants"] == 8 and tally["whole"] and tally["acts"] and tally["rewards"], tally


async def test_power_cuts(tmp_path: Path) -> None:
    """Whatever was synced is enough; and without one sync of the log, it is not."""
    if (no := power.compiler()) is not None:
        pytest.skip(no)
    dice = random.Random(seed := random.randrange(2**32))
    ledger, raw = await power.lived(tmp_path, seed, least=60)
    told = list(power.acts(raw))
    tally = power.cut(25, tmp_path, dice, ledger, told)
    assert tally["wrong"] == [], (seed, tally)
    assert tally["with_unsynced"] and tally["whole"] and tally["acts"] and tally["rewards"], tally

    lying = [act for act in told if (act.op, act.file) != (b"s", b"w")]
    assert power.cut(8, tmp_path, dice, ledger, lying)["wrong"]


async def test_kills_behind_single_acts_of_commits(tmp_path: Path) -> None:
    if (no := power.compiler()) is not None:
        pytest.skip(no)
    tally = await steps.commits(8, tmp_path, seed=random.randrange(2**32))
    assert tally["wrong"] == [], tally
    assert tally["instants"] == 8 and tally["inside_a_commit"] + tally["behind_a_sync"] and tally["asked"], tally


def test_kills_behind_single_acts_of_an_encrypted_migration(tmp_path: Path) -> None:
    pytest.importorskip("sqlcipher3")
    if (no := power.compiler()) is not None:
        pytest.skip(no)
    tally = steps.migrations(4, tmp_path, seed=random.randrange(2**32))
    assert tally["wrong"] == [] and tally["instants"] == 4, tally
    expected = steps.older(tmp_path / "other", secret := Secret(steps.KEY))
    expected["rl-1"] = ("what nobody asked", "and nobody answered")
    assert "other words" in steps.problems_after(tmp_path / "other", tmp_path / "newer", secret, expected, tally)[0]


async def test_what_is_lost_doubled_or_damaged_is_found(tmp_path: Path) -> None:
    store = await Store.open(tmp_path)
    await put(store, "a", "b")
    given = await store.ratings.rate(rating("a", 1.0, source="chaos", source_event_id="a/0"))
    await store.close()
    answers = [Answer("a", "hi", 0.0), Answer("c", "hi", 0.0)]
    ledger = Ledger(answers, {("a", "me"): [Step("a/0", 1.0, 0.0, 1.0, given.id), Step(given.id, None, 2.0, 3.0)]})
    assert wrong(tmp_path, ledger, 0.5) == ["c was had whole and is not stored", "stored 2 times: 'hi'"]
    assert wrong(tmp_path, ledger, 2.5)[2:] == []
    assert wrong(tmp_path, ledger)[2:] == ["the rating of a by me is 1.0, not one of {None}"]
    with closing(sqlite3.connect(tmp_path / NAME)) as db:
        db.execute("DELETE FROM ratings")
        db.commit()
    assert wrong(tmp_path, ledger, 1.5)[2:] == [
        "the rating of a by me is None, not one of {1.0}",
        f"{given.id} was acknowledged for a/0 and is not stored so",
    ]
    raw = (tmp_path / NAME).read_bytes()
    (tmp_path / NAME).write_bytes(raw[:8192] + b"x" * 4096 + raw[12288:])
    assert "damaged" in wrong(tmp_path, ledger)[0]


async def test_a_reward_that_is_lost_or_that_nobody_gave_is_found(tmp_path: Path) -> None:
    store = await Store.open(tmp_path)
    await put(store, "a", "b", session="e", key="k")
    await put(store, "c", session="f", key="k")
    await store.episodes.reward(NewReward("e", "k", 1.0))
    await store.episodes.reward(NewReward("f", "k", 0.0))
    await store.close()
    given = Reward("e", "p", 0.25, sent_at=1.0, acknowledged_at=2.0)
    lost = Reward("g", "p", 1.0, sent_at=1.0, acknowledged_at=2.0)
    ledger = Ledger(rewards={"e": given, "g": lost}, opened={"h": 1.0})
    found = [line for line in wrong(tmp_path, ledger) if "episode" in line or "reward" in line]
    assert found == [
        "the episode h was opened and is not stored",
        "the reward of e is 1.0, not one of {0.25}",
        "the reward of g is None, not one of {1.0}",
        "nobody rewarded f",
    ]
    given.value = 1.0
    assert "the reward of g" not in "".join(wrong(tmp_path, ledger, 1.5))


def test_what_may_be_live() -> None:
    steps = [Step("0", 1.0, 1, 2), Step("1", -1.0, 3, 5), Step("2", None, 6)]
    assert [possible(steps, at) for at in (0, 1, 2, 4, 5, 7)] == [
        {None}, {None, 1.0}, {1.0}, {1.0, -1.0}, {-1.0}, {-1.0, None},
    ]  # fmt: skip


def test_what_a_power_cut_leaves() -> None:
    write = power.Act(0, b"w", b"w", 0, b"a" * 1024)
    file = power.File(bytearray(b"b" * 1024), [write])
    left = {bytes(file.after_a_cut(random.Random(n)) or b"") for n in range(200)}
    a, b = b"a" * 512, b"b" * 512
    assert left == {a + a, b + b, a + b, b + a}
    file.sync()
    assert {bytes(file.after_a_cut(random.Random(n)) or b"") for n in range(20)} == {a + a}
