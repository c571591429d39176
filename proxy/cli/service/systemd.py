"""systemd --user: the unit's text, and the commands that make it a service.

Owns quoting (systemd reads %, $ and backslashes in a unit) and the choices. The main process alone is told to stop, as
it ends its trainer and its servers itself. Exit status 2, settings that cannot be read, is not tried again.
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import Final

from proxy.cli.agents.connection import Change, apply
from proxy.cli.service.manager import STOP_S, NoService, State, run

PROPERTIES: Final = "LoadState,ActiveState,SubState,MainPID,NRestarts,UnitFileState,Result"


class Systemd:
    kind = "systemd"

    def __init__(self, home: Path, name: str, command: list[str]) -> None:
        self.home, self.name, self._command = home, name, command

    @classmethod
    def is_available(cls) -> bool:
        """Tell whether a manager of this person's services runs: in most containers none does."""
        runtime = os.environ.get("XDG_RUNTIME_DIR") or f"/run/user/{os.getuid()}"
        return sys.platform == "linux" and shutil.which("systemctl") is not None and Path(runtime, "systemd").is_dir()

    @property
    def file(self) -> Path:
        config = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
        return Path(config) / "systemd" / "user" / f"{self.name}.service"

    def text(self) -> str:
        return unit(self._command, self.home, os.environ.get("PATH", os.defpath))

    def install(self) -> None:
        try:
            now = self.file.read_bytes() if self.file.exists() else None
            apply([Change(self.file, now, self.text().encode())])
        except OSError as error:
            raise NoService(f"{self.file} could not be written ({error}); nothing was installed.") from None
        self._ctl("daemon-reload")
        self._ctl("enable", self.name)
        self._ctl("restart", self.name)

    def remove(self) -> bool:
        if not self.file.exists():
            return False
        self._ctl("disable", "--now", self.name)
        self.file.unlink(missing_ok=True)
        self._ctl("daemon-reload")
        return True

    def state(self) -> State:
        if not self.file.exists():
            return State(False, False, f"not installed ({self.file} is not there)")
        printed = run(["systemctl", "--user", "show", f"--property={PROPERTIES}", self.name])
        return _state(dict(line.partition("=")[::2] for line in printed.splitlines()))

    def logs(self, lines: int, *, follow: bool) -> list[str]:
        command = ["journalctl", "--user", f"--unit={self.name}", f"--lines={lines}", "--no-pager"]
        return [*command, "--follow"] if follow else command

    def _ctl(self, *words: str) -> None:
        run(["systemctl", "--user", *words])


def unit(command: list[str], home: Path, path: str) -> str:
    return f"""\
# Written by `rlproxy service install`; `rlproxy service remove` takes it out.
[Unit]
Description=rlproxy, the proxy that learns from ratings ({_plain(str(home))})
StartLimitIntervalSec=300
StartLimitBurst=10

[Service]
Type=exec
ExecStart={" ".join(_quote(word) for word in command)}
Environment={_quote(f"PATH={path}", variables=False)}
# Keys that shall stand in no settings file, as RLPROXY_BACKEND__API_KEY=…; the file need not exist.
EnvironmentFile=-{_plain(str(home / "service.env"))}
UMask=0077
Restart=on-failure
RestartSec=5
RestartPreventExitStatus=2
KillMode=mixed
TimeoutStopSec={STOP_S}

[Install]
WantedBy=default.target
"""


def _quote(word: str, *, variables: bool = True) -> str:
    """`variables`: whether systemd would put an environment variable in for a $."""
    safe = _plain(word.replace("\\", "\\\\").replace('"', '\\"'))
    return f'"{safe.replace("$", "$$") if variables else safe}"'


def _plain(text: str) -> str:
    if "\n" in text:
        raise NoService(f"{text!r} has a line break in it, which no unit can have.")
    return text.replace("%", "%%")


def _state(properties: dict[str, str]) -> State:
    running = properties.get("ActiveState") == "active"
    pid = int(properties.get("MainPID") or 0) or None
    at_login = "starts at login" if properties.get("UnitFileState") == "enabled" else "does not start at login"
    restarts = (
        f", started again {properties['NRestarts']} times" if properties.get("NRestarts", "0") not in ("", "0") else ""
    )
    reason = f" ({properties['Result']})" if properties.get("Result") not in (None, "", "success") else ""
    activity = f"runs as process {pid}" if running else f"{properties.get('ActiveState') or 'does not run'}{reason}"
    return State(True, running, f"{activity}{restarts}; {at_login}", pid)
