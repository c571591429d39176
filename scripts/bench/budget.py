"""The budget sheet of the request path: microseconds of CPU that each step of an answer takes.

    python -m scripts.bench.budget [--only SHAPE …] [--seconds S] [--functions N] [--json FILE]

rlproxy is started with a sampler in its process. Every few milliseconds of CPU, the sampler looks at the stack of each
thread. It notes the CPU that the thread has used since the last look. The innermost function of rlproxy says which step
that was (STEPS). The innermost function of all says whose code it was: rlproxy's own, a library's, or the kernel's.
Functions that do little but make a system call count as the kernel's. A bare relay is measured in the same run.
The sampler itself takes two to four per cent, which is in the figures of the steps.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any, Final

import psutil

ROOT: Final = Path(__file__).resolve().parents[2]
SHAPES: Final = ["plain-1k-16", "stream-40-64", "exact-40-64", "new-100k-1", "turn-200"]
TICK_S: Final = 0.002
OURS: Final = ("config", "proxy", "store")

# Which step a function is part of: the first that fits, by `module` or `module:function`.
STEPS: Final = (
    ("guard: roles, limits, headers", ("proxy.access.security", "proxy.access.keys",
                                       "proxy.access.roles", "proxy.access.limits", "proxy.web.error_middleware")),
    ("read and parse", ("proxy.relay.request_body", "proxy.conversation.incremental_json", "proxy.core.json_skip",
                        "proxy.dialects.chat:ChatCompletions.parse", "proxy.dialects.fields",
                        "proxy.core.json_edit:deeper")),
    ("determine: route, person, command, version", (
        "proxy.relay.relay", "proxy.relay.context", "proxy.dialects.identity", "proxy.core.agent_wrappers",
        "proxy.conversation.user_text", "proxy.conversation.retries", "proxy.versions", "proxy.relay.capture.optout",
        "proxy.conversation.conversations:without_commands", "proxy.conversation.conversations:command_at",
        "proxy.training.throttle")),
    ("record: messages, hashes, secrets, turn", (
        "proxy.conversation",
        "store.captured.tree:message_hash", "proxy.relay.capture")),
    ("ask the backend", ("proxy.relay.in_flight", "proxy.core.upstream:upstream", "proxy.core.upstream:end_to_end",
                         "proxy.backends", "proxy.relay.codecs:Native.body", "proxy.relay.json_splice:with_members")),
    ("pass the answer on", ("proxy.relay.exchange", "proxy.core.upstream", "proxy.core.sse", "proxy.core.ndjson",
                            "proxy.relay.codecs", "proxy.relay.json_splice", "proxy.core.json_edit")),
    ("read the answer", ("proxy.dialects",)),
    ("signals, behind the answers", ("proxy.signals",)),
    ("commit", ("store.file.writer", "store.captured", "store.store", "store")),
    ("server, loop, rest", ("proxy", "config")),
)  # fmt: skip

# Functions of libraries whose time is that of a system call.
_KERNEL: Final = {
    ("selectors.py", "select"), ("selector_events.py", "_read_ready__data_received"), ("selector_events.py", "write"),
    ("selector_events.py", "_write_ready"), ("selector_events.py", "writelines"),
    ("selector_events.py", "_read_from_self"), ("selector_events.py", "_write_to_self"),
    ("selector_events.py", "_write_send"), ("selector_events.py", "_write_sendmsg"),
}  # fmt: skip


class Sampler:
    """Notes, for each thread, which function had the CPU since the last look."""

    def __init__(self) -> None:
        self._used: dict[int, float] = {}
        self._seconds: dict[tuple[str, str, str, str], float] = defaultdict(float)
        self._began = 0.0

    def start(self) -> None:
        signal.signal(signal.SIGPROF, self._look)
        signal.setitimer(signal.ITIMER_PROF, TICK_S, TICK_S)
        signal.signal(signal.SIGUSR1, self._reset)
        signal.signal(signal.SIGUSR2, self._dump)

    def _reset(self, number: int, frame: FrameType | None) -> None:
        self._seconds.clear()
        self._began = time.process_time()

    def _dump(self, number: int, frame: FrameType | None) -> None:
        rows = [[*key, seconds] for key, seconds in self._seconds.items()]
        target = Path(os.environ["BUDGET_FILE"])
        half = target.with_suffix(".half")
        half.write_text(json.dumps({"cpu_s": time.process_time() - self._began, "rows": rows}))
        half.replace(target)

    def _look(self, number: int, frame: FrameType | None) -> None:
        with contextlib.suppress(Exception):  # a sample less, where a thread ends meanwhile
            self._note(frame)

    def _note(self, frame: FrameType | None) -> None:
        frames = sys._current_frames()
        main = threading.main_thread().ident
        for thread in threading.enumerate():
            if thread.ident is None:
                continue
            used = time.clock_gettime(time.pthread_getcpuclockid(thread.ident))
            added, self._used[thread.ident] = used - self._used.get(thread.ident, 0.0), used
            innermost = frame if thread.ident == main else frames.get(thread.ident)
            if added > 0 and innermost is not None:
                self._seconds[(thread.name, *_place(innermost))] += added


def _place(frame: FrameType) -> tuple[str, str, str]:
    """The innermost function of ours, the innermost of all, and whose that is."""
    leaf = f"{Path(frame.f_code.co_filename).name}:{frame.f_code.co_qualname}"
    module = frame.f_globals.get("__name__", "")
    kind = "own" if module.partition(".")[0] in OURS else "library"
    if (Path(frame.f_code.co_filename).name, frame.f_code.co_name) in _KERNEL:
        kind = "kernel"
    current: FrameType | None = frame
    while current is not None:
        name = str(current.f_globals.get("__name__", ""))
        if name.partition(".")[0] in OURS and name not in ("proxy.server", "proxy.cli.main"):
            return f"{name}:{current.f_code.co_qualname}", leaf, kind
        current = current.f_back
    return "", leaf, kind


def step_of(function: str) -> str:
    if not function:
        return STEPS[-1][0]
    exact = [name for name, places in STEPS if any(":" in p and function.startswith(p) for p in places)]
    if exact:
        return exact[0]
    module = function.partition(":")[0]
    return next(
        (
            name
            for name, places in STEPS
            for p in places
            if ":" not in p and (module == p or module.startswith(p + "."))
        ),
        STEPS[-1][0],
    )


def serve(arguments: list[str]) -> None:
    """rlproxy, with the sampler in it."""
    Sampler().start()
    sys.argv = ["rlproxy", *arguments]
    from proxy.cli import main

    main()


@contextmanager
def _running(folder: Path, url: str, kind: str) -> Iterator[tuple[Any, Path]]:
    from scripts.bench.relay import targets

    name = f"rlproxy-{kind}"
    home, file = folder / f"{name}-home", folder / f"{name}.budget"
    process = targets.started(
        [sys.executable, "-m", "scripts.bench.budget", "--serve", "serve", "--home", str(home), "--port", "0",
         "--backend", kind, "--backend-url", url, "--model", "m", "--log-level", "warning"],
        folder, name, PYTHONPATH=str(ROOT), BUDGET_FILE=str(file), RLPROXY_SERVER__MAX_REQUESTS="2048",
    )  # fmt: skip
    try:
        address = home / "serving.json"
        targets.wait_for(process, address.exists)
        yield targets.Target(name, json.loads(address.read_text())["url"], process, "", home=home), file
    finally:
        targets.stop(process)


def sample(client: Any, shape: Any, target: Any, file: Path, seconds: float) -> dict[str, Any]:
    from scripts.bench.relay import targets

    client.load(shape, target, 0.3)
    file.unlink(missing_ok=True)
    target.process.send_signal(signal.SIGUSR1)
    load = client.load(shape, target, seconds)
    target.process.send_signal(signal.SIGUSR2)
    targets.wait_for(target.process, file.exists)
    return {**json.loads(file.read_text()), "answers": load["answers"], "failed": load["failed"]}


def sheet(figures: dict[str, Any]) -> dict[str, dict[str, float]]:
    """Microseconds an answer, by step and by whose code."""
    costs: dict[str, dict[str, float]] = {name: defaultdict(float) for name, _ in STEPS}
    for thread, function, _, kind, seconds in figures["rows"]:
        step = step_of(function)
        kind = "writer's thread" if thread == "store-writer" else kind
        costs[step][kind] += seconds / figures["answers"] * 1e6
    return costs


def show(name: str, figures: dict[str, Any], bare_us: float, functions: int) -> None:
    kinds = ("own", "library", "kernel", "writer's thread")
    rows = sheet(figures)
    total = sum(sum(row.values()) for row in rows.values())
    print(
        f"\n### {name}: {total:.0f} µs of CPU an answer, {total / bare_us:.1f} times the bare relay's {bare_us:.0f}\n"
    )
    print("| step | " + " | ".join(kinds) + " | all |\n|---|" + "---:|" * (len(kinds) + 1))
    for step, row in rows.items():
        print(f"| {step} | " + " | ".join(f"{row.get(k, 0):.0f}" for k in kinds) + f" | {sum(row.values()):.0f} |")
    sums = [sum(row.get(k, 0) for row in rows.values()) for k in kinds]
    print("| all | " + " | ".join(f"{cost:.0f}" for cost in sums) + f" | {total:.0f} |")
    by: dict[str, float] = defaultdict(float)
    for _, function, leaf, _, seconds in figures["rows"]:
        by[f"{function or '-'}  >  {leaf}"] += seconds / figures["answers"] * 1e6
    for key, value in sorted(by.items(), key=lambda item: -item[1])[:functions]:
        print(f"    {value:7.1f}  {key}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--only", nargs="+", default=["plain-1k-16", "stream-40-64", "exact-40-64", "new-100k-1", "turn-200"]
    )
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--functions", type=int, default=0, help="also list the dearest functions")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    from scripts.bench.relay import measure, targets

    shapes = {shape.name: shape for shape in measure.shapes()}
    shapes["stream-40-64"] = replace(shapes["stream-1k-64"], name="stream-40-64", chunks=40)
    shapes["exact-40-64"] = replace(shapes["stream-1k-64"], name="exact-40-64", chunks=40)
    result = {}
    client = measure.Client()
    with tempfile.TemporaryDirectory(dir=Path.home() / ".cache/rlproxy") as place:
        folder = Path(place)
        url = targets.upstream(folder)
        bare = targets.bare(folder, url)
        try:
            with _running(folder, url, "openai") as plain, _running(folder, url, "vllm") as exact:
                for shape in (shapes[name] for name in arguments.only):
                    cell = measure.cell(client, shape, bare, arguments.seconds / 2)
                    target, file = exact if shape.name.startswith("exact") else plain
                    figures = sample(client, shape, target, file, arguments.seconds)
                    figures["bare_us"] = cell["cpu_ms"] * 1000
                    result[shape.name] = {"sheet": sheet(figures), **figures}
                    show(shape.name, figures, figures["bare_us"], arguments.functions)
        finally:
            client.close()
            for child in psutil.Process().children():
                targets.stop(child)
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--serve"]:
        serve(sys.argv[2:])
    else:
        main()
