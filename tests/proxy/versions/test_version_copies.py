"""Versions on this machine and in a bucket: copied, fetched, verified, removed."""

from __future__ import annotations

import asyncio
import hashlib
import json
import shutil
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from proxy.cli.doctor.checks import DoctorCheck, place
from proxy.cli.doctor.facts import DoctorFacts
from proxy.versions import version_copies
from scripts.fakes.backend import FakeBackend
from scripts.fakes.launcher import FakeLauncher
from scripts.harness.in_process import Proxy
from scripts.harness.versions import publish
from tests.harness.forgetting import forget


@pytest.fixture
def objects(tmp_path: Path) -> Path:
    return tmp_path / "bucket"


@pytest.fixture
async def proxy(
    tmp_path: Path, backend: FakeBackend, objects: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Proxy]:
    monkeypatch.setattr(version_copies, "LOOK_S", 0.1)
    running = Proxy(tmp_path / "home", backend, FakeLauncher())
    running.flags |= {"train.bucket": f"file://{objects}"}
    await running.start()
    await running.post("/rl/pause")
    yield running
    await running.stop()


async def live(proxy: Proxy) -> int:
    return (await proxy.store.versions.pointer()).live


async def with_version(proxy: Proxy, objects: Path) -> tuple[Path, Path]:
    """Version 1 on this machine, and its copy in the bucket."""
    await proxy.say("hello")
    await proxy.rate(completion_id="last", rating="good")
    folder = await publish(proxy, 1)
    async with asyncio.timeout(20):
        while not (copies := list(objects.glob("adapters/*/manifest.json"))):
            await asyncio.sleep(0.02)
    return folder, copies[0].parent


async def test_a_version_that_is_not_here_comes_out_of_the_bucket(proxy: Proxy, objects: Path) -> None:
    folder, copy = await with_version(proxy, objects)
    names = sorted(path.name for path in folder.iterdir())
    assert sorted(path.name for path in copy.iterdir()) == names and len(copy.name) == 64
    shutil.rmtree(folder)
    assert (await proxy.post("/rl/promote/1"))[0] == 200
    assert sorted(path.name for path in folder.iterdir()) == names and await live(proxy) == 1
    assert [path.name for path in folder.parent.iterdir()] == ["v0001"], "parts are left"


@pytest.mark.parametrize(
    "breaks",
    [
        lambda path: path.write_bytes(path.read_bytes()[:-1]),
        lambda path: path.write_bytes(b"\0" + path.read_bytes()[1:]),
        lambda path: path.write_bytes(b""),
        lambda path: path.unlink(),
    ],
    ids=["shorter", "changed", "empty", "gone"],
)
@pytest.mark.parametrize("name", ["adapter_model.safetensors", "manifest.json"])
async def test_a_copy_that_is_not_the_version_never_goes_live(
    proxy: Proxy, objects: Path, breaks: Callable[[Path], Any], name: str
) -> None:
    folder, copy = await with_version(proxy, objects)
    shutil.rmtree(folder)
    breaks(copy / name)
    status, body = await proxy.post("/rl/promote/1")
    assert status == 503 and "the bucket's copy was not taken" in body["error"]["message"], body
    assert not folder.exists() and await live(proxy) == 0


async def test_another_version_under_its_name_is_not_taken(proxy: Proxy, objects: Path) -> None:
    """Whole by its own manifest, and not what the database says."""
    folder, copy = await with_version(proxy, objects)
    shutil.rmtree(folder)
    manifest = json.loads((copy / "manifest.json").read_text())
    (copy / "adapter_config.json").write_bytes(b"{ }")
    manifest["files"]["adapter_config.json"] = hashlib.sha256(b"{ }").hexdigest()
    (copy / "manifest.json").write_text(json.dumps(manifest))
    status, body = await proxy.post("/rl/promote/1")
    assert status == 503 and "is another version" in body["error"]["message"] and await live(proxy) == 0


async def test_a_bucket_that_is_away_takes_no_live_version_back(
    proxy: Proxy, objects: Path, backend: FakeBackend
) -> None:
    folder, copy = await with_version(proxy, objects)
    assert (await proxy.post("/rl/promote/1"))[0] == 200
    await proxy.stop()
    shutil.rmtree(folder)
    copy.rename(copy.with_name("away"))
    await proxy.start()
    assert await live(proxy) == 1, "one relay's bucket changed what all relays serve"
    answer = await proxy.chat("hello")
    assert answer.status == 503 and "retry-after" in answer.headers
    copy.with_name("away").rename(copy)
    answer = await proxy.chat("hello")
    assert answer.status == 200 and answer.headers["x-rl-adapter"] == "v1"


async def test_copies_go_with_what_was_forgotten(proxy: Proxy, objects: Path) -> None:
    folder, copy = await with_version(proxy, objects)
    (completion,) = [row["id"] async for row in proxy.store.transfer.export()]
    await proxy.post("/rl/resume")
    await forget(proxy, completion=completion, retrain=True)
    async with asyncio.timeout(20):
        while copy.exists() or folder.exists():
            await asyncio.sleep(0.02)
    assert [path for path in objects.rglob("*") if path.is_file()] == []


async def test_a_bucket_that_keeps_nothing_is_told_in_status_and_by_doctor(proxy: Proxy, objects: Path) -> None:
    await with_version(proxy, objects)

    async def until_bucket(holds: Callable[[dict[str, Any]], bool]) -> DoctorCheck:
        async with asyncio.timeout(20):
            while not holds((status := await proxy.get("/rl/status"))["training"]["bucket"]):
                await asyncio.sleep(0.02)
        return place(cast(DoctorFacts, SimpleNamespace(status=status)))

    check = await until_bucket(lambda body: body["problem"] is None)
    assert check.state == "ok" and f"file://{objects} keeps what is written" in check.line
    shutil.rmtree(objects)
    objects.write_text("in the way")
    check = await until_bucket(lambda body: body["problem"] is not None)
    assert check.state == "problem" and check.line.startswith(f"file://{objects}: ")
    objects.unlink()
    assert (await until_bucket(lambda body: body["problem"] is None)).state == "ok"
