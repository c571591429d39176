"""`rlproxy encrypt` and `rlproxy decrypt`: words, progress and exit codes. Heavy imports are inside, as in cli."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from proxy.cli.common import AsJson, Home, print_json, settings_of
from proxy.cli.failing import fail
from proxy.core.terminal import escape_controls, styled

if TYPE_CHECKING:
    from proxy.cli.database.encrypting import Report
    from store.file.conversion import Progress, Step

encrypt_app = typer.Typer(rich_markup_mode=None)

WORDS = {"check": "checked", "copy": "copied", "compare": "compared", "wipe": "old one overwritten"}


@encrypt_app.command()
def encrypt(
    key: Annotated[
        str, typer.Option(help="Where its key is, or is to be: keyring, file:PATH, prompt or env.", show_default=False)
    ] = "",
    home: Home = None,
    as_json: AsJson = False,
) -> None:
    """Encrypt the database, its backups and the run folders; rlproxy must not run."""
    from proxy.cli.database import encrypting
    from store.file.conversion import throttled

    settings = settings_of({"home": home, "store.key_from": key or None})
    current_settings = settings_of({"home": home})
    report = _run_or_fail(
        lambda: encrypting.encrypt(current_settings, settings.store.key_from, throttled(_progress(as_json)))
    )
    if as_json:
        print_json(asdict(report))
    else:
        _say_encrypted(report)
    _print_failures(report)


@encrypt_app.command()
def decrypt(home: Home = None, as_json: AsJson = False) -> None:
    """Take the encryption off again; rlproxy must not run."""
    from proxy.cli.database import encrypting
    from store.file.conversion import throttled

    settings = settings_of({"home": home})
    report = _run_or_fail(lambda: encrypting.decrypt(settings, throttled(_progress(as_json))))
    if as_json:
        print_json(asdict(report))
    else:
        print(f"{len(report.files)} databases and {report.runs} run folders are in the clear.")
        print(f"The key is still there ({report.key_from}): backups of before need it.")
        if report.setting:
            print(f"store.key_from comes from {report.setting}: take it away there before the next start.")
    _print_failures(report)


def _say_encrypted(report: Report) -> None:
    if report.evaluations:
        print(f"{report.evaluations} files of `rlproxy eval` are overwritten: an encrypted home keeps none.")
    if not report.files and not report.runs:
        print("There was nothing left to encrypt." if report.was else "The database will be encrypted from the start.")
    else:
        print(f"{len(report.files)} databases and {report.runs} run folders are encrypted.")
    if report.key_made:
        print(f"The key was made just now ({report.key_from}). Keep a copy elsewhere: without it nothing can be read.")
    if report.files:
        print("What was there in the clear is overwritten; a solid-state disk or a snapshot may keep it all the same.")
    print("Adapters, logs and backups that you made elsewhere are as they were.")


def _print_failures(report: Report) -> None:
    for name, reason in report.failures.items():
        print(f"rlproxy: {name} is as it was: {reason}", file=sys.stderr)
    if report.failures:
        raise typer.Exit(1)


def _run_or_fail(work: Any) -> Report:
    from store.errors import StoreBusy, StoreError

    try:
        report: Report = work()
    except StoreBusy as busy:
        fail(f"{busy} Stop it first; nothing was changed.")
    except StoreError as error:
        fail(str(error))
    return report


def _progress(quiet: bool) -> Progress:
    def show_progress(path: Path, step: Step, share: float) -> None:
        out = styled(sys.stderr)
        if not quiet and step in WORDS and out.isatty():
            print(f"\r\033[K{escape_controls(path.name)}: {WORDS[step]} {share:.0%}", end="", file=out, flush=True)
        elif not quiet and step == "done" and out.isatty():
            print("\r\033[K", end="", file=out, flush=True)

    return show_progress
