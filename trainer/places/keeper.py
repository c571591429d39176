"""`python -m trainer.places.keeper FOLDER`: one attempt of a run, on the machine where it trains.

Owns the attempt from its start to `ended.json`: a child of its own, with the limits that it would have beside the
proxy. A file `stop` in the folder, or SIGTERM, stops it at its next step. Killed, it takes the trainer along, whose
stdin closes. Not here: who starts it (depot, slurm), and what becomes of the result (parcel).
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from trainer.child_process import LaunchError
from trainer.io.encrypted_files import KEY_BYTES
from trainer.places.depot import HOLD, STOP, take, write_end
from trainer.places.job import RunOrder
from trainer.places.local import LocalJob, start_local

EXIT_HELD = 75  # as the trainer's own
LOOK_S = 0.25  # between two looks for the file `stop`


async def keep(order: RunOrder) -> int:
    """Returns how the trainer ended, as Job.wait."""
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    try:
        job = await start_local(order)
    except LaunchError as error:
        print(error, file=sys.stderr)
        write_end(order.folder, -1, None)
        return -1
    looking = asyncio.create_task(_look_for_stop(order.folder, stop))
    stopping = asyncio.create_task(_stop(job, stop))
    async for _ in job.events():  # they are in progress.jsonl
        pass
    status = await job.wait()
    for task in (looking, stopping):
        task.cancel()
    write_end(order.folder, status, job.exceeded)
    return status


async def _look_for_stop(folder: Path, stop: asyncio.Event) -> None:
    while not (folder / STOP).exists():
        await asyncio.sleep(LOOK_S)
    stop.set()


async def _stop(job: LocalJob, stop: asyncio.Event) -> None:
    await stop.wait()
    await job.terminate()


def add_limits(parser: argparse.ArgumentParser) -> None:
    """Add the options that depot.keeper_arguments writes."""
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--nice", type=int, default=0)
    parser.add_argument("--max-memory-gb", type=float, default=0.0)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="trainer.places.keeper", description="One attempt of a run elsewhere.")
    parser.add_argument("folder", type=Path)
    add_limits(parser)
    parser.add_argument("--key-on-stdin", action="store_true")
    parser.add_argument("--hold", type=int, help="a lock's file, kept open until the end")
    options = parser.parse_args(arguments)
    os.umask(0o077)
    key = bytes.fromhex(sys.stdin.buffer.readline().decode().strip()) if options.key_on_stdin else None
    if key is not None and len(key) != KEY_BYTES:
        parser.error("the first line on stdin is not the key of a run")
    folder: Path = options.folder.absolute()
    with (folder / HOLD).open("w") as hold:
        if options.hold is None and not take(hold):
            print("another keeper is at work in this folder", file=sys.stderr)
            return EXIT_HELD
        return asyncio.run(keep(RunOrder(folder, options.threads, options.nice, options.max_memory_gb, key)))


if __name__ == "__main__":
    raise SystemExit(0 if main() == 0 else 1)
