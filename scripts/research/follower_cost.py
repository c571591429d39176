"""CPU that signals cost behind each answer: of the whole process, for each answer that is looked at.

    python -m scripts.research.follower_cost [--answers N] [--json FILE]

There are three kinds of answers of 1 kB. The first are of conversations of one turn without a session, as benchmarks
and pipelines ask. The others are the first turns and the second turns of sessions. No judge. Nothing else runs in the
process. To compare with an earlier tree run this file with that tree as the working directory and in PYTHONPATH.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from config.sections import Redaction
from proxy.conversation.answer_on_screen import AnswerOnScreen
from proxy.conversation.redaction import Redactor
from proxy.conversation.underway import AnswersInProgress
from proxy.signals.follower import Follower
from scripts.bench.store_alone import CACHE, message, pair, text
from scripts.harness.circumstances import circumstances
from store.captured.tree import chain
from store.records import FinishedCompletion, NewCompletion
from store.store import Store

KINDS: Final = ("one turn", "first of a session", "second of a session")


def answers(kind: str, n: int) -> list[tuple[NewCompletion, FinishedCompletion]]:
    """The answers of one conversation; the last one is what this kind is about."""
    session = None if kind == KINDS[0] else f"s{n}"
    said = (message("user", text(n, 60)),)
    first, end = pair(f"rl-{n:09d}", said, text(n + 7, 130), session=session)
    end = replace(end, thread=chain((*said, message("assistant", end.text)))[-1])
    if kind != KINDS[2]:
        return [(first, end)]
    more = (*said, message("assistant", end.text), message("user", text(n + 3, 20)))
    new, last = pair(f"rl-{n:09d}-2", more, text(n + 9, 130), session=session)
    new = replace(new, above=end.thread, typed=text(n + 3, 20))
    return [(first, end), (new, replace(last, thread=chain((*more, message("assistant", last.text)))[-1]))]


async def measured(kind: str, count: int, folder: Path) -> dict[str, Any]:
    store = await Store.open(folder)
    made = [one for n in range(count) for one in answers(kind, n)]
    for at in range(0, len(made), 100):
        some = made[at : at + 100]
        await store.completions.record([new for new, _ in some], [end for _, end in some])
    follower = Follower(store, AnswerOnScreen(store, Redactor(Redaction()), AnswersInProgress()))
    looked, began = 0, time.process_time()
    while more := await follower.step():
        looked += more
    spent = time.process_time() - began
    found = {"kind": kind, "looked_at": looked, "cpu_us": round(spent / looked * 1e6)}
    found["signals"] = len(await store.signals.everything())
    await store.close()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--answers", type=int, default=1000)
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    found = []
    CACHE.mkdir(parents=True, exist_ok=True)
    for kind in KINDS:
        with tempfile.TemporaryDirectory(dir=CACHE) as name:
            found.append(asyncio.run(measured(kind, asked.answers, Path(name))))
        print(found[-1], flush=True)
    if asked.json:
        asked.json.write_text(json.dumps(circumstances() | {"kinds": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
