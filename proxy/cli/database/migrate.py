"""`rlproxy migrate`: words, progress and exit codes. Heavy imports are inside, as in cli."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Annotated

import typer

from proxy.cli.common import AsJson, Home, print_json, secret_of, settings_of, some
from proxy.cli.failing import fail
from proxy.core.terminal import styled

SQLITE = "sqlite"
POSTGRES = "postgresql"
migrate_app = typer.Typer(rich_markup_mode=None)


@migrate_app.command()
def migrate(
    to: Annotated[
        str,
        typer.Option(
            help="postgresql://HOST/NAME, or postgresql for the address in store.url; sqlite for the way back.",
            metavar="PLACE",
        ),
    ],
    home: Home = None,
    as_json: AsJson = False,
) -> None:
    """Copy the database to PostgreSQL, or back; no rlproxy may run. Called again, it goes on where it was killed."""
    from store.errors import MissingExtra, StoreBusy, StoreError
    from store.store import sharing_module

    settings = settings_of({"home": home})
    url = to if to.startswith(("postgresql://", "postgres://")) else settings.store.address
    if to != SQLITE and to != POSTGRES and url != to:
        fail(f"--to must be an address (postgresql://HOST/NAME), {POSTGRES}, or {SQLITE}. Nothing was changed.", 2)
    if not url:
        fail("store.url is not set: set it, or RLPROXY_STORE__URL, to the address of PostgreSQL.", 2)
    try:
        sharing_module()
        from store.postgres import migration

        if to == SQLITE:
            report = migration.to_sqlite(settings.home, url, _show(as_json))
        else:
            report = migration.to_postgres(settings.home, url, secret_of(settings), _show(as_json))
    except StoreBusy as busy:
        fail(f"{busy} Stop it first; nothing was changed.")
    except (MissingExtra, StoreError) as error:
        fail(str(error))
    if as_json:
        print_json(report._asdict())
        return
    rows = sum(report.rows.values())
    print(f"{some(rows, 'row')} of {len(report.rows)} tables are copied and compared ({report.seconds:.0f} s).")
    if report.old_database is not None:
        print(f"The database that was in the home is {report.old_database} now.")
    print("Take store.url out of the settings." if to == SQLITE else "Set store.url; the old database stays as it is.")


def _show(quiet: bool) -> Callable[[str, int, int], None]:
    def show_progress(table: str, count: int, total: int) -> None:
        out = styled(sys.stderr)
        if not quiet and out.isatty():
            end = "" if count < total else "\r\033[K"
            print(f"\r\033[K{table}: {count} of {total}", end=end, file=out, flush=True)

    return show_progress
