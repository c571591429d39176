"""The walk of a request: which of our own functions run before its question leaves, and which after.

    python -m scripts.bench.relay.walk [--only SHAPE …] [--chain] [--json FILE]

rlproxy is started with a profiler in its process, and asked one request at a time. A call counts once, also where it is
a coroutine or a generator that is resumed; calls of libraries do not count. "Before" is from the first byte of the
request to the write of its question, "after" from there to the answer's last byte. The counts depend neither on the
machine nor on its load. `--chain` prints the calls before the question in their order.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import tempfile
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import Any, Final

import psutil

ROOT: Final = Path(__file__).resolve().parents[3]
SHAPES: Final = ("plain-1k-1", "turn-200", "new-100k-1", "stream-1k-1")
OURS: Final = tuple(f"{ROOT}/{room}/" for room in ("config", "proxy", "store"))
_QUESTION: Final = "proxy/core/backend_answer.py:Answer.__init__"  # the last one before the write


class Recorder:
    """Notes the calls of the event loop's thread; a request begins where bytes of it come."""

    def __init__(self) -> None:
        self.walks: list[list[str]] = []
        self._names: dict[Any, str | None] = {}

    def start(self) -> None:
        signal.signal(signal.SIGUSR1, self._begin)
        signal.signal(signal.SIGUSR2, self._dump)

    def _begin(self, number: int, frame: FrameType | None) -> None:
        self.walks.clear()
        sys.setprofile(self.note)

    def _dump(self, number: int, frame: FrameType | None) -> None:
        sys.setprofile(None)
        target = Path(os.environ["WALK_FILE"])
        half = target.with_suffix(".half")
        half.write_text(json.dumps(self.walks))
        half.replace(target)

    def note(self, frame: FrameType, event: str, argument: object) -> None:
        if event != "call":
            return
        code = frame.f_code
        if code not in self._names:
            self._names[code] = _name(frame)
        name = self._names[code]
        if name is None or _is_resumed(frame):
            return
        if name == "aiohttp:start":
            self.walks.append([])
        elif self.walks:
            self.walks[-1].append(name)


def _name(frame: FrameType) -> str | None:
    """Name the function of a frame; None where the function is not rlproxy's."""
    code = frame.f_code
    if code.co_filename.endswith("aiohttp/web_protocol.py") and code.co_name == "_handle_request":
        return "aiohttp:start"
    if not code.co_filename.startswith(OURS):
        return None
    return f"{code.co_filename.removeprefix(f'{ROOT}/')}:{code.co_qualname}"


def _is_resumed(frame: FrameType) -> bool:
    """Tell whether a coroutine or a generator goes on here; a first call stands at the beginning."""
    generator = 0x20 | 0x80 | 0x200
    return bool(frame.f_code.co_flags & generator) and frame.f_lasti > _first(frame)


def _first(frame: FrameType) -> int:
    code = frame.f_code.co_code
    resume = 151  # the opcode RESUME of Python 3.11
    return next((offset for offset in range(0, len(code), 2) if code[offset] == resume), 0)


def serve(arguments: list[str]) -> None:
    """rlproxy, with the recorder in it."""
    Recorder().start()
    sys.argv = ["rlproxy", *arguments]
    from proxy.cli import main

    main()


def median_walk(walks: list[list[str]]) -> list[str]:
    """Pick the request with the median number of calls."""
    return sorted(walks, key=len)[len(walks) // 2]


def cut(walk: list[str]) -> tuple[list[str], list[str]]:
    """Split a walk into the calls before the question leaves and the calls after it."""
    index = next((n for n, name in enumerate(walk) if name == _QUESTION), len(walk))
    return walk[: index + 1], walk[index + 1 :]


def show(name: str, walk: list[str], chain: bool) -> dict[str, Any]:
    calls_before, calls_after = cut(walk)
    modules = Counter(call.partition(":")[0] for call in calls_before)
    print(
        f"\n### {name}: {len(calls_before)} calls in {len(modules)} modules before the question, "
        f"{len(calls_after)} after\n"
    )
    print("| module | calls before | after |\n|---|---:|---:|")
    counts_after = Counter(call.partition(":")[0] for call in calls_after)
    for module in sorted({*modules, *counts_after}, key=lambda module: (-modules[module], -counts_after[module])):
        print(f"| {module} | {modules[module]} | {counts_after[module]} |")
    if chain:
        print("\n" + "\n".join(calls_before))
    return {"before": calls_before, "after": calls_after}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=SHAPES)
    parser.add_argument("--chain", action="store_true")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    from scripts.bench.relay import measure, targets

    shapes = {shape.name: shape for shape in measure.shapes()}
    client, walks = measure.Client(), {}
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        file = folder / "walks.json"
        try:
            up = targets.upstream(folder)
            os.environ["WALK_FILE"] = str(file)
            target: Any = targets.rlproxy(folder, up, command=("scripts.bench.relay.walk", "--serve"))
            for shape in (shapes[name] for name in arguments.only):
                client.load(shape, target, 0.3)
                file.unlink(missing_ok=True)
                target.process.send_signal(signal.SIGUSR1)
                client.load(shape, target, 0.5)
                target.process.send_signal(signal.SIGUSR2)
                targets.wait_for(target.process, file.exists)
                walks[shape.name] = show(shape.name, median_walk(json.loads(file.read_text())), arguments.chain)
        finally:
            client.close()
            for child in psutil.Process().children():
                targets.stop(child)
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(walks, indent=1) + "\n")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--serve"]:
        serve(sys.argv[2:])
    else:
        main()
