"""mlx_lm.server behind a whole proxy, with a fake of it. With the real one: tests/backends/test_mlx.py."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from config.settings import load
from proxy.backends import make_backend
from proxy.cli.doctor.checks import examine, gather
from proxy.core.address_file import ADDRESS_FILE
from proxy.core.errors import BadRequest
from scripts.fakes.launcher import FakeLauncher
from scripts.fakes.mlx import FakeMlx
from scripts.harness.in_process import Proxy
from tests.harness.llamacpp import make_proxy, said_by, with_versions


@pytest.fixture
async def server() -> AsyncIterator[FakeMlx]:
    fake = FakeMlx()
    await fake.start()
    yield fake
    await fake.stop()


@pytest.fixture
async def served(tmp_path: Path, server: FakeMlx) -> AsyncIterator[Proxy]:
    proxy = make_proxy(tmp_path / "home", kind="mlx", url=server.url)
    await proxy.start()
    await with_versions(proxy, 1, 2)
    yield proxy
    await proxy.stop()


async def test_each_request_names_its_adapter(served: Proxy, server: FakeMlx) -> None:
    assert await said_by(served) == "fake"
    for version in (1, 2):
        assert (await served.post(f"/rl/promote/{version}"))[0] == 200
        assert await said_by(served) == f"v000{version}"
    assert await said_by(served, "fake@v1") == "v0001" and await said_by(served, "fake@base") == "fake"
    assert (await served.post("/rl/rollback"))[1]["live"] == 1
    assert await said_by(served) == "v0001"
    (folder,) = {r["adapters"] for r in server.requests if "v0001" in (r["adapters"] or "")}
    assert Path(folder).parent == served.home / "mlx" and {r["model"] for r in server.requests} == {"fake"}


async def test_streams_end_on_the_version_they_began_with(served: Proxy, server: FakeMlx) -> None:
    server.pause_s = 0.02
    stop, replies = asyncio.Event(), 0

    async def client() -> None:
        nonlocal replies
        while not stop.is_set():
            response = await served.chat("who?", stream=True)
            raw = (await response.read()).decode()
            assert response.status == 200 and raw.endswith("data: [DONE]\n\n")
            events = [json.loads(line[6:]) for line in raw.splitlines() if line.startswith("data: {")]
            words = {event["choices"][0]["delta"].get("content") for event in events} - {None}
            label = response.headers["x-rl-adapter"]
            assert words == {"fake " if label == "base" else f"v000{label[1:]} "}
            replies += 1

    clients = [asyncio.create_task(client()) for _ in range(4)]
    for act in ("promote/1", "promote/2", "rollback", "promote/base", "rollback"):
        await asyncio.sleep(0.2)
        assert (await served.post(f"/rl/{act}"))[0] == 200
    stop.set()
    await asyncio.gather(*clients)
    assert replies > 8
    # Nobody who came during a change had the old one put on again.
    assert [Path(folder).name[:5] if folder else None for folder in server.reloads] == [
        "v0001", "v0002", "v0001", None, "v0001",
    ]  # fmt: skip


async def test_a_version_that_cannot_be_put_on_lets_those_who_waited_in(served: Proxy, server: FakeMlx) -> None:
    """They were told nothing while they waited, as they might have got the new one."""
    server.pause_s = 0.1
    running = await served.chat("who?", stream=True)
    publishing = asyncio.create_task(served.post("/rl/promote/1"))
    while not server.requests[-1]["adapters"]:
        await asyncio.sleep(0.01)
    folder = Path(server.requests[-1]["adapters"])
    (folder / "adapter_config.json").write_text("rot")  # read when its turn comes
    waiting = asyncio.create_task(served.chat("who?", stream=True))
    assert (await running.read()).endswith(b"data: [DONE]\n\n")
    status, answer = await publishing
    assert status == 502 and "answered with 404" in answer["error"]["message"], answer
    assert "v1 did not go live" in (await served.get("/rl/status"))["problem"]
    response = await waiting
    assert b"fake " in await response.read() and response.headers["x-rl-adapter"] == "base"


async def test_no_client_chooses_a_folder_of_its_own(served: Proxy, server: FakeMlx) -> None:
    await served.say("who?", adapters="/etc")
    assert server.requests[-1]["adapters"] is None


async def test_a_server_that_was_restarted_needs_no_repair(served: Proxy, server: FakeMlx) -> None:
    await served.post("/rl/promote/1")
    port = int(server.url.rpartition(":")[2])
    await server.stop()
    await server.start(port)
    assert await said_by(served) == "v0001"


async def test_a_folder_that_went_is_made_again(served: Proxy, server: FakeMlx) -> None:
    await served.post("/rl/promote/1")
    await said_by(served, "fake@base")  # so that the server has to read it again
    shutil.rmtree(served.home / "mlx")
    server.read.clear()
    assert await said_by(served) == "v0001"


async def test_a_proxy_that_was_restarted_serves_the_live_version(served: Proxy, server: FakeMlx) -> None:
    await served.post("/rl/promote/2")
    await served.stop()
    await served.start()
    assert await said_by(served) == "v0002"


async def test_an_adapter_that_is_not_converted_does_not_go_live(served: Proxy) -> None:
    served.launcher.lacks = "The adapter was not converted for mlx-lm: it is none."
    status, body = await served.post("/rl/promote/1")
    assert status == 502 and "it is none" in body["error"]["message"]
    assert await said_by(served) == "fake"


async def test_captures_are_inexact(served: Proxy) -> None:
    response = await served.chat("who?", logprobs=True)
    body = await response.json()
    assert body["choices"][0]["logprobs"]["content"][0] == {"id": 0, "logprob": -0.5}  # as the client asked
    row = await served.store.completions.get(response.headers["x-rl-completion-id"])
    assert row is not None and row.end is not None
    assert not row.end.exact and row.end.inexact_reason == "the backend sent no prompt token ids"
    assert row.end.logprobs_of == "model" and row.end.token_ids == [0, 1, 2, 3, 4, 5] and row.end.pieces is None


async def test_what_only_we_asked_for_is_hidden(served: Proxy, server: FakeMlx) -> None:
    response = await served.chat("who?")
    assert "logprobs" not in (await response.json())["choices"][0]
    row = await served.store.completions.get(response.headers["x-rl-completion-id"])
    assert row is not None and row.end is not None and row.end.token_ids == [0, 1, 2, 3, 4, 5]


async def test_a_machine_that_never_used_the_hub(tmp_path: Path, server: FakeMlx) -> None:
    server.listed = None
    proxy = make_proxy(tmp_path / "home", kind="mlx", url=server.url)
    await proxy.start()
    response = await proxy.chat("who?")
    assert response.status == 503 and "set backend.model" in (await response.json())["error"]["message"]
    await proxy.stop()
    await proxy.start(backend__model="fake")
    assert await said_by(proxy) == "fake"
    assert {m["id"] for m in (await proxy.get("/v1/models"))["data"]} == {"fake", "fake@base"}
    assert (await proxy.http.get("/readyz")).status == 200
    await proxy.stop()


async def test_one_of_many_models_has_to_be_named(tmp_path: Path, server: FakeMlx) -> None:
    server.listed = ["another", "fake"]
    proxy = make_proxy(tmp_path / "home", kind="mlx", url=server.url)
    await proxy.start()
    assert (await proxy.chat("who?")).status == 503
    await proxy.stop()
    server.listed = ["another"]  # what it runs is not always on it
    await proxy.start(backend__model="fake")
    assert {m["id"] for m in (await proxy.get("/v1/models"))["data"]} == {"another", "fake", "fake@base"}
    await proxy.stop()


async def test_the_doctor_says_what_it_lacks(served: Proxy) -> None:
    (served.home / ADDRESS_FILE).write_text(json.dumps({"url": served.url, "pid": os.getpid()}))
    settings = load({"home": served.home}, environ={}).settings
    checks = {check.name: check for check in examine(await asyncio.to_thread(gather, settings))}
    assert checks["adapters"].state == "ok" and checks["exactness"].state == "note"
    assert "neither in streams" in checks["exactness"].line


def test_the_default_model_is_refused() -> None:
    """With that name the server answers with the base whatever adapter is asked for."""
    flags = {"backend.kind": "mlx", "backend.url": "http://127.0.0.1:1", "backend.model": "default_model"}
    with pytest.raises(BadRequest, match="ignores adapters"):
        make_backend(load(flags, environ={}).settings, FakeLauncher())
