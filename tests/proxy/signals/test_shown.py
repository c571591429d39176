"""What people see of signals and a judge: the command, the status, the page, and the question that it asks them."""

from __future__ import annotations

import pytest

from proxy.cli.judge import _show
from scripts.harness.in_process import Proxy
from scripts.harness.rule_judge import FakeJudge
from tests.harness.polling import Polls


async def test_a_judge_in_shadow_is_shown(proxy: Proxy, judge: FakeJudge, capsys: pytest.CaptureFixture[str]) -> None:
    await proxy.stop()
    await proxy.start(judge__mode="shadow", judge__url=judge.url, judge__model="rule", judge__votes=1)
    first = await (await proxy.chat("hello")).json()
    await proxy.chat("hello", "You said: hello", "no, shorter please")
    async for _ in Polls():
        (signal,) = (await proxy.get(f"/rl/completions/{first['id']}"))["signals"] or [{"state": None}]
        if signal["state"] == "labelled":
            break
    assert (signal["label"], signal["judge"], signal["hint"]) == ("correction", "rule", "no, shorter please")
    report = await proxy.get("/rl/judge")
    _show(report)
    said = " ".join(capsys.readouterr().out.split())
    assert "mode shadow, judge rule" in said and "0 of 15 turns" in said and "200 of 200000 tokens today" in said
    assert (await proxy.get("/rl/status"))["judge"]["mode"] == "shadow"
    async with proxy.http.get("/progress") as page:
        text = await page.text()
        assert page.status == 200 and "What people say next" in text and "rule: shadow" in text
    async with proxy.http.get("/") as page:
        assert "Was this answer good?" in await page.text()
    await proxy.rate(completion_id=first["id"], rating="bad")
    async with proxy.http.get("/") as page:
        assert "Was this answer good?" not in await page.text()
    assert (await proxy.get("/rl/judge"))["judges"][1]["bad"]["shared"] == 1


async def test_a_judge_that_thinks_keeps_no_signal_waiting(
    proxy: Proxy, judge: FakeJudge, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("proxy.signals.judging.LOOK_S", 0.05)
    judge.delay_s = 1000.0
    await proxy.stop()
    await proxy.start(judge__mode="shadow", judge__url=judge.url, judge__model="rule", judge__votes=1)

    async def until_it_waits_for(count: int) -> None:
        async for _ in Polls():
            if (await proxy.get("/rl/judge"))["waiting"] == count and judge.requests:
                return
        raise AssertionError(await proxy.get("/rl/judge"))

    for count, question in enumerate(("hello", "bye"), 1):
        await proxy.chat(question)
        await proxy.chat(question, f"You said: {question}", "no, shorter please")
        await until_it_waits_for(count)
    assert len(judge.requests) == 1  # one question at a time
