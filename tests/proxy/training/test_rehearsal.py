"""Would a run take the answers that have come? Seen after the first two of them, and before anybody has rated."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from proxy.cli.doctor.checks import DoctorCheck
from proxy.core.address_file import ADDRESS_FILE
from proxy.training.rehearsal import TRIED, shares, verdict
from scripts.fakes.backend import FakeBackend
from scripts.fakes.ollama import FakeOllama
from scripts.harness.command import rlproxy
from scripts.harness.in_process import Proxy
from tests.harness import tiny
from tests.harness.polling import Polls
from tests.harness.runs import rated, until
from tests.harness.weights_checks import reads_otherwise, said
from tests.proxy.cli.doctor.test_checks import found
from trainer.launch import LocalLauncher

pytestmark = pytest.mark.usefixtures("quick_rehearsal")
WHY = "the server read 70 tokens where the weights' chat template makes 90: another chat template"


async def tried(proxy: Proxy, state: str) -> dict[str, Any]:
    async for _ in Polls():
        status = dict(await proxy.get("/rl/status"))
        if status["rehearsal"]["state"] == state:
            return status
    pytest.fail(f"not {state}: {status['rehearsal']}")


async def again(proxy: Proxy, **flags: Any) -> None:
    """Stopped and started; commands find it."""
    await proxy.stop()
    await proxy.start(**flags)
    (proxy.home / ADDRESS_FILE).write_text(json.dumps({"url": proxy.url, "pid": os.getpid()}))


async def rehearsed(proxy: Proxy, times: int) -> None:
    async for _ in Polls():
        if len(proxy.launcher.rehearsed) >= times:
            return
    pytest.fail(f"not {times} times: {len(proxy.launcher.rehearsed)}")


async def answers(proxy: Proxy, count: int) -> None:
    for n in range(count):
        await (await proxy.chat(f"question {n}")).read()


async def test_after_two_answers_and_after_four_times_as_many(proxy: Proxy) -> None:
    await answers(proxy, 1)
    await asyncio.sleep(0.1)
    assert proxy.launcher.rehearsed == [] and proxy.backend.compared == []
    await answers(proxy, 1)
    status = await tried(proxy, "prompts")
    assert status["rehearsal"]["line"].startswith("a run would take the prompts of the newest 2 answers")
    assert [len(lines) for lines in proxy.launcher.rehearsed] == [2] and proxy.launcher.probed == 0, "without weights"
    assert [body["max_tokens"] for body in proxy.backend.compared] == [1, 1, 1]
    assert status["match"]["state"] == "unasked" and "when the first rating has come" in status["match"]["line"]
    await answers(proxy, 4)
    await asyncio.sleep(0.1)
    assert len(proxy.launcher.rehearsed) == 1
    await answers(proxy, 3)
    await rehearsed(proxy, 2)
    assert [len(lines) for lines in proxy.launcher.rehearsed] == [2, TRIED]
    await rated(proxy, 1)
    await said(proxy, "same")
    assert proxy.launcher.probed == 1, "all of it is compared at the first rating"
    await rehearsed(proxy, 3)
    assert (await tried(proxy, "taken"))["rehearsal"]["line"] == f"a run would take the newest {TRIED} answers"
    assert [body["max_tokens"] for body in proxy.backend.compared[3:]] == [32, 32, 32]


async def test_what_would_be_refused_is_said_at_once_and_after_a_restart(cli: Proxy) -> None:
    cli.launcher.refuses = WHY
    await answers(cli, 2)
    status = await tried(cli, "refused")
    assert status["rehearsal"]["line"] == f"of the newest 2 answers a run would refuse all: {WHY}"
    await again(cli)
    assert (await cli.get("/rl/status"))["rehearsal"] == status["rehearsal"]
    _, out, _ = await rlproxy(cli.home, "status")
    assert "a run would refuse all" in " ".join(out.split())
    assert "Of the newest 2 answers a run would refuse all" in await cli.say("/rl status")


async def test_where_nothing_can_train_nothing_is_asked(proxy: Proxy) -> None:
    for flags in ({"train.weights": ""}, {"train.enabled": False}):
        await proxy.stop()
        await proxy.start(**flags)
        await answers(proxy, 3)
        await asyncio.sleep(0.1)
    await proxy.stop()
    proxy.launcher.fetched = False  # they are fetched at the first rating, not for a look
    await proxy.start()
    await answers(proxy, 3)
    await asyncio.sleep(0.1)
    assert proxy.launcher.rehearsed == [] and proxy.backend.compared == []
    assert (await proxy.get("/rl/status"))["rehearsal"]["state"] == "untried"


async def test_a_server_that_serves_another_model_is_noticed_by_the_next_answers(proxy: Proxy) -> None:
    """A verdict of before must not stand until somebody has rated."""
    await rated(proxy, 2)
    await said(proxy, "same")
    await tried(proxy, "taken")
    proxy.backend.window = 4096  # its entry in the list is another one
    reads_otherwise(proxy)
    await answers(proxy, 1)
    assert (await said(proxy, "other"))["match"]["stops"]
    await rehearsed(proxy, 2)


@pytest.mark.parametrize(
    ("reasons", "tried", "state", "line"),
    [
        ([], 1, "taken", "a run would take the newest answer"),
        (["a", "b", "b"], 8, "partly", "of the newest 8 answers a run would refuse 3: b"),
        (["a"], 1, "refused", "of the newest 1 answers a run would refuse all: a"),
    ],
)
def test_the_verdict(reasons: list[str], tried: int, state: str, line: str) -> None:
    found = verdict(reasons, tried)
    assert (found["state"], found["line"], found["refused"]) == (state, line, len(reasons))


def test_the_reasons_are_counted() -> None:
    assert verdict(["a", "b", "b"], 8)["reasons"] == {"b": 2, "a": 1}
    assert list(verdict(["a", "b", "b"], 8)["reasons"]) == ["b", "a"], "the most frequent first"


async def test_status_counts_each_reason(cli: Proxy) -> None:
    cli.launcher.weights_say = {"refused": ["a call without its bytes", "another template", "another template"]}
    await answers(cli, 3)
    await tried(cli, "refused")
    _, out, _ = await rlproxy(cli.home, "status")
    assert "2 × another template" in out and "1 × a call without its bytes" in out


# No ✓ where a run would refuse


async def doctor(proxy: Proxy, *names: str) -> list[DoctorCheck]:
    checks = await found(proxy)
    return [checks[name] for name in names]


async def test_before_anything_was_looked_at_nothing_is_said_to_be_well(cli: Proxy) -> None:
    assert {check.state for check in await doctor(cli, "base", "template", "prompts")} == {"unknown"}
    await answers(cli, 2)
    await tried(cli, "prompts")
    base, template, prompts = await doctor(cli, "base", "template", "prompts")
    assert base.state == "unknown", "log-probs may still say that it is another model"
    assert (template.state, prompts.state) == ("ok", "unknown"), "or that the band would refuse its words"
    await rated(cli, 1)
    await said(cli, "same")
    await tried(cli, "taken")
    assert {check.state for check in await doctor(cli, "base", "template", "prompts")} == {"ok"}


async def test_answers_that_a_run_would_refuse(cli: Proxy) -> None:
    cli.launcher.refuses = WHY
    await answers(cli, 2)
    await tried(cli, "refused")
    template, prompts = await doctor(cli, "template", "prompts")
    assert prompts.state == "problem" and WHY in prompts.line and template.state == "note"
    assert "costs its rating" in str(prompts.fix)
    code, _, _ = await rlproxy(cli.home, "doctor")
    assert code == 1


async def test_another_model_and_another_prompt_before_any_rating(cli: Proxy, tmp_path: Path) -> None:
    reads_otherwise(cli)
    await answers(cli, 2)
    await said(cli, "other")
    base, template = await doctor(cli, "base", "template")
    assert (base.state, template.state) == ("problem", "problem")
    assert "server:  '[user]x' (it read 3 tokens)" in template.line and "weights: '<user>x' (2 tokens)" in template.line
    _, out, _ = await rlproxy(cli.home, "status")
    assert "'[user]x' (it read 3 tokens)" in out and "'<user>x' (2 tokens)" in out
    cli.launcher.weights_say = {"architecture": "llama"}
    (tmp_path / "config.json").write_text('{"model_type": "qwen3"}')
    cli.backend.model_root = str(tmp_path)
    await answers(cli, 1)
    for _ in range(200):
        base, template = await doctor(cli, "base", "template")
        if "it is a" in base.line:
            break
    assert (base.state, template.state) == ("problem", "unknown")
    await again(cli, **{"train.match": "warn"})
    await answers(cli, 2)
    assert (await doctor(cli, "base"))[0].state == "note", "a person says that it trains all the same"


async def test_what_cannot_be_looked_at(cli: Proxy) -> None:
    cli.launcher.unprobed = "there is no tokenizer.json"
    await answers(cli, 2)
    await tried(cli, "unknown")
    checks = await doctor(cli, "base", "template", "prompts")
    assert {check.state for check in checks} == {"note"} and all("tokenizer.json" in check.line for check in checks)


async def test_what_nobody_expected_is_said_too(proxy: Proxy) -> None:
    proxy.launcher.weights_say = {"refused": None}
    await answers(proxy, 2)
    assert "TypeError" in (await tried(proxy, "unknown"))["rehearsal"]["line"]


async def test_weights_that_nobody_has_named(cli: Proxy) -> None:
    await again(cli, **{"train.weights": ""})
    base, template = await doctor(cli, "base", "template")
    assert base.state == template.state == "unknown" and "train.weights does not say" in base.line


async def test_a_server_that_was_never_asked_since_it_is_down(cli: Proxy) -> None:
    await cli.post("/rl/pause")
    await rated(cli, 4)
    await cli.backend.stop()
    await cli.post("/rl/resume")
    for _ in range(200):
        base, template = await doctor(cli, "base", "template")
        if "could not be asked" in base.line:
            break
    assert "could not be asked yet" in base.line and base.state == template.state == "unknown"


async def test_a_run_that_ended_with_nothing_to_train_on(cli: Proxy) -> None:
    cli.launcher.outcome, cli.launcher.result = "empty", {"reason": "18 fresh-mismatch"}
    await rated(cli, 4)
    await until(cli, ended="empty")
    (last,) = await doctor(cli, "last run")
    assert last.state == "note" and "fresh-mismatch" in last.line


async def test_what_is_known_of_the_tokens_is_counted(cli: Proxy) -> None:
    (before,) = await doctor(cli, "exactness")
    assert before.state == "note" and "but those in messages" in before.line
    await answers(cli, 3)
    known = (await tried(cli, "prompts"))["rehearsal"]["known_tokens"]
    assert known["ids"] == known["log_probs"] == 0 and known["tokens"] == 4 * known["answers"]
    (after,) = await doctor(cli, "exactness")
    assert after.state == "note" and after.line == known["line"]
    assert "0% have exact ids and 0% exact log-probs" in known["line"]


def test_the_shares() -> None:
    found = shares(64, {"tokens": 200, "ids": 188, "log_probs": 170})
    assert found is not None
    assert found["line"] == "of the tokens of the newest 64 answers 94% have exact ids and 85% exact log-probs"
    assert shares(2, {"tokens": 0, "ids": 0, "log_probs": 0}) is None


@pytest.fixture
async def inexact(cli: Proxy, ollama: FakeOllama) -> Proxy:
    """Behind a server without token ids."""
    await cli.stop()
    cli.kind = None
    await again(cli, **{"backend.kind": "ollama", "backend.url": ollama.url})
    return cli


async def test_words_are_not_known_before_the_weights_have_looked(inexact: Proxy) -> None:
    await answers(inexact, 2)
    status = await tried(inexact, "prompts")
    assert "their words are compared with the weights after the first rating" in status["rehearsal"]["line"]
    assert (await doctor(inexact, "prompts"))[0].state == "unknown"
    await rated(inexact, 1)
    await tried(inexact, "taken")
    assert (await doctor(inexact, "prompts"))[0].state == "ok"


async def test_too_few_words_to_tell(inexact: Proxy) -> None:
    inexact.launcher.weights_say = {"doubt": "0.20 nats a token odder"}
    await rated(inexact, 2)
    await said(inexact, "same")
    for _ in range(200):
        (prompts,) = await doctor(inexact, "prompts")
        if "not sure" in prompts.line:
            break
    assert prompts.state == "unknown" and "not sure yet: 0.20 nats a token odder" in prompts.line


# With a real tokeniser


@pytest.fixture
async def real(tmp_path: Path, ollama: FakeOllama) -> AsyncIterator[Proxy]:
    """Weights of ours behind a server that counts words: no template explains that."""
    weights = tiny.make_model(tmp_path / "tiny")
    proxy = Proxy(tmp_path / "home", FakeBackend(), LocalLauncher())  # type: ignore[arg-type]
    proxy.kind, ollama.version = None, "0.9.6"
    proxy.flags |= {"backend.kind": "ollama", "backend.url": ollama.url, "train.weights": str(weights)}
    await proxy.start()
    yield proxy
    await proxy.stop()


async def test_a_template_of_the_servers_own_is_seen_after_two_answers(real: Proxy, ollama: FakeOllama) -> None:
    for text in ("Why is the sky blue?", "And the sea?"):
        body = {"model": "fake", "messages": [{"role": "user", "content": text}], "stream": False}
        async with real.http.post("/api/chat", json=body) as response:
            assert response.status == 200
    status = await tried(real, "refused")
    assert "tokens where the weights' chat template makes" in status["rehearsal"]["why"]
    rendering = status["match"]["rendering"]
    assert status["match"]["state"] == "other" and status["match"]["stops"]
    assert (
        rendering["server"] is None and rendering["read"] < rendering["made"] and "<|im_start|>" in rendering["weights"]
    )
