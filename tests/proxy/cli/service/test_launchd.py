"""The property list, as plistlib reads it, and what launchctl prints. No launchd runs here: it was never tried."""

from __future__ import annotations

import plistlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.cli.service.launchd import Launchd, _state, plist

PRINTED = "gui/501/local.rlproxy = {\n\tstate = running\n\n\tpid = 4711\n\tlast exit code = (never exited)\n}\n"


def test_what_the_list_promises(tmp_path: Path) -> None:
    found = plistlib.loads(plist("local.rlproxy", ["python", "a <b>&"], tmp_path / "x.log", "/bin").encode())
    assert found["ProgramArguments"] == ["python", "a <b>&"] and found["RunAtLoad"] is True
    assert found["KeepAlive"] == {"SuccessfulExit": False} and found["ExitTimeOut"] == 90 and found["Umask"] == 0o077


@given(word=st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=40))
def test_any_word_comes_out_as_it_went_in(word: str) -> None:
    found = plistlib.loads(plist("l", [word], Path("/x"), word).encode())
    assert found["ProgramArguments"] == [word] and found["EnvironmentVariables"] == {"PATH": word}


@pytest.mark.parametrize(
    ("printed", "running", "says"),
    [
        (PRINTED, True, "runs as process 4711"),
        ("x = {\n\tstate = not running\n\tlast exit code = 1\n}\n", False, "last exit code 1"),
        ("", False, "is not loaded"),
    ],
)
def test_a_state_in_words(printed: str, running: bool, says: str) -> None:
    state = _state(printed)
    assert state.running is running and says in state.line


def test_where_it_lies_and_what_shows_its_log(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    manager = Launchd(tmp_path / "h", "rlproxy", ["python"])
    assert manager.file == tmp_path / "Library" / "LaunchAgents" / "local.rlproxy.plist"
    assert manager.logs(5, follow=True) == ["tail", "-n", "5", "-F", str(tmp_path / "h" / "logs" / "service.log")]
    assert not manager.state().installed and manager.remove() is False
