"""The newest evaluation on the versions page: what the user's own checks say of each version.

Owns one panel and its plot. Not here: how versions are asked (proxy.cli.checks), what the verdicts come to
(proxy.checks.summary).
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from markupsafe import Markup

from proxy.checks import results
from proxy.core.version_names import label
from proxy.web.pages.svg import Plot

LEVELS: Final = [(n / 4, f"{n / 4:.0%}") for n in range(5)]


class ChecksPanel:
    def __init__(self, home: Path) -> None:
        self._home = home

    async def values(self) -> dict[str, Any]:
        """For the template: the newest comparison of versions, and the newest check of a candidate."""
        recent = await asyncio.to_thread(results.recent, self._home, results.MOST_KEPT)
        evaluation = next((each for each in recent if len(each["versions"]) > 1), None) or next(iter(recent), None)
        return {"evaluation": evaluation, "evaluation_plot": plot(evaluation) if evaluation else None}


def plot(summary: Mapping[str, Any]) -> Markup | None:
    """Share of prompts on which all checks hold, with 95 % bounds, by version."""
    shares = [(label(each["version"]), each["all"]) for each in summary["versions"] if each["all"]["share"] is not None]
    if not shares:
        return None
    words = ", ".join(f"{name} {share['share']:.0%}" for name, share in shares)
    drawing = Plot(f"Share of prompts on which all checks hold: {words}", (-0.5, len(shares) - 0.5), (0, 1), height=130)
    drawing.axes([(index, name) for index, (name, _) in enumerate(shares)], LEVELS)
    for index, (_, share) in enumerate(shares):
        drawing.line([(index, share["low"]), (index, share["high"])])
    points = [(float(index), share["share"]) for index, (_, share) in enumerate(shares)]
    drawing.dots(
        points, 3.5, titles=[f"{share['passed']} of {share['passed'] + share['failed']}" for _, share in shares]
    )
    return drawing.drawn()
