"""Another user of this machine, who looks for what people said in the files of a home."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from proxy.core import home as homes
from scripts.fakes.backend import FakeBackend
from scripts.harness.command import rlproxy
from scripts.harness.in_process import Proxy
from scripts.harness.records import put
from scripts.harness.serving import Serving
from store.file import tombstones
from store.forgetting import backup_scan
from store.store import Store
from trainer.launch import open_log

READS = 0o077


@contextmanager
def umask(mask: int) -> Iterator[None]:
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


def open_to_others(folder: Path) -> list[str]:
    """All in it that another user may read, had they a way into the folder; but for what servers of others read."""
    found = [path for path in folder.rglob("*") if not path.is_symlink() and path.stat().st_mode & READS]
    return sorted(str(at) for path in found if (at := path.relative_to(folder)).parts[0] not in homes.SERVED)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def serving(home: Path, backend: FakeBackend) -> Serving:
    return Serving(home, Path("/nowhere"), "--backend", "vllm", "--backend-url", backend.url)


async def started(home: Path, backend: FakeBackend) -> str:
    """The log of a start and a stop, with an answer between."""
    served = serving(home, backend)
    with umask(0):
        await served.start()
    try:
        body = {"model": "fake", "messages": [{"role": "user", "content": "hi"}]}
        async with served.http.post("/v1/chat/completions", json=body) as response:
            assert response.status == 200
    finally:
        await served.stop()
    return served.log


async def old_home(home: Path) -> None:
    """As an older rlproxy, a careless copy or a person's `mkdir` left it."""
    with umask(0):
        home.mkdir(mode=0o755)
        store = await Store.open(home)
        await put(store, "c0")
        await store.close()
        for name in homes.PRIVATE:
            (home / name).mkdir(exist_ok=True, mode=0o755)
        for name in ("watch.lock", "watch.skipped"):
            (home / name).write_text("")
        (home / "logs" / "backend.log").write_text("what somebody said")
        (home / "rlproxy.db").chmod(0o644)
        (home / "rlproxy.toml").write_text("")
        tombstones.note_keys(home, ["k1"], needed=False)
        tombstones.note_forgotten(home, ["c1"])


async def test_an_open_home_is_closed_and_that_is_said_once(tmp_path: Path, backend: FakeBackend) -> None:
    home = tmp_path / "home"
    await old_home(home)
    log = await started(home, backend)
    assert mode(home) == 0o700 and log.count("Other users could read") == 12  # the home, seven folders, four files
    assert all(mode(home / name) == 0o700 for name in homes.PRIVATE)
    assert open_to_others(home) == ["logs/backend.log"]  # behind a folder that is closed, until it is written again
    log = await started(home, backend)
    assert log.count("Other users could read") == 12  # the first start's


@pytest.mark.parametrize("mask", [0o000, 0o022, 0o077])
async def test_what_a_start_makes_is_its_owners_whatever_the_umask(
    tmp_path: Path, backend: FakeBackend, mask: int
) -> None:
    home = tmp_path / "home"
    served = serving(home, backend)
    with umask(mask):
        await served.start()
    try:
        with umask(mask):
            copy = tmp_path / "copy.db"
            assert (await rlproxy(home, "backup", str(copy)))[0] == 0
            assert (await rlproxy(home, "export", "-o", str(tmp_path / "export.jsonl")))[0] == 0
    finally:
        await served.stop()
    assert mode(home) == 0o700 and open_to_others(home) == []
    assert mode(copy) == 0o600 and mode(tmp_path / "export.jsonl") == 0o600
    assert "Other users" not in served.log
    assert mode(home / "adapters_out") == 0o755  # behind the home; where it is elsewhere a server may read it


async def test_a_folder_that_is_not_ours_alone_is_left_as_it_is(tmp_path: Path, backend: FakeBackend) -> None:
    """`--home .` in a repository."""
    home = tmp_path / "repository"
    await old_home(home)
    with umask(0o022):
        (home / ".git").mkdir()
        (home / "README.md").write_text("read me")
    log = await started(home, backend)
    assert mode(home) == 0o755 and mode(home / ".git") == 0o755 and mode(home / "README.md") == 0o644
    assert "not rlproxy's (.git, README.md)" in log and "chmod 700" in log
    assert set(open_to_others(home)) == {".git", "README.md", "logs/backend.log"}
    assert mode(home / "logs") == 0o700


async def test_a_link_in_a_home_closes_nothing_elsewhere(tmp_path: Path) -> None:
    home, elsewhere = tmp_path / "home", tmp_path / "elsewhere"
    await old_home(home)
    with umask(0o022):
        elsewhere.mkdir()
        (elsewhere / "file").write_text("another's")
    shutil.rmtree(home / "runs")
    (home / "runs").symlink_to(elsewhere)
    (home / "rlproxy.toml").unlink()
    (home / "rlproxy.toml").symlink_to(elsewhere / "file")
    assert len(list(homes.close(home))) == 10
    assert mode(elsewhere) == 0o755 and mode(elsewhere / "file") == 0o644


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
async def test_another_users_home_is_said_and_not_touched(tmp_path: Path) -> None:
    home = tmp_path / "home"
    await old_home(home)
    os.chown(home, 12345, 12345)
    told = list(homes.close(home))
    assert "belongs to another user (uid 12345" in told[0] and "--home FOLDER" in told[0] and mode(home) == 0o755
    assert mode(home / "rlproxy.db") == 0o600


def test_a_log_is_closed_whatever_it_was(tmp_path: Path) -> None:
    file = tmp_path / "logs" / "backend.log"
    with umask(0):
        open_log(file).close()
        assert mode(file) == 0o600 and mode(file.parent) == 0o700
        file.chmod(0o644)
        with open_log(file) as out:
            out.write(b"said")
    assert mode(file) == 0o600 and file.read_bytes() == b"said"


async def test_an_export_is_not_written_into_what_somebody_laid_there(tmp_path: Path, cli: Proxy) -> None:
    """A link under the name of the part was followed, and a file that others may read stayed theirs to read."""
    await put(cli.store, "c0")
    victim, out = tmp_path / "victim", tmp_path / "out.jsonl"
    victim.write_text("mine")
    part = tmp_path / "out.jsonl.part"
    part.symlink_to(victim)
    assert (await rlproxy(cli.home, "export", "-o", str(out)))[0] == 0
    assert victim.read_text() == "mine" and not out.is_symlink() and not mode(out) & READS
    out.unlink()
    part.write_text("")
    part.chmod(0o666)
    with part.open() as theirs:
        assert (await rlproxy(cli.home, "export", "-o", str(out)))[0] == 0
        assert theirs.read() == "" and not mode(out) & READS and "c0" in out.read_text()


def test_a_pipe_in_the_home_is_no_copy(tmp_path: Path) -> None:
    """To open it waits for a writer: nothing was forgotten any more, and the process outlived SIGTERM."""
    os.mkfifo(tmp_path / "copy.db")
    assert backup_scan.looked_through(tmp_path, "session", "s") == ((), ())
