"""Measure the cost of encryption at rest: completions and ratings committed a second, in the clear and with SQLCipher.

`python -m scripts.bench.encrypted [--rounds N] [--quick]` writes benchmarks/encrypted.json; `--quick` does one short
round and writes nothing. Both forms take turns in one run, each round with new files. So other work of the machine
falls on both. 64 callers at once each await their commit, as the proxy does. A completion has 2 kB of prompt and 2 kB
of answer.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from scripts.harness.circumstances import machine, now
from scripts.harness.records import end, new
from store.copies import encryption
from store.file import driver, schema
from store.file.db_key import Secret
from store.records import Message, NewRating
from store.store import Store

ROOT = Path(__file__).resolve().parents[2]
CALLERS = 64
TEXT = "a word or two, and then some more of them; " * 48  # about 2 kB
KEY = Secret("7a" * 32)


async def all_of(count: int, work: Any) -> float:
    """So many a second, by that many callers."""
    numbers = iter(range(count))

    async def caller() -> None:
        for n in numbers:
            await work(n)

    start = time.perf_counter()
    await asyncio.gather(*(caller() for _ in range(CALLERS)))
    return count / (time.perf_counter() - start)


async def measure(secret: Secret | None, count: int) -> dict[str, float]:
    with tempfile.TemporaryDirectory(dir=ROOT) as folder:  # on the disk, not on a tmpfs
        store = await Store.open(Path(folder), secret)

        async def complete(n: int) -> None:
            message = Message("user", json.dumps(f"{n} {TEXT}").encode())
            await store.completions.record([new(f"rl-{n}", prompt=(message,))], [end(f"rl-{n}", text=f"{n} {TEXT}")])

        async def rate(n: int) -> None:
            await store.ratings.rate(NewRating(f"rl-{n}", "ann", 1.0 if n % 2 else -1.0))

        async def read(n: int) -> None:
            assert await store.completions.get(f"rl-{n}") is not None

        try:
            return {
                "completions_per_s": await all_of(count, complete),
                "ratings_per_s": await all_of(count, rate),
                "reads_per_s": await all_of(count, read),
            }
        finally:
            await store.close()


def convert(count: int) -> dict[str, float]:
    """How long `rlproxy encrypt` takes for the database itself."""
    with tempfile.TemporaryDirectory(dir=ROOT) as folder:
        home = Path(folder)
        asyncio.run(_fill(home, count))
        megabytes = (home / schema.NAME).stat().st_size / 1e6
        start = time.perf_counter()
        encryption.encrypt(home, KEY, lambda *_: None)
        return {"megabytes": megabytes, "mb_per_s": megabytes / (time.perf_counter() - start)}


async def _fill(home: Path, count: int) -> None:
    store = await Store.open(home)
    for first in range(0, count, 100):
        ids = [f"rl-{n}" for n in range(first, first + 100)]
        messages = [Message("user", json.dumps(f"{id} {TEXT}").encode()) for id in ids]
        await store.completions.record(
            [new(id, prompt=(message,)) for id, message in zip(ids, messages, strict=True)],
            [end(id, text=f"{id} {TEXT}") for id in ids],
        )
    await store.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--quick", action="store_true")
    arguments = parser.parse_args()
    rounds, count = (1, 300) if arguments.quick else (arguments.rounds, 3000)
    results: list[dict[str, dict[str, float]]] = []
    for n in range(rounds):
        forms = {"clear": None, "encrypted": KEY}
        order = list(forms) if n % 2 == 0 else list(reversed(forms))
        results.append({form: asyncio.run(measure(forms[form], count)) for form in order})
    ratios = {
        figure: statistics.median(result["encrypted"][figure] / result["clear"][figure] for result in results)
        for figure in results[0]["clear"]
    }
    report = {
        "when": now(),
        "machine": machine(),
        "sqlcipher": driver.version(),
        "callers": CALLERS,
        "count": count,
        "rounds": [
            {form: {k: round(v, 1) for k, v in result.items()} for form, result in each.items()} for each in results
        ],
        "median_ratio": {figure: round(ratio, 3) for figure, ratio in ratios.items()},
        "convert": {k: round(v, 1) for k, v in convert(300 if arguments.quick else 20_000).items()},
    }
    print(json.dumps(report, indent=1))
    if not arguments.quick:
        (ROOT / "benchmarks" / "encrypted.json").write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
