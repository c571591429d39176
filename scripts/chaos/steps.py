"""kill -9 right behind one act on the disk, and what is there after each.

Owns two things that random instants hardly ever meet: a kill inside one commit, and one inside a migration of an
encrypted database. Acts are writes, truncations, syncs and unlinks of files in the home. A process that is killed
between two of them leaves what the first one left, so this is every step that there is.
"""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from contextlib import closing
from pathlib import Path
from typing import Any, Final

from scripts.chaos import power
from scripts.chaos.kills import LIVES_A_HOME, LONGEST_S, Tally, after_a_kill, clients, flags, last_life
from scripts.chaos.nursery import ROOT, Nursery
from scripts.chaos.people import Ledger, living
from scripts.fakes.backend import FakeBackend
from scripts.harness import newer_schema
from store.captured.completions import recover
from store.captured.recording import record
from store.copies import backup
from store.errors import StoreError
from store.file import driver, integrity, schema
from store.file.db_key import VARIABLE, Secret
from store.records import FinishedCompletion, Message, NewCompletion

MOST: Final = 400  # acts of a life: about thirty commits
SYNCS: Final = 40  # of every other life, which ends behind one
KEY: Final = "5e" * 32
PLANTED: Final = "xylophone-quagmire-0451"
ANSWERS: Final = 200  # in the database that is brought up to date

# Open the home in argv and close it again. A file that is still being checked would not be checkpointed.
OPEN: Final = """
import asyncio, sys
from pathlib import Path
from scripts.harness import newer_schema
from store.file.db_key import find
from store.store import Store
async def main(home):
    with newer_schema.installed(Path(sys.argv[2])):
        store = await Store.open(home, find("env", home))
        await store.checked()
        await store.close()
asyncio.run(main(Path(sys.argv[1])))
"""


async def commits(count: int, folder: Path, seed: int, until: float = float("inf")) -> Tally:
    """Kill `count` lives under load, each right behind one of its acts: in turn any act, and any sync.

    A kill right behind a sync falls between a commit and the last byte of the answers that wait for it.
    """
    tally = Tally(instants=0, inside_a_commit=0, behind_a_sync=0, elsewhere=0, asked=0, whole=0, acts=0, rewards=0)
    library, dice = power.built(folder), random.Random(seed)
    backend = FakeBackend()
    backend.pause_s = 0.001
    await backend.start()
    try:
        while tally["instants"] < count and time.monotonic() < until:
            lives = min(LIVES_A_HOME, count - tally["instants"])
            await _one_home(lives, folder / f"home{tally['instants']}", library, backend, dice, tally)
    finally:
        await backend.stop()
    return tally


async def _one_home(
    lives: int, home: Path, library: Path, backend: FakeBackend, dice: random.Random, tally: Tally
) -> None:
    ledger, trace, dies = Ledger(), home.with_suffix(".told"), home.with_suffix(".dies")
    people = clients(ledger, time.monotonic, dice)
    env = {"LD_PRELOAD": str(library), "TOLD_DISK": str(trace), "TOLD_HOME": str(home), "TOLD_DIES": str(dies)}
    nursery = Nursery(home, flags(backend), env=env)
    await nursery.open()
    try:
        for n in range(lives):
            dies.write_text(str(dice.randint(1, MOST) if n % 2 else -dice.randint(1, SYNCS)))
            trace.unlink(missing_ok=True)
            await nursery.born()
            ended = asyncio.create_task(nursery.ended())
            life = asyncio.create_task(_life(nursery, people))
            await asyncio.wait({ended}, timeout=LONGEST_S)
            if not ended.done():
                os.kill(nursery.pid, signal.SIGKILL)
            if (status := await ended) != -signal.SIGKILL:
                tally["wrong"].append(f"a life ended with {status}: {nursery.log.read_text()[-500:]}")
            life.cancel()
            await asyncio.gather(life, return_exceptions=True)
            tally["instants"] += 1
            tally[_last(trace)] += 1
            tally["wrong"] += await asyncio.to_thread(after_a_kill, home, ledger)
        dies.unlink()
        await last_life(nursery, people, home, ledger, tally)
    finally:
        await nursery.close()


async def _life(nursery: Nursery, people: list[Any]) -> None:
    async with nursery.client(await nursery.answers()) as http:
        await asyncio.gather(*(person.resend(http) for person in people))
        async with living(people, http):
            await asyncio.Event().wait()  # until it is cancelled: the proxy is dead


def _last(trace: Path) -> str:
    """Where a life ended: its last act on the database."""
    last = None
    for last in power.acts(trace.read_bytes() if trace.exists() else b""):  # noqa: B007
        pass
    if last is None or last.file != b"w":
        return "elsewhere"
    return {b"w": "inside_a_commit", b"s": "behind_a_sync"}.get(last.op, "elsewhere")


def migrations(count: int, folder: Path, seed: int, until: float = float("inf")) -> Tally:
    """So many kills of a process that brings an encrypted database up to date, at acts spread over all of them."""
    tally = Tally(instants=0, acts=0, not_yet=0, done=0)
    original, library, dice = folder / "before", power.built(folder), random.Random(seed)
    expected, newer = older(original, Secret(KEY)), newer_schema.write(folder / "newer")
    _, tally["acts"] = _opened(shutil.copytree(original, folder / "counted"), newer, library, None)
    moments = [dice.randint(1 + tally["acts"] * n // count, tally["acts"] * (n + 1) // count) for n in range(count)]
    for act in moments:
        if time.monotonic() > until:
            break
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            home = shutil.copytree(original, Path(scratch) / "home")
            status, _ = _opened(home, newer, library, act)
            problems = [] if status == -signal.SIGKILL else [f"the process ended with {status}"]
            problems += _in_the_clear(home) + problems_after(home, newer, Secret(KEY), expected, tally)
            tally["wrong"] += [f"killed behind act {act}: {problem}" for problem in problems]
        tally["instants"] += 1
    return tally


def older(home: Path, secret: Secret) -> dict[str, tuple[str, str]]:
    """An encrypted home of today's schema, which is the earlier one here; question and answer of each completion."""
    home.mkdir(mode=0o700)
    conversations = {
        f"rl-{n}": (f"{PLANTED} question {n} " * 40, f"{PLANTED} answer {n} " * 40) for n in range(ANSWERS)
    }
    with closing(driver.connect(home / schema.NAME, secret, with_names=True)) as db:
        for pragma in schema.PRAGMAS:
            db.execute(pragma)
        schema.migrate(db)
        db.execute("BEGIN")
        record(db, [_answer(id, *texts) for id, texts in conversations.items()])
        db.execute("COMMIT")
    return conversations


def _answer(id: str, question: str, answer: str) -> tuple[NewCompletion, FinishedCompletion]:
    new = NewCompletion(
        id=id, request_id=id, choice=0, created_at=1.0, dialect="chat", backend="openai", model="m", served_model="m",
        version=0, session=None, user=None, turn="main", turn_rule="default", streamed=False,
        prompt=(Message("user", question.encode()),), request=b"{}",
    )  # fmt: skip
    return new, FinishedCompletion(id, "done", 2.0, Message("assistant", answer.encode()), answer)


def _opened(home: Path, newer: Path, library: Path, dies: int | None) -> tuple[int, int]:
    """Its status after a start, killed behind that act, and how many acts it came to."""
    trace, number = home.with_suffix(".told"), home.with_suffix(".dies")
    number.write_text(str(dies or 0))
    env = {**os.environ, VARIABLE: KEY, "PYTHONPATH": str(ROOT), "LD_PRELOAD": str(library), "TOLD_DISK": str(trace),
           "TOLD_HOME": str(home), "TOLD_DIES": str(number)}  # fmt: skip
    status = os.spawnve(os.P_WAIT, sys.executable, [sys.executable, "-c", OPEN, str(home), str(newer)], env)
    return status, sum(1 for _ in power.acts(trace.read_bytes(), all_files=True)) if trace.exists() else 0


def _in_the_clear(home: Path) -> list[str]:
    files = (path for path in home.rglob("*") if path.is_file())
    return [f"{path.name} has words in the clear" for path in files if PLANTED.encode() in path.read_bytes()]


def problems_after(
    home: Path, newer: Path, secret: Secret, expected: dict[str, tuple[str, str]], tally: Tally
) -> list[str]:
    """Opened again as a start does: all is there, once, and the database is up to date."""
    path = home / schema.NAME
    with newer_schema.installed(newer) as newest:
        return _problems_after_start(path, newest, secret, expected, tally)


def _problems_after_start(
    path: Path, newest: int, secret: Secret, expected: dict[str, tuple[str, str]], tally: Tally
) -> list[str]:
    with closing(driver.connect(path, secret, read_only=True)) as db:
        (number,) = db.execute("PRAGMA user_version").fetchone()
    tally["done" if number == newest else "not_yet"] += 1
    try:
        with closing(schema.open_database(path, backup.before_migration, secret)) as db:
            integrity.check(db, path)
            schema.begin(db, recover)
            problems = [row[0] for row in db.execute("PRAGMA integrity_check") if row[0] != "ok"]
            problems += [f"foreign key of {tuple(row)}" for row in db.execute("PRAGMA foreign_key_check")]
            rows = db.execute(
                """SELECT c.id, p.body AS question, r.body AS answer FROM completions c
                JOIN messages p ON p.hash = c.prompt_hash JOIN messages r ON r.hash = c.reply_hash"""
            ).fetchall()
    except driver.errors(StoreError) as error:
        return [str(error)]
    stored = {row["id"]: (row["question"].decode(), row["answer"].decode()) for row in rows}
    if stored != expected or len(rows) != len(expected):
        problems.append(f"{len(rows)} completions where {len(expected)} were, or other words")
    return problems + _in_the_clear(path.parent)
