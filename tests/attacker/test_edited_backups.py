"""Somebody gives a person a backup with rows of their own making, or reads one that was left somewhere.

A schema that is the migrations' says nothing about the rows. What they name is not deleted, and who reads them is no
admin.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
import sqlite3
import time
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from proxy.training import unlearning
from scripts.harness.command import rlproxy
from scripts.harness.in_process import Proxy
from store.copies import backup
from store.errors import StoreDamaged
from store.file import meta, schema
from store.learning.unlearning import clean
from store.store import Store


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("proxy.training.run_supervisor.RECHECK_S", 0.02)


def edit(file: Path, *statements: str, **values: Any) -> None:
    """Rows by statements, values of meta by their names: text as it is, all else as JSON."""
    with closing(sqlite3.connect(file)) as db, db:
        for statement in statements:
            db.execute(statement)
        for name, value in values.items():
            text = value if isinstance(value, str) else json.dumps(value)
            db.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (name, text))


async def backup_of(proxy: Proxy) -> Path:
    """The proxy is stopped then."""
    await proxy.chat("hello")
    await proxy.stop()
    file = proxy.home.parent / "backup.db"
    await asyncio.to_thread(backup.backup, proxy.home / schema.NAME, file)
    return file


def rebuild(paths: Mapping[int, Path], runs: list[int]) -> dict[str, Any]:
    named = {str(version): str(path) for version, path in paths.items()}
    return {"versions": list(paths), "paths": named, "runs": runs, "clean": 0, "made": [], "over": None}


async def rebuilt(proxy: Proxy) -> str:
    async with asyncio.timeout(20):
        while (status := await proxy.get("/rl/status"))["rebuild"]["state"] != "over":
            await asyncio.sleep(0.02)
    return str(status["rebuild"]["line"])


async def test_a_rebuild_deletes_folders_of_versions_and_runs_alone(proxy: Proxy) -> None:
    """The home itself was deleted 0.3 s after the start."""
    file = await backup_of(proxy)
    home, beside = proxy.home, proxy.home.parent / "v0001"
    model, nested = home / "adapters_out" / "fake", home / "runs" / "v0009"
    for folder in (beside, model / "v0001", nested / "runs", home / "backups"):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "file").write_text("kept")
    (home / "v7").symlink_to(home)
    named = [home, home / schema.NAME, home / "backups", home / "adapters_out", model, home / "runs", home / "v7",
             home / "v7" / ".." / home.name, beside, home.parent, Path("/")]  # fmt: skip
    row = f"VALUES (1, 'done', 'fake', 1, 0, '{home}', 1, 1, 0)"
    edit(
        file,
        f"INSERT INTO runs (id, status, model, version, parent, folder, created_at, samples, held) {row}",
        rebuild=rebuild({**dict(enumerate(named, 2)), 1: model / "v0001"}, [1]),
    )
    await asyncio.to_thread(backup.restore, home, file)
    await proxy.start()
    line = await rebuilt(proxy)
    assert not (model / "v0001").exists() and "left for you to delete" in line
    for path in (home / schema.NAME, home / "backups" / "file", nested, beside / "file", model, home / "v7"):
        assert path.exists(), path


def test_a_digest_is_no_pattern(tmp_path: Path) -> None:
    folder = tmp_path / "gguf" / "a-b"
    folder.mkdir(parents=True)
    (tmp_path / "kept").write_text("")
    (folder / "kept").write_text("")
    unlearning._delete([], tmp_path, ["*", "/../../*", "*/../../../", "", "?" * 12])
    assert (tmp_path / "kept").exists() and (folder / "kept").exists()


@pytest.mark.parametrize(
    "parents", [{1: (1, True)}, {1: (2, True), 2: (1, True)}, {1: (2, True), 2: (3, True), 3: (2, True)}]
)
def test_a_version_that_is_its_own_ancestor_ends(parents: dict[int, tuple[int, bool]]) -> None:
    """The start went round in circles, and SIGTERM was not heard."""
    assert clean(parents, 1, set(parents)) == 0


# Values of another shape

ODD: dict[str, list[Any]] = {
    "forgetting": ["not JSON", [], {}, {"completions": 5, "ratings": []}, {"completions": [1], "ratings": []}],
    "match": [[], {"of": []}, {"of": {}, "verdict": {}}, {"of": {}, "verdict": {"state": "same", "line": 5}}],
    "retention_days": [5, {"days": "x", "by": "ann", "at": 1}, {"days": 5}],
    "foreign_version": [None, "x", 1e300, 2**64],
    "judge_cost": [[], {"day": "x", "today": "x"}],
    "lessons_since": [[], "x", True],
    "rebuild": [[], {}, rebuild({}, []) | {"paths": {"x": "y"}}, rebuild({}, []) | {"versions": ["1"]}],
    "uncaptured_sessions": [5, [5]],
    "run_key.1": [5, json.dumps("xyz")],
}  # fmt: skip


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in ODD.items() for value in values])
async def test_a_backup_with_a_value_of_another_shape_is_refused_by_its_name(
    tmp_path: Path, name: str, value: Any
) -> None:
    home = tmp_path / "home"
    home.mkdir()
    store = await Store.open(home)
    await store.close()
    file = home.parent / "backup.db"
    await asyncio.to_thread(backup.backup, home / schema.NAME, file)
    edit(file, **{name: value})
    with pytest.raises(StoreDamaged, match=f"meta '{name}' is not what rlproxy writes"):
        await asyncio.to_thread(backup.restore, home, file)
    edit(home / schema.NAME, **{name: value})
    with pytest.raises(StoreDamaged, match=f"meta '{name}' is not what rlproxy writes"):
        await Store.open(home)


SHAPES = ["not JSON", "[]", '"x"', '{"metrics": 5}', '{"files": [], "samples": []}', '{"gate": {"finite": {}}}']
OUTCOMES = ['{"samples": {"rt-1": {"tokens": "x"}}}', '{"samples": {"rt-1": {"flags": 5}}}']
CHANGES = ['{"changes": 5}', '{"changes": {}}']


@pytest.mark.parametrize(
    ("table", "value"),
    [(table, value) for table in ("runs", "adapters") for value in SHAPES]
    + [("runs", value) for value in OUTCOMES]
    + [("adapters", value) for value in CHANGES],
)
async def test_a_manifest_or_result_of_another_shape_is_refused(tmp_path: Path, table: str, value: str) -> None:
    home = tmp_path / "home"
    home.mkdir()
    store = await Store.open(home)
    await store.close()
    file = home.parent / "backup.db"
    await asyncio.to_thread(backup.backup, home / schema.NAME, file)
    result, manifest = (f"'{value}'", "{}") if table == "runs" else ("NULL", value)
    run = "INSERT INTO runs (id, status, model, version, parent, folder, created_at, samples, held, result) "
    version = "INSERT INTO adapters (version, parent, run_id, model, path, created_at, manifest) "
    edit(
        file,
        f"{run} VALUES (1, 'done', 'fake', 1, 0, '/nowhere', 1, 1, 0, {result})",
        f"{version} VALUES (1, 0, 1, 'fake', '/nowhere', 1, '{manifest}')",
    )
    with pytest.raises(StoreDamaged, match=rf"{table}\.\w+ of 1 is not what rlproxy writes"):
        await asyncio.to_thread(backup.restore, home, file)


# The page's cookie


def forged(secret: str) -> dict[str, str]:
    """Cookie and token of an admin, by whoever knows what signs them."""
    key = hashlib.sha256(secret.encode()).digest()

    def sign(text: str) -> str:
        return base64.urlsafe_b64encode(hmac.new(key, text.encode(), hashlib.sha256).digest()).decode().rstrip("=")

    name = base64.urlsafe_b64encode(b"owner").decode().rstrip("=")
    body = f"admin.{name}.{int(time.time()) + 1000}.eve"
    cookie = f"{body}.{sign(f'visit:{body}')}"
    return {"cookie": f"rl_page={cookie}", "x-rl-token": sign(f"token:{cookie}")}


async def reached(proxy: Proxy, headers: dict[str, str]) -> list[int]:
    statuses = []
    for method, path in (("GET", "/rl/keys"), ("GET", "/rl/export"), ("POST", "/page/training/pause")):
        async with proxy.http.request(method, path, headers=headers, allow_redirects=False) as response:
            statuses.append(response.status)
    return statuses


async def test_who_reads_a_backup_is_no_admin(proxy: Proxy) -> None:
    headers = {"authorization": f"Bearer {proxy.local}"}
    async with proxy.http.post("/rl/keys", json={"name": "ann", "role": "admin"}, headers=headers) as response:
        assert response.status == 201
    secret = await proxy.store.meta.get(meta.PAGE_SECRET)
    assert await reached(proxy, forged(secret)) == [200, 200, 200]  # as it is known, or this test shows nothing
    file = await backup_of(proxy)
    assert secret.encode() not in file.read_bytes()
    code, _, err = await rlproxy(proxy.home, "backup", str(proxy.home.parent / "by-command.db"))
    assert code == 0 and secret.encode() not in (proxy.home.parent / "by-command.db").read_bytes(), err
    await proxy.start()
    assert await reached(proxy, forged(secret)) == [200, 200, 200]  # open pages stay signed in


async def test_who_gives_a_backup_is_no_admin_of_where_it_is_restored(proxy: Proxy) -> None:
    headers = {"authorization": f"Bearer {proxy.local}"}
    async with proxy.http.post("/rl/keys", json={"name": "ann", "role": "admin"}, headers=headers) as response:
        assert response.status == 201
    file = await backup_of(proxy)
    edit(file, page_secret=json.dumps("known"))
    await asyncio.to_thread(backup.restore, proxy.home, file)
    await proxy.start()
    assert 200 not in await reached(proxy, forged("known"))
