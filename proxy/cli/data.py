"""Commands on stored data: the report, export and import, sessions of which nothing is kept, backups, the audit log.

Not here: forgetting (forget), encryption (encrypt).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TextIO, cast

import typer

from proxy.cli.common import (
    AsJson,
    Home,
    client_of,
    print_json,
    refuse_shared,
    secret_of,
    settings_of,
    show,
    some,
    unix_seconds,
)
from proxy.cli.failing import fail
from proxy.cli.forget import forget
from proxy.cli.imports.command import import_
from proxy.core.terminal import in_json

if TYPE_CHECKING:
    from proxy.cli.exports.formats import Format, TrainingFile
    from proxy.cli.http import HomeClient

data_app = typer.Typer()
audit_app = typer.Typer(help="The audit log: who did what.", rich_markup_mode=None)
data_app.add_typer(audit_app, name="audit")


@data_app.command()
def report(
    file: Annotated[Path, typer.Argument(help="The file to write.")] = Path("report.html"),
    no_text: Annotated[
        bool, typer.Option("--no-text", help="Without words of conversations, comments and names of raters: to share.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Also over a file that is not a report.")] = False,
    home: Home = None,
) -> None:
    """Write what was rated and what each version learned into one HTML file."""
    import asyncio

    from proxy.web.pages import report as page
    from store.copies.read_only import look
    from store.errors import StoreError

    settings = settings_of({"home": home})

    async def html() -> str:
        async with look(settings.home, secret_of(settings)) as store:
            return await page.html(store, has_text=not no_text, home=settings.home)

    try:
        page.check(file, force=force)  # before the work
        page.write(file, asyncio.run(html()))
    except (page.NotWritten, StoreError) as error:
        fail(str(error))
    note = "" if no_text else ": it has words of conversations in it, --no-text leaves them out"
    print(f"Wrote {file}{note}")


@data_app.command()
def export(
    home: Home = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="File to write; without it stdout.")] = None,
    rated: Annotated[bool, typer.Option("--rated", help="Rated completions only.")] = False,
    rollouts: Annotated[bool, typer.Option("--rollouts", help="Also answers that rlproxy sampled itself.")] = False,
    session: Annotated[str | None, typer.Option(help="Of this session only.")] = None,
    user: Annotated[str | None, typer.Option(help="Of this person only.")] = None,
    version: Annotated[int | None, typer.Option(help="Of this version only; 0 is the base.")] = None,
    turn: Annotated[str | None, typer.Option(help="main or side turns only.")] = None,
    since: Annotated[datetime | None, typer.Option(help="From this day or moment on, local time.")] = None,
    until: Annotated[datetime | None, typer.Option(help="Before this day or moment.")] = None,
    format: Annotated[
        str | None,
        typer.Option(
            "--format", help="Rated answers for another trainer: trl-sft, trl-kto, trl-dpo, openai, sharegpt."
        ),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Write over a file that is there.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON array instead of JSON lines.")] = False,
) -> None:
    """Write captured completions, one completion a line: docs/guides/export.md."""
    from urllib.parse import urlencode

    from proxy.cli.exports.formats import FORMATS, TrainingFile
    from proxy.cli.http import NO_PROXY
    from proxy.client import Unreachable

    if format is not None and format not in FORMATS:
        fail(f"there is no format {format!r}; choose one of {', '.join(FORMATS)}. Nothing was written.", 2)
    if output is not None and output.is_file() and not force:
        fail(f"{output} is there already, and stays as it is: name another file, or write over it with --force.")
    only: dict[str, Any] = {"session": session, "user": user, "version": version, "turn": turn}
    only |= {"since": since and int(unix_seconds(since)), "until": until and int(unix_seconds(until))}
    rated = rated or format is not None
    flags = {"rated": 1 if rated else None, "rollouts": 1 if rollouts else None}
    query = urlencode({k: v for k, v in {**flags, **only}.items() if v is not None})
    client, path = client_of(home), f"/rl/export?{query}"
    training_file = None if format is None else TrainingFile(cast("Format", format))
    lines = client.lines(path) if training_file is None else _training_lines(training_file, client, path)
    try:
        with _writing(output) as out:
            count = _write(lines, out, as_json)
    except Unreachable as error:
        outcome = f"{output} was not written" if output else "what was printed is not all"
        fail(f"the export broke off and {outcome}: {error}", NO_PROXY)
    except BrokenPipeError:
        raise  # whoever reads it has enough
    except OSError as error:
        fail(f"{output or 'the export'} could not be written ({error.strerror or error}); free some space or choose "
             "another place, and export again.")  # fmt: skip
    if training_file is not None:
        print(f"{some(count, 'example')} written to {output or 'stdout'}", file=sys.stderr)
        for reason, number in training_file.left_out.most_common():
            print(f"left out: {some(number, 'completion')} {reason}", file=sys.stderr)
    elif output:
        print(f"{count} completions written to {output}", file=sys.stderr)


def _training_lines(training_file: TrainingFile, client: HomeClient, path: str) -> Iterator[str]:
    import orjson

    for row in training_file.rows(lambda: map(orjson.loads, client.lines(path))):
        yield orjson.dumps(row).decode()


def _private(path: str, flags: int) -> int:
    """A new file of our own: one that lies there may be a link, or others may have it open."""
    return os.open(path, flags | os.O_EXCL, 0o600)  # conversations are private


@contextmanager
def _writing(output: Path | None) -> Iterator[TextIO]:
    """A file has its name once it is whole; what is not a file, as /dev/stdout, is written as it is."""
    if output is None:
        yield sys.stdout
        sys.stdout.flush()
        return
    special = output.exists() and not output.is_file()
    to = output if special else Path(os.path.realpath(output))
    part = to if special else to.with_name(to.name + ".part")
    if not special:
        part.unlink(missing_ok=True)
    try:
        with open(part, "w", encoding="utf-8", opener=None if special else _private) as out:
            yield out
        if not special:
            part.replace(to)
    finally:
        if not special:
            part.unlink(missing_ok=True)


def _write(lines: Iterable[str], out: TextIO, as_json: bool) -> int:
    count = 0
    for line in lines:
        if as_json:
            out.write("[\n" if count == 0 else ",\n")
        line = in_json(line) if out is sys.stdout else line
        out.write(line if as_json else line + "\n")
        count += 1
    if as_json:
        out.write("\n]\n" if count else "[]\n")
    return count


@data_app.command()
def capture(
    what: Annotated[str, typer.Argument(help="off or on.")],
    session: Annotated[str, typer.Argument(help="The session, as in /s/SESSION/v1.")],
    home: Home = None,
    as_json: AsJson = False,
) -> None:
    """Keep nothing of a session from now on, or keep it again."""
    answer = client_of(home).call("POST", "/rl/capture", {"session": session, "capture": what})
    if as_json:
        print_json(answer)
    else:
        is_off = answer["capture"] == "off"
        print(f"session {session}: " + ("nothing is kept from now on" if is_off else "captured again"))


data_app.command()(forget)
data_app.command("import")(import_)


@data_app.command()
def backup(
    file: Annotated[Path, typer.Argument(help="The file to write; it must not exist.")],
    home: Home = None,
    as_json: AsJson = False,
) -> None:
    """Copy the database into one file, also while rlproxy runs."""
    from store.copies.backup import backup as make
    from store.errors import StoreError
    from store.file import schema

    try:
        settings = settings_of({"home": home})
        refuse_shared(settings)
        size = make(settings.home / schema.NAME, file, secret_of(settings))
    except StoreError as error:
        fail(str(error))
    show(
        {"file": str(file), "bytes": size},
        as_json,
        f"{size / 1e6:.1f} MB written to {file}; adapters are files of their own, copy adapters_out too",
    )


@data_app.command()
def restore(
    file: Annotated[Path, typer.Argument(help="What `rlproxy backup` wrote.")],
    home: Home = None,
    as_json: AsJson = False,
) -> None:
    """Put a backup in the database's place; refused while rlproxy runs, or where the backup is not whole."""
    from store.copies.backup import restore as restore_backup
    from store.errors import StoreBusy, StoreError

    try:
        settings = settings_of({"home": home})
        refuse_shared(settings)
        restored = restore_backup(settings.home, file, secret_of(settings))
    except StoreBusy as busy:
        fail(f"{busy} Stop it first; nothing was changed.")
    except StoreError as error:
        fail(str(error))
    set_aside, keys = restored
    if as_json:
        print_json(
            {
                "restored": str(file),
                "kept": set_aside and str(set_aside),
                "keys": [{"id": key.id, "name": key.name, "role": key.role} for key in keys],
            }
        )
        return
    print(f"{file} is restored" + (f"; what was there before is {set_aside}" if set_aside else ""))
    if keys:
        print(
            f"{some(len(keys), 'key')} of the backup hold, and nobody here knows whether they were revoked after it "
            f"was made: {', '.join(f'{key.name} ({key.role}, {key.id})' for key in keys)}. End those that should not "
            "hold before you start rlproxy: `rlproxy keys revoke NAME`."
        )


@audit_app.callback(invoke_without_command=True)
def audit(context: typer.Context, home: Home = None, as_json: AsJson = False) -> None:
    """The audit log: who did what."""
    if context.invoked_subcommand is None:
        audit_list(home=home, as_json=as_json)


@audit_app.command("list")
def audit_list(
    number: Annotated[int, typer.Option("-n", "--number", min=1, max=1000, help="How many.")] = 20,
    home: Home = None,
    as_json: AsJson = False,
) -> None:
    """List who did what, newest first: acts of admins, and what rlproxy did by itself."""
    lines = client_of(home).call("GET", f"/rl/audit?limit={number}")["data"]
    if as_json:
        print_json(lines)
        return
    from proxy.cli.tables import show_audit

    show_audit(lines)


@audit_app.command("verify")
def audit_verify(
    home: Home = None,
    expect: Annotated[str | None, typer.Option(help="A newest hash that you noted before.")] = None,
    as_json: AsJson = False,
) -> None:
    """Tell whether no line of the log was changed or taken out; also while rlproxy runs."""
    from store.copies.backup import audit_verdict
    from store.errors import StoreError

    try:
        settings = settings_of({"home": home})
        verdict = audit_verdict(settings.home, expect, secret_of(settings))
    except StoreError as error:
        fail(str(error))
    if as_json:
        print_json(verdict._asdict())
    elif verdict.problem is None:
        print(f"{verdict.lines} lines, unbroken. The newest hash, to be noted elsewhere: {verdict.head}")
    if verdict.problem is not None:
        fail(f"the audit log is broken after {verdict.lines} lines: {verdict.problem}.")
