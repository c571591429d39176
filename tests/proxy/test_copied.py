"""A home that was copied or restored beside its original: it works on its own files, and on no others."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from scripts.harness.in_process import Proxy
from store.copies import backup
from store.file import schema
from tests.harness.forgetting import forget
from tests.harness.runs import rated, until
from tests.proxy.training.test_unlearning import folder_of, lineage, over, run_of


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("proxy.training.run_supervisor.RECHECK_S", 0.02)


def whole(home: Path, to: Path) -> None:
    shutil.copytree(home, to)


def database_only(home: Path, to: Path) -> None:
    backup.backup(home / schema.NAME, to.with_suffix(".db"))
    backup.restore(to, to.with_suffix(".db"))


def tree(*folders: Path) -> dict[Path, bytes]:
    return {file: file.read_bytes() for folder in folders for file in folder.rglob("*") if file.is_file()}


async def go_on_in(proxy: Proxy, how: Callable[[Path, Path], None], **flags: Any) -> tuple[Path, dict[Path, bytes]]:
    """The original, stopped, with what it has; the proxy goes on in a copy."""
    await proxy.stop()
    original = proxy.home
    proxy.home = original.with_name("copy")
    how(original, proxy.home)
    proxy.flags["home"] = proxy.home
    proxy.backend.adapters.clear()
    await proxy.start(**flags)
    return original, tree(original / "runs", original / "adapters_out")


@pytest.mark.parametrize("how", [whole, database_only])
async def test_what_is_forgotten_in_a_copy_leaves_the_original_as_it_was(proxy: Proxy, how: Any) -> None:
    await lineage(proxy)
    original, before = await go_on_in(proxy, how)
    await forget(proxy, session="s", retrain=True)
    status = await over(proxy)
    assert tree(original / "runs", original / "adapters_out") == before
    assert not folder_of(proxy, 2).exists() and not run_of(proxy, 2).exists() and folder_of(proxy, 4).exists()
    left = f"{original / 'adapters_out' / 'fake' / 'v0002'}"
    assert (left in status["rebuild"]["line"]) == (how is database_only)


@pytest.mark.parametrize("how", [whole, database_only])
async def test_samples_are_taken_out_of_the_copy_only(proxy: Proxy, how: Any) -> None:
    await lineage(proxy)
    original, before = await go_on_in(proxy, how)
    await forget(proxy, session="s")
    assert tree(original / "runs", original / "adapters_out") == before
    assert all(b"zanzibar" not in content for content in tree(proxy.home / "runs").values())


@pytest.mark.parametrize("how", [whole, database_only])
async def test_an_open_run_is_carried_out_in_the_copy(proxy: Proxy, how: Any) -> None:
    proxy.launcher.hold = True
    await rated(proxy, 4)
    while not proxy.launcher.started:
        await asyncio.sleep(0.02)
    proxy.launcher.hold = False
    original, before = await go_on_in(proxy, how)
    await until(proxy, live=1)
    assert tree(original / "runs", original / "adapters_out") == before
    assert proxy.launcher.started[-1] == run_of(proxy, 1) and folder_of(proxy, 1).exists()


async def test_a_rebuild_under_way_deletes_nothing_of_the_original(proxy: Proxy) -> None:
    await lineage(proxy)
    await proxy.post("/rl/pause")
    await forget(proxy, session="s", retrain=True)
    original, before = await go_on_in(proxy, whole)
    await proxy.post("/rl/resume")
    await over(proxy)
    assert tree(original / "runs", original / "adapters_out") == before and not folder_of(proxy, 2).exists()


async def test_versions_outside_are_read_and_never_deleted(proxy: Proxy, tmp_path: Path) -> None:
    await proxy.stop()
    await proxy.start(train__adapters_dir=str(tmp_path / "first"))
    await lineage(proxy)
    await proxy.stop()
    before = tree(tmp_path / "first")
    proxy.backend.adapters.clear()
    await proxy.start(train__adapters_dir=str(tmp_path / "second"))
    assert (await proxy.chat("hello")).headers["x-rl-adapter"] == "v3"
    await forget(proxy, session="s", retrain=True)
    status = await over(proxy)
    assert status["live"] == 4 and (tmp_path / "second" / "fake" / "v0004").exists()
    assert (
        tree(tmp_path / "first") == before and str(tmp_path / "first" / "fake" / "v0002") in status["rebuild"]["line"]
    )


async def test_a_folder_of_the_same_number_is_not_taken_for_another_version(proxy: Proxy, tmp_path: Path) -> None:
    await proxy.stop()
    await proxy.start(train__adapters_dir=str(tmp_path / "first"))
    await rated(proxy, 4)
    await until(proxy, live=1)
    (before,) = await proxy.store.versions.all()
    await proxy.stop()
    other = tmp_path / "second" / "fake" / "v0001"
    shutil.copytree(before.path, other)
    (other / "manifest.json").write_text('{"format": 1, "files": {}}')
    await proxy.start(train__adapters_dir=str(tmp_path / "second"))
    assert await proxy.store.versions.all() == [before]
