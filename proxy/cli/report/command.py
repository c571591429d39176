"""`rlproxy report`: what was rated and what each version learned, as one HTML file.

Owns the options, and which way the data comes: from the running proxy, or from the home's files where none answers.
Heavy imports are inside the command, as in cli.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from proxy.cli.common import Home, print_json, secret_of, settings_of, some
from proxy.cli.failing import fail

if TYPE_CHECKING:
    from proxy.cli.report.sources import ReportData

report_app = typer.Typer()


@report_app.command()
def report(
    file: Annotated[Path, typer.Argument(help="The file to write.")] = Path("report.html"),
    no_text: Annotated[
        bool, typer.Option("--no-text", help="Without words of conversations, comments and names of raters: to share.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Also over a file that is not a report.")] = False,
    home: Home = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the data as JSON, and write no file.")] = False,
) -> None:
    """Write what was rated and what each version learned into one HTML file."""
    import time

    from proxy.cli.report import gather, page

    if not as_json:
        try:
            page.check(file, force=force)  # before the work
        except page.NotWritten as error:
            fail(str(error))
    now = time.time()
    contents = gather.report(
        _report_data(settings_of({"home": home})), text=not no_text, now=now, offset=gather.local_offset(now)
    )
    if as_json:
        print_json(contents)
        return
    try:
        page.write(file, page.html(contents))
    except page.NotWritten as error:
        fail(str(error))
    note = "" if no_text else "; it has words of conversations in it, --no-text leaves them out"
    counts = {
        "rating": contents["counts"]["ratings"],
        "version": len(contents["versions"]) - 1,
        "run": len(contents["runs"]),
    }
    print(f"{file}: {', '.join(some(count, noun) for noun, count in counts.items())}{note}")


def _report_data(settings: Any) -> ReportData:
    import asyncio

    from proxy.cli.http import HomeClient
    from proxy.cli.report import sources
    from proxy.client import Refused, Unreachable
    from store.errors import StoreError

    try:
        return sources.ask(HomeClient(settings))
    except Refused as refused:
        fail(str(refused))
    except Unreachable:
        print(f"No proxy answers; the report is read from {settings.home}.", file=sys.stderr)
    try:
        return asyncio.run(sources.read(settings.home, secret_of(settings)))
    except StoreError as error:
        fail(str(error))
