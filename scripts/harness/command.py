"""The `rlproxy` command in a process of its own, as a person runs it against a running proxy."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


async def rlproxy(home: Path, *args: str, **env: str) -> tuple[int, str, str]:
    """Its exit status, and what it printed on both streams."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith("RLPROXY_")} | {"COLUMNS": "200", **env}
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "proxy.cli", *args, "--home", str(home), cwd=ROOT, env=clean,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    out, err = await process.communicate()
    return process.returncode or 0, out.decode(), err.decode()
