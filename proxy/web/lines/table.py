"""The rows of the table of routes that are about lines (proxy.web.route_table)."""

from __future__ import annotations

from typing import Final

from proxy.access.roles import ADMIN, RATE_IN_LINE
from proxy.web.lines.bodies import LINE, LineBody, LineChanged, LinesBody, LineWanted
from proxy.web.route import Route

LINE_ROUTES: Final = (
    Route(
        "get", "/rl/lines", RATE_IN_LINE, lambda h: h.lines.listing, "control",
        "Lines, the common one first: what answers in each, what is collected. A key of one line sees that one.",
        {200: LinesBody}, details_page="../guides/lines.md",
    ),
    Route(
        "post", "/rl/lines", ADMIN, lambda h: h.lines.create, "control",
        "A new one. 409: that name is taken; 501: the backend cannot answer by one more.", {201: LineBody},
        takes=LineWanted, details_page="../guides/lines.md",
    ),
    Route(
        "post", "/rl/lines/{line}", ADMIN, lambda h: h.lines.change, "control", "Whose requests it answers.",
        {200: LineBody}, takes=LineChanged, path_schema=LINE,
    ),
    Route(
        "delete", "/rl/lines/{line}", ADMIN, lambda h: h.lines.retire, "control",
        "It answers nobody from now on; its ratings and versions stay.", {200: LineBody}, path_schema=LINE,
    ),
    Route(
        "post", "/rl/lines/{line}/restore", ADMIN, lambda h: h.lines.restore, "control",
        "It answers again, by the version that was live.", {200: LineBody}, path_schema=LINE,
    ),
)  # fmt: skip
