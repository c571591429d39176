"""A real sshd on loopback, with keys of its own, and a Python there that imports this tree."""

from __future__ import annotations

import getpass
import os
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")


def lacks() -> str | None:
    """Return the reason why no sshd can be started here; None where one can."""
    if PROGRAM is None or shutil.which("ssh") is None or shutil.which("ssh-keygen") is None:
        return "there is no sshd on this machine (Debian: openssh-server)"
    return None


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return int(listening.getsockname()[1])


class Sshd:
    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True)
        self.folder, self.port = folder, free_port()
        self.jobs = folder / "jobs"
        self.user = getpass.getuser()
        self._process: subprocess.Popen[bytes] | None = None
        for name in ("host", "client", "stranger"):
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / name], check=True)
        shutil.copy(folder / "client.pub", folder / "authorized")
        (folder / "authorized").chmod(0o600)
        (folder / "sshd_config").write_text(
            f"ListenAddress 127.0.0.1\nPort {self.port}\nHostKey {folder}/host\nPidFile none\nUsePAM no\n"
            f"AuthorizedKeysFile {folder}/authorized\nStrictModes no\nPasswordAuthentication no\n"
            "KbdInteractiveAuthentication no\nPermitRootLogin yes\nLogLevel ERROR\n"
        )
        host_key = " ".join((folder / "host.pub").read_text().split()[:2])
        (folder / "known").write_text(f"[127.0.0.1]:{self.port} {host_key}\n")
        (folder / "known_nobody").write_text("")
        for name, key, known in (
            ("config", "client", "known"),
            ("config_stranger", "stranger", "known"),
            ("config_unknown", "client", "known_nobody"),
        ):
            (folder / name).write_text(
                f"IdentityFile {folder}/{key}\nIdentitiesOnly yes\nUserKnownHostsFile {folder}/{known}\n"
                "GlobalKnownHostsFile none\n"
            )
        self.python = folder / "python"
        # A verb that is named in `held` waits until it is not: the place to kill a proxy.
        self.python.write_text(
            f"#!/bin/sh\nexport PYTHONPATH={ROOT} OMP_NUM_THREADS=1\nfor word in $5; do\n"
            f"  while [ -e {folder}/held-$word ]; do touch {folder}/at-$word; sleep 0.1; done\ndone\n"
            f'exec {sys.executable} "$@"\n'
        )
        self.python.chmod(0o700)

    @property
    def where(self) -> str:
        return f"ssh://{self.user}@127.0.0.1:{self.port}{self.jobs}"

    def options(self, config: str = "config") -> tuple[str, ...]:
        return ("-F", str(self.folder / config))

    def start(self) -> None:
        assert PROGRAM is not None
        if os.geteuid() == 0:
            Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)  # where it locks itself in
        log = (self.folder / "sshd.log").open("ab")
        command = [PROGRAM, "-D", "-e", "-f", str(self.folder / "sshd_config")]
        self._process = subprocess.Popen(command, stderr=log, start_new_session=True)
        log.close()
        for _ in range(100):
            with socket.socket() as client:
                if client.connect_ex(("127.0.0.1", self.port)) == 0:
                    return
            time.sleep(0.05)
        raise AssertionError((self.folder / "sshd.log").read_text())

    def stop(self) -> None:
        """With all its connections: as a cable that is pulled."""
        import psutil

        if self._process is None:
            return
        sessions = [
            child
            for child in psutil.Process(self._process.pid).children(recursive=True)
            if "sshd" in child.name()  # not a keeper, which is in a session of its own
        ]
        self._process.kill()
        self._process.wait()
        for session in sessions:
            session.kill()
        self._process = None
