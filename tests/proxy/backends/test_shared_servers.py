"""Two homes at one server: each answers with its own versions, and neither takes out the other's."""

from __future__ import annotations

import json
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from proxy.backends.installed_versions import MARK, InstalledVersions, mark_of
from scripts.fakes.backend import FakeBackend
from scripts.fakes.launcher import FakeLauncher
from scripts.fakes.ollama import FakeOllama
from scripts.harness.in_process import Proxy
from tests.harness.llamacpp import said_by, with_versions
from tests.harness.ollama import make_proxy


@pytest.fixture
async def ollama(tmp_path: Path) -> AsyncIterator[FakeOllama]:
    fake = FakeOllama(tmp_path / "ollama", "0.33.2")
    await fake.start()
    yield fake
    await fake.stop()


async def test_a_second_home_gets_its_versions_live(tmp_path: Path, ollama: FakeOllama) -> None:
    """And a third one, as after a reinstall."""
    homes = [make_proxy(tmp_path / name, ollama.url, **{"backend.model": "fake"}) for name in "abc"]
    for home in homes:
        await home.start()
        await with_versions(home, 1, 2, 3)
        for version in (1, 2, 3):
            status, body = await home.post(f"/rl/promote/{version}")
            assert status == 200, body
    for home in homes:
        assert await said_by(home) == f"fake-rl:v3-{home.mark}"
        assert (await home.post("/rl/rollback"))[0] == 200 and await said_by(home) == f"fake-rl:v2-{home.mark}"
    assert ollama.cut == [] and len({home.mark for home in homes}) == 3
    for home in homes:
        await home.stop()


async def test_versions_of_before_keep_their_tags(tmp_path: Path, ollama: FakeOllama) -> None:
    """An update of rlproxy makes nothing anew: what it called `fake-rl:v1` is still this home's."""
    proxy = make_proxy(tmp_path / "home", ollama.url, **{"backend.model": "fake"})
    await proxy.start()
    await with_versions(proxy, 1, 2, 3, 4)
    await proxy.post("/rl/promote/1")
    await proxy.stop()
    record = proxy.home / "ollama.json"
    about = json.loads(record.read_text())[f"fake-rl:v1-{proxy.mark}"]
    del about["home"]
    record.write_text(json.dumps({"fake-rl:v1": about}))
    ollama.models["fake-rl:v1"] = ollama.models.pop(f"fake-rl:v1-{proxy.mark}")
    (proxy.home / MARK).unlink()
    ollama.loaded.clear()
    await proxy.start()
    assert await said_by(proxy) == "fake-rl:v1" and len(ollama.created) == 1
    assert (await proxy.get("/rl/status"))["backend"]["left"] is None
    for version in (2, 3, 4):
        assert (await proxy.post(f"/rl/promote/{version}"))[0] == 200
    assert ollama.ours == {f"fake-rl:v3-{proxy.mark}", f"fake-rl:v4-{proxy.mark}"} and "fake-rl:v1" in ollama.deleted
    await proxy.stop()


async def test_a_copied_home_leaves_its_originals_versions_alone(tmp_path: Path, ollama: FakeOllama) -> None:
    original = make_proxy(tmp_path / "home", ollama.url, **{"backend.model": "fake"})
    await original.start()
    await with_versions(original, 1, 2, 3, 4)
    for version in (1, 2):
        await original.post(f"/rl/promote/{version}")
    await original.stop()
    shutil.copytree(original.home, tmp_path / "copy")
    copy = make_proxy(tmp_path / "copy", ollama.url, **{"backend.model": "fake"})
    await original.start()
    await copy.start()
    for version in (3, 4, 1):
        assert (await copy.post(f"/rl/promote/{version}"))[0] == 200
        assert await said_by(copy) == f"fake-rl:v{version}-{copy.mark}"
    assert not [name for name in ollama.deleted if name.endswith(original.mark)]
    assert await said_by(original) == f"fake-rl:v2-{original.mark}" and copy.mark != original.mark
    await copy.stop()
    await original.stop()


async def test_what_a_home_that_is_gone_has_left_is_named(tmp_path: Path, ollama: FakeOllama) -> None:
    ollama.add("fake-rl:v9", ollama.keep(b"GGUF of long ago"))
    ollama.add("fake-rl:v1-abcdef", ollama.keep(b"GGUF of a home that is gone"))
    proxy = make_proxy(tmp_path / "home", ollama.url, **{"backend.model": "fake"})
    await proxy.start()
    await with_versions(proxy, 1)
    await proxy.post("/rl/promote/1")
    left = (await proxy.get("/rl/status"))["backend"]["left"]
    assert left["command"] == "ollama rm fake-rl:v1-abcdef fake-rl:v9" and "did not make" in left["line"]
    for name in ("fake-rl:v9", "fake-rl:v1-abcdef"):
        del ollama.models[name]
    await proxy.stop()
    await proxy.start()
    assert (await proxy.get("/rl/status"))["backend"]["left"] is None
    await proxy.stop()


async def test_two_homes_on_one_vllm(tmp_path: Path) -> None:
    server = FakeBackend()
    await server.start()
    homes = [Proxy(tmp_path / name, server, FakeLauncher()) for name in "ab"]
    for home in homes:
        home.kind = None
        await home.start()
        await with_versions(home, 1)
        assert (await home.post("/rl/promote/1"))[0] == 200
    assert set(server.adapters) == {f"fake@v1-{home.mark}" for home in homes}
    for home in homes:
        server.requests.clear()
        assert (await home.chat("x")).headers["x-rl-adapter"] == "v1"
        asked = server.requests[-1]["model"]
        assert asked == f"fake@v1-{home.mark}" and server.adapters[asked].startswith(str(home.home))
        assert [m["id"] for m in (await home.get("/v1/models"))["data"]] == ["fake", "fake@base", "fake@v1"]
        await home.stop()
    await server.stop()


# The mark


def test_a_home_keeps_its_mark_and_a_copy_has_another(tmp_path: Path) -> None:
    home = tmp_path / "home"
    mark = mark_of(home)
    assert mark_of(home) == mark and len(mark) == 6 and int(mark, 16) >= 0
    shutil.copytree(home, tmp_path / "copy")
    assert mark_of(tmp_path / "copy") != mark
    home.rename(tmp_path / "moved")
    assert mark_of(tmp_path / "moved") != mark, "what is elsewhere may be another home's"
    (tmp_path / "moved").rename(home)
    assert mark_of(home) == mark
    (tmp_path / "link").symlink_to(home)
    assert mark_of(tmp_path / "link") == mark
    (home / MARK).write_text("damaged")
    assert len(mark_of(home)) == 6


def test_what_is_not_this_homes_is_neither_spare_nor_known(tmp_path: Path) -> None:
    made = InstalledVersions(tmp_path / "made.json")
    made.record("a", digest="1")
    (tmp_path / "made.json").write_text(
        json.dumps({"old": {"digest": "0"}, "theirs": {"digest": "2", "home": "ffffff"}})
    )
    again = InstalledVersions(tmp_path / "made.json")
    again.adopt()
    assert list(again.names()) == ["old"] and again.entry("theirs") is None
    for name in "bcd":
        again.record(name, digest="3")
    assert again.spare([]) == ["old", "b"]
    assert next(again.candidates("old")) == "old"
    other = again.candidates("x")
    assert [next(other) for _ in range(3)] == [f"x-{made.mark}", f"x-{made.mark}-2", f"x-{made.mark}-3"]
