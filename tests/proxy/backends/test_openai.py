"""A cloud API behind a whole proxy: what it says is captured and rated, and a local model learns from it."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from rich.console import Console

from config.settings import load
from proxy.backends.vllm import VLLM
from proxy.cli.doctor.checks import examine, gather
from proxy.cli.status import table
from proxy.core.address_file import ADDRESS_FILE
from proxy.training.cloud_student import CloudStudent
from scripts.fakes.backend import FakeBackend
from scripts.fakes.cloud import KEY, FakeCloud
from scripts.harness.command import rlproxy
from scripts.harness.in_process import Proxy
from tests.harness.llamacpp import make_proxy
from tests.harness.runs import until
from trainer.launch import LocalLauncher

AUTH = {"authorization": f"Bearer {KEY}"}


@pytest.fixture
async def cloud() -> AsyncIterator[FakeCloud]:
    fake = FakeCloud()
    await fake.start()
    yield fake
    await fake.stop()


@pytest.fixture
async def proxy(tmp_path: Path, cloud: FakeCloud) -> AsyncIterator[Proxy]:
    proxy = make_proxy(tmp_path / "home", kind="openai", url=f"{cloud.url}/v1")
    proxy.flags["train.weights"] = "/models/local-1b"
    await proxy.start()
    yield proxy
    await proxy.stop()


async def ask(proxy: Proxy, said: str, model: str = "gpt-9-mini", **more: Any) -> aiohttp.ClientResponse:
    response = await proxy.chat(said, model=model, headers=AUTH, **more)
    await response.read()
    return response


async def rated(proxy: Proxy, count: int, start: int = 0) -> None:
    """By turns good and bad, of two models."""
    for i in range(start, start + count):
        response = await ask(proxy, f"question {i}", model=("gpt-9-mini", "gpt-9")[i // 2 % 2], stream=i % 3 == 0)
        assert response.status == 200
        status, _ = await proxy.rate(
            completion_id=response.headers["x-rl-completion-id"], rating="bad" if i % 2 else "good"
        )
        assert status == 201


def order_of(proxy: Proxy, run: int) -> dict[str, Any]:
    return dict(json.loads((proxy.home / "runs" / f"r{run:05d}" / "run.json").read_text()))


async def test_a_key_and_every_byte_pass_through(proxy: Proxy, cloud: FakeCloud) -> None:
    response = await ask(proxy, "hello", stream=True)
    raw = (await response.read()).decode()
    assert "gpt-9-mini-2026-11-01" in raw and raw.endswith("data: [DONE]\n\n")  # also the name that the cloud gave it
    assert cloud.keys[-1] == f"Bearer {KEY}" and set(cloud.requests[-1]) == {"model", "messages", "stream"}
    assert response.headers["x-rl-adapter"] == "none"
    async with proxy.http.get("/v1/models", headers=AUTH) as listed:
        assert [m["id"] for m in (await listed.json())["data"]][:2] == ["gpt-9-mini", "gpt-9"]
    async with proxy.http.get("/v1/models") as listed:
        assert listed.status == 401
    assert (await proxy.chat("hello", model="gpt-9")).status == 401
    assert (await proxy.http.get("/readyz")).status == 200  # it is there, and a client has the key


async def test_the_key_is_nowhere(proxy: Proxy, cloud: FakeCloud, capfd: pytest.CaptureFixture[str]) -> None:
    await rated(proxy, 4)
    await until(proxy, ended="done")
    wrong = f"{KEY}-but-wrong"
    refused = await proxy.chat("x", model="gpt-9", headers={"authorization": f"Bearer {wrong}"})
    assert refused.status == 401 and wrong in await refused.text()  # the client sees what the cloud said of its key
    await ask(proxy, "x", model="no-such-model")
    await ask(proxy, "x", strange=1)
    cloud.breaks = True
    broken = await ask(proxy, "x", stream=True)
    cloud.breaks = False
    async with proxy.http.get("/v1/models", headers={"x-api-key": wrong}):
        pass
    shown = json.dumps(await proxy.get("/rl/completions?limit=50")) + json.dumps(await proxy.get("/rl/status"))
    exported = await (await proxy.http.get("/rl/export")).text()
    rows = [await proxy.store.completions.get(r.headers["x-rl-completion-id"]) for r in (refused, broken)]
    await cloud.stop()
    assert (await ask(proxy, "x")).status == 503
    await proxy.stop()
    assert rows[0] and rows[0].end and "Incorrect API key provided: [key]." in str(rows[0].end.error)
    assert KEY not in shown + exported + repr(rows)
    found = [path for path in proxy.home.rglob("*") if path.is_file() and KEY.encode() in path.read_bytes()]
    assert found == [] and (proxy.home / "rlproxy.db").stat().st_size > 0
    assert KEY not in "".join(capfd.readouterr())
    await cloud.start()
    await proxy.start(backend__url=cloud.url)


async def test_a_local_model_learns_from_it(proxy: Proxy, cloud: FakeCloud) -> None:
    status = await proxy.get("/rl/status")
    assert status["trains"]["line"] == "local-1b learns from these replies (kto); no version of it yet"
    await rated(proxy, 4)
    status = await until(proxy, ended="done")
    order = order_of(proxy, 1)
    assert (order["model"], order["weights"]) == ("local-1b", "/models/local-1b")
    assert order["overrides"]["objective"] == "kto" and order["parent"] == 0
    assert order["choices"][1]["name"] == "objective" and "another model" in order["choices"][1]["why"]
    samples = [json.loads(line) for line in (proxy.home / "runs/r00001/samples.jsonl").read_text().splitlines()]
    assert len(samples) == 4 and not any(sample["exact"] for sample in samples)
    assert status["live"] == 0 and status["problem"] is None and status["ratings"]["fresh"] == 0
    folder = proxy.home / "adapters_out" / "local-1b" / "v0001"
    assert folder.is_dir() and status["trains"]["adapter"] == str(folder)
    assert status["trains"]["line"].endswith("--weights /models/local-1b` in its place, then `rlproxy promote v1`")
    code, body = await proxy.post("/rl/promote/1")
    assert code == 501 and "cannot load an adapter" in body["error"]["message"]
    await rated(proxy, 4, start=4)
    await until(proxy, ended="done", runs=2)
    order = order_of(proxy, 2)
    assert (order["version"], order["parent"]) == (2, 1) and order["adapters"] == {"1": str(folder)}
    await proxy.stop()
    await proxy.start()
    assert (await proxy.get("/rl/status"))["trains"]["version"] == 2
    await proxy.post("/rl/reset")
    await rated(proxy, 4, start=8)
    await until(proxy, ended="done", runs=3)
    assert order_of(proxy, 3)["parent"] == 0


async def test_what_it_learned_is_served_by_another_backend(proxy: Proxy, backend: FakeBackend) -> None:
    """Only when somebody says so; and what the cloud said never counts as said by that one."""
    await rated(proxy, 4)
    await until(proxy, ended="done")
    await rated(proxy, 2, start=4)
    await proxy.stop()
    proxy.kind = VLLM
    await proxy.start(backend__url=backend.url)
    status = await proxy.get("/rl/status")
    assert status["live"] == 0 and status["trains"] is None and status["ratings"]["fresh"] == 0
    assert (await proxy.post("/rl/promote/1"))[0] == 200
    response = await proxy.chat("x")
    assert response.headers["x-rl-adapter"] == "v1" and list(backend.adapters) == ["fake@v1"]
    await proxy.stop()
    proxy.kind = None
    await proxy.start()  # and back: nothing of the other backend is live here
    status = await proxy.get("/rl/status")
    assert status["live"] == 0 and status["ratings"]["fresh"] == 2 and status["trains"]["version"] == 1


async def test_what_was_reset_does_not_go_live_by_itself(proxy: Proxy, backend: FakeBackend) -> None:
    await rated(proxy, 4)
    await until(proxy, ended="done")
    await proxy.post("/rl/reset")
    assert (await proxy.get("/rl/status"))["trains"]["version"] is None
    await proxy.stop()
    proxy.kind = VLLM
    await proxy.start(backend__url=backend.url)
    await asyncio.sleep(0.2)
    assert (await proxy.get("/rl/status"))["live"] == 0 and not backend.adapters


async def test_a_crash_after_publishing_lets_nothing_go_live(
    proxy: Proxy, backend: FakeBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def crash(*_: object) -> None:
        raise RuntimeError("killed")

    monkeypatch.setattr(CloudStudent, "published", crash)
    await rated(proxy, 4)
    await until(proxy, ended="done")
    await proxy.stop()
    proxy.kind = VLLM
    await proxy.start(backend__url=backend.url)
    await asyncio.sleep(0.2)
    assert (await proxy.get("/rl/status"))["live"] == 0 and not backend.adapters


async def test_a_run_is_not_gone_on_with_behind_another_backend(proxy: Proxy, backend: FakeBackend) -> None:
    """There its samples would count as said by the model that trains, and what comes of it would go live."""
    proxy.launcher.hold = True
    await rated(proxy, 4)
    while not proxy.launcher.started:
        await asyncio.sleep(0.01)
    await proxy.stop()
    proxy.launcher.hold, proxy.kind = False, VLLM
    await proxy.start(backend__url=backend.url)
    status = await until(proxy, ended="failed")
    assert "another kind of backend" in status["last_run"]["reason"] and status["ratings"]["fresh"] == 0
    await proxy.stop()
    proxy.kind = None
    await proxy.start()
    assert (await proxy.get("/rl/status"))["ratings"]["fresh"] == 4
    await proxy.post("/rl/train")
    assert (await until(proxy, ended="done", runs=2))["trains"]["version"] == 1


async def test_without_weights_it_is_captured_and_rated_only(proxy: Proxy) -> None:
    await proxy.stop()
    await proxy.start(train__weights="")
    await rated(proxy, 4)
    status = await proxy.get("/rl/status")
    assert "train.weights may name a local model" in status["training"]["waits_for"]
    code, body = await proxy.post("/rl/train")
    assert code == 409 and "train.weights" in body["error"]["message"]
    assert status["counts"]["done"] == 4 and status["counts"]["good"] == 2


async def test_an_objective_that_needs_our_own_replies_is_refused(proxy: Proxy) -> None:
    await proxy.stop()
    await proxy.start(train__overrides={"objective": "mis-po"})
    await rated(proxy, 4)
    waits = (await proxy.get("/rl/status"))["training"]["waits_for"]
    assert "objective mis-po" in waits and "leave it out (kto), or take distill" in waits
    await proxy.stop()
    await proxy.start(train__overrides={"objective": "distill"})
    await until(proxy, ended="done")
    assert order_of(proxy, 1)["overrides"]["objective"] == "distill"


async def test_a_rejected_version_is_not_gone_on_from(proxy: Proxy) -> None:
    proxy.launcher.outcome = "rejected"
    await rated(proxy, 4)
    status = await until(proxy, ended="rejected")
    assert status["trains"]["version"] is None and status["ratings"]["fresh"] == 4


async def test_what_was_forgotten_is_not_gone_on_from(proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("proxy.training.run_supervisor.RECHECK_S", 0.02)
    for run in (1, 2):
        await rated(proxy, 4, start=4 * run)
        await until(proxy, ended="done", runs=run)
    assert order_of(proxy, 2)["parent"] == 1
    gone = (await proxy.store.samples.of_run(2))[0].completion.new.id
    async with proxy.http.post("/rl/forget", json={"completion": gone, "retrain": True}) as response:
        assert (await response.json())["trained"] == [2]
    status = await until(proxy, ended="done", runs=3)
    while status["rebuild"]["state"] != "over":
        status = await proxy.get("/rl/status")
    assert order_of(proxy, 3)["parent"] == 1 and status["trains"]["version"] == 3
    assert not (proxy.home / "adapters_out" / "local-1b" / "v0002").exists()


async def test_what_it_says_of_itself(proxy: Proxy, cloud: FakeCloud, capsys: pytest.CaptureFixture[str]) -> None:
    await rated(proxy, 4)
    status = await until(proxy, ended="done")
    Console().print(table(status, proxy.url))
    shown = " ".join(capsys.readouterr().out.split())
    assert "whichever is asked for, not ours" in shown and "local-1b v1, in " in shown
    said = await proxy.say("/rl status")
    assert f"openai at {cloud.url} answers." in said and "What trains: local-1b v1, in " in said


async def test_the_doctor_asks_for_no_key(proxy: Proxy) -> None:
    (proxy.home / ADDRESS_FILE).write_text(json.dumps({"url": proxy.url, "pid": os.getpid()}))
    settings = load({"home": proxy.home}, environ={}).settings
    checks = {check.name: check for check in examine(await asyncio.to_thread(gather, settings))}
    assert checks["backend"].state == checks["model"].state == "ok"
    assert "local-1b learns from these replies" in checks["model"].line
    assert checks["adapters"].state == "note" and "trains a local model" in str(checks["adapters"].fix)


@pytest.mark.model
@pytest.mark.heavy
@pytest.mark.timeout(600)
async def test_the_real_trainer_takes_such_a_run(tmp_path: Path, cloud: FakeCloud, tiny_weights: Path) -> None:
    """With the real objective, and none of the log-probs that the others need; and the built-in backend wears it."""
    proxy = make_proxy(tmp_path / "home", kind="openai", url=cloud.url)
    proxy.flags |= {"train.weights": str(tiny_weights), "train.start_at": 8, "train.threads": 1}
    proxy.flags["train.overrides"] = {"batch": 4, "learning_rate": 1e-4}
    proxy.launcher = LocalLauncher()  # type: ignore[assignment]
    await proxy.start()
    try:
        await rated(proxy, 8)
        result = proxy.home / "runs/r00001/result.json"
        while not result.exists():
            await asyncio.sleep(0.2)
        found = json.loads(result.read_text())
        assert found["status"] == "passed", found
        manifest = json.loads((Path(found["adapter"]) / "manifest.json").read_text())
        assert manifest["objective"] == "kto" and len(manifest["samples"]) == 8
        await until(proxy, ended="done")
        await proxy.stop()
        await proxy.start(backend__kind="builtin", backend__url="", backend__threads=1)
        code, body = await proxy.post("/rl/promote/1")
        assert code == 200, body
        response = await proxy.chat("hello", model=(await proxy.get("/rl/status"))["model"], max_tokens=4)
        assert response.status == 200 and response.headers["x-rl-adapter"] == "v1"
    finally:
        await proxy.stop()


async def test_connecting_an_agent_names_the_only_model(
    proxy: Proxy, cloud: FakeCloud, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody has named one: it is in the list, which a server without keys shows to everybody."""
    (proxy.home / ADDRESS_FILE).write_text(json.dumps({"url": proxy.url, "pid": os.getpid()}))
    person = tmp_path / "person"
    person.mkdir()
    command = ("connect", "codex", "--yes")
    code, _, err = await rlproxy(proxy.home, *command, HOME=str(person))
    assert code == 1 and "--model NAME" in err and "key" in err and err.count("\n") == 1
    cloud.open = True
    code, _, err = await rlproxy(proxy.home, *command, HOME=str(person))
    assert code == 1 and "gpt-9-mini, gpt-9, text-embedding-9" in err and "--model NAME" in err
    assert list(person.iterdir()) == []
    monkeypatch.setattr("scripts.fakes.cloud.MODELS", ("gpt-9",))
    code, _, err = await rlproxy(proxy.home, *command, HOME=str(person))
    assert code == 0 and 'model = "gpt-9"\n' in (person / ".codex/config.toml").read_text(), err


async def test_connecting_an_agent_leaves_its_key_for_the_cloud(proxy: Proxy, tmp_path: Path) -> None:
    """`serve` was told of the cloud by its flags, so only the running proxy knows of it."""
    (proxy.home / ADDRESS_FILE).write_text(json.dumps({"url": proxy.url, "pid": os.getpid()}))
    person = tmp_path / "person"
    person.mkdir()
    aider = person / ".aider.conf.yml"
    aider.write_text(f"openai-api-key: {KEY}\n")
    code, out, _ = await rlproxy(proxy.home, "connect", "aider", "--model", "gpt-9", "--yes", HOME=str(person))
    assert code == 0 and f"openai-api-key: {KEY}\n" in aider.read_text() and "openai/gpt-9" in aider.read_text()
    assert "own key" in out and "RLPROXY_BACKEND__API_KEY" in out
    code, out, _ = await rlproxy(proxy.home, "connect", "open-webui", "--model", "gpt-9", HOME=str(person))
    assert code == 0 and "OPENAI_API_KEY=YOUR_KEY" in out
    env = {"HOME": str(person), "RLPROXY_BACKEND__API_KEY": "sk-cloud"}
    code, out, _ = await rlproxy(proxy.home, "connect", "aider", "--model", "gpt-9", "--yes", **env)
    assert code == 0 and "openai-api-key: rlproxy\n" in aider.read_text() and "own key" not in out
