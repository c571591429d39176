"""One GPU for the model and the run: who rests when, who waits, and that nobody waits for ever."""

from __future__ import annotations

import asyncio
import json
import random
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from proxy.training import gpu_sharing
from scripts.fakes.backend import FakeBackend
from scripts.fakes.llamacpp import FakeLlama
from scripts.harness.in_process import Proxy
from tests.harness.llamacpp import PRESETS, make_proxy, said_by, servers
from tests.harness.runs import rated, until

pytestmark = pytest.mark.usefixtures("quick_sharing")


@pytest.fixture
async def router(tmp_path: Path) -> AsyncIterator[FakeLlama]:
    presets = tmp_path / "presets.ini"
    presets.write_text(PRESETS)
    fake = FakeLlama(presets, places=4)
    await fake.start()
    yield fake
    await fake.stop()


@pytest.fixture
async def sharing(tmp_path: Path, router: FakeLlama) -> AsyncIterator[Proxy]:
    """A router that rests while a run trains; four ratings start one."""
    proxy = make_proxy(tmp_path / "home", url=router.url, presets=str(router.presets))
    proxy.flags |= {"train.share_gpu": True}
    await proxy.start()
    yield proxy
    await proxy.stop()


async def resting(proxy: Proxy, router: FakeLlama) -> None:
    """A run is under way, and the model out of the memory."""
    await rated(proxy, 4)
    async with asyncio.timeout(10):
        while not proxy.launcher.started or router.loaded:
            await asyncio.sleep(0.01)


async def draining(proxy: Proxy, router: FakeLlama) -> aiohttp.ClientResponse:
    """A run is about to begin, and waits for this answer's end."""
    router.pause_s = 0.1
    stream = await proxy.chat("x", stream=True)
    await rated(proxy, 3)
    last = await proxy.chat("good")
    await proxy.rate(completion_id=last.headers["x-rl-completion-id"], rating="good")
    async with asyncio.timeout(10):
        while (await proxy.get("/rl/status"))["held"]["why"] is None:
            await asyncio.sleep(0.01)
    return stream


async def waiting(proxy: Proxy, count: int) -> None:
    async with asyncio.timeout(10):
        while (await proxy.get("/rl/status"))["held"]["requests"] != count:
            await asyncio.sleep(0.01)


async def awake(proxy: Proxy) -> dict[str, Any]:
    async with asyncio.timeout(10):
        while (status := await proxy.get("/rl/status"))["held"]["why"] is not None:
            await asyncio.sleep(0.01)
    return dict(status)


async def test_requests_wait_and_are_answered_when_the_run_is_over(sharing: Proxy, router: FakeLlama) -> None:
    sharing.launcher.takes_s = 0.5
    await resting(sharing, router)
    asked = len(router.requests)
    answers = []
    for n in range(3):
        answers.append(asyncio.create_task(sharing.chat(f"held {n}")))
        await waiting(sharing, n + 1)
    status = await sharing.get("/rl/status")
    assert status["held"] == {"why": "The model rests while run 1 trains", "requests": 3}
    assert "3 requests wait" in await sharing.say("/rl status")  # rlproxy's own answers do not
    assert (await sharing.http.get("/readyz")).status == 503
    assert len(router.requests) == asked and not router.loaded
    for answer in answers:
        response = await answer
        assert response.status == 200 and response.headers["x-rl-adapter"] == "base"
        assert float(response.headers["x-rl-overhead-ms"]) < 400  # waiting is no overhead
    held = [body["messages"][-1]["content"] for body in router.requests[asked:] if len(body["messages"]) == 1]
    # In which order they are let in is the door's (test_door); three connections at once keep none.
    assert sorted(text for text in held if text.startswith("held")) == ["held 0", "held 1", "held 2"]
    await until(sharing, live=1)
    assert await said_by(sharing) == f"fake@v1-{sharing.mark}" and set(router.loaded) == {
        "fake",
        f"fake@v1-{sharing.mark}",
    }
    assert not router.cut


async def test_versions_are_back_after_a_run(sharing: Proxy, router: FakeLlama) -> None:
    for version in (1, 2):
        await rated(sharing, 4)
        await until(sharing, live=version)
    sharing.launcher.takes_s = 0.2
    sharing.launcher.outcome = "rejected"
    await resting(sharing, router)
    versions = {f"fake@v{version}-{sharing.mark}" for version in (1, 2)}
    assert await said_by(sharing) == f"fake@v2-{sharing.mark}" and set(router.loaded) == {"fake", *versions}


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages", "/v1/responses", "/v1/completions"])
async def test_a_stream_is_kept_alive_while_it_waits(sharing: Proxy, router: FakeLlama, path: str) -> None:
    sharing.launcher.takes_s = 0.4
    await resting(sharing, router)
    body: dict[str, Any] = {"model": "fake", "stream": True, "max_tokens": 9}
    body |= {"/v1/responses": {"input": "x"}, "/v1/completions": {"prompt": "x"}}.get(
        path, {"messages": [{"role": "user", "content": "x"}]}
    )
    response = await sharing.http.post(path, json=body)
    status = await sharing.get("/rl/status")
    assert status["held"]["requests"] == 1, "the headers have come, and the answer has not"
    assert response.headers["x-rl-adapter"] == "base"
    text = (await response.read()).decode()
    assert text.startswith(": keepalive\n\n") and "fake" in text and '"error":{' not in text
    stored = await sharing.get(f"/rl/completions/{response.headers['x-rl-completion-id']}")
    assert stored["status"] == "done" and stored["version"] == 0 and "fake" in stored["text"]


async def test_what_was_promised_is_kept_when_another_version_goes_live(sharing: Proxy, router: FakeLlama) -> None:
    """The run's own version may be live by the time that a held stream is let in."""
    sharing.launcher.takes_s = 0.3
    await resting(sharing, router)
    streams = [await sharing.chat("x", stream=True) for _ in range(8)]
    await until(sharing, live=1)
    for response in streams:
        label, text = response.headers["x-rl-adapter"], (await response.read()).decode()
        assert label == "base" and text.count('"content": "fake "') == 6, text


async def test_a_format_without_comments_waits_in_silence(sharing: Proxy, router: FakeLlama) -> None:
    sharing.launcher.takes_s = 0.3
    await resting(sharing, router)
    said = [{"role": "user", "content": "x"}]
    response = await sharing.http.post("/api/chat", json={"model": "fake", "messages": said})
    lines = [json.loads(line) for line in (await response.read()).splitlines()]
    assert lines[-1]["done"] is True


async def test_after_the_deadline_it_is_503_and_the_time_to_ask_again(sharing: Proxy, router: FakeLlama) -> None:
    await sharing.stop()
    await sharing.start(server__hold_s=0.2, server__hold_most=3)  # one client has a share of two
    sharing.launcher.hold = True
    await resting(sharing, router)
    whole = asyncio.create_task(sharing.chat("x"))
    await waiting(sharing, 1)
    stream = asyncio.create_task(sharing.chat("x", stream=True))
    await waiting(sharing, 2)
    over = await sharing.chat("one too many", stream=True)
    assert over.status == 503 and "server.hold_most" in (await over.json())["error"]["message"]
    answer = await whole
    assert answer.status == 503 and answer.headers["retry-after"] == "30"
    said = (await answer.json())["error"]
    assert said["code"] == "backend_down" and said["message"].startswith("The model rests while run 1 trains, and this")
    text = (await (await stream).read()).decode()  # its status was sent long ago
    assert text.startswith(": keepalive") and "server.hold_s" in text and not text.endswith("[DONE]\n\n")
    other = await sharing.http.get("/v1/models")
    assert other.status == 503  # asks the backend, too


async def test_a_pause_wakes_at_once_and_the_run_goes_on_later(sharing: Proxy, router: FakeLlama) -> None:
    sharing.launcher.hold = True
    await resting(sharing, router)
    answer = asyncio.create_task(said_by(sharing))
    await waiting(sharing, 1)
    assert (await sharing.post("/rl/pause"))[0] == 200
    assert await answer == "fake"
    sharing.launcher.hold = False
    await sharing.post("/rl/resume")
    status = await until(sharing, live=1)
    assert status["last_run"]["id"] == 1 and status["last_run"]["attempts"] == 1


async def test_a_pause_while_it_waits_for_the_last_answer(sharing: Proxy, router: FakeLlama) -> None:
    stream = await draining(sharing, router)
    await sharing.post("/rl/pause")
    await awake(sharing)
    assert not sharing.launcher.started
    assert (await stream.read()).endswith(b"data: [DONE]\n\n") and router.cut == []
    await sharing.post("/rl/resume")
    await until(sharing, live=1)


async def test_a_run_is_cancelled_while_it_waits_for_the_last_answer(sharing: Proxy, router: FakeLlama) -> None:
    stream = await draining(sharing, router)
    assert await sharing.post("/rl/cancel") == (200, {"cancelled": 1})
    status = await until(sharing, ended="cancelled")
    assert status["last_run"]["reason"] == "cancelled by a person" and status["ratings"]["fresh"] == 4
    assert not sharing.launcher.started and status["held"]["why"] is None
    assert (await stream.read()).endswith(b"data: [DONE]\n\n") and router.cut == []


async def test_hours_that_end_wake_it(sharing: Proxy, router: FakeLlama, monkeypatch: pytest.MonkeyPatch) -> None:
    from datetime import datetime

    now = [datetime(2026, 11, 16, 23, 0)]
    monkeypatch.setattr("proxy.training.preconditions.local_time", lambda: now[0])
    await sharing.stop()
    await sharing.start(train__hours=["22:00-07:00"])
    sharing.launcher.hold = True
    await resting(sharing, router)
    answer = asyncio.create_task(said_by(sharing))
    await waiting(sharing, 1)
    now[0] = datetime(2026, 11, 16, 12, 0)
    assert await answer == "fake"
    async with asyncio.timeout(10):  # just woken, it waits for that until it looks again
        while "hours" not in (await awake(sharing))["training"]["waits_for"]:
            await asyncio.sleep(0.01)


async def test_no_answer_is_cut_for_a_run(sharing: Proxy, router: FakeLlama, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_sharing, "DRAIN_S", 0.05)
    monkeypatch.setattr(gpu_sharing, "RETRY_S", 0.3)
    router.pause_s = 0.1
    stream = await sharing.chat("x", stream=True)
    await rated(sharing, 4)
    async with asyncio.timeout(10):
        while "still under way" not in ((await sharing.get("/rl/status"))["training"]["waits_for"] or ""):
            await asyncio.sleep(0.01)
    assert await said_by(sharing) == "fake" and not sharing.launcher.started
    assert (await stream.read()).endswith(b"data: [DONE]\n\n") and router.cut == []
    await until(sharing, live=1)


async def test_memory_that_is_still_short_lets_the_run_wait(
    sharing: Proxy, router: FakeLlama, monkeypatch: pytest.MonkeyPatch
) -> None:
    from proxy.training.system_load import Machine, MachineUse

    free = [1.0]
    monkeypatch.setattr(Machine, "look", lambda self, now, trainer=None: MachineUse(free[0]))
    await sharing.stop()
    await sharing.start(train__min_free_memory_gb=4)
    await rated(sharing, 4)
    async with asyncio.timeout(10):
        while "4 GB are needed" not in ((await sharing.get("/rl/status"))["training"]["waits_for"] or ""):
            await asyncio.sleep(0.01)
    assert await said_by(sharing) == "fake" and not sharing.launcher.started
    free[0] = 8.0
    await until(sharing, live=1)


async def test_a_trainer_that_crashes_leaves_it_awake(sharing: Proxy, router: FakeLlama) -> None:
    sharing.launcher.crashes = 99
    await rated(sharing, 4)
    await until(sharing, ended="failed")
    await awake(sharing)
    assert await said_by(sharing) == "fake" and "fake" in router.loaded


async def test_a_backend_that_does_not_wake_is_said_and_tried_again(sharing: Proxy, router: FakeLlama) -> None:
    await sharing.stop()
    await sharing.start(server__hold_s=0.3)
    sharing.launcher.takes_s = 0.1
    await resting(sharing, router)
    router.refuse.add("fake")
    response = await sharing.chat("x")
    assert response.status == 503 and response.headers["retry-after"] == "30"
    async with asyncio.timeout(10):
        while "did not wake" not in ((status := await sharing.get("/rl/status"))["problem"] or ""):
            await asyncio.sleep(0.01)
    assert status["held"]["why"]
    router.refuse.clear()
    status = await awake(sharing)
    assert status["problem"] is None
    await until(sharing, live=1)


async def test_versions_do_not_change_while_it_rests(sharing: Proxy, router: FakeLlama) -> None:
    await rated(sharing, 4)
    await until(sharing, live=1)
    sharing.launcher.hold = True
    sharing.launcher.started.clear()
    await resting(sharing, router)
    status, body = await sharing.post("/rl/rollback")
    assert status == 503 and "`rlproxy pause` wakes it" in body["error"]["message"]
    await sharing.post("/rl/pause")
    await awake(sharing)
    assert (await sharing.post("/rl/rollback"))[1]["live"] == 0


async def test_a_stop_answers_who_waits_and_wakes_somebody_elses_server(sharing: Proxy, router: FakeLlama) -> None:
    sharing.launcher.hold = True
    await resting(sharing, router)
    async with aiohttp.ClientSession(sharing.url) as other:
        body = {"model": "fake", "messages": [{"role": "user", "content": "x"}]}
        answer = asyncio.create_task(other.post("/v1/chat/completions", json=body))
        await waiting(sharing, 1)
        await sharing.stop()
        response = await answer
        assert response.status == 503
        assert "rlproxy is stopping" in (await response.json())["error"]["message"]
    assert set(router.loaded) == {"fake"}
    sharing.launcher.hold = False
    await sharing.start()
    await until(sharing, live=1)


async def test_a_server_that_a_killed_rlproxy_left_asleep_is_woken_at_the_start(
    sharing: Proxy, router: FakeLlama
) -> None:
    sharing.launcher.hold = True
    await resting(sharing, router)
    router.refuse.add("fake")  # so that the stop leaves what a kill leaves
    await sharing.stop()
    assert not router.loaded and await _lent(sharing.home)
    router.refuse.clear()
    sharing.launcher.hold = False
    sharing.flags["train.share_gpu"] = False  # whatever the settings say by now
    await sharing.start()
    await awake(sharing)
    assert "fake" in router.loaded and not await sharing.store.meta.get("lent", False)


async def _lent(home: Path) -> bool:
    from store.store import Store

    store = await Store.open(home)
    try:
        return bool(await store.meta.get("lent", False))
    finally:
        await store.close()


async def test_a_server_that_cannot_rest_is_said_before_a_run(tmp_path: Path) -> None:
    fake = FakeLlama()
    await fake.start()
    proxy = make_proxy(tmp_path / "home", url=fake.url)
    proxy.flags |= {"train.share_gpu": True}
    await proxy.start()
    await rated(proxy, 4)
    assert "cannot rest while a run trains" in (await proxy.get("/rl/status"))["training"]["waits_for"]
    assert not proxy.launcher.started
    await proxy.stop()
    await fake.stop()


async def test_processes_of_ours_end_and_start_again(tmp_path: Path) -> None:
    command = f"{sys.executable} -m scripts.fakes.llamacpp -m {tmp_path}/fake.gguf"
    proxy = make_proxy(tmp_path / "home", url="", command=command)
    proxy.flags |= {"train.share_gpu": True}
    await proxy.start()
    proxy.launcher.hold = True
    await rated(proxy, 4)
    async with asyncio.timeout(30):
        while servers():
            await asyncio.sleep(0.02)
    answer = asyncio.create_task(said_by(proxy))
    await waiting(proxy, 1)
    assert "rests while a run trains" in (await proxy.get("/rl/status"))["backend"]["state"]
    await proxy.post("/rl/pause")
    assert await answer == "fake" and len(servers()) == 1
    await proxy.stop()
    assert servers() == []


@pytest.mark.parametrize("seed", range(4))
async def test_every_request_is_answered_or_refused_in_time(sharing: Proxy, router: FakeLlama, seed: int) -> None:
    """Runs that pass, fail and are paused, a router that does not always wake, and clients all the while."""
    chance = random.Random(seed)
    await sharing.stop()
    await sharing.start(server__hold_s=0.3, server__hold_most=5, train__start_at=2)
    router.pause_s = 0.005
    assert await said_by(sharing) == "fake"
    stop = asyncio.Event()
    seen = {"answered": 0, "refused": 0}

    async def client(n: int) -> None:
        while not stop.is_set():
            stream = chance.random() < 0.5
            async with asyncio.timeout(5):  # far more than it may take
                response = await sharing.chat(f"{n}", stream=stream)
                text = (await response.read()).decode()
            if response.status == 503 or "server.hold_s" in text:
                assert stream or response.headers["retry-after"], text
                seen["refused"] += 1
            else:
                label = response.headers["x-rl-adapter"]
                name = "fake" if label == "base" else f"fake@{label}-{sharing.mark}"
                assert response.status == 200 and text.count(f"{name} ") == 6, text
                seen["answered"] += 1
            await asyncio.sleep(chance.random() * 0.02)

    clients = [asyncio.create_task(client(n)) for n in range(8)]
    for _ in range(10):
        sharing.launcher.takes_s = chance.random() * 0.6
        sharing.launcher.crashes = chance.choice([0, 0, 1])
        sharing.launcher.outcome = chance.choice(["passed", "passed", "rejected"])
        router.refuse = {"fake"} if chance.random() < 0.3 else set()
        for _ in range(2):
            await sharing.rate(completion_id="last", rating="good")
        await asyncio.sleep(chance.random() * 0.5)
        if chance.random() < 0.3:
            await sharing.post("/rl/pause")
            await sharing.post("/rl/resume")
    router.refuse.clear()
    await asyncio.sleep(0.2)
    stop.set()
    await asyncio.gather(*clients)
    assert seen["answered"] > 20 and not router.cut, seen
    sharing.launcher.takes_s = sharing.launcher.crashes = 0
    async with asyncio.timeout(10):  # what is left of the ratings may start one more run, and hold_s is short
        while (response := await sharing.chat("still there?")).status != 200:
            assert response.status == 503 and response.headers["retry-after"]


async def test_a_further_model_answers_while_the_own_one_rests(sharing: Proxy, router: FakeLlama) -> None:
    coder = FakeBackend()
    await coder.start()
    await sharing.stop()
    await sharing.start(models={"coder": {"url": coder.url}})
    sharing.launcher.takes_s = 0.5
    await resting(sharing, router)
    held = asyncio.create_task(sharing.chat("held"))
    await waiting(sharing, 1)
    assert await sharing.say("now", model="coder") == "You said: now " and not held.done()
    await held
    await coder.stop()
