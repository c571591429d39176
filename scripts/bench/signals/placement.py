"""Is every signal on the answer that its request really follows? Agents' conversations through a whole proxy.

    python -m scripts.bench.signals.placement --talks 200

Writes benchmarks/signals.json. The model is scripted; the proxy, its store and its finding of signals are real.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import tempfile
from pathlib import Path

from scripts.bench.persona import ROOT
from scripts.fakes.backend import FakeBackend
from scripts.fakes.launcher import FakeLauncher
from scripts.harness.agent_talks import World
from scripts.harness.circumstances import circumstances, machine_name
from scripts.harness.in_process import Proxy

QUIET_S = 4.0  # longer than two looks of the proxy


async def measure(talks: int, turns: int, seed: int) -> dict[str, object]:
    backend = FakeBackend()
    await backend.start()
    with tempfile.TemporaryDirectory() as home:
        proxy = Proxy(Path(home), backend, FakeLauncher())
        await proxy.start()
        try:
            world = World(proxy, random.Random(seed))
            await world.fill(talks, turns)
            while await proxy.store.signals.unseen(1):
                await asyncio.sleep(0.2)
            await asyncio.sleep(QUIET_S)
            counts, rows = await world.count(), await proxy.store.signals.everything()
        finally:
            await proxy.stop()
            await backend.stop()
    hints = sum(row.hint is not None for row in rows)
    return {
        "talks": talks,
        "requests": len(world.follows) + len(world.silent),
        "acts": world.acts,
        "signals": counts,
        "hints": hints,
        "tool_signals_above_0": sum(row.kind == "tool" and row.value > 0 for row in rows),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--talks", type=int, default=200)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    figures = asyncio.run(measure(arguments.talks, arguments.turns, arguments.seed))
    record = {**circumstances(), "machine": machine_name(), "seed": arguments.seed, **figures}
    (ROOT / "benchmarks/signals.json").write_text(json.dumps(record, indent=1))
    print(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
