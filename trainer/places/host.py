"""`python -m trainer.places.host ROOT VERB …`: a depot for a proxy that calls over ssh.

Owns the command line: one verb a call; what it answers begins with MARK, since a shell may print its own greeting
first. Free of torch. Not here: what the verbs do (depot), who calls (ssh).

    hello WEIGHTS | receive ID WEIGHTS <archive | start ID OPTIONS… <key | look ID OFFSET WAIT_S | stop ID
    send ID >archive | remove ID
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from trainer.io.encrypted_files import SealError
from trainer.places.depot import Depot, DepotError, weights_identity, weights_problem
from trainer.places.job import RunOrder
from trainer.places.place import own_version
from trainer.places.shipment import ShipmentError

MARK: Final = b"rlproxy-depot 1\n"
NEEDED: Final = ("torch", "transformers", "peft", "safetensors")


def main(arguments: Sequence[str]) -> int:
    os.umask(0o077)
    root, verb, *words = arguments
    depot = Depot(Path(root).expanduser())
    verbs: dict[str, Callable[..., Any]] = {
        "hello": lambda weights: describe(weights),
        "receive": lambda id, weights: depot.receive(id, sys.stdin.buffer, weights),
        "start": lambda id, threads, nice, memory, sealed: depot.start(
            RunOrder(depot.folder(id), int(threads), int(nice), float(memory), _key() if sealed == "sealed" else None)
        ),
        "look": lambda id, offset, wait_s: asdict(depot.look(id, int(offset), float(wait_s))),
        "stop": depot.stop,
        "remove": depot.remove,
    }
    sys.stdout.buffer.write(MARK)
    sys.stdout.buffer.flush()
    try:
        if verb == "send":
            depot.send(words[0], sys.stdout.buffer)
            return 0
        answer = verbs[verb](*words)
    except (DepotError, ShipmentError, SealError, OSError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(json.dumps({"answer": answer}), flush=True)
    return 0


def describe(weights: str) -> dict[str, Any]:
    """Tell whether these weights can train here."""
    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing and find_spec("mlx_lm") is None:
        problem: str | None = f"it lacks {', '.join(missing)}: `{sys.executable} -m pip install 'rlproxy[train]'` there"
        return {"version": own_version(), "problem": problem, "identity": None}
    problem = weights_problem(weights)
    return {
        "version": own_version(),
        "problem": f"the model's weights are not there: {problem}" if problem else None,
        "identity": None if problem else weights_identity(weights),
    }


def _key() -> bytes:
    return bytes.fromhex(sys.stdin.buffer.readline().decode().strip())


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
