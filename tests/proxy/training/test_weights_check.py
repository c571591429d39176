"""The served model against the weights, in a whole proxy: when it is asked, what it stops, what it costs."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any

import pytest

from proxy.backends.vllm import VLLM
from proxy.backends.weights_files import fingerprint
from proxy.training import rehearsal, weights_check
from scripts.harness.command import rlproxy
from scripts.harness.in_process import Proxy
from tests.harness.polling import Polls
from tests.harness.runs import rated, until
from tests.harness.weights_checks import reads_otherwise, said

OTHER = {"architecture": "llama", "conversations": []}


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weights_check, "LOOK_S", 0.0)


async def test_it_is_asked_at_the_first_rating_and_costs_nothing_later(proxy: Proxy) -> None:
    await proxy.chat("x")
    assert (await proxy.get("/rl/status"))["match"]["state"] == "unasked" and proxy.backend.compared == []
    await rated(proxy, 1)
    status = await said(proxy, "same")
    assert status["match"]["apart"] == pytest.approx(0) and proxy.launcher.probed == 1
    assert [(b["model"], b["temperature"], b["return_token_ids"]) for b in proxy.backend.compared] == [
        ("fake", 0, True)
    ] * 3
    await rated(proxy, 4)
    await until(proxy, live=1)
    await proxy.stop()
    await proxy.start()
    await rated(proxy, 4)
    await until(proxy, live=2)
    assert proxy.launcher.probed == 1 and len(proxy.backend.compared) == 3


async def test_another_model_stops_runs_and_it_is_said(cli: Proxy) -> None:
    reads_otherwise(cli)
    await rated(cli, 5)
    await said(cli, "other")
    async for _ in Polls():  # the look at the rules comes after the comparison
        reason = (await cli.get("/rl/status"))["training"]["waits_for"]
        if reason != "the served model is compared with the weights first":
            break
    assert reason.startswith(
        "the server does not run what trains: it says that it read 3 tokens, and the prompt that it says it renders has"
    )
    assert 'train.match = "warn" trains all the same' in reason
    code, answer = await cli.post("/rl/train")
    assert code == 409 and "does not run what trains" in answer["error"]["message"]
    code, out, _ = await rlproxy(cli.home, "doctor")
    assert (
        code == 1
        and "✗  base" in out
        and "starts a run now" not in out
        and "✗  template" in out
        and "train.weights" in out
    ), out
    assert cli.launcher.started == []
    assert (await cli.get("/v1/models"))["data"]  # and answers go on
    cli.launcher.weights_say = {}
    await cli.stop()
    await cli.start(**{"train.match": "warn"})
    await until(cli, live=1)
    status = await said(cli, "other")  # it says so still
    assert not status["match"]["stops"]


async def test_a_server_that_counts_no_token_has_not_counted(proxy: Proxy) -> None:
    """Ollama 0.34.1 ends some answers without a count: 0 where the prompt has 42."""
    reads_otherwise(proxy)
    proxy.backend.prompt_tokens = 0
    await rated(proxy, 4)
    await until(proxy, live=1)
    assert "it says that it read" not in (await proxy.get("/rl/status"))["match"]["line"]


async def test_a_server_that_was_put_right_is_asked_again(proxy: Proxy, tmp_path: Any) -> None:
    """By its weights: other files under the same name are other weights."""
    (folder := tmp_path / "weights").mkdir()
    (folder / "model.safetensors").write_bytes(b"wrong")
    await proxy.stop()
    await proxy.start(**{"train.weights": str(folder)})
    reads_otherwise(proxy)
    await rated(proxy, 4)
    await said(proxy, "other")
    proxy.launcher.weights_say = {}
    (folder / "model.safetensors").write_bytes(b"the right ones")
    await proxy.post("/rl/train")  # it looks anew; or the next look by itself was quicker, and its run is there already
    await until(proxy, live=1)
    assert proxy.launcher.probed >= 2


async def test_a_server_that_rlproxy_started_on_these_files_is_not_asked(
    proxy: Proxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only after the files have changed under it."""
    (folder := tmp_path / "weights").mkdir()
    (folder / "model.safetensors").write_bytes(b"its own")
    loaded = fingerprint(str(folder))
    monkeypatch.setattr(VLLM, "weights_fingerprint", property(lambda _: loaded))
    await proxy.stop()
    await proxy.start(**{"train.weights": str(folder)})
    await rated(proxy, 4)
    await until(proxy, live=1)
    status = await said(proxy, "same")
    assert status["match"]["line"] == weights_check.OWN_SERVER.line and not status["match"]["stops"]
    assert proxy.launcher.probed == 0 and proxy.backend.compared == []
    reads_otherwise(proxy)
    (folder / "model.safetensors").write_bytes(b"others")
    await rated(proxy, 4)
    assert (await said(proxy, "other"))["match"]["stops"] and proxy.launcher.probed == 1


async def test_it_is_the_base_that_is_asked_whatever_is_live(proxy: Proxy, tmp_path: Any) -> None:
    await rated(proxy, 4)
    await until(proxy, live=1)
    (folder := tmp_path / "weights").mkdir()
    await proxy.stop()
    await proxy.start(**{"train.weights": str(folder)})
    await rated(proxy, 1)
    async for _ in Polls():
        if len(proxy.backend.compared) == 6:
            break
    assert [body["model"] for body in proxy.backend.compared[3:]] == ["fake"] * 3


async def test_a_server_that_refuses_log_probs_is_asked_without_and_stops_nothing(proxy: Proxy) -> None:
    proxy.backend.mood = "refuse-logprobs"
    await rated(proxy, 1)
    status = await said(proxy, "same")
    assert status["match"]["apart"] is None and len(proxy.backend.compared) == 6, "asked again without log-probs"


async def test_what_cannot_be_checked_stops_nothing_and_is_said(cli: Proxy) -> None:
    cli.launcher.unprobed = "the chat template refuses these messages"
    await rated(cli, 4)
    await until(cli, live=1)
    status = await said(cli, "unknown")
    assert status["match"]["line"] == "could not be checked: the chat template refuses these messages"
    code, out, _ = await rlproxy(cli.home, "doctor")
    assert code == 0 and "!  base" in out, out


async def test_a_server_that_is_down_is_waited_for(proxy: Proxy) -> None:
    await proxy.post("/rl/pause")
    await rated(proxy, 4)
    port = proxy.backend.port
    await proxy.backend.stop()
    await proxy.post("/rl/resume")
    async for _ in Polls():
        waits = (await proxy.get("/rl/status"))["training"]["waits_for"] or ""
        if "could not be asked yet" in waits:
            break
    assert "could not be asked yet" in waits and proxy.launcher.started == []
    await proxy.backend.start(port)
    await proxy.post("/rl/train")
    await until(proxy, live=1)


@pytest.mark.parametrize("prompts_alone", [False, True])
async def test_no_run_starts_uncompared_where_a_rule_falls_after_the_check(
    proxy: Proxy, monkeypatch: pytest.MonkeyPatch, prompts_alone: bool
) -> None:
    """Between the check, which a rule stood against, and the decision, nothing stands in the way any longer. The first
    answers had prompts alone compared."""
    shown = [dt.datetime(2026, 11, 2, 12)]
    monkeypatch.setattr("proxy.training.preconditions.local_time", lambda: shown[0])
    await proxy.stop()
    monkeypatch.setattr(rehearsal, "TICK_S", 0.01 if prompts_alone else 1e6)
    await proxy.start(train__hours=["22:00-06:00"])
    await rated(proxy, 4)
    async for _ in Polls():
        if not prompts_alone or (await proxy.get("/rl/status"))["match"]["rendering"] is not None:
            break
    await proxy.backend.stop()
    shown[0] = shown[0].replace(hour=23)
    waits = (await proxy.get("/rl/status"))["training"]["waits_for"] or ""
    assert "compared with the weights first" in waits or "could not be asked yet" in waits, waits


async def test_a_backend_that_takes_no_version_may_run_any_model(proxy: Proxy) -> None:
    await proxy.stop()
    proxy.kind = None
    await proxy.start(**{"backend.kind": "openai"})
    await rated(proxy, 4)
    found = (await proxy.get("/rl/status"))["match"]
    assert found["state"] == "unasked" and "may be another one" in found["line"] and proxy.backend.compared == []
