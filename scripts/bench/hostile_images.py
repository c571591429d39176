"""Hostile pictures through a whole proxy: 200 requests, each with one that was made to do harm.

    python -m scripts.bench.hostile_images [--count 200] [--out benchmarks/hostile_images.json]

Each request is answered, and its row stored. Measured are the time to decode or refuse each picture, and the most
memory of a decoding process. After each tenth comes a sound picture, which must be decoded.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import json
import platform
import tempfile
import threading
import time
from collections import Counter
from datetime import date
from pathlib import Path
from typing import Any

from config.sections import Images
from proxy.images import examiner
from proxy.images.decoder import PROGRAM, Decoder
from scripts.fakes.backend import FakeBackend
from scripts.fakes.launcher import FakeLauncher
from scripts.harness.in_process import Proxy
from scripts.harness.pictures import HostileImage, hostile, picture
from store.image_records import DecodedImage


class MemoryWatch:
    """The most memory of each decoding process, by its own high-water mark; looked at every 2 ms."""

    def __init__(self) -> None:
        self.most_mb = 0.0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def __enter__(self) -> MemoryWatch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _look(self) -> None:
        children = Path(f"/proc/self/task/{threading.main_thread().native_id}/children")
        while not self._ended.wait(0.002):
            for pid in children.read_text().split():
                self.most_mb = max(self.most_mb, _high_water_mb(pid))


def _high_water_mb(pid: str) -> float:
    """MiB; 0 of a process that is gone, or is not the decoder yet."""
    try:
        if PROGRAM.name not in Path(f"/proc/{pid}/cmdline").read_text():
            return 0.0
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0.0
    line = next((line for line in status.splitlines() if line.startswith("VmHWM")), "VmHWM: 0 kB")
    return int(line.split()[1]) / 1024


class Timed:
    """Time of each decoding, in the order in which they ended; seconds."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    def around(self, decode: Any) -> Any:
        async def timed(decoder: Decoder, data: bytes) -> DecodedImage:
            began = time.perf_counter()
            image: DecodedImage = await decode(decoder, data)
            self.seconds.append(time.perf_counter() - began)
            return image

        return timed


async def measure(images: list[HostileImage]) -> dict[str, Any]:
    timed = Timed()
    Decoder.decode = timed.around(Decoder.decode)  # type: ignore[method-assign]
    examiner.LOOK_S = 0.02  # type: ignore[misc]
    backend = FakeBackend()
    await backend.start()
    with tempfile.TemporaryDirectory() as folder, MemoryWatch() as memory:
        proxy = Proxy(Path(folder) / "home", backend, FakeLauncher())
        await proxy.start()
        began = time.perf_counter()
        statuses: Counter[int] = Counter()
        ids: list[str] = []
        for number, image in enumerate(images):
            statuses.update([await _ask(proxy, image.data, ids)])
            backend.requests.clear()
            if number % 10 == 9:
                statuses.update([await _ask(proxy, picture(color=(number, 10, 200)), ids)])
        answered = time.perf_counter() - began
        while (counts := await proxy.store.images.counts()).get("waiting"):
            await asyncio.sleep(0.1)
        whole = time.perf_counter() - began
        completions = [await proxy.get(f"/rl/completions/{id}") for id in ids]
        result = {
            "requests": len(ids), "statuses": dict(statuses), "stored": sum(bool(row["text"]) for row in completions),
            "states": counts, "not_begun_as_pictures": len(ids) - sum(counts.values()),
            "answered_s": answered, "all_decoded_s": whole,
            "decode_s": {"worst": max(timed.seconds), "median": sorted(timed.seconds)[len(timed.seconds) // 2]},
            "decoder_most_mb": memory.most_mb,
            "reasons": await _reasons(proxy),
        }  # fmt: skip
        await proxy.stop()
    await backend.stop()
    return result


async def _ask(proxy: Proxy, data: bytes, ids: list[str]) -> int:
    url = "data:image/png;base64," + base64.b64encode(data).decode()
    parts = [{"type": "text", "text": f"{len(ids)}: what is it?"}, {"type": "image_url", "image_url": {"url": url}}]
    body = {"model": "fake", "messages": [{"role": "user", "content": parts}]}
    async with proxy.http.post("/v1/chat/completions", json=body) as response:
        ids.append(response.headers.get("x-rl-completion-id", ""))
        await response.read()
        return response.status


async def _reasons(proxy: Proxy) -> dict[str, int]:
    rows = await proxy.store._reader.rows(
        "SELECT reason, count(*) AS count FROM images WHERE reason IS NOT NULL GROUP BY reason ORDER BY count DESC"
    )
    return {row["reason"]: row["count"] for row in rows}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/hostile_images.json"))
    options = parser.parse_args()
    images = hostile(options.count)
    result = asyncio.run(measure(images))
    kinds = Counter(image.kind for image in images)
    bounds = Images().model_dump()
    report = {"date": f"{date.today()}", "machine": platform.processor() or platform.machine(), "bounds": bounds,
              "kinds": kinds, **result}  # fmt: skip
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(report, indent=1) + "\n")
    print(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
