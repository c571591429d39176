"""Every kind of model that rlproxy writes GGUF adapters for, before real servers: `python -m scripts.models`.

A tiny model of each kind and an adapter, both with random weights. The log-probs of the next token are compared: those
of the server with those of transformers and PEFT. `--server` is llamacpp (the default), builtin, vllm, or mlx (by the
Python of scripts/setup_mlx); `--server trainer` makes a whole run on each. `--only KIND …` tries some. `--json` writes
benchmarks/models.json, or benchmarks/model_servers.json for the others, and keeps the other kinds. Docs:
docs/reference/models.md.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from scripts.harness.circumstances import commit, machine_name, now
from scripts.models import tiny

FOLDER: Final = Path(__file__).resolve().parents[2] / "benchmarks"
FILE, SERVERS_FILE = FOLDER / "models.json", FOLDER / "model_servers.json"


def llamacpp_rows(kinds: Sequence[str]) -> Iterator[dict[str, Any]]:
    from scripts.models.llamacpp import compare, upstream

    with tempfile.TemporaryDirectory() as name:
        converters = upstream(Path(name))
        for kind in kinds:
            with tempfile.TemporaryDirectory() as folder:
                try:
                    yield compare(kind, Path(folder), converters)._asdict()
                except Exception as error:  # of one kind; the others are still to be tried
                    yield {"kind": kind, "error": str(error)}


def rows_of(server: str) -> Callable[[Sequence[str]], Iterator[dict[str, Any]]]:
    """The trial of the kinds before a server; each needs another environment."""
    if server == "vllm":
        from scripts.models import vllm

        return vllm.rows
    if server == "mlx":
        from scripts.models import mlx

        return mlx.rows
    if server == "builtin":
        from scripts.models import builtin

        return builtin.rows
    if server == "trainer":
        from scripts.models import trainer_runs

        return trainer_runs.rows
    return llamacpp_rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--server", default="llamacpp", choices=["llamacpp", "builtin", "vllm", "mlx", "trainer"])
    parser.add_argument("--only", nargs="+", default=list(tiny.KINDS))
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    for row in rows_of(arguments.server)(arguments.only):
        result = {**row, "commit": commit(), "date": now()}
        print(json.dumps(result), flush=True)
        if arguments.json:
            keep(arguments.server, result)


def keep(server: str, result: dict[str, Any]) -> None:
    """In its file, read anew: several servers may be under way."""
    file, key = (FILE, "kinds") if server == "llamacpp" else (SERVERS_FILE, server)
    report = json.loads(file.read_text()) if file.exists() else {}
    report |= {"machine": machine_name(), key: {**report.get(key, {}), result["kind"]: result}}
    file.write_text(json.dumps(report, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
