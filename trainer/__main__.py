"""`python -m trainer RUN_FOLDER`: one run, by hand or by the proxy. Exit status as in trainer/CONTRACT.md."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from trainer import ranks
from trainer.idle_cores import openmp_environment
from trainer.io.encrypted_files import KEY_BYTES, Seal, SealError
from trainer.io.progress import Progress, Stop, Stopped
from trainer.io.run_folder import SAMPLES, FolderLocked, RunError, lock, read_spec
from trainer.limits import default_threads

EXIT_FAILED = 1
EXIT_HELD = 75  # EX_TEMPFAIL
EXIT_STOPPED = 143  # as a shell reports SIGTERM


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m trainer", description="One training run.")
    parser.add_argument("folder", type=Path, help="a run folder: run.json, samples.jsonl, calibration.jsonl")
    parser.add_argument("--watch-stdin", action="store_true", help="end when stdin closes")
    parser.add_argument("--key-on-stdin", action="store_true", help="the first line of stdin opens the samples")
    parser.add_argument("--tinker", metavar="URL", help="a Tinker server that takes the steps")
    parser.add_argument("--tinker-model", default="", metavar="NAME", help="of the base there; left out: the weights'")
    arguments = parser.parse_args()
    folder: Path = arguments.folder.absolute()
    if not folder.is_dir():
        parser.error(f"{folder} is not a folder")
    try:
        seal = Seal(_key() if arguments.key_on_stdin else None)
        if (folder / SAMPLES).exists():
            seal.read(folder / SAMPLES)  # no verdict on a run by one who cannot read it
    except (SealError, ImportError) as error:
        print(error, file=sys.stderr)
        return EXIT_FAILED
    if ranks.follows():
        _limit_threads(folder)
        ranks.follow("env://", int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]))
        return 0
    stop = Stop()
    stop.on_signals()
    if arguments.watch_stdin:
        stop.on_closed_stdin()
    _limit_threads(folder)
    try:
        with lock(folder), Progress(folder, sys.stdout) as progress:
            stop.on_check = progress.alive
            # Here, because torch reads the thread limits when it is imported.
            from trainer.loop import run
            from trainer.policy.tinker_client import TinkerServer

            tinker = None
            if arguments.tinker:
                name = arguments.tinker_model or read_spec(folder).weights
                tinker = TinkerServer(arguments.tinker, name, progress.alive)
            try:
                result = run(folder, progress, stop, seal, tinker)
            except Stopped as stopped:
                progress.event("stopped", reason=f"{stopped}; the same command goes on from here")
                return EXIT_STOPPED
    except FolderLocked as error:
        print(error, file=sys.stderr)
        return EXIT_HELD
    return EXIT_FAILED if result["status"] == "failed" else 0


def _key() -> bytes:
    """One line of hexadecimal digits; byte by byte, since what follows is not ours to read."""
    line = b""
    while (byte := os.read(sys.stdin.fileno(), 1)) not in (b"", b"\n"):
        line += byte
    try:
        key = bytes.fromhex(line.decode())
    except ValueError:
        key = b""
    if len(key) != KEY_BYTES:
        raise SealError("The first line on stdin is not the key of a run.")
    return key


def _limit_threads(folder: Path) -> None:
    """To begin with; a run that was given no number takes idle cores, too (idle_cores)."""
    try:
        threads = read_spec(folder).threads
    except RunError:
        return  # the run will say so in its result
    for name, value in openmp_environment(threads or default_threads()[1]).items():
        os.environ.setdefault(name, value)


if __name__ == "__main__":
    status = main()
    sys.stdout.flush()
    # Not sys.exit: torch's threads and a blocked stdin reader would delay or break interpreter shutdown.
    os._exit(status)
