"""A PostgreSQL server of a test's own, from the machine's binaries: on loopback, in a folder that goes with it.

Owns the process and what can befall it: killed, frozen, started again. PostgreSQL refuses to run as root, so that root
starts it as another user. Not here: rlproxy's tables in it (store.postgres.schema).
"""

from __future__ import annotations

import contextlib
import itertools
import os
import pwd
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

LACKS: Final = "PostgreSQL's binaries (initdb, postgres) are not here: `apt-get install postgresql` brings them"
USERS: Final = ("postgres", "nobody")
START_S: Final = 60.0
ROLE: Final = "rlproxy"


def find_binaries() -> Path | None:
    """The folder of initdb and postgres, of the newest version that is installed."""
    on_path = shutil.which("initdb")
    folders = [Path(on_path).parent] if on_path else []
    folders += sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda folder: int(folder.parts[-2]), reverse=True)
    return next((folder for folder in folders if (folder / "initdb").exists() and (folder / "postgres").exists()), None)


class PostgresServer:
    """One server process and its databases."""

    def __init__(
        self,
        binaries: Path,
        *,
        durable: bool = False,
        options: tuple[str, ...] = (),
        address: str = "127.0.0.1",
        room: Path | None = None,
    ) -> None:
        """`durable`: it waits for its disk, as a server should; tests of queries need not. `address`: where it
        listens. `room`: where its folder is made."""
        self._binaries = binaries
        self._user = next((name for name in USERS if _exists(name)), None) if os.geteuid() == 0 else None
        memory = Path("/dev/shm")
        room = room or (memory if memory.is_dir() and not durable else None)
        self._address = address
        self.folder = Path(tempfile.mkdtemp(prefix="rlproxy-pg-", dir=room))
        self.port = _free_port()
        self.password = secrets.token_urlsafe(12)
        self._names = (f"test_{number}" for number in itertools.count())
        self._process: subprocess.Popen[bytes] | None = None
        lax = () if durable else ("-c", "fsync=off", "-c", "full_page_writes=off")
        self._options = ("-c", "max_connections=100", "-c", "shared_buffers=64MB", *lax, *options)
        self._make()

    def _make(self) -> None:
        word = self.folder / "password"
        word.write_text(self.password)
        if self._user is not None:
            owner = pwd.getpwnam(self._user)
            for path in (self.folder, word):
                os.chown(path, owner.pw_uid, owner.pw_gid)
        self._run(
            "initdb", "-D", str(self._data), "-U", ROLE, "--pwfile", str(word), "-A", "scram-sha-256", "-E", "UTF8",
            "--locale=C.UTF-8", "--no-sync",
        )  # fmt: skip
        with (self._data / "pg_hba.conf").open("a") as file:
            file.write("host all all all scram-sha-256\n")  # it listens at one address only

    @property
    def _data(self) -> Path:
        return self.folder / "data"

    def _run(self, name: str, *arguments: str) -> None:
        process = subprocess.run(
            [self._binaries / name, *arguments], user=self._user, cwd=self.folder, capture_output=True, text=True
        )
        assert process.returncode == 0, f"{name}: {process.stdout}{process.stderr}"

    def start(self) -> None:
        """Returns once it answers."""
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [
                    self._binaries / "postgres", "-D", str(self._data), "-p", str(self.port),
                    "-c", f"listen_addresses={self._address}", "-c", f"unix_socket_directories={self.folder}",
                    *self._options,
                ],
                user=self._user, cwd=self.folder, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip
        self.wait()

    def wait(self) -> None:
        """Until it answers."""
        assert self._process is not None
        deadline = time.monotonic() + START_S
        while not self._answers():
            assert self._process.poll() is None, (self.folder / "log").read_text(errors="replace")[-2000:]
            assert time.monotonic() < deadline, "PostgreSQL did not start"
            time.sleep(0.05)

    @property
    def has_ended(self) -> bool:
        """Tell whether its process is gone, by itself or as it was killed."""
        return self._process is None or self._process.poll() is not None

    def _answers(self) -> bool:
        import psycopg

        with contextlib.suppress(psycopg.Error):
            self._connect().close()
            return True
        return False

    def _connect(self) -> Any:
        import psycopg

        return psycopg.connect(self.url("postgres"), autocommit=True, connect_timeout=3)

    def url(self, database: str) -> str:
        return f"postgresql://{ROLE}:{self.password}@{self._address}:{self.port}/{database}"

    def execute(self, sql: str, database: str = "postgres") -> list[tuple[Any, ...]]:
        """One statement of somebody who administers the server."""
        import psycopg

        with psycopg.connect(self.url(database), autocommit=True) as connection:
            cursor = connection.execute(sql.encode())
            return cursor.fetchall() if cursor.description is not None else []

    def create(self, template: str = "template1") -> str:
        """A database; its name."""
        name = next(self._names)
        self.execute(f"CREATE DATABASE {name} TEMPLATE {template}")
        return name

    def drop(self, database: str) -> None:
        self.execute(f"DROP DATABASE IF EXISTS {database} WITH (FORCE)")

    def kill(self) -> None:
        """End all of its processes at once, as a power cut does."""
        assert self._process is not None
        for pid in self._processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._process.wait()
        self._process = None

    def _processes(self) -> list[int]:
        assert self._process is not None
        children = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children").read_text().split()
        return [self._process.pid, *map(int, children)]

    @contextlib.contextmanager
    def frozen(self) -> Iterator[None]:
        """It answers nobody meanwhile, and its connections stay."""
        pids = self._processes()
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)

    def stop(self) -> None:
        """At once, ending all connections; nothing that was committed is lost."""
        if self._process is not None:
            self._process.send_signal(signal.SIGINT)
            self._process.wait(START_S)
            self._process = None

    def close(self) -> None:
        if self._process is not None:
            self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)


def _exists(user: str) -> bool:
    try:
        pwd.getpwnam(user)
    except KeyError:
        return False
    return True


def _free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return int(listening.getsockname()[1])
