"""launchd, on Macs: the agent's property list, and the commands that make it a service."""

from __future__ import annotations

import os
import plistlib
import re
import sys
from pathlib import Path

from proxy.cli.agents.connection import Change, apply
from proxy.cli.service.manager import STOP_S, NoService, State, run


class Launchd:
    kind = "launchd"

    def __init__(self, home: Path, name: str, command: list[str]) -> None:
        self.home, self.name, self._command = home, name, command

    @classmethod
    def is_available(cls) -> bool:
        return sys.platform == "darwin"

    @property
    def file(self) -> Path:
        return Path.home() / "Library" / "LaunchAgents" / f"local.{self.name}.plist"

    @property
    def log(self) -> Path:
        return self.home / "logs" / "service.log"

    def text(self) -> str:
        return plist(f"local.{self.name}", self._command, self.log, os.environ.get("PATH", os.defpath))

    def install(self) -> None:
        try:
            self.log.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            now = self.file.read_bytes() if self.file.exists() else None
            apply([Change(self.file, now, self.text().encode())])
        except OSError as error:
            raise NoService(f"{self.file} could not be written ({error}); nothing was installed.") from None
        run(["launchctl", "bootout", self._target], may_fail=True)  # one that runs, with what it was told before
        run(["launchctl", "bootstrap", self._domain, str(self.file)])

    def remove(self) -> bool:
        if not self.file.exists():
            return False
        run(["launchctl", "bootout", self._target], may_fail=True)
        self.file.unlink(missing_ok=True)
        return True

    def state(self) -> State:
        if not self.file.exists():
            return State(False, False, f"not installed ({self.file} is not there)")
        return _state(run(["launchctl", "print", self._target], may_fail=True))

    def logs(self, lines: int, *, follow: bool) -> list[str]:
        return ["tail", "-n", str(lines), *(["-F"] if follow else []), str(self.log)]

    @property
    def _domain(self) -> str:
        return f"gui/{os.getuid()}"

    @property
    def _target(self) -> str:
        return f"{self._domain}/local.{self.name}"


def plist(label: str, command: list[str], log: Path, path: str) -> str:
    properties = {
        "Label": label,
        "ProgramArguments": command,
        "RunAtLoad": True,
        "KeepAlive": {"SuccessfulExit": False},  # again when it failed, not when it was told to stop
        "ThrottleInterval": 10,
        "ExitTimeOut": STOP_S,
        "StandardOutPath": str(log),
        "StandardErrorPath": str(log),
        "EnvironmentVariables": {"PATH": path},
        "Umask": 0o077,
    }
    return plistlib.dumps(properties, sort_keys=False).decode()


def _state(printed: str) -> State:
    if not printed:
        return State(True, False, "is not loaded; `rlproxy service install` loads it")
    pid = re.search(r"^[^\S\n]*pid = (\d+)", printed, re.MULTILINE)
    code = re.search(r"^[^\S\n]*last exit code = (.+)$", printed, re.MULTILINE)
    if pid:
        return State(True, True, f"runs as process {pid[1]}; starts at login", int(pid[1]))
    return State(True, False, f"does not run (last exit code {code[1] if code else 'unknown'}); starts at login")
