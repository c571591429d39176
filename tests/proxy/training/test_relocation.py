"""A home that was moved, as `rsync` and a new machine move it."""

from __future__ import annotations

from pathlib import Path

from scripts.fakes.backend import FakeBackend
from scripts.harness.in_process import Proxy
from tests.harness.runs import rated, until


async def test_a_moved_home_has_its_versions(proxy: Proxy, backend: FakeBackend, tmp_path: Path) -> None:
    await rated(proxy, 4)
    await until(proxy, live=1)
    await proxy.stop()
    backend.adapters.clear()  # another machine has another server
    proxy.home = proxy.home.rename(tmp_path / "elsewhere")
    proxy.flags["home"] = proxy.home
    await proxy.start()
    (version,) = (await proxy.get("/rl/adapters"))["data"]
    assert Path(version["path"]).is_relative_to(proxy.home) and version["live"], version
    answer = await proxy.chat("hello")
    assert answer.headers["x-rl-adapter"] == "v1"
    (folder,) = (await proxy.store.runs.folders()).values()
    assert Path(folder).is_relative_to(proxy.home) and (Path(folder) / "result.json").exists()


async def test_what_is_nowhere_stays_as_it_was(proxy: Proxy, tmp_path: Path) -> None:
    await rated(proxy, 4)
    await until(proxy, live=1)
    (before,) = await proxy.store.versions.all()
    await proxy.stop()
    Path(before.path).rename(tmp_path / "taken-away")
    await proxy.start()
    assert await proxy.store.versions.all() == [before]
    assert (await proxy.chat("hello")).headers["x-rl-adapter"] == "base"
    (tmp_path / "taken-away").rename(before.path)
    assert (await proxy.post("/rl/promote/1"))[0] == 200
    assert (await proxy.chat("hello")).headers["x-rl-adapter"] == "v1"
