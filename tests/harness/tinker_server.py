"""The fake Tinker server in a thread of its own: its clients block, as the package's calls do."""

from __future__ import annotations

import asyncio
import threading
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from scripts.fakes.tinker import FakeTinker


def lacks() -> str | None:
    """Why no test of it can run; None where one can."""
    if find_spec("tinker") is None:
        return "needs the tinker package, which `make test-scale` puts beside rlproxy's environment"
    return None


class TinkerThread:
    def __init__(self, weights: Path, folder: Path, **options: Any) -> None:
        self.fake = FakeTinker(weights, folder, **options)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    def start(self) -> FakeTinker:
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self.fake.start(), self._loop).result()
        return self.fake

    def stop(self) -> None:
        asyncio.run_coroutine_threadsafe(self.fake.stop(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
