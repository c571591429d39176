"""The unit's text, as systemd itself reads it, and `rlproxy service` against a fake systemctl."""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import shutil
from pathlib import Path

import psutil
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from proxy.cli.service.manager import NoService, run
from proxy.cli.service.managers import find, name_of
from proxy.cli.service.systemd import Systemd, _state, unit
from scripts.fakes.ollama import FakeOllama
from tests.harness.newcomer import Newcomer

ANALYZE = shutil.which("systemd-analyze")
ODD = 'odd home 100% $HOME "q" \\ é'


def read_back(text: str, key: str) -> str:
    return next(line.partition("=")[2] for line in text.splitlines() if line.startswith(f"{key}="))


def alive(pid: int) -> bool:
    """A zombie that nobody waited for, as in a container without an init, has ended."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def verify(folder: Path, text: str) -> str:
    """What systemd has to say against it."""
    file = folder / "rlproxy-test.service"
    file.write_text(text)
    import subprocess

    done = subprocess.run(
        [str(ANALYZE), "verify", "--user", "--man=no", str(file)], capture_output=True, text=True,
        env={**os.environ, "XDG_RUNTIME_DIR": str(folder)},
    )  # fmt: skip
    return "" if done.returncode == 0 and file.name not in done.stderr else done.stderr


@pytest.mark.skipif(ANALYZE is None, reason="no systemd-analyze on this machine")
@pytest.mark.parametrize("home", ["home", ODD])
def test_systemd_reads_the_unit(tmp_path: Path, home: str) -> None:
    folder = tmp_path / home
    folder.mkdir()
    text = unit(["/usr/bin/env", "-m", "proxy.cli", "serve", "--home", str(folder)], folder, "/usr/bin:/a b")
    assert verify(tmp_path, text) == ""
    broken = text.replace("Type=exec", "Type=nonsense").replace("Restart=on-failure", "Restart=perhaps")
    assert "service type" in verify(tmp_path, broken), "the check itself finds what is wrong"


def test_what_the_unit_promises(tmp_path: Path) -> None:
    text = unit(["python", "-m", "proxy.cli"], tmp_path, "/bin")
    for line in ("Restart=on-failure", "RestartPreventExitStatus=2", "KillMode=mixed", "TimeoutStopSec=90",
                 "UMask=0077", "WantedBy=default.target"):  # fmt: skip
        assert line in text.splitlines()


@given(word=st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=40))
def test_any_word_comes_out_as_it_went_in(word: str) -> None:
    """By systemd's rules: quotes and backslashes as in a shell's double quotes, %% and $$."""
    shown = read_back(unit(["python", word], Path("/h"), "/bin"), "ExecStart")
    assert [w.replace("$$", "$").replace("%%", "%") for w in shlex.split(shown)] == ["python", word]


def test_a_line_break_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NoService, match="line break"):
        unit(["python"], tmp_path / "a\nb", "/bin")


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(name=st.text(st.characters(categories=["L", "N", "P", "Zs"]), min_size=1, max_size=30))
def test_each_home_has_a_name_that_systemd_takes(tmp_path: Path, name: str) -> None:
    found = name_of(tmp_path / name)
    assert found.startswith("rlproxy-") and found.replace("-", "").isalnum() and found == name_of(tmp_path / name)


def test_the_usual_home_has_the_plain_name(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert name_of(tmp_path / ".rlproxy") == "rlproxy"


def test_where_no_manager_runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    assert find(tmp_path) is None
    (tmp_path / "systemd").mkdir()
    if shutil.which("systemctl"):
        assert isinstance(find(tmp_path), Systemd)


@pytest.mark.parametrize(
    ("shown", "running", "line"),
    [
        ({"ActiveState": "active", "MainPID": "7", "UnitFileState": "enabled", "NRestarts": "2", "Result": "success"},
         True, "runs as process 7, started again 2 times; starts at login"),
        ({"ActiveState": "failed", "MainPID": "0", "UnitFileState": "disabled", "Result": "exit-code"}, False,
         "failed (exit-code); does not start at login"),
        ({}, False, "does not run; does not start at login"),
    ],
)  # fmt: skip
def test_a_state_in_words(shown: dict[str, str], running: bool, line: str) -> None:
    state = _state(shown)
    assert state.running is running and state.line == line


def test_a_command_that_fails_is_a_sentence() -> None:
    with pytest.raises(NoService, match="`sh -c echo no; exit 3` did not work: no"):
        run(["sh", "-c", "echo no; exit 3"])
    with pytest.raises(NoService, match="No such file"):
        run(["/no/such/program"])
    assert run(["sh", "-c", "echo yes; exit 3"], may_fail=True) == "yes\n"


async def test_installed_shown_stopped_gently_and_removed(tmp_path: Path) -> None:
    ollama = FakeOllama(tmp_path / "ollama")
    await ollama.start()
    person = Newcomer(tmp_path / "machine", ollama.url)
    try:
        code, _, err = await person.run("service", "status")
        assert code == 1 and "Neither systemd --user nor launchd" in err
        person.has_systemd()
        with (person.rlproxy / "rlproxy.toml").open("a") as file:
            file.write(f'[backend]\nkind = "ollama"\nurl = "{ollama.url}"\n')
        code, out, _ = await person.run("service", "status")
        assert code == 1 and "not installed" in out
        code, out, _ = await person.run("service", "install", "--dry-run")
        assert code == 0 and "ExecStart=" in out and not (person.home / ".config").exists()
        code, out, err = await person.run("service", "install")
        assert code == 0 and "starts at every login" in out, err
        code, out, _ = await person.run("service", "status", "--json")
        state = json.loads(out)
        assert code == 0 and state["running"] and state["name"] == "rlproxy"
        async with asyncio.timeout(60):
            while (await person.run("status"))[0] != 0:
                await asyncio.sleep(0.2)
        code, out, _ = await person.run("service", "logs", "-n", "7")
        assert code == 0 and "--lines=7" in out and "rlproxy is ready" in out
        code, out, _ = await person.run("service", "install")  # again: started anew, with what it is told now
        again = json.loads((await person.run("service", "status", "--json"))[1])
        assert code == 0 and again["pid"] != state["pid"] and not alive(state["pid"])
        async with asyncio.timeout(60):
            while (await person.run("status"))[0] != 0:
                await asyncio.sleep(0.2)
        code, out, _ = await person.run("service", "remove")
        assert code == 0 and "stopped and removed" in out and not alive(again["pid"])
        log = (tmp_path / "machine" / "run" / "systemd" / "rlproxy.log").read_text()
        assert log.count("rlproxy: stopped.") == 2, "a graceful stop, not a kill"
        assert list((person.home / ".config" / "systemd" / "user").iterdir()) == []
        code, out, _ = await person.run("service", "remove", "--json")
        assert code == 0 and json.loads(out)["removed"] is False
    finally:
        await ollama.stop()
