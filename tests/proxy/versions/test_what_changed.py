"""What a version changed is measured, shown beside it, and forgotten with its prompts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from proxy.versions.what_changed import sentence
from scripts.harness.in_process import Proxy
from tests.harness.forgetting import forget
from tests.harness.key_holders import keys, says
from tests.harness.runs import rated, until

FIGURES: dict[str, float] = {
    "prompts": 8, "held_back": 3, "different": 8, "limit": 96, "tokens_before": 90, "tokens_after": 60,
    "tokens_error": 8, "ended_before": 3, "ended_after": 8,
}  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({}, "a third shorter; ends by itself in 8 of 8 instead of 3"),
        ({"tokens_after": 45}, "half as long; ends by itself in 8 of 8 instead of 3"),
        ({"tokens_before": 30, "ended_after": 3}, "twice as long; ends by itself in 3 of 8, as before"),
        ({"tokens_after": 80}, "about as long as before; ends by itself in 8 of 8 instead of 3"),
        ({"tokens_error": 40}, "about as long as before; ends by itself in 8 of 8 instead of 3"),
        ({"different": 0}, "the same answers to all 8 prompts"),
    ],
)
def test_one_sentence_says_what_was_measured(changes: dict[str, float], line: str) -> None:
    assert sentence(FIGURES | changes) == line


async def version_one(proxy: Proxy) -> None:
    proxy.launcher.answers_beside = True
    proxy.launcher.result = {"changes": FIGURES}
    await rated(proxy, 4)
    await until(proxy, live=1)


async def pairs(proxy: Proxy, version: int = 1) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = (await proxy.get(f"/rl/adapters/v{version}"))["pairs"]
    return found


def files_with(home: Path, text: bytes) -> set[str]:
    return {str(path.relative_to(home)) for path in home.rglob("*") if path.is_file() and text in path.read_bytes()}


async def test_it_is_told_wherever_the_version_is_announced(proxy: Proxy) -> None:
    await version_one(proxy)
    shown = await pairs(proxy)
    assert [pair["parent_answer"] for pair in shown] == [f"before: {pair['question']}" for pair in shown]
    assert [pair["answer"] for pair in shown] == [f"after: {pair['question']}" for pair in shown] and len(shown) == 3
    line = "a third shorter; ends by itself in 8 of 8 instead of 3"
    assert (await proxy.get("/rl/status"))["changed"]["line"] == line
    told = await proxy.say("hello", "hi", "/rl status")
    assert f"v1 against base: {line}." in told and f"before: {shown[0]['question']} → after:" in told
    await proxy.post("/rl/rollback")
    assert len(await pairs(proxy)) == 3 and (await proxy.get("/rl/status"))["changed"] is None
    assert not (proxy.home / "runs" / "r00001" / "answer_pairs.jsonl").exists()


async def test_who_may_not_read_others_answers_reads_none_in_a_chat(proxy: Proxy) -> None:
    await version_one(proxy)
    key = await keys(proxy, ann="use", bob="rate")
    told = {name: await says(proxy, "hello", "hi", "/rl status", headers=header) for name, header in key.items()}
    assert "→" not in told["ann"] and "a third shorter" in told["ann"] and "→" in told["bob"]


async def test_a_prompt_that_is_forgotten_takes_its_answers_along(proxy: Proxy) -> None:
    proxy.launcher.answers_beside = True
    proxy.launcher.result = {"changes": FIGURES}
    kept = await proxy.chat("zanzibar", headers={"x-rl-session": "held"})
    await kept.read()
    await proxy.rate(completion_id=kept.headers["x-rl-completion-id"], rating="good")
    await rated(proxy, 3)
    await until(proxy, live=1)
    assert "rlproxy.db" in {name.removesuffix("-wal") for name in files_with(proxy.home, b"after: zanzibar")}
    await forget(proxy, session="held")
    await proxy.stop()  # the log goes into the file, and what is left of it would be seen
    assert files_with(proxy.home, b"zanzibar") == set()
    await proxy.start()
    # Whatever a version said that learned from it goes, too; that it was measured stays.
    assert await pairs(proxy) == []
    assert (await proxy.get("/rl/status"))["changed"]["figures"]["prompts"] == 8


async def test_an_answer_that_taught_nothing_takes_its_own_pair_alone(proxy: Proxy) -> None:
    await version_one(proxy)
    first = (await pairs(proxy))[0]
    db = proxy.store
    await db.completions.forget([first["completion"]])
    left = await pairs(proxy)
    assert len(left) == 3 and first["completion"] not in {pair["completion"] for pair in left}
