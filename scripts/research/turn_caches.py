"""Time of one request's work by itself, with what is remembered of the turn before and without it.

    python -m scripts.research.turn_caches [--json FILE]

The bodies are those of the relay's benchmark: the 200th turn of a conversation, and 100 kB never seen. Best of several
tries, in microseconds of the thread's CPU. No server runs.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from config.sections import Redaction
from proxy.conversation.history_cache import History, HistoryLookup
from proxy.conversation.incremental_json import EarlierBodies
from proxy.conversation.redaction import Redactor
from proxy.core.json_edit import DEEPEST, is_deeper, loads, rewrite
from proxy.relay.json_splice import with_members
from scripts.bench.relay.load import Prompt
from scripts.bench.relay.measure import shapes
from scripts.harness.circumstances import circumstances

TRIES: Final = 9
NAMED: Final = {"model": b'"m@v1"'}


def bodies(name: str) -> list[bytes]:
    """Three requests of this shape, one after the other."""
    shape = next(shape for shape in shapes() if shape.name == name)
    order = shape.order(0, 1.0) | {"host": "h", "port": 1, "path": "/", "model": "m", "headers": {}}
    prompt = Prompt(order)
    return [prompt.next().partition(b"\r\n\r\n")[2] for _ in range(3)]


def best(make: Callable[[], Any], work: Callable[[Any], object]) -> float:
    """`make` is not timed."""
    took = []
    for _ in range(TRIES):
        made = make()
        at = time.thread_time()
        work(made)
        took.append(time.thread_time() - at)
    return round(min(took) * 1e6, 1)


def measured(name: str) -> dict[str, float]:
    first, second, third = bodies(name)

    def remembered() -> EarlierBodies:
        bodies_read = EarlierBodies()
        bodies_read.remember(bodies_read.read(first, bodies_read.find_prefix(first)))
        bodies_read.remember(bodies_read.read(second, bodies_read.find_prefix(second)))
        return bodies_read

    def read(of: EarlierBodies) -> Any:
        return of.read(third, of.find_prefix(third))

    def made_ready(of: EarlierBodies) -> None:
        """Do everything that follows from the body before it leaves."""
        body = read(of)
        is_deeper(body.fresh, DEEPEST)
        with_members(third, body.parsed, NAMED, body.items)

    def known() -> History:
        history = History(Redactor(Redaction()))
        HistoryLookup(history, loads(first)["messages"], len(first)).read()
        return history

    messages, parsed = loads(third)["messages"], loads(third)
    return {
        "body read, nothing remembered": best(EarlierBodies, read),
        "body read, with incremental_json": best(remembered, read),
        "body read, depth, model named; nothing remembered": best(EarlierBodies, made_ready),
        "body read, depth, model named; with incremental_json": best(remembered, made_ready),
        "messages told, nothing remembered": best(
            lambda: History(Redactor(Redaction())), lambda of: HistoryLookup(of, messages, len(third)).read()
        ),
        "messages told, with history_cache": best(known, lambda of: HistoryLookup(of, messages, len(third)).read()),
        "model named, each token looked at": best(lambda: None, lambda _: rewrite(third, {}, NAMED)),
        "model named, with json_splice": best(lambda: None, lambda _: with_members(third, parsed, NAMED)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    found = {name: measured(name) for name in ("turn-200", "new-100k-1")}
    for name, rows in found.items():
        for what, took in rows.items():
            print(f"{name:12s} {what:52s} {took:10.1f} µs")
    if given.json is not None:
        given.json.write_text(json.dumps(circumstances() | {"us": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
