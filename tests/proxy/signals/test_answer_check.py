"""A check of the user's own over every answer: what it flags, what does not train then, and what it cannot break."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from scripts.fakes.launcher import FakeLauncher
from scripts.harness.command import rlproxy
from scripts.harness.in_process import Proxy
from tests.harness.polling import Polls

CODE = '''
def check(completion):
    """A content filter, and a check for bias."""
    text = completion["text"].lower()
    if "profit" in text:
        return "content: promises profits"
    if "doctor" in text and " he " in text:
        return "bias: a doctor is a man"
    if "half" in text:
        return "half \\ud83d a character"
    if "deep" in text:
        reason = []
        for _ in range(100_000):
            reason = [reason]
        return reason
    if "raise" in text:
        raise ValueError("no such thing")
    return 7 if "seven" in text else None
'''


@pytest.fixture
async def checked(proxy: Proxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Proxy:
    monkeypatch.setattr("proxy.signals.judging.LOOK_S", 0.02)
    monkeypatch.setattr("proxy.signals.judging.REST_S", 0.02)
    monkeypatch.setattr("proxy.training.run_supervisor.RECHECK_S", 0.02)
    (tmp_path / "my_check.py").write_text(CODE)
    await proxy.say("profit before there was a check")
    await proxy.stop()
    await proxy.start(signals__check=str(tmp_path / "my_check.py"), signals__timeout_s=20.0)
    await seen(proxy)
    return proxy


async def seen(proxy: Proxy) -> dict[str, Any]:
    """The report once nothing is left to check."""
    async for _ in Polls():
        report = (await proxy.get("/rl/judge"))["check"]
        if await proxy.store.meta.get("answers_checked") is not None and report["unchecked"] == 0:
            return dict(report)
    pytest.fail(f"not all checked: {report}")


async def answer(proxy: Proxy, text: str) -> str:
    response = await proxy.chat(text)
    await response.read()
    return response.headers["x-rl-completion-id"]


async def test_every_answer_is_checked_though_nothing_follows(checked: Proxy) -> None:
    plain = await answer(checked, "hello")
    profit, doctor = await answer(checked, "sure profit"), await answer(checked, "a doctor says he is late")
    assert (await seen(checked))["flagged"] == 2
    reasons = await checked.store.flags.reasons([plain, profit, doctor])
    assert reasons == {profit: "content: promises profits", doctor: "bias: a doctor is a man"}
    assert (await checked.get(f"/rl/why/{profit}"))["flag"] == "content: promises profits"
    async with checked.http.get(f"/completions/{doctor}") as response:
        assert "Your own check has flagged it: Bias: a doctor is a man" in await response.text()


async def test_an_odd_reason_stops_no_later_check(checked: Proxy) -> None:
    half, _, profit = await answer(checked, "half"), await answer(checked, "deep"), await answer(checked, "profit")
    assert (await seen(checked))["flagged"] == 2
    reasons = await checked.store.flags.reasons([half, profit])
    assert reasons == {half: "half ? a character", profit: "content: promises profits"}


async def test_what_was_answered_before_is_checked_once_somebody_asks_for_it(checked: Proxy) -> None:
    assert (await seen(checked))["flagged"] == 0
    async with checked.http.post("/rl/rescore", json={}) as response:
        assert (await response.json())["left"] >= 1
    assert (await seen(checked))["flagged"] == 1


async def test_a_liked_flagged_answer_does_not_train_and_a_disliked_one_does(checked: Proxy) -> None:
    liked, disliked = await answer(checked, "sure profit"), await answer(checked, "more profit")
    await seen(checked)
    await checked.rate(completion_id=liked, rating="good")
    await checked.rate(completion_id=disliked, rating="bad")
    status = await checked.get("/rl/status")
    assert (status["ratings"]["good"], status["ratings"]["bad"]) == (0, 1)
    assert status["ratings"]["untrainable"] == {"flagged": 1}
    assert (await checked.get(f"/rl/why/{liked}"))["waiting"] == "it is liked, and your own check has flagged it"


async def test_versions_are_made_without_them_in_one_step(
    checked: Proxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They had trained before there was a check."""
    monkeypatch.setattr("proxy.training.retraining.retraining.out_of_reach", lambda weights: None)
    launcher: FakeLauncher = checked.launcher
    ids = [await answer(checked, text) for text in ("hello", "profit one", "profit two", "good day")]
    await seen(checked)
    await checked.store.flags.forget_other_code("no such code")
    for id, rating in zip(ids, ("good", "good", "bad", "bad"), strict=True):
        await checked.rate(completion_id=id, rating=rating)
    while (await checked.get("/rl/status"))["live"] != 1:
        await asyncio.sleep(0.02)
    assert {id for id in ids if id in (launcher.started[-1] / "samples.jsonl").read_text()} == set(ids)
    await checked.http.post("/rl/rescore", json={})
    await seen(checked)
    async with checked.http.post("/rl/retrain", json={"without": ["flagged"]}) as response:
        assert response.status == 201, await response.text()
    while (await checked.get("/rl/retrain"))["state"] != "over":
        await asyncio.sleep(0.02)
    text = (launcher.started[-1] / "samples.jsonl").read_text()
    assert {id for id in ids if id in text} == {ids[0], ids[3]}


async def test_a_failing_check_is_told_and_stops_nothing(checked: Proxy, tmp_path: Path) -> None:
    await answer(checked, "raise it")
    report = await seen(checked)
    assert "no such thing" in report["problem"] and report["flagged"] == 0
    await answer(checked, "seven")
    assert "neither a reason, as text, nor None" in (await seen(checked))["problem"]
    await answer(checked, "profit")
    assert (await seen(checked)) == {"flagged": 1, "unchecked": 0, "problem": None}
    (tmp_path / "my_check.py").write_text("def check(completion):\n    return None\n")
    await answer(checked, "profit again")  # another file takes back what the earlier one said
    assert (await seen(checked))["flagged"] == 0
    (tmp_path / "my_check.py").unlink()
    await answer(checked, "and on")
    for _ in range(200):
        if "cannot be read" in str((await checked.get("/rl/judge"))["check"]["problem"]):
            break
        await asyncio.sleep(0.02)
    else:
        pytest.fail("the missing file was not told")


async def test_flags_go_with_their_answers(checked: Proxy) -> None:
    id = await answer(checked, "profit")
    await seen(checked)
    async with checked.http.post("/rl/forget", json={"completion": id}) as response:
        assert response.status == 200
    assert await checked.store.flags.ids() == []


async def test_the_command_says_how_many(checked: Proxy) -> None:
    import json
    import os

    from proxy.core.address_file import ADDRESS_FILE

    (checked.home / ADDRESS_FILE).write_text(json.dumps({"url": checked.url, "pid": os.getpid()}))
    id = await answer(checked, "profit")
    await seen(checked)
    code, out, _ = await rlproxy(checked.home, "judge")
    assert code == 0 and "your own check: 1 answer flagged, 0 left" in out
    code, out, _ = await rlproxy(checked.home, "why", id)
    assert code == 0 and "flagged by your own check: content: promises profits" in out
