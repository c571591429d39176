"""The service manager of this machine, systemd or launchd, and the name of a home's service.

Not in the package itself: `rlproxy --help` imports that, and this reads settings.
"""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path

from config.settings import HOME
from proxy.cli.service.launchd import Launchd
from proxy.cli.service.manager import Manager, NoService, State
from proxy.cli.service.systemd import Systemd

__all__ = ["Launchd", "Manager", "NoService", "State", "Systemd", "find", "name_of"]

MANAGERS: tuple[type[Launchd] | type[Systemd], ...] = (Launchd, Systemd)


def find(home: Path) -> Manager | None:
    """The service manager of this machine, if there is one."""
    kind = next((kind for kind in MANAGERS if kind.is_available()), None)
    # Not from the folder that it is started in, a person's home: a folder `store` there would be taken for ours.
    command = [sys.executable, "-P", "-m", "proxy.cli", "serve", "--home", str(home)]
    return kind(home, name_of(home), command) if kind else None


def name_of(home: Path) -> str:
    """One service a home; the usual home has the plain name."""
    if home == Path(HOME).expanduser():
        return "rlproxy"
    return f"rlproxy-{hashlib.sha256(str(home).encode()).hexdigest()[:8]}"
