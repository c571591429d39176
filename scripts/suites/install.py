"""Environments and documents of the suites, each in ~/.cache/rlproxy; made once.

Owns the pinned versions, and what may be missing: published documents and Open Responses' suite come from their
repositories where those can be reached. They are never part of this repository; a suite without its own is skipped.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final

CACHE: Final = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "rlproxy"
PYTHON: Final = CACHE / "venvs/suites/bin/python"
STRICT: Final = CACHE / "venvs/suites-sdk/bin/python"  # LangChain wants an older openai
NODE: Final = CACHE / "suites/npm"
BUN: Final = NODE / "node_modules/.bin/bun"
OPENAI: Final = CACHE / "suites/openai-openapi/openapi.json"
OPEN_RESPONSES: Final = CACHE / "suites/openresponses"
SDKS: Final = ("anthropic==2.14.0", "ollama==0.6.3", "openai==3.57.0")
PACKAGES: Final = (
    "anthropic==2.14.0", "jsonschema==4.26.0", "langchain-anthropic==1.7.10", "langchain-ollama==1.1.0",
    "langchain-openai==1.7.4", "langchain-tests==1.1.9", "llama-index-core==0.14.25",
    "llama-index-llms-openai-like==0.8.1", "ollama==0.6.3", "pytest==9.2.0", "pytest-asyncio==1.5.0",
)  # fmt: skip
MODULES: Final = (
    "@ai-sdk/anthropic@3.0.140", "@ai-sdk/openai@3.0.141", "@ai-sdk/openai-compatible@2.0.92",
    "@anthropic-ai/sdk@1.14.0", "ai@6.0.326", "bun@1.4.5", "ollama@0.6.4", "openai@6.49.0", "zod@4.6.7",
)  # fmt: skip
_REPOSITORIES: Final = {
    OPENAI.parent: "https://github.com/openai/openai-openapi",
    OPEN_RESPONSES: "https://github.com/openresponses/openresponses",
}
CLONE_S: Final = 120


def install() -> None:
    """Raises CalledProcessError where a package cannot be had."""
    for python, packages in ((PYTHON, PACKAGES), (STRICT, SDKS)):
        _once(python.parents[1] / ".made-from", packages, partial(_python, python, packages))
    if shutil.which("npm") is not None:
        _once(NODE / ".made-from", MODULES, _node)
    for folder, url in _REPOSITORIES.items():
        if not folder.exists():
            _clone(folder, url)
    link = OPEN_RESPONSES / "node_modules"
    if OPEN_RESPONSES.is_dir() and not link.exists():
        link.symlink_to(NODE / "node_modules")


def _once(mark: Path, pins: tuple[str, ...], make: Callable[[], None]) -> None:
    if mark.is_file() and mark.read_text() == "\n".join(pins):
        return
    print(f"Installing into {mark.parent} (once)…", file=sys.stderr)
    mark.parent.mkdir(parents=True, exist_ok=True)
    make()
    mark.write_text("\n".join(pins))


def _python(python: Path, packages: tuple[str, ...]) -> None:
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", str(python.parents[1])], check=True)
    subprocess.run([python, "-m", "pip", "--disable-pip-version-check", "-q", "install", *packages], check=True)


def _node() -> None:
    (NODE / "package.json").write_text('{"private": true}')
    subprocess.run(
        ["npm", "install", "--prefix", NODE, "--no-audit", "--no-fund", "--loglevel", "error", *MODULES], check=True
    )


def _clone(folder: Path, url: str) -> None:
    """Nothing where it cannot be reached."""
    command = ["git", "clone", "-q", "--depth", "1", url, str(folder)]
    environment = {**os.environ, "GIT_TERMINAL_PROMPT": "0"}
    try:
        subprocess.run(command, check=True, timeout=CLONE_S, env=environment, capture_output=True)
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired, FileNotFoundError):
        shutil.rmtree(folder, ignore_errors=True)
        print(f"{url} cannot be reached: what needs it is skipped.", file=sys.stderr)
