"""LM Studio behind a whole proxy, with a fake one."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from config.settings import load
from proxy.backends import gguf_files, lmstudio
from proxy.core.errors import Unsupported
from scripts.fakes.backend import FakeBackend
from scripts.fakes.launcher import FakeLauncher
from scripts.fakes.lmstudio import FakeLMStudio
from scripts.harness.in_process import Proxy
from tests.harness.llamacpp import said_by, with_versions


def make_proxy(home: Path, studio: FakeLMStudio, **flags: Any) -> Proxy:
    proxy = Proxy(home, FakeBackend(), FakeLauncher())
    proxy.kind = None
    proxy.flags |= {"backend.kind": "lmstudio", "backend.url": studio.url, "backend.models_dir": str(studio.folder)}
    proxy.flags |= flags
    return proxy


@pytest.fixture
async def studio(tmp_path: Path) -> AsyncIterator[FakeLMStudio]:
    fake = FakeLMStudio(tmp_path / "models")
    await fake.start()
    yield fake
    await fake.stop()


@pytest.fixture
async def proxy(tmp_path: Path, studio: FakeLMStudio) -> AsyncIterator[Proxy]:
    proxy = make_proxy(tmp_path / "home", studio)
    await proxy.start()
    await with_versions(proxy, 1, 2, 3)
    yield proxy
    await proxy.stop()


def ours(studio: FakeLMStudio) -> set[str]:
    return {file.parent.name for file in (studio.folder / "rlproxy").rglob("*.gguf")}


async def test_swaps_and_rolls_back(proxy: Proxy, studio: FakeLMStudio) -> None:
    before = studio.file.read_bytes()
    assert await said_by(proxy) == "fake"
    for version in (1, 2, 3):
        status, body = await proxy.post(f"/rl/promote/{version}")
        assert status == 200, body
        assert await said_by(proxy) == f"fake-rl-v{version}-{proxy.mark}"
    assert set(studio.instances) == {
        "fake",
        f"fake-rl-v2-{proxy.mark}",
        f"fake-rl-v3-{proxy.mark}",
    }  # two versions stay warm
    whole = (studio.folder / "rlproxy" / f"fake-rl-v3-{proxy.mark}" / f"fake-rl-v3-{proxy.mark}.gguf").read_bytes()
    assert whole.startswith(before) and whole.endswith(b"v0003")
    assert studio.loads[-1] == {"model": f"fake-rl-v3-{proxy.mark}", "context_length": 8192}  # as the model itself
    await proxy.post("/rl/rollback")
    assert await said_by(proxy) == f"fake-rl-v2-{proxy.mark}" and await said_by(proxy, "fake@base") == "fake"
    names = [m["id"] for m in (await proxy.get("/v1/models"))["data"]]
    assert [n for n in names if "@" not in n] == ["fake"]
    assert studio.file.read_bytes() == before


async def test_ten_swaps_leave_two_of_ours_and_nobody_elses_is_touched(tmp_path: Path, studio: FakeLMStudio) -> None:
    theirs = studio.folder / "rlproxy" / "fake-rl-v77" / "fake-rl-v77.gguf"
    theirs.parent.mkdir(parents=True)
    theirs.write_bytes(b"GGUF of another rlproxy")
    proxy = make_proxy(tmp_path / "home", studio)
    await proxy.start()
    await with_versions(proxy, *range(1, 11))
    for version in range(1, 11):
        assert (await proxy.post(f"/rl/promote/{version}"))[0] == 200
    assert ours(studio) == {f"fake-rl-v9-{proxy.mark}", f"fake-rl-v10-{proxy.mark}", "fake-rl-v77"}
    assert set(json.loads((proxy.home / "lmstudio.json").read_text())) == {
        f"fake-rl-v9-{proxy.mark}",
        f"fake-rl-v10-{proxy.mark}",
    }
    assert [p.name for p in (studio.folder / "rlproxy").iterdir() if not any(p.iterdir())] == []
    await proxy.stop()


async def test_a_folder_of_somebody_else_is_neither_used_nor_removed(proxy: Proxy, studio: FakeLMStudio) -> None:
    theirs = studio.folder / "rlproxy" / f"fake-rl-v1-{proxy.mark}" / "mine.gguf"
    theirs.parent.mkdir(parents=True)
    theirs.write_bytes(b"GGUF")
    status, body = await proxy.post("/rl/promote/1")
    assert status == 200, body
    assert await said_by(proxy) == f"fake-rl-v1-{proxy.mark}-2" and theirs.read_bytes() == b"GGUF"


async def test_an_instance_that_was_dropped_is_loaded_before_it_is_asked(proxy: Proxy, studio: FakeLMStudio) -> None:
    """It answers for a name that it does not know with another model: a wrong version, and nobody would see it."""
    await proxy.post("/rl/promote/1")
    del studio.instances[f"fake-rl-v1-{proxy.mark}"]
    assert await said_by(proxy) == f"fake-rl-v1-{proxy.mark}"
    port = int(studio.url.rpartition(":")[2])
    await studio.stop()
    assert (await proxy.chat("x")).status == 503
    await studio.start(port)
    assert await said_by(proxy) == f"fake-rl-v1-{proxy.mark}" and studio.asked[-1]["model"] in studio.instances
    assert len(proxy.launcher.fused) == 1
    await proxy.stop()
    await proxy.start()
    assert await said_by(proxy) == f"fake-rl-v1-{proxy.mark}" and len(proxy.launcher.fused) == 1


async def test_an_instance_of_its_own_beside_one_of_the_persons(proxy: Proxy, studio: FakeLMStudio) -> None:
    await proxy.post("/rl/promote/1")
    await proxy.post("/rl/promote/2")
    studio.instances[f"fake-rl-v3-{proxy.mark}"], studio.contexts[f"fake-rl-v3-{proxy.mark}"] = (
        f"fake-rl-v3-{proxy.mark}",
        4096,
    )  # the person tried it out
    await proxy.post("/rl/promote/3")
    assert await said_by(proxy) == f"fake-rl-v3-{proxy.mark}:2".removesuffix(" ")
    await proxy.post("/rl/rollback?base")
    await with_versions(proxy, 4)
    await proxy.post("/rl/promote/4")
    assert f"fake-rl-v3-{proxy.mark}" in studio.instances and f"fake-rl-v3-{proxy.mark}:2" not in studio.instances


async def test_a_refused_load_changes_nothing(proxy: Proxy, studio: FakeLMStudio) -> None:
    await proxy.post("/rl/promote/1")
    studio.refuse = "v2"
    status, body = await proxy.post("/rl/promote/2")
    assert status == 502 and "Not enough memory" in body["error"]["message"]
    assert (
        await said_by(proxy) == f"fake-rl-v1-{proxy.mark}"
        and "v1 still answers" in (await proxy.get("/rl/status"))["problem"]
    )
    studio.refuse = ""
    assert (await proxy.post("/rl/promote/2"))[0] == 200 and len(proxy.launcher.fused) == 2


async def test_a_conversion_that_fails_leaves_nothing(proxy: Proxy, studio: FakeLMStudio) -> None:
    proxy.launcher.lacks = "fake.gguf could not be written: No space left on device; nothing is left of it."
    status, body = await proxy.post("/rl/promote/1")
    assert status == 502 and "No space left" in body["error"]["message"] and await said_by(proxy) == "fake"
    assert ours(studio) == set() and json.loads((proxy.home / "lmstudio.json").read_text()) == {}


async def test_a_folder_that_it_does_not_look_into_is_said(
    proxy: Proxy, studio: FakeLMStudio, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lmstudio, "FOUND_S", 0.05)
    monkeypatch.setattr(lmstudio, "POLL_S", 0.01)
    studio.blind = True
    status, body = await proxy.post("/rl/promote/1")
    assert status == 502 and "backend.models_dir" in body["error"]["message"] and await said_by(proxy) == "fake"


async def test_its_key_goes_with_every_request(tmp_path: Path, studio: FakeLMStudio) -> None:
    proxy = make_proxy(tmp_path / "home", studio, **{"backend.api_key": "lm-token"})
    await proxy.start()
    assert await said_by(proxy) == "fake"
    assert studio.headers[-1]["authorization"] == "Bearer lm-token"
    await proxy.stop()


# What keeps a version from being made is said before anything is trained


async def waits_for(tmp_path: Path, studio: FakeLMStudio, **flags: Any) -> str:
    proxy = make_proxy(tmp_path / "home", studio, **flags)
    await proxy.start()
    try:
        assert await said_by(proxy) == "fake"
        status = await proxy.get("/rl/status")
        assert status["backend"]["obstacle"] == status["training"]["waits_for"]
        return str(status["training"]["waits_for"])
    finally:
        await proxy.stop()


async def test_what_is_missing_is_said_before_training(tmp_path: Path, studio: FakeLMStudio) -> None:
    said = await waits_for(tmp_path, studio, **{"backend.models_dir": str(tmp_path / "nowhere")})
    assert "nowhere is not there" in said
    own = studio.file.read_bytes()
    (studio.folder / "someone" / "Other-GGUF").mkdir()
    (studio.folder / "someone" / "Other-GGUF" / "fake-too.gguf").write_bytes(own)
    assert "2 files" in await waits_for(tmp_path, studio)
    said = await waits_for(tmp_path, studio, **{"backend.gguf": str(tmp_path / "none.gguf")})
    assert "none.gguf cannot be read" in said


async def test_what_was_missing_and_is_there_now_needs_no_restart(
    proxy: Proxy, studio: FakeLMStudio, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lmstudio, "AGAIN_S", 0)
    away = studio.file.rename(studio.folder.parent / "away.gguf")
    assert "cannot be read any more" in (await proxy.get("/rl/status"))["backend"]["obstacle"]
    assert (await proxy.post("/rl/promote/1"))[0] in (501, 503)
    away.rename(studio.file)
    assert await said_by(proxy) == "fake" and (await proxy.get("/rl/status"))["backend"]["obstacle"] is None
    assert (await proxy.post("/rl/promote/1"))[0] == 200


async def test_no_room_is_said_before_training(
    tmp_path: Path, studio: FakeLMStudio, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gguf_files, "GROWTH", 2**60)
    assert "GB are free" in await waits_for(tmp_path, studio)


async def test_an_older_one_is_told_apart(tmp_path: Path, studio: FakeLMStudio) -> None:
    """It says 200 of every route."""
    studio.api = 0
    backend = lmstudio.LMStudio(load(make_proxy(tmp_path, studio).flags, environ={}).settings, FakeLauncher())
    async with aiohttp.ClientSession() as http:
        with pytest.raises(Unsupported, match="Update LM Studio"):
            await backend.start(http, nothing)
        studio.api = 1
        await backend.start(http, nothing)
        assert backend.served.model == "fake" and backend.obstacle is None


async def nothing() -> None: ...


async def test_several_models_and_none_named(tmp_path: Path, studio: FakeLMStudio) -> None:
    other = studio.folder / "someone" / "Other-GGUF" / "other.gguf"
    other.parent.mkdir()
    other.write_bytes(b"GGUF of another size")
    proxy = make_proxy(tmp_path / "home", studio)
    await proxy.start()
    assert await said_by(proxy) == "fake"  # the one that is loaded
    await proxy.stop()
    studio.instances.clear()
    await proxy.start()
    response = await proxy.chat("x")
    assert response.status == 503 and "fake, other; say which" in (await response.json())["error"]["message"]
    await proxy.stop()
