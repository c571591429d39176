"""The suites that `make test` leaves out: what they need from the repository itself is there."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
WHERE = (
    "backends",
    "clients",
    "integrations",
    "proxy/web/pages",
    "trainer/policy/test_mlx_policy.py",
    "trainer/places",
)
OPTIONS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["pytest"]["ini_options"]


@pytest.mark.timeout(900)
def test_every_test_that_is_left_out_has_its_fixtures() -> None:
    left_out = re.findall(r"not (\w+)", OPTIONS["addopts"])
    assert left_out
    command = [sys.executable, "-m", "pytest", "-n", "0", "-p", "no:cacheprovider", "--setup-plan"]
    command += ["-m", " or ".join(left_out), *(f"tests/{one}" for one in WHERE)]
    planned = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert planned.returncode == 0, planned.stdout[-3000:]
