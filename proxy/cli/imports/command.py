"""`rlproxy import`: an export, ratings of Open WebUI, or rewards that a harness has written into files.

Owns the options and the words at the end. Each kind of file has a module beside this one; what is stored of it is the
proxy's affair.
"""

from __future__ import annotations

import io
import math
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import typer

from proxy.cli.common import AsJson, Home, client_of, print_json, some
from proxy.cli.failing import fail

if TYPE_CHECKING:
    from proxy.cli.http import HomeClient

TOO_LARGE: Final = 413  # the status of a request that is over server.max_body_bytes


def import_(
    what: Annotated[
        str,
        typer.Argument(
            help="What `rlproxy export` wrote, or one of the words open-webui, openclaw-rl, verifiers, harbor."
        ),
    ],
    place: Annotated[
        Path | None,
        typer.Argument(
            help="After open-webui: its exported feedback (JSON), or its webui.db. After openclaw-rl: its record file. "
            "After verifiers: outputs/ or below. After harbor: jobs/ or below."
        ),
    ] = None,
    own_versions: Annotated[bool, typer.Option("--ours", help="Its version numbers are those of this home.")] = False,
    reward: Annotated[
        str | None, typer.Option(help="verifiers, harbor: the reward of this name, of several.", metavar="NAME")
    ] = None,
    scale: Annotated[
        float | None, typer.Option(help="verifiers, harbor: times the reward, which must end from -1 to 1.")
    ] = None,
    split: Annotated[
        str | None, typer.Option(help="verifiers, harbor: eval only measures. [default: train]", show_default=False)
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="verifiers, harbor: say what would be stored, and store nothing.")
    ] = False,
    scores: Annotated[
        Path | None, typer.Option(help="openclaw-rl: its file of scores, taken as a judge's ratings.")
    ] = None,
    home: Home = None,
    as_json: AsJson = False,
) -> None:
    """Take in an export, ratings of Open WebUI, or a harness's rewards; what is here already is passed over."""
    if what in ("verifiers", "harbor"):
        _rewards("verifiers" if what == "verifiers" else "harbor", place, reward, scale, split, dry_run, home, as_json)
        return
    if reward is not None or scale is not None or split is not None or dry_run:
        fail("--reward, --scale, --split and --dry-run are for `rlproxy import verifiers` and `harbor`.", 2)
    if scores is not None and what != "openclaw-rl":
        fail("--scores is for `rlproxy import openclaw-rl FILE`. Nothing was taken.", 2)
    if what == "openclaw-rl":
        if place is None:
            fail("name its record file: `rlproxy import openclaw-rl FILE`. Nothing was taken.", 2)
        from proxy.cli.imports import openclaw_rl
        from proxy.cli.imports.export_file import batched

        _take(batched(openclaw_rl.lines(place, scores)), False, home, as_json)
    elif what == "open-webui":
        from proxy.cli.imports.open_webui import import_open_webui

        import_open_webui(place, home, as_json)
    elif place is not None:
        fail("an export is one file; two names are for `rlproxy import open-webui FILE`. Nothing was taken.", 2)
    else:
        from proxy.cli.imports.export_file import batches

        _take(batches(Path(what)), own_versions, home, as_json)


def _take(parts: Iterable[tuple[int, bytes]], own_versions: bool, home: Path | None, as_json: bool) -> None:
    """`parts`: how many lines came before, and lines of an export."""
    from proxy.cli.http import NO_PROXY
    from proxy.cli.imports.export_file import UnreadableFile
    from proxy.client import Refused, Unreachable

    client = client_of(home)
    total: dict[str, Any] = {"stored": 0, "known": 0, "ratings": 0, "forgotten": 0, "refused": []}
    path = "/rl/import" + ("?ours" if own_versions else "")
    try:
        for first, lines in parts:
            _send(client, path, first, lines, total)
    except UnreadableFile as error:
        fail(str(error))
    except Refused as refused:
        fail(f"{refused} {_describe(total)}; run it again once that is mended.")
    except Unreachable as error:
        fail(f"{error} {_describe(total)}; run it again.", NO_PROXY)
    if as_json:
        print_json(total)
    else:
        forgotten = f", {total['forgotten']} were forgotten here and stay so" if total["forgotten"] else ""
        print(f"{_describe(total)}, {total['known']} were here before{forgotten}")
        for refusal in total["refused"]:
            print(f"line {refusal['line']} was not taken: {refusal['why']}", file=sys.stderr)
    if total["refused"]:
        raise typer.Exit(1)


def _send(client: HomeClient, path: str, first: int, lines: bytes, total: dict[str, Any]) -> None:
    """Post these lines; what is too long for one request goes in two. Raises Refused, Unreachable."""
    from proxy.client import Refused

    if not lines.strip():
        return
    try:
        answer = client.ask("POST", path, lines)
    except Refused as refused:
        if refused.status != TOO_LARGE:
            raise
        rows = io.BytesIO(lines).readlines()
        if len(rows) == 1:
            total["refused"].append({"line": first + 1, "why": str(refused)})
            return
        half = len(rows) // 2
        _send(client, path, first, b"".join(rows[:half]), total)
        _send(client, path, first + half, b"".join(rows[half:]), total)
        return
    for key in ("stored", "known", "ratings", "forgotten"):
        total[key] += answer[key]
    total["refused"] += [{**refusal, "line": refusal["line"] + first} for refusal in answer["refused"]]


def _describe(total: dict[str, Any]) -> str:
    return f"{some(total['stored'], 'completion')} and {some(total['ratings'], 'rating')} taken"


def _rewards(
    harness: Literal["verifiers", "harbor"], place: Path | None, reward: str | None, scale: float | None,
    split: str | None, dry_run: bool, home: Path | None, as_json: bool,
) -> None:  # fmt: skip
    from proxy.cli.http import NO_PROXY
    from proxy.cli.imports import harbor, outcomes, verifiers
    from proxy.cli.imports.export_file import UnreadableFile
    from proxy.client import Refused, Unreachable

    if split not in (None, "train", "eval"):
        fail("--split must be train or eval.", 2)
    if scale is not None and not (math.isfinite(scale) and scale > 0):
        fail("--scale must be a number above 0.", 2)
    reader, noun = (verifiers, "trace") if harness == "verifiers" else (harbor, "trial")
    report = outcomes.ImportReport(dry_run)
    client = client_of(home)
    try:
        outcomes.give(client, reader.read(place or reader.FOLDER, reward), report, scale=scale or 1.0, split=split)
    except (outcomes.NothingThere, UnreadableFile) as error:
        fail(str(error))
    except Refused as refused:
        fail(f"{refused} {some(report.stored, 'reward')} had been taken.")
    except Unreachable as error:
        fail(f"{error} {some(report.stored, 'reward')} had been taken; run it again.", NO_PROXY)
    print_json(report.as_json()) if as_json else outcomes.show(report, noun)
    if report.failed:
        raise typer.Exit(1)
