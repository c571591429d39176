"""How much disk rlproxy and the programs of docs/lab/compare.md take, each in a new virtual environment.

`python -m scripts.bench.install [NAME…] [--python PYTHON]` writes the rows of benchmarks/install.json: the packages
that pip installed and the bytes of their files. Only what is on PyPI; models, databases and servers come on top. Torch
is the build that pip takes by itself (`torch` in the rows), which on Linux is the one for CUDA.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from scripts.harness.circumstances import commit, machine

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = {
    "rlproxy": [".", "-c", "scripts/constraints.txt"],
    "rlproxy[train]": [".[train]", "-c", "scripts/constraints.txt"],
    "reinforceclaw": ["reinforceclaw==0.1.0"],
    "aiming-metaclaw": ["aiming-metaclaw==0.4.1.2"],
    "agentlightning": ["agentlightning==1.0.2"],
    "litellm[proxy]": ["litellm[proxy]==1.106.2"],
    "tensorzero": ["tensorzero==2026.6.0"],
}

OUT = ROOT / "benchmarks/install.json"


def files(folder: Path) -> dict[Path, int]:
    return {path: path.stat().st_size for path in folder.rglob("*") if path.is_file() and not path.is_symlink()}


def measure(python: str, requirements: list[str]) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as temporary:
        source, venv = Path(temporary) / "rlproxy", Path(temporary) / "venv"
        subprocess.run(
            ["git", "clone", "-q", str(ROOT), str(source)], check=True
        )  # pip builds in the folder it is given
        subprocess.run([python, "-m", "venv", str(venv)], check=True)
        pip = [str(venv / "bin/python"), "-I", "-m", "pip", "--disable-pip-version-check"]
        existing = files(venv)
        subprocess.run([*pip, "install", "-q", "--no-compile", *requirements], check=True, cwd=source)
        size = sum(bytes_ for path, bytes_ in files(venv).items() if path not in existing)
        listed = subprocess.run([*pip, "list", "--format=json"], check=True, capture_output=True, text=True).stdout
        versions = {p["name"]: p["version"] for p in json.loads(listed) if p["name"] not in ("pip", "setuptools")}
        return {"packages": len(versions), "mb": round(size / 1e6, 1), "torch": versions.get("torch", "")}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(PACKAGES)}; default: all")
    parser.add_argument("--python", default=sys.executable, help="3.12 or newer, for agentlightning's sake")
    options = parser.parse_args()
    version = subprocess.run([options.python, "--version"], check=True, capture_output=True, text=True).stdout.split()[
        1
    ]
    rows = {row["what"]: row for row in (json.loads(OUT.read_text(encoding="utf-8")) if OUT.exists() else [])}
    for name in options.names or PACKAGES:
        about = {"date": datetime.now(UTC).isoformat(), "commit": commit(), "python": version, "machine": machine()}
        rows[name] = {"what": name, **measure(options.python, PACKAGES[name]), **about}
        print(rows[name], flush=True)
        OUT.write_text(json.dumps([rows[n] for n in PACKAGES if n in rows], indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
