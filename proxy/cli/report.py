"""`rlproxy report`: what was rated and what each version learned, as one HTML file.

Owns the options. Reads the home's files, also beside a running proxy. Not here: the file (proxy.web.pages.report).
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated

import typer

from proxy.cli.common import Home, secret_of, settings_of
from proxy.cli.failing import fail

report_app = typer.Typer()


@report_app.command()
def report(
    file: Annotated[Path, typer.Argument(help="The file to write.")] = Path("report.html"),
    no_text: Annotated[
        bool, typer.Option("--no-text", help="Without words of conversations, comments and names of raters: to share.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Also over a file that is not a report.")] = False,
    home: Home = None,
) -> None:
    """Write what was rated and what each version learned into one HTML file."""
    from proxy.web.pages import report as page
    from store.copies.read_only import look
    from store.errors import StoreError

    settings = settings_of({"home": home})

    async def html() -> str:
        async with look(settings.home, secret_of(settings)) as store:
            return await page.html(store, has_text=not no_text)

    try:
        page.check(file, force=force)  # before the work
        page.write(file, asyncio.run(html()))
    except (page.NotWritten, StoreError) as error:
        fail(str(error))
    note = "" if no_text else ": it has words of conversations in it, --no-text leaves them out"
    print(f"Wrote {file}{note}")
