"""Two relays, one PostgreSQL, three replicas: what is acknowledged is stored once, whatever befalls them meanwhile.

    python -m scripts.chaos.cluster [--kills 40] [--clients 16] [--seed 1] [--json FILE]

Real: `rlproxy serve` twice, each a process with a home of its own, and PostgreSQL from this machine's binaries. Each of
the six machines is a network namespace where root may make one, with TCP between them. The database's disk is small.
Fake: the three replicas, which answer as vLLM does, and the trainer, a process that counts (stand_in).

Clients hold conversations at one relay and rate at the other. Ratings start runs, and runs go live. Meanwhile relays,
the learner, its run, the database or a replica are killed, cut off, frozen or full. Then some swaps with nothing
broken. In the end the database is read. Each acknowledged answer and rating is there once, and no rating trained twice.
No two trainers were at work at once. No conversation went back to an older version, unless the database was away: a
relay goes on with what it knows then.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any, Final

from scripts.chaos.cluster import stored, versions
from scripts.chaos.cluster.clients import Client, Ledger
from scripts.chaos.cluster.faults import Faults
from scripts.chaos.cluster.machines import Cluster
from scripts.chaos.cluster.network import Machine, Network, small_disk
from scripts.harness.circumstances import circumstances
from scripts.harness.postgres import LACKS, PostgresServer, find_binaries

OUT: Final = Path(__file__).resolve().parents[3] / "benchmarks/cluster.json"
PREFIX: Final = "rlproxy-cluster-"
MACHINES: Final = 6
DISK_MB: Final = 1500  # of the database
WAL: Final = ("-c", "max_wal_size=128MB", "-c", "min_wal_size=64MB")  # so that it fits
BETWEEN_S: Final = (0.3, 1.5)  # from one fault to the next
SETTLED_S: Final = 120.0  # for spooled answers and runs under way, once nothing is broken
CALM_S: Final = 300.0  # that swaps with nothing broken are waited for
WHOLE_ANSWERS: Final = "SELECT id FROM rlproxy.completions WHERE status = 'done'"
OPEN_RUNS: Final = "SELECT id FROM rlproxy.runs WHERE status IN ('claimed', 'running')"
NEWEST_RUN: Final = "SELECT coalesce(max(id), 0) FROM rlproxy.runs"
MINUTES_FROM: Final = 100  # faults, one of which is the frozen minute


async def settled(cluster: Cluster, ledger: Ledger) -> tuple[float, int]:
    """Seconds until the database had each acknowledged answer whole, and no run was open; SETTLED_S at most. Also the
    newest run by then: fresh ratings may start another one while the relays stop."""
    began = time.monotonic()
    ids = {answer.id for answer in ledger.answers}
    while (elapsed := time.monotonic() - began) < SETTLED_S:
        ((newest,),) = await asyncio.to_thread(cluster.server.execute, NEWEST_RUN, cluster.database)
        rows = await asyncio.to_thread(cluster.server.execute, WHOLE_ANSWERS, cluster.database)
        runs = await asyncio.to_thread(cluster.server.execute, OPEN_RUNS, cluster.database)
        if {id for (id,) in rows} >= ids and not runs:
            break
        await asyncio.sleep(0.2)
    return round(elapsed, 1), newest


async def suffer(faults: Faults, kills: int, ledger: Ledger, dice: random.Random) -> None:
    """Each kind once, then by chance, in a random order."""
    names: list[str | None] = [*faults.names[:kills], *[None] * (kills - len(faults.names))]
    dice.shuffle(names)
    for number, name in enumerate(names, 1):
        await asyncio.sleep(dice.uniform(*BETWEEN_S))
        if kills >= MINUTES_FROM and number == kills // 2:
            await faults.freeze_for_a_minute()
        await faults.befall(name)
        fault = faults.log[-1]
        took = f"{fault.name}, {fault.ended - fault.began:.1f} s"
        counts = f"{len(ledger.answers)} answers, {len(ledger.ratings)} ratings"
        print(f"{time.strftime('%H:%M:%S')} {number} of {kills}: {took}; {counts}", flush=True)


async def calm(watch: versions.SwapWatch, faults: Faults, swaps: int) -> None:
    """Until so many versions went live with nothing broken."""
    deadline = time.monotonic() + CALM_S
    while sum(swap.is_calm for swap in watch.swaps(faults.log)) < swaps and time.monotonic() < deadline:
        await asyncio.sleep(1.0)
    await asyncio.sleep(versions.LIMIT_S + 1.0)


async def measured(
    kills: int, clients: int, seed: int, *, swaps: int = 10, network: Network | None = None, logs: Path | None = None
) -> dict[str, Any]:
    """Run the cluster through `kills` faults, then wait for `swaps` versions with nothing broken. Cuts and the full
    disk need a `network`. `logs`: a folder that gets the relays' logs."""
    binaries = find_binaries()
    if binaries is None:
        raise SystemExit(LACKS)
    machines: list[Machine] = [network.machine() if network else Machine() for _ in range(MACHINES)]
    folder = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-"))
    folder.chmod(0o755)  # PostgreSQL runs as another user
    disk = folder / "disk"
    disk.mkdir()
    with contextlib.ExitStack() as stack:
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        if logs is not None:
            stack.callback(lambda: [shutil.copy(log, logs) for log in folder.glob("*.log")])
        if network is not None:
            stack.enter_context(small_disk(disk, DISK_MB))
        disk.chmod(0o777)
        server = PostgresServer(binaries, durable=True, options=WAL, address=machines[2].address, room=disk)
        stack.callback(server.close)
        machines[2].run(server.start)
        cluster = Cluster(folder, server, machines)
        try:
            await cluster.start()
            return await _observed(cluster, kills, clients, random.Random(seed), swaps, network)
        finally:
            with contextlib.suppress(ProcessLookupError):
                await cluster.close()


async def _observed(
    cluster: Cluster, kills: int, clients: int, dice: random.Random, swaps: int, network: Network | None
) -> dict[str, Any]:
    ledger, faults, watch = Ledger(), Faults(cluster, dice, network), versions.SwapWatch(cluster)
    began = time.monotonic()
    people = [Client(n, cluster.relays, ledger, dice.randrange(2**32)) for n in range(clients)]
    tasks = [asyncio.create_task(person.live()) for person in people]
    watching = asyncio.create_task(watch.run())
    await suffer(faults, kills, ledger, dice)
    await calm(watch, faults, swaps)
    status_lines = await cluster.training()
    for task in tasks:
        assert not task.done(), task.exception()  # a client lives for ever
        task.cancel()
    await asyncio.wait(tasks)
    settled_s, newest = await settled(cluster, ledger)
    watching.cancel()
    await asyncio.wait({watching})
    swap_list = watch.swaps(faults.log)
    problems = faults.problems + versions.problems(swap_list, ledger, cluster, faults.log)
    if (count := sum(swap.is_calm for swap in swap_list)) < swaps:
        problems.append(f"only {count} swaps in {CALM_S:g} s with nothing broken: {status_lines}")
    statuses = [await relay.stop() for relay in cluster.relays]
    problems += [f"a stop ended with {status}" for status in statuses if status]
    problems += await asyncio.to_thread(stored.wrong, cluster.server, cluster.database, ledger)
    problems += await asyncio.to_thread(stored.wrong_runs, cluster.server, cluster.database, cluster.journal, newest)
    return {
        "faults": {name: sum(fault.name == name for fault in faults.log) for name in {f.name for f in faults.log}},
        "misses": dict(faults.misses), "network": network is not None, "clients": clients,
        "minutes": round((time.monotonic() - began) / 60, 1), "asked": ledger.requests, "answers": len(ledger.answers),
        "cut": ledger.cut, "ratings": len(ledger.ratings), "unsure": len(ledger.unsure),
        "refused_ratings": dict(ledger.refused), "statuses": {str(k): n for k, n in ledger.statuses.items()},
        "longest_answer_s": round(ledger.longest_s, 2), "settled_s": settled_s,
        **versions.summary(swap_list, ledger, faults.log),
        **await asyncio.to_thread(stored.learned, cluster.server, cluster.database),
        "wrong": problems[:50], "wrong_count": len(problems),
    }  # fmt: skip


def sweep() -> None:
    """Folders that a killed run of this script has left."""
    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        if not Path(f"/proc/{folder.name.removeprefix(PREFIX).partition('-')[0]}").exists():
            shutil.rmtree(folder, ignore_errors=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=40)
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--swaps", type=int, default=10)
    parser.add_argument("--json", type=Path, default=OUT)
    parser.add_argument("--logs", type=Path, help="a folder that gets the relays' logs")
    arguments = parser.parse_args()
    sweep()
    about = circumstances()
    try:
        network = Network()
    except OSError as error:
        network = None
        print(f"Nothing is cut and no disk is full: {error}.")
    kills, clients, seed = arguments.kills, arguments.clients, arguments.seed
    result = asyncio.run(measured(kills, clients, seed, swaps=arguments.swaps, network=network, logs=arguments.logs))
    result["seed"] = seed
    print(json.dumps(result, indent=1))
    arguments.json.write_text(json.dumps({**about, **result}, indent=1) + "\n")
    raise SystemExit(result["wrong_count"] > 0)


if __name__ == "__main__":
    main()
