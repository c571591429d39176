"""Somebody whose key was revoked waits for a restore: no backup brings the key back, and none opens what was closed.

With the commands that a person uses, on homes that a real proxy served.
"""

from __future__ import annotations

import json
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from scripts.harness.command import rlproxy
from scripts.harness.in_process import Proxy
from store.file import schema
from store.file.db_key import VARIABLE


async def made(home: Path, name: str, role: str = "admin", **env: str) -> str:
    code, out, err = await rlproxy(home, "keys", "create", "--name", name, "--role", role, "--json", **env)
    assert code == 0, err
    return str(json.loads(out)["key"])


async def done(home: Path, *args: str, **env: str) -> str:
    code, out, err = await rlproxy(home, *args, **env)
    assert code == 0, err
    return out


async def status(proxy: Proxy, key: str | None) -> int:
    headers = {} if key is None else {"x-api-key": key}
    async with proxy.http.get("/rl/status", headers=headers) as response:
        return response.status


def damage(home: Path) -> None:
    """So that nobody can read which keys it has."""
    with (home / schema.NAME).open("r+b") as file:
        file.write(b"\xff" * 8192)


@pytest.fixture
async def home(proxy: Proxy) -> Path:
    """One that was served and stopped."""
    await proxy.chat("hello")
    await proxy.stop()
    return proxy.home


@pytest.fixture(autouse=True)
async def started_again(home: Path, proxy: Proxy):  # type: ignore[no-untyped-def]
    """The fixture of the proxy stops it once more at its end."""
    yield
    if proxy.http.closed:
        await proxy.start()


async def test_a_revoked_key_stays_revoked_and_a_later_one_stays_known(home: Path, proxy: Proxy) -> None:
    stolen, file = await made(home, "eve"), home.parent / "b.db"
    await done(home, "backup", str(file))
    await done(home, "keys", "revoke", "eve")
    late, again = await made(home, "ann", "rate"), await made(home, "eve", "use")
    out = await done(home, "restore", str(file))
    assert "nobody here knows" not in out
    await proxy.start()
    assert [await status(proxy, key) for key in (stolen, None, late, again)] == [401, 401, 200, 200]


async def test_a_backup_from_before_the_first_key_opens_nothing(home: Path, proxy: Proxy) -> None:
    file = home.parent / "b.db"
    await done(home, "backup", str(file))
    key = await made(home, "ann")
    await done(home, "keys", "revoke", "ann")
    await done(home, "restore", str(file))
    await proxy.start()
    assert [await status(proxy, given) for given in (key, None, proxy.local)] == [401, 401, 200]


@pytest.mark.parametrize("how", ["damaged", "moved away", "copied over"])
async def test_where_the_database_that_is_replaced_tells_nothing(home: Path, proxy: Proxy, how: str) -> None:
    early, stolen = home.parent / "early.db", home.parent / "b.db"
    await done(home, "backup", str(early))
    eve, ann = await made(home, "eve"), await made(home, "ann")
    await done(home, "backup", str(stolen))
    await done(home, "keys", "revoke", "eve")
    for file, expected in ((stolen, [401, 401, 200]), (early, [401, 401, 401])):
        if how == "damaged":
            damage(home)
            await done(home, "restore", str(file))
        else:
            for beside in home.glob(f"{schema.NAME}*"):
                beside.unlink()
            if how == "moved away":
                await done(home, "restore", str(file))
            else:
                shutil.copy(file, home / schema.NAME)
        await proxy.start()
        assert [await status(proxy, key) for key in (eve, None, ann)] == expected, file
        await proxy.stop()


async def test_a_key_revoked_before_this_was_noted_stays_revoked(home: Path, proxy: Proxy) -> None:
    """An older rlproxy revoked it: nothing lies beside the database. The first start notes it."""
    eve, file = await made(home, "eve"), home.parent / "b.db"
    await done(home, "backup", str(file))
    await done(home, "keys", "revoke", "eve")
    (home / "rlproxy.revoked").unlink()
    await proxy.start()
    await proxy.stop()
    damage(home)
    await done(home, "restore", str(file))
    await proxy.start()
    assert [await status(proxy, key) for key in (eve, None)] == [401, 401]


async def test_on_another_machine_the_keys_that_hold_are_named(home: Path) -> None:
    await made(home, "eve")
    await made(home, "ann", "use")
    await done(home, "keys", "revoke", "ann")
    file, other = home.parent / "b.db", home.parent / "other"
    await done(home, "backup", str(file))
    out = await done(other, "restore", str(file))
    assert "eve" in out and "ann" not in out and "rlproxy keys revoke" in out
    told = json.loads(await done(home.parent / "third", "restore", str(file), "--json"))
    assert [key["name"] for key in told["keys"]] == ["eve"]


async def test_a_name_is_one_persons_after_a_restore_too(home: Path, proxy: Proxy) -> None:
    """The backup has a key of that name that this home never knew, and the home has another."""
    other, file = home.parent / "other", home.parent / "b.db"
    theirs = await made(other, "ann")
    await done(other, "backup", str(file))
    ours = await made(home, "ann")
    await done(home, "restore", str(file))
    await proxy.start()
    assert [await status(proxy, key) for key in (theirs, ours)] == [401, 200]


# What somebody may have written into a backup, whose schema it leaves as it is.
EDITED = {
    "a hash": "UPDATE keys SET hash = (SELECT hash FROM keys WHERE name = 'eve') WHERE name = 'ann'",
    "a role": "UPDATE keys SET role = 'admin' WHERE name = 'ann'",
    "a name": "UPDATE keys SET name = 'zed' WHERE name = 'ann'",
    "two names": (
        "UPDATE keys SET name = 'x' WHERE name = 'ann'; UPDATE keys SET name = 'ann' WHERE name = 'eve';"
        " UPDATE keys SET name = 'eve' WHERE name = 'x'"
    ),
    "a name for a new key": (
        "UPDATE keys SET name = 'x' WHERE name = 'ann';"
        " INSERT INTO keys (id, name, role, hash, created_at) SELECT 'e0e0e0e0', 'ann', 'admin', hash, 1 FROM keys"
        " WHERE name = 'eve'"
    ),
}


@pytest.mark.parametrize("how", EDITED)
async def test_a_key_that_holds_is_as_this_home_has_it(home: Path, how: str) -> None:
    """Not as an edited backup has it, which could make a key of this home its writer's, or an admin's."""
    for name in ("eve", "ann"):
        await made(home, name, "use")
    file = home.parent / "b.db"
    await done(home, "backup", str(file))
    kept = "SELECT id, name, role, hash, created_at FROM keys WHERE revoked_at IS NULL ORDER BY name"
    with closing(sqlite3.connect(home / schema.NAME)) as db:
        before = db.execute(kept).fetchall()
    with closing(sqlite3.connect(file)) as db:
        db.executescript(EDITED[how])
    await done(home, "restore", str(file))
    with closing(sqlite3.connect(home / schema.NAME)) as db:
        assert db.execute(kept).fetchall() == before


async def test_encrypted(tmp_path: Path) -> None:
    home, file, env = tmp_path / "dark", tmp_path / "b.db", {VARIABLE: "ab" * 32, "RLPROXY_STORE__KEY_FROM": "env"}
    home.mkdir()
    await made(home, "eve", **env)
    await done(home, "backup", str(file), **env)
    await done(home, "keys", "revoke", "eve", **env)
    damage(home)
    await done(home, "restore", str(file), **env)
    keys = json.loads(await done(home, "keys", "list", "--json", **env))
    assert [(key["name"], key["revoked_at"] is not None) for key in keys] == [("eve", True)]
    beside = (home / "rlproxy.revoked").read_text()
    assert "eve" not in beside and (home / "rlproxy.revoked").stat().st_mode & 0o777 == 0o600


async def test_a_session_that_was_switched_off_stays_off(home: Path, proxy: Proxy) -> None:
    file = home.parent / "b.db"
    await done(home, "backup", str(file))
    await proxy.start()
    async with proxy.http.post("/rl/capture", json={"session": "private", "capture": "off"}) as response:
        assert response.status == 200
    await proxy.stop()
    await done(home, "restore", str(file))
    await proxy.start()
    await proxy.chat("a secret", headers={"x-rl-session": "private"})
    with closing(sqlite3.connect(home / schema.NAME)) as db:
        assert db.execute("SELECT count(*) FROM completions WHERE session = 'private'").fetchone() == (0,)
