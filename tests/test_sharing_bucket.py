"""Several relays on one database that share no disk: versions come out of a bucket, a local folder or S3."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from proxy.versions import version_copies
from scripts.fakes.backend import FakeBackend
from scripts.fakes.launcher import FakeLauncher
from scripts.harness.in_process import Proxy
from scripts.harness.versions import publish
from tests.harness import s3_server
from tests.test_sharing import ask, leads, until
from trainer.launch import BucketError, BucketVersions

pytestmark = pytest.mark.postgres
COPY = "the bucket's copy was not taken"
in_s3 = [pytest.mark.scale, pytest.mark.skipif(s3_server.lacks() is not None, reason=str(s3_server.lacks()))]


class FolderBucket:
    def __init__(self, folder: Path) -> None:
        self.url, self._folder = f"file://{folder}", folder

    def fail(self) -> None:
        self._folder.rename(self._folder.with_name("away"))
        self._folder.write_text("in the way")

    def recover(self) -> None:
        self._folder.unlink()
        self._folder.with_name("away").rename(self._folder)


class ServerBucket:
    def __init__(self, server: s3_server.S3Server) -> None:
        self.url, self._server = f"s3://{s3_server.BUCKET}/home", server

    def fail(self) -> None:
        self._server.faults.append(s3_server.Fault("*", "", 503, "SlowDown"))

    def recover(self) -> None:
        self._server.faults.clear()


@pytest.fixture(params=["file", pytest.param("s3", marks=in_s3)])
def bucket(request: pytest.FixtureRequest, tmp_path: Path) -> FolderBucket | ServerBucket:
    return (
        FolderBucket(tmp_path / "objects") if request.param == "file" else ServerBucket(request.getfixturevalue("s3"))
    )


@pytest.fixture
async def pair(
    tmp_path: Path,
    backend: FakeBackend,
    database: str,
    bucket: FolderBucket | ServerBucket,
    monkeypatch: pytest.MonkeyPatch,
) -> AsyncIterator[tuple[Proxy, Proxy]]:
    monkeypatch.setattr(version_copies, "LOOK_S", 0.2)
    relays = []
    for name in ("1", "2"):
        relay = Proxy(tmp_path / name, backend, FakeLauncher())
        relay.flags |= {"store.url": database, "train.bucket": bucket.url}
        relays.append(relay)
    first, second = relays
    await first.start()
    await until(lambda: leads(first))
    await second.start()
    yield first, second
    await second.stop()
    await first.stop()


async def version(proxy: Proxy) -> str:
    answer = await proxy.chat("which?")
    await answer.read()
    assert answer.status == 200, await answer.text()
    return answer.headers["x-rl-adapter"]


async def are(relays: tuple[Proxy, ...], name: str) -> None:
    async def answer_so() -> bool:
        return [await version(relay) for relay in relays] == [name] * len(relays)

    await until(answer_so, seconds=30.0)


async def with_version(relay: Proxy, url: str) -> Path:
    """A version on one relay's disk, and its copy in the bucket."""
    await relay.post("/rl/pause")
    await relay.rate(completion_id=await ask(relay), rating="good")
    folder = await publish(relay, 1)
    adapter = await relay.store.versions.get(1)
    assert adapter is not None
    copies, elsewhere = BucketVersions(url), folder.with_name("copied")

    def is_copied() -> bool:
        try:
            copies.fetch(adapter.manifest, elsewhere)
        except BucketError:
            return False
        return True

    async with asyncio.timeout(30):
        while not await asyncio.to_thread(is_copied):
            await asyncio.sleep(0.05)
    shutil.rmtree(elsewhere)
    return folder


async def test_a_swap_at_one_relay_is_a_swap_at_the_other(
    pair: tuple[Proxy, Proxy], backend: FakeBackend, bucket: FolderBucket | ServerBucket
) -> None:
    """Each fetches the version: the folder that was trained is on a machine that neither of them sees."""
    first, second = pair
    folder = await with_version(first, bucket.url)
    trained = {path.name: path.read_bytes() for path in folder.iterdir()}
    shutil.rmtree(folder)
    assert (await second.post("/rl/promote/1"))[0] == 200
    await are(pair, "v1")
    for relay in pair:
        fetched = relay.home / "adapters_out" / "fake" / "v0001"
        assert {path.name: path.read_bytes() for path in fetched.iterdir()} == trained
    assert (await second.post("/rl/rollback"))[0] == 200
    await are(pair, "base")
    assert backend.unknown == 0


async def test_a_relay_that_cannot_fetch_keeps_what_it_has_and_follows_later(
    pair: tuple[Proxy, Proxy], bucket: FolderBucket | ServerBucket
) -> None:
    first, second = pair
    shutil.rmtree(await with_version(first, bucket.url))
    bucket.fail()
    await first.store.versions.point(1, "as a third relay does, which has it", "test")

    async def is_told() -> bool:
        return all([COPY in str((await relay.get("/rl/status"))["problem"]) for relay in pair])

    await until(is_told)
    assert [await version(first), await version(second)] == ["base", "base"]
    bucket.recover()
    await are(pair, "v1")
    assert [(await relay.get("/rl/status"))["problem"] for relay in pair] == [None, None]


async def test_a_relay_that_begins_to_learn_has_the_versions(
    pair: tuple[Proxy, Proxy], bucket: FolderBucket | ServerBucket
) -> None:
    first, second = pair
    folder = await with_version(first, bucket.url)
    await first.stop()
    shutil.rmtree(folder)  # as a machine is that does not come back
    await until(lambda: leads(second))
    fetched = second.home / "adapters_out" / "fake" / "v0001"

    async def is_its_own() -> bool:
        adapter = await second.store.versions.get(1)
        return adapter is not None and adapter.path == str(fetched)

    await until(is_its_own)
    assert (fetched / "adapter_model.safetensors").is_file()
    await first.start()
