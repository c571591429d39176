"""Progress: what training does now, and whether the ratings get better from version to version.

Owns what the plots are made of and the buttons of a run. Not here: how they are drawn (plots), the rules of training
(run_supervisor, schedule_rules).
"""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any, Final

from aiohttp import web

from proxy.access.security import actor_of, require_admin
from proxy.checks.statistics import wilson
from proxy.core.errors import NotFound
from proxy.core.version_names import version_in_words
from proxy.training import run_folder
from proxy.training.admin_acts import OF_A_LINE
from proxy.training.training import Training
from proxy.web.pages import plots
from proxy.web.pages.benefit import benefit
from proxy.web.pages.notices import texts
from proxy.web.pages.view import View, html
from proxy.web.status import StatusReport, run_json
from store.copies.read_only import ReadOnlyStore
from store.store import Store

DAY: Final = 86400
DAYS: Final = 90
HOURLY_DAYS: Final = 3  # days with ratings, below which the plots are by hour
WEEKLY_DAYS: Final = 200  # from which they are by week
SPANS_S: Final = {"hour": 3600.0, "day": float(DAY), "week": 7.0 * DAY}
OFFERED: Final = ("train", "pause", "resume", "cancel")


class ProgressPage:
    def __init__(self, view: View, store: Store, training: Training, status: StatusReport, home: Path) -> None:
        self._view = view
        self._store = store
        self._supervisor = training.supervisor
        self._acts = training.acts
        self._preconditions = training.preconditions
        self._judging = training.judging
        self._status = status
        self._home = home

    async def page(self, request: web.Request) -> web.Response:
        shares = await version_shares(self._store)
        return self._view.page(
            request,
            "progress.html",
            shares=shares,
            **await benefit(self._store, shares, self._home),
            runs=[run_json(run) for run in await self._store.runs.recent(limit=12)],
            judge=await self._judging.report(),
            episodes=await self._status.episodes(self._view.line(request)),
            rollouts=await self._status.rollouts(),
            prompts=(prompts := self._status.prompts()),
            texts=texts(prompts),
            **await self._plots(),
        )

    async def training(self, request: web.Request) -> web.Response:
        """The state of training alone."""
        return html(self._view.render(request, "training.html", **await self._now(self._view.line(request))))

    async def act(self, request: web.Request) -> web.Response:
        require_admin(request)
        if (act := request.match_info["act"]) not in OFFERED:
            raise NotFound(f"There is no act {act}.")
        await self._acts.do(act, actor_of(request), line=self._view.line(request) if act in OF_A_LINE else None)
        return await self.training(request)

    async def plots(self, request: web.Request) -> web.Response:
        """The plots alone."""
        return html(self._view.render(request, "plots.html", **await self._plots()))

    async def _plots(self) -> dict[str, Any]:
        """Plots of the ratings of 90 days, and of the run under way, else of the last one."""
        under_way = self._supervisor.state.run
        run = under_way or next(iter(await self._store.runs.recent(limit=1)), None)
        progress_lines = await asyncio.to_thread(run_folder.progress, Path(run.folder)) if run else []
        return {
            **await rating_plots(self._store, time.time() - DAYS * DAY),
            "curves": list(plots.curves(run.id, run_folder.steps(progress_lines))) if run else [],
            "under_way": under_way is not None,
        }

    async def _now(self, line: str) -> dict[str, Any]:
        due, fresh = await self._preconditions.due(line=line), await self._preconditions.fresh(line=line)
        run, (needed, _) = self._supervisor.state.run, await self._preconditions.ratings_threshold(line)
        waiting = None if run else next(iter(await self._store.runs.unfinished()), None)
        return {
            "run": run,
            "waiting": waiting,
            "paused": self._supervisor.state.paused,
            "progress": self._supervisor.state.progress.body(time.time()),
            "step": self._supervisor.state.progress.events.get("step"),
            "never": await self._status.never_trains(),
            "due": due,
            "fresh": fresh,
            "needed": needed,
        }


async def rating_plots(store: Store | ReadOnlyStore, since: float) -> dict[str, Any]:
    """The plots of the ratings since then: by day, and by hour or week where days would not make a curve."""
    offset = float(time.localtime().tm_gmtoff)
    days = await store.stats.days(since, offset)
    unit = "hour" if len(days) < HOURLY_DAYS else "day" if len(days) < WEEKLY_DAYS else "week"
    span_s = SPANS_S[unit]
    if unit != "day":
        days = await store.stats.days(since, offset, span_s)
    spans = [plots.RatedSpan(day.starts_at, day.good, day.bad) for day in days]
    versions = [plots.PlottedVersion(a.version, a.created_at) for a in await store.versions.all()]
    return {
        "unit": unit,
        "share_plot": plots.share(span_s, spans, versions),
        "count_plot": plots.counts(span_s, spans, versions),
    }


async def version_shares(store: Store | ReadOnlyStore) -> list[dict[str, Any]]:
    """For each version, how many of its rated answers people found good, with 95 % bounds."""
    shares = []
    for verdicts in await store.stats.verdicts():
        interval = wilson(verdicts.good, verdicts.good + verdicts.bad)
        if interval is not None:
            shares.append(
                {
                    "version": verdicts.version,
                    "name": version_in_words(verdicts.version),
                    "good": verdicts.good,
                    "rated": verdicts.good + verdicts.bad,
                    **interval._asdict(),
                }
            )
    return shares
