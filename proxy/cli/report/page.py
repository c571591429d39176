"""The report as one HTML file: everything in it, nothing asked for, no script.

Owns the file. It is whole or not there, readable by its owner only, and never in the place of one that is not a report
of rlproxy. Text is escaped by the template, always. Not here: the data (gather); plots, tables and colours, which are
those of the page (proxy.web.pages).
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from markupsafe import Markup

from proxy.web.pages import plots
from proxy.web.pages.assets import FOLDER
from proxy.web.pages.view import environment

REPORT_FOLDER: Final = Path(__file__).parent
GENERATOR: Final = "rlproxy report"  # by which a file is known to be ours
UNITS: Final = {3600.0: "hour", 86400.0: "day", 7 * 86400.0: "week"}
RUNS: Final = 20  # with curves; the newest

Json = Mapping[str, Any]


class NotWritten(Exception):
    """In one sentence."""


def html(report: Json) -> str:
    each = report["times"]["each"]
    spans = [plots.RatedSpan(row["at"], row["good"], row["bad"]) for row in report["times"]["rows"]]
    versions = [
        plots.PlottedVersion(v["version"], v["made_at"], v["base_nll"]) for v in report["versions"] if v["version"]
    ]
    curves = [
        (run, run_curves) for run in report["runs"] if (run_curves := list(plots.curves(run["id"], run["steps"])))
    ]
    styles = (FOLDER / "page.css", REPORT_FOLDER / "report.css")
    return (
        environment(REPORT_FOLDER)
        .get_template("report.html")
        .render(
            r=report,
            generator=GENERATOR,
            style=Markup("\n".join(file.read_text(encoding="utf-8") for file in styles)),  # noqa: S704  ours
            unit=UNITS[each],
            share_plot=plots.share(each, spans, versions),
            count_plot=plots.counts(each, spans, versions),
            nll_plot=plots.base_nll(reversed(versions)),
            runs=curves[:RUNS],
            left_out=max(0, len(curves) - RUNS),
        )
    )


def check(path: Path, *, force: bool) -> None:
    """Raises NotWritten where there is something that a report should not take the place of."""
    try:
        with path.open("rb") as file:
            is_report = f'content="{GENERATOR}"'.encode() in file.read(1000)
    except FileNotFoundError:
        return
    except OSError as error:
        raise NotWritten(f"{path} cannot be written ({error}); name another file.") from error
    if not is_report and not force:
        raise NotWritten(f"{path} is not a report of rlproxy; nothing was written. Name another file, or --force.")


def write(path: Path, text: str) -> None:
    """Raises NotWritten, and leaves what was there."""
    part = ""
    try:
        descriptor, part = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)  # conversations are private
        with os.fdopen(descriptor, "wb") as file:
            file.write(text.encode("utf-8", "replace"))
        os.replace(part, path)
    except OSError as error:
        with contextlib.suppress(OSError):
            os.unlink(part)
        raise NotWritten(f"{path} could not be written ({error}); what was there is as it was.") from error
