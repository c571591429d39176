"""The pages of ratings, versions and runs as one HTML file: everything in it, nothing asked for, no script.

Owns which pieces of the pages a report has, what is left out of one that is to be shared, and the file. It is whole or
not there, readable by its owner only, and never in the place of one that is not a report of rlproxy. Not here: how the
pieces look and what they are made of (progress, versions), the command (proxy.cli.data).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import tempfile
import time
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from markupsafe import Markup

from proxy.training import run_folder
from proxy.web.openapi.responses import RunBody
from proxy.web.pages import filters, plots
from proxy.web.pages.assets import FOLDER
from proxy.web.pages.benefit import benefit
from proxy.web.pages.progress import rating_plots, version_shares
from proxy.web.pages.versions import Node, TrainedSample, lineage_values, trained_samples
from proxy.web.pages.view import environment
from proxy.web.run_detail import account
from proxy.web.status import run_json
from store.copies.read_only import ReadOnlyStore
from store.learning.rater_quota import OWNER
from store.records import Rating, Run

if TYPE_CHECKING:
    from jinja2 import Environment

GENERATOR: Final = "rlproxy report"  # by which a file is known to be ours
RUNS: Final = 1000  # the newest
CURVES: Final = 20  # of them with curves


class NotWritten(Exception):
    """In one sentence."""


async def html(store: ReadOnlyStore, *, has_text: bool, home: Path | None = None) -> str:
    """The report; without text there is nothing in it that a person or a model said, and raters have numbers. `home`:
    whose own checks are in it."""
    pointer, runs = await store.versions.pointer(), await store.runs.recent(RUNS)
    versions = [adapter.version for adapter in await store.versions.all()]
    lineage = await lineage_values(store, pointer, versions if has_text else ())
    nodes = await _with_samples(store, lineage["nodes"], {run.id: run for run in runs})
    shares = await version_shares(store)
    names = await store.inbox.models() or [node.adapter.model for node in nodes]
    model = names[0] if names else None
    return (
        _environment()
        .get_template("report.html")
        .render(
            generator=GENERATOR,
            style=Markup((FOLDER / "page.css").read_text(encoding="utf-8")),  # noqa: S704  ours
            written_at=time.time(),
            has_text=has_text,
            model=model if has_text or model is None else re.split(r"[/\\]", model)[-1],  # some name a file's path
            counts=await store.stats.counts(),
            shares=shares,
            **await benefit(store, shares, home if has_text else None),
            runs=[_run(run, has_text=has_text) for run in runs],
            run_curves=await asyncio.to_thread(_curves, runs),
            curves=[],
            under_way=False,
            admin=False,
            **await rating_plots(store, 0.0),
            **(lineage | {"nodes": nodes if has_text else _without_words(nodes)}),
        )
    )


def _environment() -> Environment:
    env = environment()
    env.globals["interactive"] = False
    env.filters["clock"] = filters.day  # it may be read another day
    return env


async def _with_samples(store: ReadOnlyStore, nodes: Iterable[Node], runs: dict[int, Run]) -> list[Node]:
    whole_nodes = []
    for node in nodes:
        run = runs.get(node.adapter.run_id or 0)
        outcomes = (await account(store, run))["account"] if run else ()
        whole_nodes.append(node._replace(samples=await trained_samples(store, outcomes)))
    return whole_nodes


def _without_words(nodes: Iterable[Node]) -> list[Node]:
    """Verdicts and figures stay."""
    numbers: dict[str, str] = {OWNER: OWNER}

    def wordless(rating: Rating) -> Rating:
        rater = numbers.setdefault(rating.rater, f"rater {len(numbers)}")
        return replace(rating, rater=rater, comment=None, correction=None)

    def sample(trained: TrainedSample) -> TrainedSample:
        return trained._replace(rating=wordless(trained.rating) if trained.rating else None, row=None)

    return [node._replace(pairs=[], samples=[sample(trained) for trained in node.samples]) for node in nodes]


def _run(run: Run, *, has_text: bool) -> RunBody:
    """Why a run failed may name files of its machine: that is not for others."""
    body = run_json(run)
    return body if has_text or run.status != "failed" else body | {"reason": None}


def _curves(runs: Iterable[Run]) -> list[tuple[Run, list[tuple[str, Markup]]]]:
    """Blocking: reads the runs' folders."""
    drawn = ((run, list(plots.curves(run.id, run_folder.steps(run_folder.progress(Path(run.folder)))))) for run in runs)
    return [(run, curves) for run, curves in drawn if curves][:CURVES]


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
