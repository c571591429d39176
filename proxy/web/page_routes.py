"""The rows of the page in the table of routes: each view, and each act of its forms.

Not here: what other programs may count on (route_table).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Literal

from proxy.access.roles import PAGE
from proxy.web.error_middleware import Handler
from proxy.web.pages import Pages
from proxy.web.route import Route


def _page(
    path: str, handler: Callable[[Pages], Handler], *, guests: bool = False, method: Literal["get", "post"] = "get"
) -> Route:
    return Route(method, path, PAGE, lambda h: h.pages.guarded(handler(h.pages), guests=guests))


def _page_act(path: str, handler: Callable[[Pages], Handler], *, guests: bool = False) -> Route:
    return _page(path, handler, guests=guests, method="post")


PAGES: Final = (
    _page("/", lambda pages: pages.inbox.page),
    _page("/page/rows", lambda pages: pages.inbox.rows),
    _page("/page/pulse", lambda pages: pages.pulse),
    _page("/page/images/{sha256}", lambda pages: pages.pictures.thumbnail),
    _page("/page/completions/{id}", lambda pages: pages.inbox.row),
    _page("/page/completions/{id}/{form}", lambda pages: pages.inbox.form),
    _page("/completions/{id}", lambda pages: pages.completion.page),
    _page("/progress", lambda pages: pages.progress.page),
    _page("/page/training", lambda pages: pages.progress.training),
    _page("/page/count", lambda pages: pages.inbox.count),
    _page("/page/plots", lambda pages: pages.progress.plots),
    _page("/episodes", lambda pages: pages.episodes.page),
    _page("/episodes/{id}", lambda pages: pages.episodes.show),
    _page("/versions", lambda pages: pages.versions.page),
    _page("/page/lineage", lambda pages: pages.versions.lineage),
    _page("/page/experiment", lambda pages: pages.experiment.panel),
    _page("/versions/{version}", lambda pages: pages.versions.show),
    _page("/compare", lambda pages: pages.compare.page),
    _page("/data", lambda pages: pages.data.page),
    _page("/login", lambda pages: pages.sign_in.page, guests=True),
    _page_act("/page/completions/{id}/rate", lambda pages: pages.inbox.rate),
    _page_act("/page/completions/{id}/undo", lambda pages: pages.inbox.undo),
    _page_act("/page/completions/{id}/copied", lambda pages: pages.inbox.record_copy),
    _page_act("/page/question/later", lambda pages: pages.inbox.postpone_question),
    _page_act("/page/training/{act}", lambda pages: pages.progress.act),
    _page_act("/page/versions/{act}", lambda pages: pages.versions.act),
    _page_act("/page/experiment/{act}", lambda pages: pages.experiment.act),
    _page_act("/page/compare", lambda pages: pages.compare.ask),
    _page_act("/page/ask", lambda pages: pages.compare.ask_live),
    _page_act("/page/compare/pick", lambda pages: pages.compare.pick),
    _page_act("/page/forget", lambda pages: pages.data.forget),
    _page_act("/page/retention", lambda pages: pages.data.retain),
    _page_act("/page/lessons/{id}", lambda pages: pages.data.lesson),
    _page_act("/logout", lambda pages: pages.sign_in.leave),
    _page_act("/login", lambda pages: pages.sign_in.enter, guests=True),
    Route("get", "/static/{name}", PAGE, lambda h: h.pages.asset),
)
