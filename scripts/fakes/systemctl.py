"""`systemctl --user` where no systemd runs: a fake after systemctl(1), as a program.

Faithful in what `rlproxy service` meets:

- A unit is read only after `daemon-reload`.
- `restart` starts what does not run.
- ExecStart knows quoting, %% and $$.
- The environment is not the shell's.
- SIGTERM goes to the main process.
- `show` prints KEY=value lines.
- A unit that is not known is an error with status 1 or 5.

It does not restart what failed: that is in the unit's text, which `systemd-analyze verify` reads. PYTHONPATH is passed
on, for the tests' sake.
"""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil

UNITS = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "systemd" / "user"
STATE = Path(os.environ["XDG_RUNTIME_DIR"]) / "systemd"
PASSED = ("HOME", "PYTHONPATH", "XDG_RUNTIME_DIR", "XDG_CACHE_HOME", "LANG")


def main() -> None:
    user, verb, *arguments = sys.argv[1:]
    assert user == "--user", "services of the system are not ours"
    if verb == "daemon-reload":
        for unit in UNITS.glob("*.service"):
            (STATE / unit.name).write_bytes(unit.read_bytes())
        for unit_file in STATE.glob("*.service"):
            if not (UNITS / unit_file.name).exists():
                unit_file.unlink()
        return
    name = arguments[-1].removesuffix(".service")
    if verb == "show":
        show(name)
        return
    if not (STATE / f"{name}.service").exists():
        print(f"Failed to {verb} unit: Unit file {name}.service does not exist.", file=sys.stderr)
        sys.exit(5 if verb == "restart" else 1)
    if verb == "enable":
        (STATE / f"{name}.enabled").touch()
    elif verb == "restart":
        stop(name)
        start(name)
    elif verb == "disable":
        (STATE / f"{name}.enabled").unlink(missing_ok=True)
        if "--now" in arguments:
            stop(name)


def lines(name: str, key: str) -> list[str]:
    text = (STATE / f"{name}.service").read_text()
    return [line.partition("=")[2] for line in text.splitlines() if line.startswith(f"{key}=")]


def start(name: str) -> None:
    command = [w.replace("$$", "$").replace("%%", "%") for w in shlex.split(lines(name, "ExecStart")[0])]
    env = {key: os.environ[key] for key in PASSED if key in os.environ}
    for line in lines(name, "Environment"):
        env |= dict([shlex.split(line)[0].replace("%%", "%").split("=", 1)])
    with (STATE / f"{name}.log").open("ab") as log:
        process = subprocess.Popen(
            command, env=env, cwd=env["HOME"], stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True
        )
    (STATE / f"{name}.pid").write_text(str(process.pid))


def pid(name: str) -> int | None:
    try:
        number = int((STATE / f"{name}.pid").read_text())
        running = psutil.Process(number).status() != psutil.STATUS_ZOMBIE
    except (OSError, ValueError, psutil.Error):
        return None
    return number if running else None


def stop(name: str) -> None:
    if (main_pid := pid(name)) is not None:
        os.kill(main_pid, signal.SIGTERM)
        while pid(name) is not None:
            time.sleep(0.05)


def show(name: str) -> None:
    main_pid = pid(name)
    is_installed = (STATE / f"{name}.service").exists()
    print(f"LoadState={'loaded' if is_installed else 'not-found'}")
    print(f"ActiveState={'active' if main_pid else 'inactive'}\nSubState={'running' if main_pid else 'dead'}")
    print(f"MainPID={main_pid or 0}\nNRestarts=0\nResult=success")
    print(f"UnitFileState={'enabled' if (STATE / f'{name}.enabled').exists() else 'disabled'}")


if __name__ == "__main__":
    main()
