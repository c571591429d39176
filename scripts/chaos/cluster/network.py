"""Machines of a network of their own on this one: namespaces with a cable each, and cuts between any two of them.

Everything is in namespaces without a name, which the kernel takes away with this process however it ends. Not here:
what runs on a machine (machines).
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import socket
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

NETWORK: Final = 0x40000000  # CLONE_NEWNET
MOUNTS: Final = 0x00020000  # CLONE_NEWNS
LOOPBACK: Final = "127.0.0.1"
T = TypeVar("T")


class Machine:
    """Where a process runs and listens: this machine's loopback, unless it is one of a network."""

    address = LOOPBACK
    command: tuple[str, ...] = ()  # that starts another command there

    def run(self, function: Callable[[], T]) -> T:
        """Call it on that machine: what it starts or opens is there."""
        return function()

    def listen(self, port: int = 0) -> socket.socket:
        return self.run(lambda: socket.create_server((self.address, port)))


class NetworkMachine(Machine):
    def __init__(self, number: int) -> None:
        """`number`: of its network, 10.48.NUMBER.0. The hub, which is this process, has a cable to it."""
        self.address = f"10.48.{number}.2"
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=f"machine-{number}")  # lives there
        self.run(lambda: _unshare(NETWORK))
        self._namespace = self.run(lambda: os.open("/proc/thread-self/ns/net", os.O_RDONLY))
        path = f"/proc/{os.getpid()}/fd/{self._namespace}"
        self.command = ("nsenter", f"--net={path}")
        hub = f"10.48.{number}.1"
        _ip(f"link add hub{number} type veth peer name eth0 netns {path}")
        _ip(f"addr add {hub}/24 dev hub{number}")
        _ip(f"link set hub{number} up")
        for arguments in (
            "link set lo up",
            f"addr add {self.address}/24 dev eth0",
            "link set eth0 up",
            f"route add default via {hub}",
        ):
            self.run(partial(_ip, arguments))

    def run(self, function: Callable[[], T]) -> T:
        return self._thread.submit(function).result()

    def close(self) -> None:
        self._thread.shutdown()
        os.close(self._namespace)


class Network:
    """This process leaves the machine's own network for one of its own. Before any thread starts; needs root."""

    def __init__(self) -> None:
        """Raises OSError."""
        _unshare(NETWORK | MOUNTS)
        subprocess.run(["mount", "--make-rprivate", "/"], check=True)
        _ip("link set lo up")
        Path("/proc/sys/net/ipv4/ip_forward").write_text("1")
        self.machines: list[NetworkMachine] = []

    def machine(self) -> NetworkMachine:
        self.machines.append(machine := NetworkMachine(len(self.machines) + 1))
        return machine

    @contextlib.contextmanager
    def cut(self, machine: Machine, *peers: Machine) -> Iterator[None]:
        """Meanwhile nothing passes between one machine and its peers, either way, and nobody is told."""
        pairs = [pair for peer in peers for pair in ((machine, peer), (peer, machine))]
        for source, target in pairs:
            _ip(f"rule add from {source.address} to {target.address} blackhole")
        try:
            yield
        finally:
            for source, target in pairs:
                _ip(f"rule del from {source.address} to {target.address} blackhole")

    def close(self) -> None:
        for machine in self.machines:
            machine.close()


@contextlib.contextmanager
def small_disk(folder: Path, megabytes: int) -> Iterator[None]:
    """A disk of this size in place of the folder; only processes of this network see it."""
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={megabytes}m,mode=755", "tmpfs", str(folder)], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


@contextlib.contextmanager
def full(folder: Path) -> Iterator[None]:
    """Meanwhile the folder's disk has no room."""
    ballast = folder / "ballast"
    size = 0
    with ballast.open("wb") as file:
        for step in (2**26, 2**20, 2**12):  # others write meanwhile
            with contextlib.suppress(OSError):
                while True:
                    os.posix_fallocate(file.fileno(), size, step)
                    size += step
    try:
        yield
    finally:
        ballast.unlink()


def _unshare(flags: int) -> None:
    library = ctypes.CDLL(None, use_errno=True)
    if library.unshare(flags) != 0:
        raise OSError(ctypes.get_errno(), "this machine gives no namespaces (unshare), or not to this user")


def _ip(arguments: str) -> None:
    subprocess.run(["ip", *arguments.split()], check=True)
