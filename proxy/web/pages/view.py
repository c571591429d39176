"""A page from a template, with the headers that every page has.

Owns the templates, the content security policy and what an error looks like to a person. Text of models and people is
escaped by the templates, always; nothing here is ever marked as safe.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from aiohttp import web

from config.gate_checks import question
from config.sections import Criterion
from proxy.conversation.modalities import in_words
from proxy.core.version_names import version_in_words
from proxy.training.preconditions import Preconditions
from proxy.training.run_supervisor import RunSupervisor
from proxy.versions.live_version import LiveVersion
from proxy.web.pages import filters
from proxy.web.pages.assets import Assets
from proxy.web.pages.session import Visitor, Visits
from store.line_records import COMMON

if TYPE_CHECKING:
    from jinja2 import Environment

FOLDER: Final = Path(__file__).parent
HEADERS: Final = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cache-control": "no-store",  # it shows conversations
}
LINE_COOKIE: Final = "rlproxy_line"
VISITOR: Final = web.RequestKey("visitor", Visitor)


class View:
    def __init__(
        self,
        visits: Visits,
        live_version: LiveVersion,
        learner: RunSupervisor,
        preconditions: Preconditions,
        criteria: Sequence[Criterion],
    ) -> None:
        self._visits = visits
        self._live_version = live_version
        self._learner = learner
        self._preconditions = preconditions
        self._criteria = criteria
        self.assets = Assets()

    @cached_property
    def _env(self) -> Environment:
        env = environment()
        env.globals |= {"asset": self.assets.address, "interactive": True, "criteria": self._criteria}
        return env

    def page(self, request: web.Request, template: str, status: int = 200, **values: Any) -> web.Response:
        response = html(self.render(request, template, **values), status)
        if "line" in request.query:  # the choice holds for the pages after it
            response.set_cookie(LINE_COOKIE, self.line(request), httponly=True, samesite="Strict")
        return response

    def line(self, request: web.Request) -> str:
        """The line that this browser looks at; the common one where it has chosen none that answers."""
        chosen = request.query.get("line") or request.cookies.get(LINE_COOKIE, COMMON)
        return chosen if chosen in self._live_version.lines else COMMON

    def render(self, request: web.Request, template: str, **values: Any) -> str:
        visitor = request[VISITOR]
        return self._env.get_template(template).render(
            path=request.path,
            visitor=visitor,
            token=self._visits.token(visitor),
            admin=visitor.role == "admin",
            keyed=self._visits.keyed,
            foreign=self._live_version.foreign,
            base_url=f"{request.scheme}://{request.host}/v1",
            **self.pulse(request),
            **values,
        )

    def pulse(self, request: web.Request) -> dict[str, Any]:
        """The top of every page; from memory, no query."""
        run = self._learner.state.run
        line = self._preconditions.doubt or ("paused" if self._learner.state.paused else "")
        if run:  # how far it is stands below, where a line may be long
            line = f"run {run.id} is under way"
        chosen, lines = self.line(request), self._live_version.lines
        return {
            "model": self._live_version.model,
            "live": self._live_version.live_of(chosen),
            "line": line,
            "chosen_line": chosen,
            "line_choices": lines if len(lines) > 1 else [],
        }

    def problem(self, request: web.Request, status: int, message: str) -> web.Response:
        """One sentence: as a page, or for htmx as text that is shown in passing."""
        if request.headers.get("hx-request") or request[VISITOR].role == "guest":
            return web.Response(status=status, text=message)
        return self.page(request, "problem.html", status, message=message)


def html(text: str, status: int = 200) -> web.Response:
    return web.Response(status=status, text=text, content_type="text/html")


def environment() -> Environment:
    """The page's templates, without their globals: `interactive` where what they draw links, acts and is renewed."""
    import jinja2  # with the first page, not with every start

    env = jinja2.Environment(
        loader=jinja2.FileSystemLoader(FOLDER / "templates"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
        auto_reload=False,  # it would look at the file of every row of a list
    )
    env.filters |= {
        "version": filters.version, "clock": filters.clock, "day": filters.day, "iso": filters.iso,
        "short": filters.short, "seconds": filters.seconds, "verdict": filters.verdict, "stars": filters.stars,
        "own": filters.own_rating, "calls": filters.calls, "reason": in_words, "model_name": version_in_words,
        "sentence": filters.sentence, "plain": filters.without_settings,
        "question": question, "path": lambda text: quote(text, safe=""),
    }  # fmt: skip
    return env
