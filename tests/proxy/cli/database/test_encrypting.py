"""`rlproxy encrypt` and `decrypt`, as a person types them."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

from typer.testing import CliRunner

from proxy.checks import results
from proxy.checks.answers import AnswerCache, CheckedAnswer
from proxy.cli.app import app
from scripts.harness.command import python
from scripts.harness.in_process import Proxy
from store.copies import backup
from store.file import driver, schema
from store.store import Store
from tests.harness.runs import rated, until
from tests.store.file.test_conversion import KEY, PLANTED, ROOT, fill, holds, in_the_clear
from trainer.io.encrypted_files import Seal, is_sealed
from trainer.io.run_folder import lock

HEX = "ab" * 32


class Said(NamedTuple):
    stdout: str
    stderr: str


def rlproxy(home: Path, *words: str, status: int = 0, **env: str) -> Said:
    found = CliRunner().invoke(app, [*words, "--home", str(home)], env=env)
    assert found.exit_code == status, found.output
    assert "Traceback" not in found.stderr and HEX not in found.output
    return Said(found.stdout, found.stderr)


def serve(home: Path, *, status: int, **env: str) -> Said:
    """In a process of its own."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith("RLPROXY_")}
    done = subprocess.run(
        [sys.executable, "-m", "proxy.cli", "serve", "--home", str(home)],
        cwd=ROOT, env={**clean, **env}, capture_output=True, text=True, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert done.returncode == status, done.stdout + done.stderr
    assert "Traceback" not in done.stderr and HEX not in done.stdout + done.stderr
    return Said(done.stdout, done.stderr)


def told(said: Said) -> Any:
    return json.loads(said.stdout)


async def test_what_an_evaluation_has_kept_goes(tmp_path: Path) -> None:
    home = tmp_path / "home"
    await fill(home)
    AnswerCache(home).keep("k", "c1", CheckedAnswer("zanzibar"))
    results.keep(home, {"rows": [{"completion": "c1", "slice": "zanzibar"}]})
    away = next((home / "checks").rglob("k.json"))
    said = rlproxy(home, "encrypt", "--key", f"file:{tmp_path / 'k'}").stdout
    assert "2 files of `rlproxy eval` are overwritten" in said and not away.exists()
    assert [file for file in (home / "checks").rglob("*") if file.is_file()] == []
    assert told(rlproxy(home, "encrypt", "--json"))["evaluations"] == 0


async def test_a_key_file_is_made_and_the_setting_written(tmp_path: Path) -> None:
    home, file = tmp_path / "home", tmp_path / "keys" / "k"
    await fill(home)
    (home / "rlproxy.toml").write_text('# mine\n[log]\nlevel = "error"\n')
    said = rlproxy(home, "encrypt", status=1).stderr
    assert "Say where the key is to be kept" in said and not driver.is_plain(home / "rlproxy.toml")
    found = told(rlproxy(home, "encrypt", "--key", f"file:{file}", "--json"))
    assert found["key_made"] and found["was"] is False and found["files"] == [str(home / schema.NAME)]
    assert in_the_clear(home) == [] and file.stat().st_mode & 0o777 == 0o600
    text = (home / "rlproxy.toml").read_text()
    assert text.startswith("# mine") and f'key_from = "file:{file}"' in text and file.read_text().strip() not in text
    assert "nothing left to encrypt" in rlproxy(home, "encrypt").stdout
    shown = rlproxy(home, "config", "show").stdout
    assert "store.key_from" in shown and file.read_text().strip() not in shown
    rlproxy(home, "audit", "verify")
    rlproxy(home, "backup", str(tmp_path / "b.db"))
    assert not driver.is_plain(tmp_path / "b.db")
    rlproxy(home, "restore", str(tmp_path / "b.db"))
    assert "are in the clear" in rlproxy(home, "decrypt").stdout
    assert "key_from" not in (home / "rlproxy.toml").read_text()
    await holds(home, None)
    store = await Store.open(home)
    assert {"encrypt", "decrypt"} <= {line["act"] for line in await store.meta.audit_log()}
    await store.close()


async def test_from_the_environment_and_wrong(tmp_path: Path) -> None:
    await fill(tmp_path)
    assert "is not set" in rlproxy(tmp_path, "encrypt", "--key", "env", status=1).stderr
    assert not (tmp_path / "rlproxy.toml").exists()
    rlproxy(tmp_path, "encrypt", "--key", "env", RLPROXY_STORE_KEY=HEX)
    assert in_the_clear(tmp_path) == []
    await holds(tmp_path, KEY)
    said = rlproxy(tmp_path, "audit", "verify", status=1, RLPROXY_STORE_KEY="cd" * 32).stderr
    assert "The key does not open" in said and "cd" * 32 not in said
    said = serve(tmp_path, status=1, RLPROXY_STORE_KEY="cd" * 32).stderr
    assert "The key does not open" in said
    assert "RLPROXY_STORE_KEY is not set" in rlproxy(tmp_path, "audit", "verify", status=1).stderr
    (tmp_path / "rlproxy.toml").unlink()
    assert "store.key_from has to name its key" in serve(tmp_path, status=1).stderr


async def test_a_key_put_where_the_setting_is_is_not_repeated(tmp_path: Path) -> None:
    said = rlproxy(tmp_path, "encrypt", "--key", HEX, status=2).stderr
    assert "the key itself is no setting" in said
    rlproxy(tmp_path, "decrypt", status=2, RLPROXY_STORE__KEY_FROM=HEX)


async def test_not_while_it_runs_and_what_did_not_happen_is_not_set(tmp_path: Path) -> None:
    store = await Store.open(tmp_path)
    await store.meta.set("k", PLANTED)
    said = rlproxy(tmp_path, "encrypt", "--key", "env", status=1, RLPROXY_STORE_KEY=HEX).stderr
    assert "in use by process" in said and "Stop it first" in said
    await store.close()
    (tmp_path / schema.NAME).write_bytes(driver.PLAIN_HEADER + b"and nothing that SQLite would know" * 200)
    said = rlproxy(tmp_path, "encrypt", "--key", "env", status=1, RLPROXY_STORE_KEY=HEX).stderr
    assert "was not encrypted" in said
    assert not (tmp_path / "rlproxy.toml").exists()


async def test_a_new_home_is_encrypted_from_the_start(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    assert "from the start" in rlproxy(home, "encrypt", "--key", "env", RLPROXY_STORE_KEY=HEX).stdout
    await fill(home, KEY)
    assert in_the_clear(home) == []


async def test_run_folders_go_there_and_back(proxy: Proxy) -> None:
    """Of runs that ended and of one that has not; what a person forgets later is found in them, too."""
    await rated(proxy, 4)
    await until(proxy, live=1)
    proxy.launcher.hold = True
    for n in range(4):
        id = (await proxy.chat(f"{PLANTED} {n}")).headers["x-rl-completion-id"]
        await proxy.rate(completion_id=id, rating="good" if n % 2 else "bad", comment=PLANTED)
    while len(proxy.launcher.started) < 2:
        await proxy.get("/rl/status")
    await proxy.stop()
    ended, under_way = proxy.home / "runs" / "r00001", proxy.home / "runs" / "r00002"
    (under_way / "cache").mkdir()
    (under_way / "cache" / "a.json").write_text(PLANTED)
    (under_way / ".samples.jsonl.before").write_text(PLANTED)  # as a kill between two steps leaves it
    before = (under_way / "samples.jsonl").read_bytes()
    assert PLANTED.encode() in before
    found = told(rlproxy(proxy.home, "encrypt", "--key", "env", "--json", RLPROXY_STORE_KEY=HEX))
    assert found["runs"] == 2 and not found["failures"]
    assert in_the_clear(proxy.home) == [] and is_sealed(ended / "samples.jsonl")

    proxy.secret, proxy.launcher.hold = KEY, False
    await proxy.start()
    await until(proxy, live=2)  # the run goes on, and its trainer is given the key
    first, again = proxy.launcher.keys[1:]
    assert first is None and again is not None and Seal(again).read(under_way / "samples.jsonl") == before
    async with proxy.http.post("/rl/forget", json={"completion": id}) as response:
        assert response.status == 200 and (await response.json())["completions"] == 1
    left = Seal(again).read(under_way / "samples.jsonl")
    assert len(left.splitlines()) == len(before.splitlines()) - 1 and id.encode() not in left
    proxy.launcher.hold = True
    await rated(proxy, 4)
    while len(proxy.launcher.started) < 4:
        await proxy.get("/rl/status")
    assert is_sealed(proxy.home / "runs" / "r00003" / "samples.jsonl") and in_the_clear(proxy.home) == []
    await proxy.stop()

    assert told(rlproxy(proxy.home, "decrypt", "--json", RLPROXY_STORE_KEY=HEX))["runs"] == 3
    assert (under_way / "samples.jsonl").read_bytes() == left
    proxy.secret, proxy.launcher.hold = None, False
    await proxy.start()
    await until(proxy, live=3)


async def test_a_run_folder_whose_key_is_lost_goes_when_something_is_forgotten(proxy: Proxy, tmp_path: Path) -> None:
    await rated(proxy, 4)
    await until(proxy, live=1)
    await proxy.stop()
    rlproxy(proxy.home, "encrypt", "--key", "env", RLPROXY_STORE_KEY=HEX)
    folder, proxy.secret = proxy.home / "runs" / "r00001", KEY
    Seal(bytes(32)).write(folder / "samples.jsonl", b"{}\n")  # as if an older database had been restored
    await proxy.start()
    id = (await proxy.chat("x")).headers["x-rl-completion-id"]
    async with proxy.http.post("/rl/forget", json={"completion": id}) as response:
        assert response.status == 200, await response.text()
    assert not (folder / "samples.jsonl").exists() and (folder / "calibration.jsonl").exists()


async def test_a_trainer_that_is_still_at_work_is_not_disturbed(tmp_path: Path) -> None:
    await fill(tmp_path, rows=2)
    folder = tmp_path / "runs" / "r00001"
    folder.mkdir(parents=True)
    (folder / "samples.jsonl").write_text(PLANTED)
    with lock(folder):
        said = rlproxy(tmp_path, "encrypt", "--key", "env", status=1, RLPROXY_STORE_KEY=HEX).stderr
    assert "still at work" in said and in_the_clear(tmp_path) == ["runs/r00001/samples.jsonl"]
    rlproxy(tmp_path, "encrypt", RLPROXY_STORE_KEY=HEX)
    assert in_the_clear(tmp_path) == []


CHILD = """
import os, signal, sys
from pathlib import Path
from config.settings import load
from proxy.cli.database import encrypting
home, act, at = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
seen = 0
def told(path, step, share):
    global seen
    if share == 0.0:
        seen += 1
        if seen == at:
            os.kill(os.getpid(), signal.SIGKILL)
settings = load({"home": home}).settings
encrypting.encrypt(settings, "env", told) if act == "encrypt" else encrypting.decrypt(settings, told)
print(seen)
"""


async def test_killed_anywhere_the_same_command_finishes_it(tmp_path: Path) -> None:
    """Of all that it does to a home with a backup and two run folders, at each step; the next call ends it."""
    home = tmp_path / "home"
    await fill(home, rows=2)
    (home / "backups").mkdir()
    backup.backup(home / schema.NAME, home / "backups" / "schema-9-x.db")
    for n in (1, 2):
        (home / "runs" / f"r{n:05d}" / "cache").mkdir(parents=True)
        for name in ("samples.jsonl", "calibration.jsonl", "cache/a.json"):
            (home / "runs" / f"r{n:05d}" / name).write_text(f"{PLANTED} {n} {name}")
    for act in ("encrypt", "decrypt"):
        at = 0
        while True:
            at += 1 if act == "encrypt" else 3  # each step once; back again is the same code in another order
            shutil.copytree(home, tmp_path / "try")
            status, seen, err = await python(CHILD, str(tmp_path / "try"), act, str(at), RLPROXY_STORE_KEY=HEX)
            if status == 0:
                break
            assert status == -signal.SIGKILL, err
            rlproxy(tmp_path / "try", act, *(["--key", "env"] if act == "encrypt" else []), RLPROXY_STORE_KEY=HEX)
            await whole(tmp_path / "try", encrypted=act == "encrypt")
            shutil.rmtree(tmp_path / "try")
        assert at > int(seen) > 12
        await whole(tmp_path / "try", encrypted=act == "encrypt")
        shutil.rmtree(home)
        (tmp_path / "try").rename(home)


async def whole(home: Path, *, encrypted: bool) -> None:
    await holds(home, KEY if encrypted else None, rows=2)
    files = sorted(str(f.relative_to(home)) for f in home.rglob("*") if f.is_file())
    kept = [f"runs/r0000{n}/{name}" for n in (1, 2) for name in ("calibration.jsonl", "samples.jsonl")]
    beside = {"rlproxy.db", "rlproxy.lock", "rlproxy.toml", "backups/schema-9-x.db", *kept}
    assert beside - {"rlproxy.toml"} <= set(files) <= beside | {f"runs/r0000{n}/cache/a.json" for n in (1, 2)}
    assert in_the_clear(home) == ([] if encrypted else sorted(["backups/schema-9-x.db", "rlproxy.db", *kept]))
