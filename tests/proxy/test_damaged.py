"""A database that a kill left is checked beside the serving; one that is found damaged is said to be so, everywhere."""

from __future__ import annotations

import asyncio
import json
from contextlib import closing
from pathlib import Path

import pytest

from config.settings import load
from proxy.cli.doctor.checks import examine
from proxy.cli.doctor.facts import DoctorFacts, gather
from proxy.core.address_file import ADDRESS_FILE
from proxy.training import run_folder
from scripts.harness.command import rlproxy
from scripts.harness.in_process import Proxy
from store.errors import StoreDamaged
from store.file import driver, integrity, meta, schema
from tests.harness.held_checks import PAGE, Held
from tests.harness.runs import rated, until


async def killed(proxy: Proxy) -> None:
    """Started again as after a kill."""
    await proxy.stop()
    with closing(driver.connect(proxy.home / schema.NAME, None, with_names=True)) as db:
        meta.set_meta(db, schema.CLEAN, False)
    await proxy.start()


def break_table(home: Path, table: str) -> None:
    with closing(driver.connect(home / schema.NAME, None)) as db:
        (root,) = db.execute("SELECT rootpage FROM sqlite_schema WHERE name = ?", (table,)).fetchone()
    with (home / schema.NAME).open("r+b") as file:
        file.seek((root - 1) * PAGE)
        file.write(b"\xff" * 100)


async def test_until_it_is_checked_nothing_is_deleted_and_nothing_trains(proxy: Proxy, held: Held) -> None:
    await proxy.chat("old")
    await rated(proxy, 3)
    calibration = proxy.home / "runs" / "r00007" / run_folder.CALIBRATION
    calibration.parent.mkdir(parents=True)
    calibration.write_text("")
    run_folder._dated(calibration, 1.0)
    await proxy.stop()
    with closing(driver.connect(proxy.home / schema.NAME, None)) as db:
        db.execute("UPDATE completions SET created_at = 1.0")
    proxy.flags["store.retention_days"] = 1
    await proxy.start()
    held.go.clear()
    await killed(proxy)

    await rated(proxy, 1)
    assert await proxy.say("hello") == "You said: hello "
    async with proxy.http.get("/readyz") as response:
        assert response.status == 200
    status = await proxy.get("/rl/status")
    assert status["database"]["state"] == "checking" and status["database"]["checked_since"] and not status["problem"]
    assert "is being checked" in status["training"]["waits_for"]
    code, told = await proxy.post("/rl/train")
    assert code == 409 and "is being checked" in told["error"]["message"]
    assert calibration.exists() and proxy.launcher.started == []

    held.go.set()
    await until(proxy, live=1)
    async with asyncio.timeout(30):
        while calibration.exists():
            await asyncio.sleep(0.01)
    database = (await proxy.get("/rl/status"))["database"]
    assert database == {"state": "sound", "line": "sound", "checked_since": None}


@pytest.mark.parametrize("table", ["messages", "search_data", "ratings", "completions"])
async def test_damage_is_said_everywhere_and_answers_go_on(proxy: Proxy, held: Held, table: str) -> None:
    for n in range(3):
        await proxy.chat(f"{n} " + "words " * 3000)
    await rated(proxy, 3)
    await proxy.stop()
    await proxy.start()
    await proxy.stop()
    with closing(driver.connect(proxy.home / schema.NAME, None, with_names=True)) as db:
        meta.set_meta(db, schema.CLEAN, False)
    break_table(proxy.home, table)
    before = (proxy.home / schema.NAME).read_bytes()
    await proxy.start()
    held.go.set()
    assert not await proxy.store.checked()
    (proxy.home / ADDRESS_FILE).write_text(json.dumps({"url": proxy.url, "pid": 1, "key": proxy.local}))

    assert await proxy.say("hello") == "You said: hello "  # answers go on
    async with proxy.http.get("/readyz") as response:
        assert response.status == 200
    code, told = await proxy.rate(completion_id="last", rating="good")
    assert code == 507 and "is damaged" in told["error"]["message"]
    assert (await proxy.post("/rl/train"))[0] in (409, 507)
    async with proxy.http.get("/rl/status") as response:
        told = await response.json()
        if response.status == 200:
            assert "restore a backup" in told["problem"] and told["database"]["state"] == "damaged"
        else:  # what it wanted to count cannot be read
            assert response.status == 507 and "restore a backup" in told["error"]["message"]
    async with proxy.http.get("/page/pulse") as response:
        assert "is damaged" in await response.text()
    _, out, err = await rlproxy(proxy.home, "status")
    assert "is damaged" in " ".join((out + err).split())
    checks = {check.name: check for check in examine(await asyncio.to_thread(facts, proxy))}
    assert checks["database"].state == "problem" and "is damaged" in checks["database"].line
    await proxy.stop()
    assert (proxy.home / schema.NAME).read_bytes() == before
    checks = {check.name: check for check in examine(await asyncio.to_thread(facts, proxy))}
    assert checks["database"].state == "problem"  # also where none runs
    (proxy.home / schema.NAME).unlink()
    integrity.note_of(proxy.home / schema.NAME).unlink()
    for beside in proxy.home.glob(f"{schema.NAME}-*"):
        beside.unlink()
    await proxy.start()


@pytest.mark.parametrize("table", ["meta", "keys", "pointer", "adapters"])
async def test_damage_that_the_start_meets_ends_it(proxy: Proxy, held: Held, table: str) -> None:
    await proxy.stop()
    with closing(driver.connect(proxy.home / schema.NAME, None, with_names=True)) as db:
        meta.set_meta(db, schema.CLEAN, False)
    whole = (proxy.home / schema.NAME).read_bytes()
    break_table(proxy.home, table)
    before = (proxy.home / schema.NAME).read_bytes()
    opened = proxy.store
    with pytest.raises(StoreDamaged, match="restore a backup"):
        await proxy.start()
    if proxy.store is not opened:
        await proxy.store.close()
    assert (proxy.home / schema.NAME).read_bytes() == before
    (proxy.home / schema.NAME).write_bytes(whole)
    (proxy.home / f"{schema.NAME}-wal").unlink(missing_ok=True)
    held.go.set()
    await proxy.start()


def facts(proxy: Proxy) -> DoctorFacts:
    return gather(load({"home": proxy.home}, environ={}).settings)
