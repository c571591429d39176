"""The page: rate, watch, promote and forget in a browser, from `/`.

Owns the routes of the page and what is true of all of them. That is who looks, the token of every act, headers, and
errors as sentences. Server-rendered; each view is a module, with its templates beside. Works without internet and
without a build step. Not here: what the acts do (ratings, run_supervisor, live_version, forgetting).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final
from urllib.parse import quote

import structlog
from aiohttp import web

from config.settings import Settings
from proxy.access.keys import Keys
from proxy.access.security import GUEST, principal_of
from proxy.conversation.cut_prompts import CutPrompts
from proxy.core.errors import BadRequest, ProxyError
from proxy.feedback.ratings import Feedback
from proxy.signals.judging import JudgingLoop
from proxy.training.admin_acts import AdminActs
from proxy.training.preconditions import Preconditions
from proxy.training.run_supervisor import RunSupervisor
from proxy.versions.live_version import LiveVersion
from proxy.web.forgetting import Forgetter
from proxy.web.lesson_routes import LessonRoutes
from proxy.web.pages.compare import ComparePage
from proxy.web.pages.completion import CompletionPage
from proxy.web.pages.data import DataPage
from proxy.web.pages.episodes import EpisodesPage
from proxy.web.pages.inbox import InboxPage
from proxy.web.pages.progress import ProgressPage
from proxy.web.pages.session import TOKEN_FIELD, Visits
from proxy.web.pages.signin import SignIn
from proxy.web.pages.versions import VersionsPage
from proxy.web.pages.view import HEADERS, VISITOR, View
from proxy.web.retention import Retention
from proxy.web.status import StatusReport
from store.errors import StoreError
from store.store import Store

log = structlog.get_logger()

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
INDEX_EVERY_S: Final = 5.0


class Pages:
    def __init__(
        self,
        settings: Settings,
        store: Store,
        keys: Keys,
        live_version: LiveVersion,
        learner: RunSupervisor,
        acts: AdminActs,
        preconditions: Preconditions,
        feedback: Feedback,
        status: StatusReport,
        forgetter: Forgetter,
        retention: Retention,
        cut: CutPrompts,
        judging: JudgingLoop,
        lessons: LessonRoutes,
    ) -> None:
        self.visits = Visits(settings.server, keys)
        self._store = store
        self._view = view = View(self.visits, live_version, learner, preconditions)
        self._inbox = InboxPage(view, store, feedback, status, judging)
        self._progress = ProgressPage(view, store, learner, acts, preconditions, status, judging)
        self._episodes = EpisodesPage(view, store, status)
        self._versions = VersionsPage(view, store, live_version, acts)
        self._completion = CompletionPage(view, store, cut)
        self._compare = ComparePage(view, store, live_version, feedback, keys)
        self._data = DataPage(view, store, forgetter, retention, settings.home, lessons)
        self._sign_in = SignIn(view, self.visits)

    async def start(self) -> None:
        await self.visits.start(self._store)

    def routes(self) -> list[web.RouteDef]:
        views: list[tuple[str, Handler]] = [
            ("/", self._inbox.page),
            ("/page/rows", self._inbox.rows),
            ("/page/pulse", self._pulse),
            ("/page/completions/{id}", self._inbox.row),
            ("/page/completions/{id}/{form}", self._inbox.form),
            ("/completions/{id}", self._completion.page),
            ("/progress", self._progress.page),
            ("/page/training", self._progress.training),
            ("/page/plots", self._progress.plots),
            ("/episodes", self._episodes.page),
            ("/episodes/{id}", self._episodes.show),
            ("/versions", self._versions.page),
            ("/page/lineage", self._versions.lineage),
            ("/versions/{version}", self._versions.show),
            ("/compare", self._compare.page),
            ("/data", self._data.page),
        ]
        acts: list[tuple[str, Handler]] = [
            ("/page/completions/{id}/rate", self._inbox.rate),
            ("/page/completions/{id}/undo", self._inbox.undo),
            ("/page/completions/{id}/copied", self._inbox.record_copy),
            ("/page/question/later", self._inbox.postpone_question),
            ("/page/training/{act}", self._progress.act),
            ("/page/versions/{act}", self._versions.act),
            ("/page/compare", self._compare.ask),
            ("/page/compare/pick", self._compare.pick),
            ("/page/forget", self._data.forget),
            ("/page/retention", self._data.retain),
            ("/page/lessons/{id}", self._data.lesson),
            ("/logout", self._sign_in.leave),
        ]
        return [
            *(web.get(path, self._guarded(handler)) for path, handler in views),
            *(web.post(path, self._guarded(handler)) for path, handler in acts),
            web.get("/login", self._guarded(self._sign_in.page, guests=True)),
            web.post("/login", self._guarded(self._sign_in.enter, guests=True)),
            web.get("/static/{name}", self._view.assets.get),
        ]

    def _guarded(self, handler: Handler, *, guests: bool = False) -> Handler:
        """The handler with everything around it that a page needs."""

        async def handle(request: web.Request) -> web.StreamResponse:
            request[VISITOR] = self.visits.of(request, principal_of(request))
            response = await self._answer(request, handler, guests)
            response.headers.update(HEADERS)
            if request.path != "/logout":
                self.visits.keep(request, response, request[VISITOR])
            return response

        return handle

    async def _answer(self, request: web.Request, handler: Handler, guests: bool) -> web.StreamResponse:
        try:
            if principal_of(request).role == GUEST and not guests:
                return _to_login(request)
            if request.method == "POST":
                form = await _form(request)
                self.visits.check(request, str(form.get(TOKEN_FIELD) or ""))
            return await handler(request)
        except web.HTTPSeeOther as redirect:
            return web.Response(status=303, headers={"location": str(redirect.location)})
        except ProxyError as error:
            return self._view.problem(request, error.status, error.message)
        except StoreError as error:
            return self._view.problem(request, 507, f"The store did not take it: {error}")

    async def _pulse(self, request: web.Request) -> web.Response:
        return self._view.page(request, "pulse.html")


async def _form(request: web.Request) -> Any:
    """Read here once; who asks for it later gets the same. Raises BadRequest."""
    try:
        return await request.post()
    except (ValueError, LookupError, AssertionError) as error:  # no UTF-8, an unknown charset, no multipart
        raise BadRequest(f"The form cannot be read ({error}); nothing was done.") from None


def _to_login(request: web.Request) -> web.Response:
    if request.headers.get("hx-request"):
        return web.Response(status=401, headers={"hx-redirect": "/login"}, text="Sign in first.")
    target = request.path_qs if request.method == "GET" else "/"
    return web.Response(status=303, headers={"location": f"/login?after={quote(target, safe='')}"})
