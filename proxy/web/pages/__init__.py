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

from proxy.access.security import GUEST, principal_of
from proxy.core.errors import BadRequest, ProxyError
from proxy.feedback.ratings import Feedback
from proxy.training.training import Training
from proxy.versions.services import Services
from proxy.web.explanation import Explanations
from proxy.web.forgetting import Forgetter
from proxy.web.lesson_routes import LessonRoutes
from proxy.web.pages.checks import ChecksPanel
from proxy.web.pages.compare import ComparePage
from proxy.web.pages.completion import CompletionPage
from proxy.web.pages.data import DataPage
from proxy.web.pages.episodes import EpisodesPage
from proxy.web.pages.experiment import ExperimentPanel
from proxy.web.pages.inbox import InboxPage
from proxy.web.pages.pictures import Pictures
from proxy.web.pages.progress import ProgressPage
from proxy.web.pages.session import TOKEN_FIELD, Visits
from proxy.web.pages.signin import SignIn
from proxy.web.pages.versions import VersionsPage
from proxy.web.pages.view import HEADERS, VISITOR, View
from proxy.web.retention import Retention
from proxy.web.status import StatusReport
from store.errors import StoreError

log = structlog.get_logger()

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
INDEX_EVERY_S: Final = 5.0


class Pages:
    def __init__(
        self,
        services: Services,
        training: Training,
        feedback: Feedback,
        status: StatusReport,
        forgetter: Forgetter,
        retention: Retention,
        lessons: LessonRoutes,
        explanations: Explanations,
    ) -> None:
        settings, store, keys = services.settings, services.store, services.keys
        self.visits = Visits(settings.server, keys)
        self._view = view = View(
            self.visits, training.live_version, training.supervisor, training.preconditions, settings.rubric.criteria
        )
        self.pictures = pictures = Pictures(store, services.images)
        self.inbox = InboxPage(view, store, feedback, status, training.judging, pictures, settings.rubric.criteria)
        self.progress = ProgressPage(view, store, training, status, settings.home)
        self.episodes = EpisodesPage(view, store, status)
        self.experiment = ExperimentPanel(view, store, training.live_version, training.experiments)
        checks = ChecksPanel(settings.home)
        self.versions = VersionsPage(view, store, training.live_version, training.acts, self.experiment, checks)
        self.completion = CompletionPage(view, store, services.health.cut, explanations, pictures)
        self.compare = ComparePage(view, store, training.live_version, feedback, keys)
        self.data = DataPage(view, store, forgetter, retention, settings.home, lessons)
        self.sign_in = SignIn(view, self.visits)
        self.asset = view.assets.get

    def guarded(self, handler: Handler, *, guests: bool = False) -> Handler:
        """The handler with everything around it that a page needs."""

        async def handle(request: web.Request) -> web.StreamResponse:
            request[VISITOR] = self.visits.of(request, principal_of(request))
            response = await self._answer(request, handler, guests)
            response.headers.update({**HEADERS, **response.headers})  # a picture's policy is stricter
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

    async def pulse(self, request: web.Request) -> web.Response:
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
