"""`make demo-agent`: a real agent harness, rewards by a program, and a model that gets better at its task.

inspect_ai asks the tasks of integrations/inspect_ai/tasks.py through a real `rlproxy serve` on the built-in backend, in
groups of 8 attempts. Each round of episodes starts a run; success is measured on held-out questions by the version that
is live then.
`--shuffle` deals the rewards out at random: that control must not rise. `--resume` goes on after the last whole round
of FILE, on the same rlproxy. The episodes of a round that was cut train with the next.

    python -m scripts.demo.agent [--task two_turn] [--rounds 5] [--seed 0] [--shuffle] [--json FILE]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from scripts.demo.agent_credit import by_turn
from scripts.demo.agent_picture import picture
from scripts.demo.person import ROOT
from scripts.harness.circumstances import circumstances
from scripts.harness.serving import Serving

HOME = ROOT / ".demo-agent"
WEIGHTS = "HuggingFaceTB/SmolLM2-135M-Instruct"
HARNESS = ROOT / "integrations/inspect_ai"


def flags(args: argparse.Namespace) -> dict[str, str]:
    episodes = args.prompts * args.members
    settings = {
        "START_AT_EPISODES": str(episodes),
        "GROUP_SIZE": str(args.members),
        "GROUP_TIMEOUT_S": "60",
        "NICE": "0",
    }
    if args.overrides:
        settings["OVERRIDES"] = args.overrides
    return {f"RLPROXY_TRAIN__{name}": value for name, value in settings.items()}


async def story(
    args: argparse.Namespace,
    python: str,
    previous: list[dict[str, Any]],
    keep: Callable[[list[dict[str, Any]]], None],
) -> None:
    """Every round, given to `keep` with those before it: a run that is cut keeps its figures."""
    serving = Serving(HOME, args.weights, **flags(args))
    await serving.start()
    rows = list(previous)
    try:
        options = ("task", "rounds", "prompts", "members", "held_out", "seed")
        command = [python, str(HARNESS / "attempts.py"), "--url", serving.url]
        for name in options:
            command += [f"--{name.replace('_', '-')}", str(getattr(args, name))]
        command += ["--shuffle"] if args.shuffle else []
        command += ["--tokens", str(args.tokens)] if args.tokens else []
        command += ["--done", str(previous[-1]["round"])] if previous else []
        logs = HOME / "inspect"
        harness = await asyncio.create_subprocess_exec(
            *command, stdout=subprocess.PIPE, env={**os.environ, "INSPECT_LOG_DIR": str(logs)}, limit=1 << 22
        )
        assert harness.stdout is not None
        async for line in harness.stdout:
            if not line.startswith(b"{"):  # inspect_ai's own words
                print(line.decode(errors="replace").rstrip(), file=sys.stderr)
                continue
            row = json.loads(line)
            if row.get("run"):
                row["credit"] = by_turn(HOME / f"runs/r{row['run']:05d}")
            rows.append(row)
            keep(rows)
            text = f"round {row['round']}: {row['episodes']} episodes, held-out success {row['held_out']:.2f}"
            print(f"{text}, v{row['live']} live" if row["live"] else text, flush=True)
        if await harness.wait():
            raise RuntimeError(f"the harness ended with {harness.returncode}; {serving.log}")
    finally:
        await serving.stop()


def show(rows: list[dict[str, Any]], members: int) -> None:
    table = Table("episodes", "live", "held-out success", "groups kept", "dropped", "base NLL", "run", box=None)
    for previous, row in zip([None, *rows], rows, strict=False):
        metrics, out = row.get("metrics") or {}, row["left_out"].get("no-variance", 0)
        dropped = (out - (previous["left_out"].get("no-variance", 0) if previous else 0)) // members
        table.add_row(
            str(row["episodes"]), f"v{row['live']}" if row["live"] else "base", f"{row['held_out']:.3f}",
            str(int(metrics.get("groups_kept", 0))), str(dropped), f"{row.get('base_nll') or 0:+.3f}",
            row.get("status") or "",
        )  # fmt: skip
    Console().print(table)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--task", default="chain_sum")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--prompts", type=int, default=16)
    parser.add_argument("--members", type=int, default=8)
    parser.add_argument("--held-out", type=int, default=48)
    parser.add_argument("--tokens", type=int, help="of a turn; else the task's own")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--shuffle", action="store_true")
    parser.add_argument("--overrides", help="as train.overrides, JSON")
    parser.add_argument("--weights", default=WEIGHTS)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--resume", action="store_true")
    args = parser.parse_args()
    python = subprocess.run([ROOT / "scripts/harness_env"], check=True, capture_output=True, text=True).stdout.strip()
    began = time.monotonic()
    target = args.json or HOME / "result.json"
    previous: dict[str, Any] = json.loads(target.read_text()) if args.resume else {"rounds": [], "seconds": 0.0}
    if not args.resume:
        shutil.rmtree(HOME, ignore_errors=True)
        HOME.mkdir()
    settings = {
        k: v if not isinstance(v, Path) else v.name for k, v in vars(args).items() if k not in ("json", "resume")
    }
    about = {**circumstances(), "what": settings}
    about |= (
        {"resumed_after": [*previous.get("resumed_after", []), previous["rounds"][-1]["round"]]} if args.resume else {}
    )
    rows: list[dict[str, Any]] = []

    def keep(now: list[dict[str, Any]]) -> None:
        rows[:] = now
        figures = {**about, "seconds": round(previous["seconds"] + time.monotonic() - began, 1), "rounds": now}
        target.write_text(json.dumps(figures, indent=1) + "\n")
        (HOME / "success.svg").write_text(picture(now, args.task))

    asyncio.run(story(args, python, previous["rounds"], keep))
    show(rows, args.members)
    print(f"{time.monotonic() - began:.0f} s. Figures: {target}; picture: {HOME / 'success.svg'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
