"""`rlproxy serve` with the cluster's trainer: `python -m scripts.chaos.cluster.relay SETTINGS`, as the nursery does."""

from __future__ import annotations

import json
import sys

from config.settings import Settings
from proxy import server
from scripts.chaos import nursery
from scripts.chaos.cluster.stand_in import StandInLauncher


async def serve(settings: Settings) -> None:
    await server.serve(settings, launcher=StandInLauncher())


if __name__ == "__main__":
    nursery.main(json.loads(sys.argv[1]), serve)
