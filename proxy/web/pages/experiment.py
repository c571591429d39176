"""The experiment on the versions page: how the running one stands, or how the last one ended; start and stop.

Owns one panel. Not here: what counts and when one ends (proxy.versions.experiments).
"""

from __future__ import annotations

import math
import time
from typing import Any, Final

from aiohttp import web

from proxy.access.security import actor_of, require_admin
from proxy.checks.statistics import wilson
from proxy.core.errors import BadRequest, NotFound
from proxy.versions.experiments import LEAST_SHARE, Experiments
from proxy.versions.live_version import LiveVersion
from proxy.versions.stopping_rule import MOST_DAYS, MOST_RATINGS, PROMOTE, WITHDRAW
from proxy.web.pages.view import View, html
from store.store import Store

RULE: Final = {"promote": PROMOTE, "withdraw": WITHDRAW, "most_ratings": MOST_RATINGS, "most_days": MOST_DAYS}


class ExperimentPanel:
    def __init__(self, view: View, store: Store, live_version: LiveVersion, experiments: Experiments) -> None:
        self._view = view
        self._store = store
        self._live_version = live_version
        self._experiments = experiments

    async def panel(self, request: web.Request) -> web.Response:
        """The panel alone."""
        return html(self._view.render(request, "experiment.html", **await self.values()))

    async def act(self, request: web.Request) -> web.Response:
        """Start or stop; answers with the panel as it is then."""
        require_admin(request)
        act = request.match_info["act"]
        if act == "start":
            form = await request.post()
            version, share = _version(str(form.get("version") or "")), _share(str(form.get("share") or "50"))
            await self._experiments.start(version, None, share, actor_of(request))
        elif act == "stop":
            await self._experiments.stop(actor_of(request))
        else:
            raise NotFound(f"There is no act {act}.")
        return await self.panel(request)

    async def values(self) -> dict[str, Any]:
        """For the template: the experiment, its two arms, and the versions that could be tried next."""
        report = await self._experiments.report()
        experiment = report["running"] or next(iter(report["ended"]), None)
        live = self._live_version.live
        return {
            "experiment": experiment,
            "arms": arms(experiment) if experiment else [],
            "elapsed_days": (time.time() - experiment["started_at"]) / 86400 if experiment else 0.0,
            "rule": RULE,
            "candidates": [
                adapter.version
                for adapter in reversed(await self._store.versions.all())
                if adapter.version != live and not adapter.is_deleted and not adapter.withdrawn
            ],
        }


def arms(experiment: dict[str, Any]) -> list[dict[str, Any]]:
    """One row an arm: its counts, their 95 % bounds, and what judges and programs said beside them."""
    judged = experiment.get("judged") or {}
    return [
        {
            **experiment[name],
            "version": experiment[member],
            "share": wilson(experiment[name]["liked"], experiment[name]["rated"]),
            "judged": judged.get(name),
        }
        for name, member in (("candidate", "version"), ("parent", "against"))
    ]


def _version(text: str) -> int:
    if not (text.isascii() and text.isdecimal()) or len(text) > 9:
        raise BadRequest("Say which version.", param="version")
    return int(text)


def _share(text: str) -> float:
    """The share of conversations that a percentage means. Raises BadRequest."""
    try:
        share = float(text) / 100
    except ValueError:
        share = math.nan
    if not LEAST_SHARE <= share <= 1 - LEAST_SHARE:
        low, high = LEAST_SHARE * 100, 100 - LEAST_SHARE * 100
        raise BadRequest(f"The share must be a number from {low:.0f} to {high:.0f} %.", param="share")
    return share
