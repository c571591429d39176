"""A power cut at any moment: made afterwards, from all that the proxy told its disk (`told_disk.c`).

Owns the model of a disk. Bytes that were synced are there. Any part of the writes after the last sync of a file may be
there: those up to a moment, or any in any order. A write may also be torn between two sectors. A file that was unlinked
may be back until its folder was synced. Nothing else is assumed: SQLite itself asks just this of a disk.
"""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import struct
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from scripts.chaos.check import wrong
from scripts.chaos.kills import Tally, clients, flags
from scripts.chaos.nursery import Nursery
from scripts.chaos.people import NEVER, Ledger, living
from scripts.fakes.backend import FakeBackend
from store.file.schema import NAME

SECTOR = 512
HEAD = struct.Struct("<cc6xQQ")
FILES = {b"d": NAME, b"w": f"{NAME}-wal", b"j": f"{NAME}-journal"}
FOLDER = b"f"
OTHER_FILES = b"o"
SOURCE = Path(__file__).with_name("told_disk.c")


@dataclass(frozen=True)
class Act:
    end: int  # where its record ends in what was told
    op: bytes
    file: bytes
    offset: int
    bytes: bytes


def acts(trace: bytes, *, all_files: bool = False) -> Iterator[Act]:
    """With `others` also those on files that are not of the database."""
    position = 0
    while position < len(trace):
        op, file, offset, length = HEAD.unpack_from(trace, position)
        start = position + HEAD.size
        position = start + length
        if all_files or file != OTHER_FILES:
            yield Act(position, op, file, offset, trace[start:position])


@dataclass
class File:
    """A file on the disk: its bytes that are safe, and the acts since its last sync."""

    safe: bytearray | None = None  # None: there is no such file
    unsynced_acts: list[Act] = field(default_factory=list)

    def sync(self) -> None:
        for act in self.unsynced_acts:
            self.safe = applied(self.safe, act)
        self.unsynced_acts.clear()

    def after_a_cut(self, dice: random.Random) -> bytearray | None:
        """One of the states that it may be in."""
        content = None if self.safe is None else bytearray(self.safe)
        if dice.random() < 0.5:  # written in order, up to a moment
            survivors = self.unsynced_acts[: dice.randint(0, len(self.unsynced_acts))]
        else:
            share = dice.random()
            survivors = [act for act in self.unsynced_acts if dice.random() < share]
        for act in survivors:
            content = applied(content, torn(act, dice) if dice.random() < 0.3 else act)
        return content


def torn(act: Act, dice: random.Random) -> Act:
    """Cut a write to some of its sectors, from its beginning or its end."""
    sectors = len(act.bytes) // SECTOR
    if act.op != b"w" or not sectors:
        return act
    cut = dice.randint(0, sectors) * SECTOR
    if dice.random() < 0.5:
        return Act(act.end, act.op, act.file, act.offset, act.bytes[:cut])
    return Act(act.end, act.op, act.file, act.offset + cut, act.bytes[cut:])


def applied(file: bytearray | None, act: Act) -> bytearray | None:
    if act.op == b"u":
        return None
    file = bytearray() if file is None else file
    if act.op == b"t":
        del file[act.offset :]
    if act.op == b"w" and act.bytes:
        end = act.offset + len(act.bytes)
        file.extend(bytes(max(0, end - len(file))))
        file[act.offset : end] = act.bytes
    return file


class Disk:
    """Told one act after the other."""

    def __init__(self) -> None:
        self._files = {file: File() for file in FILES}

    def do(self, act: Act) -> None:
        if act.file == FOLDER:
            for file in self._files.values():
                if file.unsynced_acts and file.unsynced_acts[-1].op == b"u":
                    file.sync()
            return
        file = self._files[act.file]
        if act.op == b"s":
            file.sync()
        elif act.op == b"u" and act.file != b"d":
            file.sync()  # may come back whole, or not at all
            file.unsynced_acts.append(act)
        else:
            if file.unsynced_acts and file.unsynced_acts[0].op == b"u":  # one that is written after it is another file
                file.sync()
            file.unsynced_acts.append(act)

    def unsynced(self) -> int:
        return sum(len(file.unsynced_acts) for file in self._files.values())

    def cut(self, folder: Path, dice: random.Random) -> None:
        """Write into a folder the files as a power cut at this moment may leave them."""
        for file, name in FILES.items():
            if (content := self._files[file].after_a_cut(dice)) is not None:
                (folder / name).write_bytes(content)


def built(folder: Path) -> Path:
    """The library between a process and the C library."""
    library = folder / "told_disk.so"
    subprocess.run(["cc", "-O2", "-shared", "-fPIC", "-o", str(library), str(SOURCE), "-ldl"], check=True)
    return library


async def lived(folder: Path, seed: int, least: int) -> tuple[Ledger, bytes]:
    """One life from the very first start, under load, killed; and all that it told its disk."""
    library, trace, home = built(folder), folder / "told", folder / "home"
    backend = FakeBackend()
    await backend.start()
    ledger = Ledger()
    trace.touch()

    def now() -> float:
        return os.stat(trace).st_size

    people = clients(ledger, now, random.Random(seed))
    env = {"LD_PRELOAD": str(library), "TOLD_DISK": str(trace), "TOLD_HOME": str(home)}
    nursery = Nursery(home, flags(backend), env=env)
    await nursery.open()
    try:
        await nursery.born()
        async with nursery.client(await nursery.answers()) as http, living(people, http):
            until = time.monotonic() + 120
            while ledger.confirmations() < least and time.monotonic() < until:
                await asyncio.sleep(0.01)
            await nursery.kill()
    finally:
        await nursery.close()
        await backend.stop()
    return ledger, trace.read_bytes()


async def cuts(count: int, folder: Path, seed: int, *, least: int = 1500, until: float = float("inf")) -> Tally:
    """So many power cuts at random moments of one life."""
    ledger, trace = await lived(folder, seed, least)
    return await asyncio.to_thread(cut, count, folder, random.Random(seed), ledger, list(acts(trace)), until)


def cut(
    count: int, folder: Path, dice: random.Random, ledger: Ledger, trace: list[Act], until: float = float("inf")
) -> Tally:
    tally = Tally(cuts=0, with_unsynced=0, whole=len(ledger.answers), acts=ledger.acknowledged, told=len(trace))
    tally["rewards"] = sum(reward.acknowledged_at < NEVER for reward in ledger.rewards.values())
    tally["syncs"] = sum(act.op == b"s" for act in trace)
    tally["checkpointed"] = sum(act.op == b"w" and act.file == b"d" for act in trace)
    moments = set(dice.sample(range(len(trace)), min(count, len(trace))))
    disk = Disk()
    for n, act in enumerate(trace):
        disk.do(act)
        if n not in moments:
            continue
        if time.monotonic() > until:
            break
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            disk.cut(Path(scratch), dice)
            tally["wrong"] += [f"cut after act {n}: {problem}" for problem in wrong(Path(scratch), ledger, act.end)]
        tally["cuts"] += 1
        tally["with_unsynced"] += disk.unsynced() > 0
    return tally


def compiler() -> str | None:
    """None where there is one; else what is lacking."""
    return None if shutil.which("cc") else "no C compiler (cc) here: what a proxy tells its disk cannot be written down"
