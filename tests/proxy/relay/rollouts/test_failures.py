"""Failures around rollouts, such as a full disk or a server that miscounts. The bounds of a day still hold."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from aiohttp import web

from proxy.relay.rollouts import sampler
from proxy.relay.rollouts.spending import today
from scripts.harness.in_process import Proxy
from tests.proxy.relay.rollouts.conftest import refuse, until
from tests.proxy.test_full_disk import limit_pages


async def test_a_full_disk_is_waited_for_and_what_was_sampled_meanwhile_counts(sampling: Proxy) -> None:
    await sampling.post("/rl/pause")
    await sampling.say("sum")
    sampling.backend.says = "x " * 100_000  # more than the last page has room for
    asked = len(sampling.backend.requests)
    await limit_pages(sampling, 1)  # to the present size
    await sampling.post("/rl/resume")
    rollouts = await until(sampling, lambda rollouts: rollouts["tokens_today"] > 0)
    await asyncio.sleep(0.5)
    assert len(sampling.backend.requests) == asked + 1
    await limit_pages(sampling, 1_000_000)
    await sampling.stop()
    await sampling.start()
    assert (await sampling.store.rollouts.spent(today())).tokens == rollouts["tokens_today"]


async def test_an_answer_that_breaks_off_or_cannot_be_read_counts_too(sampling: Proxy) -> None:
    await sampling.post("/rl/pause")
    await sampling.say("sum")
    sampling.backend.hold.clear()
    await sampling.post("/rl/resume")
    while len(sampling.backend.requests) < 2:
        await asyncio.sleep(0.01)
    asked = asyncio.create_task(sampling.say("another"))
    broken_off = await until(sampling, lambda rollouts: rollouts["tokens_today"] > 0)
    await sampling.post("/rl/pause")
    sampling.backend.hold.set()
    await asked
    sampling.backend.mood = "bad-json"
    await sampling.post("/rl/resume")
    await until(sampling, lambda rollouts: rollouts["tokens_today"] > broken_off["tokens_today"])


async def test_a_prompt_that_fails_at_the_server_comes_after_the_others(
    sampling: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sampler, "PAUSE_S", 0.05)
    await sampling.post("/rl/pause")
    await sampling.say("well")
    await sampling.say("poison")

    def fail(body: dict[str, Any]) -> str:
        if body["messages"][-1]["content"] == "poison":
            raise web.HTTPInternalServerError(text="the template is broken")
        return "It is 1"

    sampling.backend.script = fail
    await sampling.post("/rl/resume")
    await until(sampling, lambda rollouts: rollouts["answers"] == 4)
    asked = len(sampling.backend.requests)
    while len(sampling.backend.requests) == asked:  # it is tried again when no other is left
        await asyncio.sleep(0.01)


async def test_a_prompt_that_cannot_be_asked_again_is_passed_over(
    sampling: Proxy, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sampler, "PAUSE_S", 0.05)
    await sampling.post("/rl/pause")
    await sampling.say("well")
    await sampling.say("damaged")
    torn = "UPDATE completions SET request = CAST('{\"temp' AS BLOB) WHERE seq = (SELECT max(seq) FROM completions)"
    await sampling.store._writer.submit(lambda db: db.execute(torn))
    await sampling.post("/rl/resume")
    await until(sampling, lambda rollouts: rollouts["answers"] == 4)
    log = ""
    while log.count("JSONDecodeError") < 2:  # it comes once more when no other is left
        await asyncio.sleep(0.01)
        log += capsys.readouterr().out


async def test_a_refused_prompt_is_not_asked_in_another_completion_of_it(sampling: Proxy) -> None:
    await sampling.post("/rl/pause")
    for _ in range(3):
        await sampling.say("sum")
    sampling.backend.says = refuse
    asked = len(sampling.backend.requests)
    await sampling.post("/rl/resume")
    while len(sampling.backend.requests) < asked + 2:  # with our wishes, and without
        await asyncio.sleep(0.01)
    await until(sampling, lambda rollouts: "no captured prompt lacks" in rollouts["line"])
    assert len(sampling.backend.requests) == asked + 2


async def test_what_a_server_quotes_of_a_prompt_is_in_no_status_and_no_log(
    sampling: Proxy, capsys: pytest.CaptureFixture[str]
) -> None:
    await sampling.post("/rl/pause")
    await sampling.say("my secret sum")

    def fail() -> str:
        raise web.HTTPInternalServerError(text="cannot render: my secret sum")

    sampling.backend.says = fail
    await sampling.post("/rl/resume")
    rollouts = await until(sampling, lambda rollouts: rollouts["problem"] is not None)
    assert "500" in rollouts["problem"] and "secret" not in str(rollouts)
    assert "secret" not in capsys.readouterr().out


async def test_a_server_that_refuses_everything_is_not_asked_for_every_prompt_at_once(sampling: Proxy) -> None:
    await sampling.post("/rl/pause")
    for number in range(8):
        await sampling.say(f"sum {number}")
    sampling.backend.says = refuse
    asked = len(sampling.backend.requests)
    await sampling.post("/rl/resume")
    await until(sampling, lambda rollouts: rollouts["problem"] is not None)
    assert len(sampling.backend.requests) == asked + 2 * 3


async def test_a_server_that_breaks_over_log_probs_is_asked_without(sampling: Proxy) -> None:
    await sampling.post("/rl/pause")
    await sampling.say("sum")

    def fail(body: dict[str, Any]) -> str:
        if body.get("logprobs"):
            raise web.HTTPInternalServerError(text="no such buffer")
        return "It is 1"

    sampling.backend.script = fail
    await sampling.post("/rl/resume")
    await until(sampling, lambda rollouts: rollouts["answers"] == 4)
