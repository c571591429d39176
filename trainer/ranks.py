"""The processes of a run on several GPUs: rank 0 is the run, the others hold layers for it.

Owns how they find each other and how they end. Rank 0 is the process that was started, so signals, standard input and
the lock are as in any run. It starts the others itself (`gpus` of run.json). Under torchrun they are there already:

    torchrun --nproc-per-node 2 -m trainer RUN_FOLDER

Not here: what each holds (policy.torch_shards).
"""

from __future__ import annotations

import argparse
import contextlib
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from datetime import timedelta
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from trainer.io.run_folder import RunError, read_spec

NEVER: Final = timedelta(days=7)  # a rank waits for the next pass as long as rank 0 lives
END_S: Final = 30.0
RENDEZVOUS: Final = "ranks"  # the file in the run folder by which they find each other
FAILED: Final = 1


def follows() -> bool:
    """Tell whether torchrun started this process to hold layers for another."""
    return int(os.environ.get("RANK", "0")) > 0


@contextlib.contextmanager
def gpu_group(folder: Path) -> Iterator[None]:
    """The other processes, while rank 0 carries out the run in this folder. Nothing where it asks for one GPU. Raises
    RunError where this machine has fewer than it asks for."""
    gpus = read_spec(folder).gpus
    if "RANK" not in os.environ and gpus < 2:
        yield
        return
    if find_spec("torch") is None:
        raise RunError("train.gpus is for torch, which is not installed here: set it to 1.")
    children: list[subprocess.Popen[bytes]] = []
    ending = threading.Event()
    if "RANK" in os.environ:
        join("env://", int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]))
    else:
        (folder / RENDEZVOUS).unlink(missing_ok=True)
        children = [_start(folder, rank, gpus) for rank in range(1, gpus)]
        for child in children:  # before they have met: one that cannot start would be waited for
            threading.Thread(target=_watch, args=(child, ending), daemon=True).start()
        join(f"file://{folder / RENDEZVOUS}", 0, gpus)
    from trainer.policy import torch_shards  # here: they all load torch at the same time

    try:
        yield
    finally:
        ending.set()
        with contextlib.suppress(RuntimeError):  # of one that has gone
            torch_shards.tell(torch_shards.END)
        _end(children)
        (folder / RENDEZVOUS).unlink(missing_ok=True)


def follow(address: str, rank: int, count: int) -> None:
    """Hold layers for rank 0 until it ends."""
    join(address, rank, count)
    from trainer.policy import torch_shards
    from trainer.policy.torch_policy import TorchPolicy

    torch_shards.follow(TorchPolicy)


def join(address: str, rank: int, count: int) -> None:
    """Raises RunError where there are fewer GPUs than processes."""
    import torch
    import torch.distributed as dist

    visible = torch.cuda.device_count()
    if 0 < visible < count:
        raise RunError(f"train.gpus is {count}, and torch finds {visible} here: set it to {visible} at most.")
    if visible:
        torch.cuda.set_device(rank)
    backend = "cpu:gloo,cuda:nccl" if visible else "gloo"
    dist.init_process_group(backend, init_method=address, rank=rank, world_size=count, timeout=NEVER)


def _start(folder: Path, rank: int, count: int) -> subprocess.Popen[bytes]:
    """It ends when its standard input does, however rank 0 ends."""
    command = [sys.executable, "-P", "-m", "trainer.ranks", str(folder / RENDEZVOUS), str(rank), str(count)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)


def _watch(child: subprocess.Popen[bytes], ending: threading.Event) -> None:
    """Without it no pass comes to its end: this attempt is over, and the next goes on from the checkpoint."""
    status = child.wait()
    if not ending.is_set():
        print(f"A process that holds layers of the model ended with status {status}.", file=sys.stderr, flush=True)
        os._exit(FAILED)


def _end(children: list[subprocess.Popen[bytes]]) -> None:
    for child in children:
        assert child.stdin is not None
        try:
            child.wait(END_S)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
        child.stdin.close()


def _end_with_stdin() -> None:
    with contextlib.suppress(OSError):
        while os.read(sys.stdin.fileno(), 4096):
            pass
    os._exit(FAILED)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m trainer.ranks", description="Holds layers for rank 0 of a run.")
    parser.add_argument("file", type=Path, help="by which they find each other")
    parser.add_argument("rank", type=int)
    parser.add_argument("count", type=int)
    arguments = parser.parse_args()
    threading.Thread(target=_end_with_stdin, daemon=True).start()
    follow(f"file://{arguments.file}", arguments.rank, arguments.count)


if __name__ == "__main__":
    main()
    os._exit(0)  # as trainer.__main__ does: threads of torch, and the one that reads
