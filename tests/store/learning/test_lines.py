"""Lines in the store: rows, pointers, and runs that take nothing of another line, whatever the order of it all."""

from __future__ import annotations

import dataclasses
import random
import time
from typing import Any

import pytest

from scripts.harness.records import claim, put, rating
from store.errors import NameTaken, UnknownLine
from store.learning import runs
from store.learning.versions import WAITING
from store.line_records import COMMON, LineCounts, StoredLine
from store.records import Adapter, Run
from store.store import Store

LINES = (COMMON, "ann", "bob")


def line(name: str, **fields: Any) -> StoredLine:
    defaults = {"name": name, "origin": 0, "created_at": 1.0, "retired_at": None, "users": (), "agents": ()}
    return StoredLine(**(defaults | fields))


async def publish(store: Store, run: Run, baseline: float = 0.5) -> None:
    made = Adapter(run.version, run.parent, run.id, "m", f"/{run.version}", 1.0, {}, line=run.line)
    await store.runs.publish(run.id, made, {}, baseline)
    await store.versions.point(run.version, "passed", "rlproxy", run.line)


async def test_a_line_from_its_making_to_its_end(store: Store) -> None:
    assert await store.lines.all() == [] and list(await store.lines.pointers()) == [COMMON]
    await store.lines.create(line("ann", users=("ann",)), "admin")
    with pytest.raises(NameTaken):
        await store.lines.create(line("ann"), "admin")
    await store.lines.change("ann", None, ["codex", "codex"], "admin")
    assert (await store.lines.all())[0] == line("ann", users=("ann",), agents=("codex",))
    await store.lines.retire("ann", True, "admin")
    retired = (await store.lines.all())[0].retired_at
    assert retired is not None and abs(time.time() - retired) < 60
    await store.lines.retire("ann", False, "admin")
    assert (await store.lines.all())[0].retired_at is None
    for call in (store.lines.change("x", [], [], "a"), store.lines.retire("x", True, "a"), store.versions.pointer("x")):
        with pytest.raises(UnknownLine):
            await call


async def test_each_line_has_its_own_pointer_and_baseline(store: Store) -> None:
    await store.lines.create(line("ann"), "admin")
    await put(store, "c")
    await put(store, "a", line="ann")
    for id in ("c", "a"):
        await store.ratings.rate(rating(id))
    assert await store.lines.with_samples(foreign=False) == {COMMON, "ann"}
    run, _ = await claim(store, line="ann")
    await publish(store, run, 0.25)
    assert (await store.versions.pointer("ann")).live == 1 and (await store.versions.pointer()).live == 0
    assert await store.meta.get("baseline@ann") == 0.25 and await store.meta.get("baseline") is None
    run, _ = await claim(store, version=2)
    await publish(store, run, 0.75)
    assert (await store.versions.pointer("ann")).live == 1 and (await store.versions.pointer()).live == 2
    assert await store.meta.get("baseline") == 0.75
    assert await store.lines.last_runs() == {"ann": 1, COMMON: 2}
    assert (await store.runs.last_of("ann") or run).id == 1
    assert await store.lines.counts() == {"ann": LineCounts(1, 1, 1)}
    await store.runs.give_back(1, "it cannot be loaded")
    assert await store.meta.get("baseline@ann") == 0.0 and await store.meta.get("baseline") == 0.75
    assert await store.meta.get(f"{WAITING}@ann") is None


async def test_a_raters_share_is_bounded_in_each_line(store: Store) -> None:
    """One who rates alone in a line is its company: what others rate in another line bounds nobody there."""
    await store.lines.create(line("ann"), "admin")
    for at in range(40):
        await put(store, f"c{at}")
        await store.ratings.rate(rating(f"c{at}", rater=f"r{at % 4}"))
    for at in range(8):
        await put(store, f"a{at}", line="ann")
        await store.ratings.rate(rating(f"a{at}", rater="ann"))
    fresh = await store.samples.fresh(live=0, max_version_gap=8, share=0.5, line="ann")
    assert (fresh.total, fresh.dampened) == (8, {})
    assert (await store.opinions.moments(0.5, line="ann")).count == 8


@pytest.mark.parametrize("seed", range(6))
async def test_a_run_takes_nothing_of_another_line(store: Store, seed: int) -> None:
    """Traffic, ratings, runs and rollbacks of three lines in any order."""
    chance = random.Random(seed)
    for name in LINES[1:]:
        await store.lines.create(line(name), "admin")
    of: dict[str, str] = {}  # the line of each completion
    rated: list[str] = []
    newest = 0
    for step in range(150):
        name = chance.choice(LINES)
        pointer = await store.versions.pointer(name)
        act = chance.choices(("ask", "rate", "retract", "run", "rollback"), (8, 8, 1, 2, 1))[0]
        if act == "ask":
            of[f"c{step}"] = name
            await put(store, f"c{step}", line=name, version=pointer.live)
        elif act == "rate" and of:
            stored = await store.ratings.rate(rating(chance.choice(list(of)), chance.choice((1.0, -1.0))))
            rated.append(stored.id)
        elif act == "retract" and rated:
            await store.ratings.retract(chance.choice(rated))
        elif act == "rollback":
            await store.versions.point(pointer.previous, "rollback", "admin", name)
        elif act == "run":
            fresh = await store.samples.fresh(live=pointer.live, max_version_gap=8, line=name)
            taken = await claim(store, live=pointer.live, version=newest + 1, line=name, held_share=0.5)
            assert (taken is None) is (fresh.total == 0)
            if taken is None:
                continue
            run, samples = taken
            assert run.line == name and {of[sample.completion.new.id] for sample in samples} == {name}
            held = await store.samples.recent_held("m", 99, name)
            assert {of[sample.completion.new.id] for sample in held} <= {name}
            assert all(sample.completion.new.line == name for sample in (*samples, *held))
            if chance.random() < 0.7:
                newest += 1
                await publish(store, run)
            else:
                await store.runs.end(run.id, "rejected", "the gate", {})
    adapters = await store.versions.all()
    lines = {adapter.version: adapter.line for adapter in adapters} | {0: None}
    assert all(lines[adapter.parent] in (None, adapter.line) for adapter in adapters)
    assert newest > 3


async def test_completions_carry_their_line(store: Store) -> None:
    await put(store, "a", line="ann")
    await put(store, "c")
    completion = await store.completions.get("a")
    assert completion is not None and completion.new.line == "ann"
    assert [each.new.id for each in await store.completions.page(line="ann")] == ["a"]
    assert [row["line"] async for row in store.transfer.export()] == ["ann", COMMON]
    stored = dataclasses.replace(completion.new, id="b")
    store.completions.begin([stored])
    assert (await store.completions.get("b") or completion).new.line == "ann"
    assert runs.BASELINE == "baseline"  # the common line's values have their plain names
