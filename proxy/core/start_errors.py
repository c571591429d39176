"""Why `rlproxy serve` cannot start: a home that cannot be made, a port that is taken or not allowed.

Owns these sentences and the two acts that they are about. What a backend or the store has against it are their errors.
"""

from __future__ import annotations

import errno
import socket
from pathlib import Path
from typing import Any, Final

import psutil
from aiohttp import web

STARTING: Final = "rlproxy is starting"  # how the answers of a proxy begin whose backend is not there yet
PRIVILEGED: Final = 1024  # ports below it are root's


class CannotStart(Exception):
    """The sentence to end with."""


def make_home(home: Path) -> None:
    try:
        home.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise CannotStart(
            f"The folder {home} cannot be made ({error.strerror}); name one that you may write to: "
            "`rlproxy serve --home FOLDER`."
        ) from error


class Listening:
    """The sockets of an address: taken at once, heard later. A port that is taken is known before a model loads."""

    def __init__(self, host: str, port: int) -> None:
        self._host, self._port = host, port
        self._sockets: list[socket.socket] = []
        try:
            for family, kind, protocol, _, address in _addresses(host, port):
                self._sockets.append(bound := socket.socket(family, kind, protocol))
                bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                if family == socket.AF_INET6:
                    bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                bound.bind(address)
        except OSError as error:
            self.close()
            raise CannotStart(_why_not(host, port, error)) from error

    @property
    def url(self) -> str:
        host, port = self._sockets[0].getsockname()[:2]
        return f"http://{f'[{host}]' if ':' in host else host}:{port}"

    async def begin(self, runner: web.BaseRunner, *, lend: bool = False) -> None:
        """From now on, who connects is answered. `lend`: another one begins later, on the same sockets. Raises
        CannotStart."""
        try:
            for bound in self._sockets:
                await web.SockSite(runner, bound.dup() if lend else bound).start()
        except OSError as error:
            raise CannotStart(_why_not(self._host, self._port, error)) from error

    def close(self) -> None:
        for bound in self._sockets:
            bound.close()


def _addresses(host: str, port: int) -> list[Any]:
    """Without doubles, which some files of hosts have."""
    return list(dict.fromkeys(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)))


def _why_not(host: str, port: int, error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        free_port = port + 1 if port < 65535 else 0
        return (
            f"Port {port} of {host} is taken{_by(port)}; end that, or take another: `rlproxy serve --port {free_port}`."
        )
    if error.errno == errno.EACCES:
        return (
            f"Port {port} of {host} is not allowed to you; take one from {PRIVILEGED} on: `rlproxy serve --port 8484`."
        )
    if error.errno == errno.EADDRNOTAVAIL or isinstance(error, socket.gaierror):
        return f"This machine has no address {host}; listen on one that it has: `rlproxy serve --host 127.0.0.1`."
    return f"{host}:{port} cannot be listened on ({error.strerror or error}); take another: --host, --port."


def _by(port: int) -> str:
    """Name its owner, where the system tells."""
    try:
        for connection in psutil.net_connections("tcp"):
            if (
                connection.status == psutil.CONN_LISTEN
                and connection.laddr
                and connection.laddr.port == port
                and connection.pid
            ):
                return f" by {psutil.Process(connection.pid).name()} (process {connection.pid})"
    except (psutil.Error, OSError):
        pass
    return ""
