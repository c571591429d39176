"""Which version answers: loading, switching, pins, rollback, and what a failure leaves behind."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from config.settings import load
from proxy.backends.vllm import VLLM
from proxy.versions.live_version import LiveVersion
from scripts.fakes.launcher import write_adapter
from scripts.harness.in_process import Proxy
from scripts.harness.records import claim
from store.records import BASE, Adapter
from tests.harness.polling import Polls


async def answered_by(proxy: Proxy, model: str = "fake") -> str:
    response = await proxy.chat("x", model=model)
    await response.read()
    return response.headers["x-rl-adapter"]


async def test_a_version_that_there_is_not_is_no_problem_of_ours(proxy: Proxy, versions: list[Path]) -> None:
    """Whoever mistyped it is told; `status` and `doctor` did warn of it for good."""
    code, body = await proxy.post("/rl/promote/v9")
    assert code == 404 and "There is no version v9" in body["error"]["message"]
    assert (await proxy.get("/rl/status"))["problem"] is None


async def test_promote_and_roll_back(proxy: Proxy, versions: list[Path]) -> None:
    assert await answered_by(proxy) == "base"
    assert (await proxy.post("/rl/promote/v1"))[1]["live"] == 1
    assert await answered_by(proxy) == "v1"
    assert proxy.backend.requests[-1]["model"] == "fake@v1"
    await proxy.post("/rl/promote/2")
    status, pointer = await proxy.post("/rl/rollback")
    assert status == 200 and (pointer["live"], pointer["previous"]) == (1, 2)
    status, again = await proxy.post("/rl/rollback")  # typed twice: v2 does not come back
    assert status == 409 and "promote v2" in again["error"]["message"]
    assert (await proxy.post("/rl/rollback?base"))[1]["live"] == 0
    assert await answered_by(proxy) == "base"


async def test_the_client_sees_the_model_it_asked_for(proxy: Proxy, versions: list[Path]) -> None:
    await proxy.post("/rl/promote/1")
    assert (await (await proxy.chat("x")).json())["model"] == "fake"
    raw = await (await proxy.chat("x", stream=True)).read()
    assert b"fake@v1" not in raw and b'"model": "fake"' in raw


def test_a_model_that_is_named_like_a_version_pins_none() -> None:
    """Also before a server has told which model it serves."""
    backend, nothing = VLLM(load({"backend.kind": "vllm"}, environ={}).settings.backend), cast(Any, None)
    parts = {"store": nothing, "tasks": nothing, "events": nothing, "admission": nothing}
    live_version = LiveVersion(cast(Any, SimpleNamespace(backend=backend, **parts)), nothing, nothing)
    assert live_version.model == "" and live_version.version_of(live_version.parse_name("")) == BASE
    for model in ("v3", "base"):
        name = live_version.parse_name(model)
        assert live_version.version_of(name) is None and name.pinned is None


async def test_pins(proxy: Proxy, versions: list[Path]) -> None:
    await proxy.post("/rl/promote/1")
    assert await answered_by(proxy, "fake@base") == "base"
    assert await answered_by(proxy, "fake@v3") == "v3"
    response = await proxy.chat("x", model="fake@v9")
    assert response.status == 404 and "v9" in (await response.json())["error"]["message"]
    names = [m["id"] for m in (await proxy.get("/v1/models"))["data"]]
    assert names == ["fake", "fake@base", "fake@v1", "fake@v2", "fake@v3"]


async def test_unused_versions_are_unloaded_but_not_the_previous(proxy: Proxy, versions: list[Path]) -> None:
    for version in (1, 2, 3):
        await proxy.post(f"/rl/promote/{version}")
    assert set(proxy.backend.adapters) == {"fake@v2", "fake@v3"} and proxy.backend.unloaded == ["fake@v1"]


async def test_a_running_reply_keeps_its_version(proxy: Proxy, versions: list[Path]) -> None:
    await proxy.post("/rl/promote/1")
    proxy.backend.pause_s = 0.05
    response = await proxy.chat("a b c d e f g h", stream=True)
    assert response.headers["x-rl-adapter"] == "v1"
    for version in (2, 3):
        await proxy.post(f"/rl/promote/{version}")
    assert "fake@v1" in proxy.backend.adapters
    assert (await response.read()).endswith(b"data: [DONE]\n\n")
    async for _ in Polls():
        if "fake@v1" not in proxy.backend.adapters:
            break
    assert "fake@v1" not in proxy.backend.adapters


async def test_swaps_under_load_fail_nothing(proxy: Proxy, versions: list[Path]) -> None:
    proxy.backend.pause_s = 0.005
    stop = asyncio.Event()
    wrong: list[str] = []

    async def client(n: int) -> int:
        served = 0
        while not stop.is_set():
            response = await proxy.chat(f"client {n}", stream=n % 2 == 0)
            body = await response.read()
            if response.status != 200 or b"error" in body:
                wrong.append(body.decode())
            served += 1
        return served

    clients = [asyncio.create_task(client(n)) for n in range(8)]
    for version in (1, 2, 3, 1, 2, 3):
        assert (await proxy.post(f"/rl/promote/{version}"))[0] == 200
        await asyncio.sleep(0.1)
    stop.set()
    assert sum(await asyncio.gather(*clients)) > 50 and wrong == []


async def test_refused_load_changes_nothing(proxy: Proxy, versions: list[Path]) -> None:
    proxy.backend.refuse_load = True
    status, body = await proxy.post("/rl/promote/1")
    assert status == 502 and "rank 64" in body["error"]["message"]
    assert await answered_by(proxy) == "base"
    assert "rank 64" in (await proxy.get("/rl/status"))["problem"]
    proxy.backend.refuse_load = False
    await proxy.post("/rl/promote/1")
    assert (await proxy.get("/rl/status"))["problem"] is None


async def test_corrupt_adapter_does_not_go_live(proxy: Proxy, versions: list[Path]) -> None:
    (versions[0] / "adapter_model.safetensors").write_bytes(b"rot")
    status, body = await proxy.post("/rl/promote/1")
    assert status == 409 and "corrupt" in body["error"]["message"]
    assert await answered_by(proxy) == "base" and proxy.backend.adapters == {}


async def test_no_such_version_and_no_way_back(proxy: Proxy) -> None:
    assert (await proxy.post("/rl/promote/7"))[0] == 404
    assert (await proxy.post("/rl/promote/x"))[0] == 400
    assert (await proxy.post("/rl/promote/base"))[0] == 409
    assert (await proxy.post("/rl/rollback"))[0] == 409


async def test_the_live_version_survives_a_restart(proxy: Proxy, versions: list[Path]) -> None:
    await proxy.post("/rl/promote/1")
    await proxy.post("/rl/promote/2")
    await proxy.stop()
    proxy.backend.adapters.clear()
    await proxy.start()
    assert set(proxy.backend.adapters) == {"fake@v1", "fake@v2"}
    assert await answered_by(proxy) == "v2"
    assert (await proxy.post("/rl/rollback"))[1]["live"] == 1


async def test_a_live_version_that_rotted_is_replaced_and_said(proxy: Proxy, versions: list[Path]) -> None:
    await proxy.post("/rl/promote/1")
    await proxy.post("/rl/promote/2")
    await proxy.stop()
    proxy.backend.adapters.clear()
    (versions[1] / "adapter_model.safetensors").write_bytes(b"rot")
    await proxy.start()
    assert await answered_by(proxy) == "v1"
    assert "v2 is damaged" in (await proxy.get("/rl/status"))["problem"]


async def of_another_base(proxy: Proxy, version: int) -> None:
    """As a retrain leaves one."""
    folder = proxy.home / "adapters_out" / "other" / f"v{version:04d}"
    write_adapter(folder)
    await proxy.chat("q")
    await proxy.rate(completion_id="last", rating="good")
    run, _ = await claim(proxy.store, model="other", version=version)
    await proxy.store.runs.publish(run.id, Adapter(version, 0, run.id, "other", str(folder), 1.0, {}), {}, None)


async def test_the_old_base_is_served_again_and_its_version_answers_again(proxy: Proxy, versions: list[Path]) -> None:
    await of_another_base(proxy, 12)
    await proxy.post("/rl/promote/2")
    assert (await proxy.post("/rl/promote/12"))[0] == 200  # the server has that base by now
    await proxy.stop()
    proxy.backend.adapters.clear()
    await proxy.start()
    assert set(proxy.backend.adapters) == {"fake@v12"} and (await proxy.get("/rl/status"))["problem"] is None
    await proxy.stop()
    proxy.backend.adapters.clear()
    proxy.backend.refuses_loads = {"fake@v12"}  # and now the old one
    await proxy.start()
    assert await answered_by(proxy) == "v2"
    problem = (await proxy.get("/rl/status"))["problem"]
    assert "v12 cannot answer, as it was trained on other and the server has fake, v2 answers instead" in problem
    status, body = await proxy.post("/rl/promote/12")
    assert status >= 400 and "it was trained on other and the server has fake" in body["error"]["message"]


async def test_a_version_of_another_base_is_not_tried_where_the_base_answers(
    proxy: Proxy, versions: list[Path]
) -> None:
    await of_another_base(proxy, 12)
    await proxy.post("/rl/promote/12")
    assert (await proxy.post("/rl/rollback"))[0] == 200
    await proxy.stop()
    proxy.backend.adapters.clear()
    proxy.backend.refuses_loads = {"fake@v12"}  # the server has the base before again
    await proxy.start()
    assert await answered_by(proxy) == "base" and (await proxy.get("/rl/status"))["problem"] is None


async def test_a_withdrawn_version_does_not_replace_one_that_rotted(proxy: Proxy, versions: list[Path]) -> None:
    await proxy.post("/rl/promote/1")
    await proxy.post("/rl/promote/2")
    await proxy.store.versions.withdraw(1, "people liked it less", "rlproxy")
    await proxy.stop()
    proxy.backend.adapters.clear()
    (versions[1] / "adapter_model.safetensors").write_bytes(b"rot")
    await proxy.start()
    assert await answered_by(proxy) == "base"
    assert "v2 is damaged, the base model answers instead" in (await proxy.get("/rl/status"))["problem"]


async def test_a_backend_that_lost_its_adapters_gets_them_back(proxy: Proxy, versions: list[Path]) -> None:
    await proxy.post("/rl/promote/1")
    proxy.backend.adapters.clear()  # as a server that was restarted
    assert await answered_by(proxy) == "v1"
    assert (await proxy.chat("x")).status == 200 and "fake@v1" in proxy.backend.adapters


async def test_backend_down_at_start_is_repaired_later(proxy: Proxy, versions: list[Path]) -> None:
    await proxy.post("/rl/promote/1")
    port = proxy.backend.port
    await proxy.stop()
    await proxy.backend.stop()
    await proxy.start()
    assert (await proxy.chat("x")).status == 503
    proxy.backend.adapters.clear()
    await proxy.backend.start(port)
    assert await answered_by(proxy) == "v1"
