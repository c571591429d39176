"""No byte of a forgotten picture stays in any file: database, run folders, backups, restored ones, thumbnails."""

from __future__ import annotations

import asyncio
import base64
import hashlib
from pathlib import Path

import pytest

from proxy.images import examiner
from scripts.harness.in_process import Proxy
from scripts.harness.pictures import picture
from store.copies import backup
from store.file import schema
from tests.harness import seeing
from tests.harness.forgetting import forget
from tests.harness.runs import until
from tests.proxy.images.test_run_pictures import rated_about, sees

RED = picture(color=(200, 0, 0))


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return seeing.make("idefics3", tmp_path_factory.mktemp("models") / "seeing")


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(examiner, "LOOK_S", 0.02)


async def rated_run(proxy: Proxy, weights: Path) -> list[str]:
    """Answers about a picture that a run has trained on."""
    await sees(proxy, weights)
    ids = [await rated_about(proxy, RED, text=f"{n}?", rating="bad" if n % 2 else "good") for n in range(4)]
    await until(proxy, live=1)
    return ids


async def parts_of_it(proxy: Proxy) -> list[bytes]:
    """The picture as bytes and as base64 wherever that begins, and its thumbnail."""
    thumbnail = await proxy.store.images.thumbnail(hashlib.sha256(RED).digest())
    assert thumbnail is not None
    coded = [base64.b64encode(RED[start:])[:60] for start in (40, 41, 42)]
    return [RED[40:90], *coded, thumbnail[-90:-40]]


def holders(folder: Path, parts: list[bytes]) -> set[str]:
    """Files below this folder with one of these."""
    files = {file: file.read_bytes() for file in folder.rglob("*") if file.is_file()}
    return {str(file.relative_to(folder)) for file, data in files.items() if any(part in data for part in parts)}


async def test_backups_in_the_home_and_run_folders_keep_none(proxy: Proxy, weights: Path) -> None:
    ids = await rated_run(proxy, weights)
    parts = await parts_of_it(proxy)
    (proxy.home / "mine").mkdir()
    await asyncio.to_thread(backup.backup, proxy.home / schema.NAME, proxy.home / "mine" / "monday")
    run = proxy.launcher.started[0].relative_to(proxy.home)
    assert {"mine/monday", f"{run}/pictures.jsonl"} < holders(proxy.home, parts)
    for id in ids:
        await forget(proxy, completion=id, purge_backups=True)
    await proxy.stop()
    assert holders(proxy.home, parts) == set()


async def test_a_backup_from_before_brings_none_back(proxy: Proxy, weights: Path, tmp_path: Path) -> None:
    ids = await rated_run(proxy, weights)
    parts, outside = await parts_of_it(proxy), tmp_path / "elsewhere" / "monday.db"
    outside.parent.mkdir()
    await asyncio.to_thread(backup.backup, proxy.home / schema.NAME, outside)
    for id in ids:
        await forget(proxy, completion=id)
    await proxy.stop()
    assert holders(outside.parent, parts) == {"monday.db"}
    await asyncio.to_thread(backup.restore, proxy.home, outside)
    assert holders(proxy.home, parts) == set()
    await proxy.start()
    await proxy.stop()
    assert holders(proxy.home, parts) == set()
