"""`make test-suites`: suites that nobody here wrote, each directly at a server and through rlproxy.

Owns the run and its table. Nothing that passes directly may fail through rlproxy: then this exits with 1. Each run
keeps what every test said in benchmarks/suites.json. `--suites sdks --servers builtin` takes some of them.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from scripts.fakes.backend import FakeBackend
from scripts.fakes.launcher import FakeLauncher
from scripts.harness.in_process import Proxy
from scripts.suites import install, servers
from scripts.suites.running import SUITES, Outcomes
from scripts.suites.shapes import Asker

JSON: Final = Path(__file__).resolve().parents[2] / "benchmarks/suites.json"
DOCUMENTS: Final = Path(__file__).parent / "documents.py"


@asynccontextmanager
async def _asker() -> AsyncIterator[Asker]:
    with tempfile.TemporaryDirectory() as folder:
        backend = FakeBackend()
        backend.has_tags = False
        await backend.start()
        proxy = Proxy(Path(folder) / "home", backend, FakeLauncher())
        await proxy.start()
        try:
            yield Asker(proxy.http, backend)
        finally:
            await proxy.stop()
            await backend.stop()


async def documents() -> dict[str, Any]:
    """Every shape against the published documents: how many were checked, and each fault."""
    async with _asker() as asker:
        shapes = [shape async for shape in asker.all()]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "shapes.jsonl"
        path.write_text("".join(json.dumps(vars(shape)) + "\n" for shape in shapes))
        open_responses = install.OPEN_RESPONSES / "public/openapi/openapi.json"
        command = [str(install.PYTHON), str(DOCUMENTS), str(path), str(install.OPENAI), str(open_responses)]
        process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
        output, _ = await process.communicate()
    report: dict[str, Any] = json.loads(output)
    return report


def table(results: dict[str, dict[str, dict[str, Outcomes]]]) -> tuple[str, int]:
    """The lines, and how many tests pass directly and fail through."""
    lines, worse = [f"{'server':<14}{'suite':<24}{'directly':>10}{'through':>10}"], 0
    for server, suites in results.items():
        for suite, outcomes in suites.items():
            cells = [f"{_passed(outcomes[way])}/{len(outcomes[way])}" for way in ("directly", "through")]
            lines.append(f"{server:<14}{suite:<24}{cells[0]:>10}{cells[1]:>10}")
            for name in worse_tests(outcomes):
                worse += 1
                lines.append(f"    fails through alone: {name}: {outcomes['through'].get(name, 'not run')[:150]}")
    return "\n".join(lines), worse


def worse_tests(outcomes: dict[str, Outcomes]) -> list[str]:
    through = outcomes["through"]
    return [name for name, text in outcomes["directly"].items() if text == "passed" and through.get(name) != "passed"]


def _passed(outcomes: Outcomes) -> int:
    return sum(text == "passed" for text in outcomes.values())


async def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--suites", nargs="*", default=list(SUITES), choices=list(SUITES))
    parser.add_argument("--servers", nargs="*", default=list(servers.BY_DEFAULT), choices=list(servers.SERVERS))
    parser.add_argument("--json", type=Path, default=JSON)
    options = parser.parse_args()
    install.install()
    started, results = time.monotonic(), dict[str, dict[str, dict[str, Outcomes]]]()
    for server in options.servers:
        async with AsyncExitStack() as stack:
            served = await stack.enter_async_context(servers.SERVERS[server]())
            for suite in options.suites:
                ways = {"directly": served.direct, "through": served.through}
                outcomes = {way: await SUITES[suite](url, served.model) for way, url in ways.items()}
                results.setdefault(server, {})[suite] = outcomes
                write(options.json, results, {}, time.monotonic() - started)  # what is measured stays after a kill
                print(table({server: {suite: outcomes}})[0], flush=True)
    published = await documents()
    text, worse = table(results)
    print(text)
    for name, report in published.items():
        checked = (
            report.get("skipped") or f"{sum(report['checked'].values())} shapes, faults: {report['faults'] or 'none'}"
        )
        print(f"{name}: {checked}")
    write(options.json, results, published, time.monotonic() - started)
    return int(worse > 0 or any(report.get("faults") for report in published.values()))


def write(path: Path, results: dict[str, Any], published: dict[str, Any], seconds: float) -> None:
    """Keep what was run now, beside what is kept of the other servers and suites."""
    machine = f"{platform.machine()}, {os.cpu_count()} cores, {platform.system()}"
    pins = [*install.PACKAGES, *install.SDKS, *install.MODULES]
    moment = datetime.now(UTC).date().isoformat()
    record = json.loads(path.read_text()) if path.exists() else {"results": {}, "published": {}}
    for server, suites in results.items():
        record["results"].setdefault(server, {}).update(suites)
    record["published"] |= published
    record |= {"date": moment, "machine": machine, "seconds": round(seconds), "versions": pins}
    path.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
