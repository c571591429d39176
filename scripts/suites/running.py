"""The suites, each as a function from a server's address to what every test of it said.

Owns how each is started and read. "passed" is a pass; any other text is why it did not, "skipped: …" included.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final
from xml.etree import ElementTree

from scripts.suites.install import BUN, NODE, OPEN_RESPONSES, PYTHON, STRICT

Outcomes = dict[str, str]
Suite = Callable[[str, str], Awaitable[Outcomes]]
DRIVERS: Final = Path(__file__).parent / "drivers"
LONGEST_S: Final = 3600.0  # of one suite
LONGEST_ANSWER_S: Final = 180.0  # a small model may repeat itself until its window is full
SKIPPED: Final = "skipped: "


async def _run(*command: str | Path, cwd: Path | None = None, longest_s: float = LONGEST_S, **env: str) -> str:
    """Its standard output. Raises TimeoutError."""
    process = await asyncio.create_subprocess_exec(
        *map(str, command), cwd=cwd, env={**os.environ, **env}, stdout=asyncio.subprocess.PIPE
    )
    try:
        async with asyncio.timeout(longest_s):
            output, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    return output.decode()


async def sdks(url: str, model: str) -> Outcomes:
    return _read(await _run(STRICT, DRIVERS / "sdks.py", url, model, cwd=DRIVERS))


async def llamaindex(url: str, model: str) -> Outcomes:
    return _read(await _run(PYTHON, DRIVERS / "llamaindex.py", url, model, cwd=DRIVERS))


async def javascript(url: str, model: str) -> Outcomes:
    if not BUN.exists():
        return {"all": f"{SKIPPED}npm is not here"}
    with tempfile.TemporaryDirectory() as folder:  # modules are looked for beside the script
        script = Path(folder) / "sdks.mjs"
        script.write_text((DRIVERS / "sdks.mjs").read_text())
        (Path(folder) / "node_modules").symlink_to(NODE / "node_modules")
        return _read(await _run(BUN, script, url, model, cwd=Path(folder)))


async def open_responses(url: str, model: str) -> Outcomes:
    """The compliance suite of Open Responses' own repository, one test after the other.

    All at once, a small model on two cores does not end its answers within the suite's 30 s.
    """
    tests = OPEN_RESPONSES / "src/lib/compliance-tests.ts"
    if not (tests.is_file() and BUN.exists()):
        return {"all": f"{SKIPPED}Open Responses' repository, or npm, is not here"}
    names = re.findall(r'^    id: "([a-z-]+)"', tests.read_text(), re.MULTILINE)
    return {name: await _compliance(url, model, name) for name in names}


async def _compliance(url: str, model: str, name: str) -> str:
    program = OPEN_RESPONSES / "bin/compliance-test.ts"
    options = ("--base-url", f"{url}/v1", "--api-key", "any", "--model", model, "--filter", name, "--json")
    try:
        output = await _run(BUN, "run", program, *options, cwd=OPEN_RESPONSES, longest_s=LONGEST_ANSWER_S)
    except TimeoutError:
        return f"failed: the answer had not ended after {LONGEST_ANSWER_S:.0f} s"
    [test] = json.loads(output)["results"]
    errors = "; ".join(test.get("errors") or ())
    return "passed" if test["status"] == "passed" else f"{test['status']}: {errors}"[:300]


def langchain(name: str) -> Suite:
    """langchain-tests by one of the classes of drivers/langchain_standard.py."""

    async def run(url: str, model: str) -> Outcomes:
        with tempfile.TemporaryDirectory() as folder:
            report = Path(folder) / "report.xml"
            file = DRIVERS / "langchain_standard.py"
            options = (
                "-q",
                "-p",
                "no:cacheprovider",
                "-o",
                "addopts=",
                "-o",
                "asyncio_mode=auto",
                "-o",  # LangChain keeps one client, whose connections are of one loop
                "asyncio_default_test_loop_scope=session",
                f"--junitxml={report}",
            )
            command = (PYTHON, "-m", "pytest", f"{file}::{name}", *options, f"--rootdir={folder}", "-c", os.devnull)
            await _run(*command, cwd=Path(folder), SUITE_URL=url, SUITE_MODEL=model, LANGSMITH_TRACING="false")
            return _junit(report)

    return run


def _junit(report: Path) -> Outcomes:
    outcomes: Outcomes = {}
    for case in ElementTree.parse(report).getroot().iter("testcase"):
        problem = next((part for part in case if part.tag in ("failure", "error", "skipped")), None)
        text = "passed" if problem is None else f"{problem.tag}: {problem.get('message') or ''}"[:300]
        outcomes[str(case.get("name"))] = text
    return outcomes


def _read(output: str) -> Outcomes:
    outcomes: Outcomes = json.loads(output.splitlines()[-1])
    return outcomes


SUITES: Final[dict[str, Suite]] = {
    "langchain-openai": langchain("TestChatOpenAI"),
    "langchain-responses": langchain("TestResponses"),
    "langchain-anthropic": langchain("TestChatAnthropic"),
    "langchain-ollama": langchain("TestChatOllama"),
    "sdks": sdks,
    "javascript": javascript,
    "llamaindex": llamaindex,
    "open-responses": open_responses,
}
