"""`scripts/setup` up to what it asks of pip: the Python in its place notes that, and installs nothing."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PYTHON = """#!/bin/sh
echo "$*" >> "$NOTES"
[ "$1 $2" = "-m venv" ] || exit 0
mkdir -p "$3/bin" && cp "$0" "$3/bin/python"
"""
HINT = "There is no NVIDIA GPU here"


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """As much of one as the script reads, and a PATH on which programs can be put."""
    folder = tmp_path / "rlproxy"
    (folder / "scripts").mkdir(parents=True)
    for name in ("pyproject.toml", "scripts/constraints.txt", "scripts/locked-dev.txt", "scripts/setup"):
        shutil.copy(ROOT / name, folder / name)
    programs = tmp_path / "bin"
    programs.mkdir()
    for program in ("bash", "cat", "sha256sum", "cut", "grep", "mkdir", "cp", "dirname", "sh"):
        (programs / program).symlink_to(shutil.which(program) or program)
    for name, text in (("python", PYTHON), ("uname", "#!/bin/sh\necho Linux\n")):
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    return folder


def setup(checkout: Path, **env: str) -> tuple[str, list[str]]:
    """What it prints, and what pip was asked for."""
    programs, notes = checkout.parent / "bin", checkout.parent / "notes"
    outcome = subprocess.run(
        [checkout / "scripts/setup"], capture_output=True, text=True,
        env={"PATH": str(programs), "PYTHON": str(programs / "python"), "NOTES": str(notes), **env},
    )  # fmt: skip
    assert outcome.returncode == 0, outcome.stdout + outcome.stderr
    lines = notes.read_text().splitlines()
    return outcome.stdout, [line.partition(" install ")[2] for line in lines if " install " in line]


def test_a_named_index_gives_torch_alone(checkout: Path) -> None:
    shown, installs = setup(checkout, TORCH_INDEX="http://127.0.0.1:9/cpu")
    assert HINT not in shown and "[4 of 4" in shown
    assert installs[0] == "-c scripts/constraints.txt torch==2.13.0 --extra-index-url http://127.0.0.1:9/cpu"
    assert not any("127.0.0.1" in packages for packages in installs[1:]) and len(installs) == 3
    (checkout.parent / "notes").write_text("")
    assert setup(checkout) == ("", []), "made already"


def test_without_a_gpu_it_says_how_the_small_build_is_had(checkout: Path) -> None:
    shown, installs = setup(checkout)
    assert HINT in shown and installs[0] == "-c scripts/constraints.txt torch==2.13.0"


def test_with_a_gpu_it_says_nothing_of_it(checkout: Path) -> None:
    program = checkout.parent / "bin/nvidia-smi"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    assert HINT not in setup(checkout)[0]
