"""`rlproxy init`: its options, and the end of it. The work is done by `assistant`, whose imports are heavy."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from proxy.cli.common import Home, settings_of
from proxy.cli.failing import fail


def init(
    home: Home = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Ask nothing: the defaults.")] = False,
    answers: Annotated[
        Path | None, typer.Option("--answers", help="Ask nothing: a TOML or JSON file, docs/start/quick-start.md.")
    ] = None,
    start: Annotated[bool, typer.Option("--start/--no-start", help="Start rlproxy and prove that it works.")] = True,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON; with --yes or --answers.")] = False,
) -> None:
    """Set rlproxy up: finds your model server and your agents, asks at most six questions, and shows that it works."""
    from proxy.cli.init import assistant
    from proxy.cli.init.answers import BadAnswers
    from proxy.cli.init.console import Console, Interrupted
    from proxy.cli.init.plan import NotWritable

    asks = not (yes or answers)
    if asks and (as_json or not sys.stdin.isatty()):
        fail("init asks questions, and here is nobody to answer them: use --yes, or --answers FILE.", 2)
    console = Console(sys.stderr if as_json else sys.stdout)
    try:
        agreed = assistant.agree(console, settings_of({"home": home}), answers, asks=asks)
    except BadAnswers as error:
        fail(str(error), 2)
    except NotWritable as error:
        fail(str(error))
    except (Interrupted, KeyboardInterrupt):
        fail("Interrupted; nothing was written.")
    if agreed is None:
        fail("Nothing was written.")
    report = assistant.carry_out(console, agreed, start=start)
    if as_json:
        print(json.dumps(report, indent=2, ensure_ascii=False))
    if report["problem"]:
        raise typer.Exit(1)
