"""When, where and of which tree a figure is: what a raw file in benchmarks/ says of itself.

Owns these words, the same in every file. Not here: versions of what was measured; each script knows its own.
"""

from __future__ import annotations

import os
import platform
import subprocess
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]


def circumstances() -> dict[str, Any]:
    """To be asked before the measurement: the load is what was there without it, and the tree may move on."""
    return {"date": now(), "machine": machine(), "commit": commit()}


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def commit() -> str:
    """The commit of this checkout; `-dirty` where it holds more. Figures and pages do not count: they run nothing."""
    version = _git("describe", "--always")
    changed = _git("status", "--porcelain", "--untracked-files=no", "--", ".", ":!benchmarks", ":!docs")
    return f"{version}-dirty" if changed else version


def _git(*command: str) -> str:
    return subprocess.run(["git", *command], capture_output=True, text=True, cwd=ROOT).stdout.strip()


def machine() -> dict[str, Any]:
    return {"cpu": cpu(), "cores": os.cpu_count(), "load_before": os.getloadavg()[0]}


def machine_name() -> str:
    return f"{cpu()}, {os.cpu_count()} cores"


def cpu() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()
