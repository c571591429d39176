"""Every kind of model that rlproxy writes GGUF adapters for, before a real llama-server: `python -m scripts.models`.

A tiny model of each kind and an adapter, both with random weights. The log-probs of the next token are compared: those
of the server with those of transformers and PEFT. `--only KIND …` tries some. `--json` writes benchmarks/models.json,
which keeps the other kinds. Docs: docs/reference/models.md.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any, Final

from scripts.harness.circumstances import commit, machine_name, now
from scripts.models import tiny
from scripts.models.llamacpp import compare, upstream

FILE: Final = Path(__file__).resolve().parents[2] / "benchmarks" / "models.json"


def try_kind(kind: str, converters: Path) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        try:
            return compare(kind, Path(folder), converters)._asdict()
        except Exception as error:  # of one kind; the others are still to be tried
            return {"kind": kind, "error": str(error)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=list(tiny.KINDS))
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    kinds: dict[str, Any] = json.loads(FILE.read_text())["kinds"] if FILE.exists() else {}
    with tempfile.TemporaryDirectory() as folder:
        converters = upstream(Path(folder))
        for kind in arguments.only:
            kinds[kind] = result = {**try_kind(kind, converters), "commit": commit(), "date": now()}
            print(json.dumps(result), flush=True)
            if arguments.json:
                FILE.write_text(
                    json.dumps({"machine": machine_name(), "kinds": kinds}, indent=1, sort_keys=True) + "\n"
                )


if __name__ == "__main__":
    main()
