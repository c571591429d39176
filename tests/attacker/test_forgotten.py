"""A person has something forgotten, and it must not be found anywhere in the home afterwards.

At the worst moment each: while a run folder is written, after a kill in the middle of one, through the other route,
from a backup.
"""

from __future__ import annotations

import asyncio
import io
import json
from pathlib import Path
from typing import Any

import pytest

from scripts.harness.in_process import Proxy
from store.copies import backup
from store.file import schema
from tests.harness.forgetting import forget
from tests.harness.runs import rated, until

SECRET = "zanzibar"
LARGE = "x" * 4_000_000  # so that the samples, which are written first, take a while


def places(home: Path) -> set[str]:
    """Files of the home that still have it; the search's index has no file of its own."""
    found = (file for file in home.rglob("*") if file.is_file())
    return {str(file.relative_to(home)) for file in found if SECRET.encode() in file.read_bytes()}


async def respond(proxy: Proxy, said: str) -> str:
    async with proxy.http.post("/v1/responses", json={"model": "fake", "input": said}) as response:
        return str((await response.json())["id"])


async def drop(proxy: Proxy, id: str) -> tuple[int, Any]:
    async with proxy.http.delete(f"/v1/responses/{id}") as response:
        return response.status, await response.json()


async def a_run_is_under_way(proxy: Proxy) -> None:
    async with asyncio.timeout(30):
        while not proxy.launcher.started:
            await proxy.get("/rl/status")


@pytest.fixture
async def translating(proxy: Proxy) -> Proxy:
    """Responses are exact then, so that runs calibrate on them."""
    await proxy.stop()
    await proxy.start(backend__translate=["responses"])
    return proxy


@pytest.mark.parametrize("route", ["forget", "delete"])
async def test_while_the_run_folder_is_written(translating: Proxy, route: str) -> None:
    proxy = translating
    id = await respond(proxy, SECRET)
    for n in range(4):
        body = {"model": "fake", "messages": [{"role": "user", "content": f"{n} {LARGE}"}]}
        async with proxy.http.post("/v1/chat/completions", data=io.BytesIO(json.dumps(body).encode())) as response:
            await response.read()
            await proxy.rate(completion_id=response.headers["x-rl-completion-id"], rating="bad" if n else "good")
    folder = proxy.home / "runs" / "r00001"
    async with asyncio.timeout(60):
        while not folder.exists():  # its rows are read by now, and its files are about to be written
            await asyncio.sleep(0)
    if route == "forget":
        await forget(proxy, completion=id)
    else:
        assert (await drop(proxy, id))[0] == 200
    await until(proxy, live=1)
    assert (folder / "calibration.jsonl").exists() and places(proxy.home) <= {schema.NAME, f"{schema.NAME}-wal"}
    assert not [name for name in places(proxy.home) if name.startswith("runs")]


async def test_a_deleted_response_leaves_the_calibration(translating: Proxy) -> None:
    proxy = translating
    id = await respond(proxy, SECRET)
    await rated(proxy, 4)
    await until(proxy, live=1)
    assert "runs/r00001/calibration.jsonl" in places(proxy.home)
    assert (await drop(proxy, id))[0] == 200
    assert not [name for name in places(proxy.home) if name.startswith("runs")]
    assert await proxy.store.erasure.owed_to_run_folders() == {"completions": [], "ratings": []}


async def test_a_deleted_response_leaves_the_samples_of_a_rating_that_was_taken_back(translating: Proxy) -> None:
    proxy = translating
    proxy.launcher.hold = True
    id = await respond(proxy, SECRET)
    await rated(proxy, 3)
    _, told = await proxy.rate(completion_id=id, rating="good")
    await a_run_is_under_way(proxy)
    assert (await drop(proxy, id))[0] == 409  # it is rated
    async with proxy.http.delete(f"/v1/feedback/{told['id']}") as response:
        assert response.status == 200
    status, refused = await drop(proxy, id)  # the trainer has read it
    assert status == 409 and "Run 1 is training on it" in refused["error"]["message"]
    assert await proxy.post("/rl/cancel") == (200, {"cancelled": 1})
    await until(proxy, ended="cancelled")
    assert "runs/r00001/samples.jsonl" in places(proxy.home)
    assert (await drop(proxy, id))[0] == 200
    assert not [name for name in places(proxy.home) if name.startswith("runs")]


async def test_what_a_kill_left_half_written(proxy: Proxy) -> None:
    """Files are written beside their names: a kill before the rename leaves them there."""
    await rated(proxy, 4)
    await until(proxy, live=1)
    id = (await proxy.chat(SECRET, headers={"x-rl-session": "s"})).headers["x-rl-completion-id"]
    folder = proxy.home / "runs" / "r00002"
    folder.mkdir()
    for name in ("samples", "calibration"):
        (folder / f".{name}.jsonl.part").write_text(f'{{"completion":"{id}","text":"{SECRET}"')
    await forget(proxy, session="s")
    assert not [name for name in places(proxy.home) if name.startswith("runs")]


async def test_a_kill_between_the_rows_and_the_files(proxy: Proxy) -> None:
    """The run goes on at the next start, and its trainer must not read what was forgotten."""
    id = (await proxy.chat(SECRET)).headers["x-rl-completion-id"]
    proxy.launcher.hold = True
    await rated(proxy, 4)
    await a_run_is_under_way(proxy)
    folder = proxy.home / "runs" / "r00001"
    (folder / "cache").mkdir()
    (folder / "cache" / "scored").write_text(SECRET)
    await proxy.store.erasure.forget("completion", id, "test")  # and then the power goes
    assert "runs/r00001/calibration.jsonl" in places(proxy.home)
    await proxy.stop()
    proxy.launcher.started.clear()
    await proxy.start()
    await a_run_is_under_way(proxy)
    assert not [name for name in places(proxy.home) if name.startswith("runs")]


async def test_what_expires_leaves_the_calibration_on_its_own_day(proxy: Proxy) -> None:
    """A run of today may have taken what is nearly a week old: its day is that of the completion."""
    await proxy.chat(SECRET)
    await rated(proxy, 4)
    await until(proxy, live=1)
    file = proxy.home / "runs" / "r00001" / "calibration.jsonl"
    (found,) = [c for c in await proxy.store.completions.page(unrated=True) if c.end and SECRET in c.end.text]
    assert abs(file.stat().st_mtime - found.new.created_at) < 1e-3
    other = (await proxy.chat("another")).headers["x-rl-completion-id"]
    await forget(proxy, completion=other)  # whoever rewrites the file leaves it its day
    assert abs(file.stat().st_mtime - found.new.created_at) < 1e-3


async def test_a_backup_does_not_bring_it_back_where_the_files_were_not_done(proxy: Proxy) -> None:
    id = (await proxy.chat(SECRET)).headers["x-rl-completion-id"]
    file = proxy.home.parent / "b.db"
    await asyncio.to_thread(backup.backup, proxy.home / schema.NAME, file)
    await proxy.store.erasure.forget("completion", id, "test")  # and then the power goes
    await proxy.stop()
    await asyncio.to_thread(backup.restore, proxy.home, file)
    await proxy.start()
    assert await proxy.store.completions.page() == []


async def test_a_restore_leaves_it_in_no_run_folder(proxy: Proxy) -> None:
    """A kill between the rows and the files, and then an older database takes the place of the one that owes them."""
    await rated(proxy, 4)
    file = proxy.home.parent / "b.db"
    await asyncio.to_thread(backup.backup, proxy.home / schema.NAME, file)
    id = (await proxy.chat(SECRET)).headers["x-rl-completion-id"]
    await until(proxy, live=1)
    await proxy.rate(completion_id=id, rating="good")
    await rated(proxy, 3)
    await until(proxy, live=2)
    assert "runs/r00002/samples.jsonl" in places(proxy.home)
    await proxy.store.erasure.forget("completion", id, "test")  # and then the power goes
    await proxy.stop()
    await asyncio.to_thread(backup.restore, proxy.home, file)
    await proxy.start()
    async with asyncio.timeout(10):
        while (await proxy.store.erasure.owed_to_run_folders())["completions"]:
            await asyncio.sleep(0.01)
    assert not [name for name in places(proxy.home) if name.startswith("runs")]


@pytest.mark.parametrize("encrypted", [False, True])
async def test_a_backup_does_not_bring_it_back(proxy: Proxy, encrypted: bool) -> None:
    if encrypted:
        pytest.importorskip("sqlcipher3")
        from store.file.db_key import Secret

        await proxy.stop()
        proxy.home, proxy.secret = proxy.home.parent / "dark", Secret("ab" * 32)
        proxy.flags["home"] = proxy.home
        await proxy.start()
    await proxy.chat(SECRET, headers={"x-rl-session": "s"})
    await proxy.chat("kept")
    await proxy.rate(completion_id="last", rating="good", rater="ann", comment="her words")
    file = proxy.home.parent / "b.db"
    await asyncio.to_thread(backup.backup, proxy.home / schema.NAME, file, proxy.secret)
    await forget(proxy, session="s")
    await forget(proxy, rater="ann")
    await proxy.stop()
    (proxy.home / schema.NAME).write_bytes(b"\xff" * 8192)  # nothing is learned from the database itself
    (proxy.home / f"{schema.NAME}-wal").unlink(missing_ok=True)
    await asyncio.to_thread(backup.restore, proxy.home, file, proxy.secret)
    await proxy.start()
    (found,) = await proxy.store.completions.page()
    assert found.end is not None and "kept" in found.end.text and found.ratings == ()
    assert not places(proxy.home)


async def test_copies_are_not_deleted_while_they_may_be_needed(proxy: Proxy) -> None:
    await proxy.chat(SECRET, headers={"x-rl-session": "s"})
    copy = proxy.home / "saved.db"
    await asyncio.to_thread(backup.backup, proxy.home / schema.NAME, copy)
    proxy.store.integrity.state = "checking"
    said = await forget(proxy, 409, session="s", purge_backups=True)
    assert "being checked" in said["error"]["message"] and copy.exists()
    proxy.store.integrity.state = "sound"
    assert (await forget(proxy, session="s", purge_backups=True))["backups"]["deleted"] and not copy.exists()


async def test_an_export_does_not_bring_it_back(proxy: Proxy) -> None:
    """Neither a completion nor a rater's ratings; also before the run folders are done."""
    ids = [(await proxy.chat(f"{SECRET} {n}")).headers["x-rl-completion-id"] for n in range(2)]
    for rater in ("ann", "bob"):
        await proxy.rate(completion_id=ids[1], rating="bad", rater=rater, comment=f"{SECRET} of {rater}")
    export = await (await proxy.http.get("/rl/export")).read()
    await forget(proxy, completion=ids[0])
    await forget(proxy, rater="ann")
    for _ in range(2):
        async with proxy.http.post("/rl/import", data=export) as response:
            found = await response.json()
        assert found == {"stored": 0, "known": 1, "ratings": 0, "forgotten": 2, "refused": []}
    assert [one.new.id for one in await proxy.store.completions.page(limit=9)] == [ids[1]]
    assert [one.rater for one in await proxy.store.ratings.history(ids[1])] == ["bob"]
    await proxy.store.erasure.delete(ids[1])  # what hung on it is owed to the run folders now
    async with proxy.http.post("/rl/import", data=export) as response:
        assert (await response.json())["forgotten"] == 4
