"""One route: who may ask, who answers, and, where other programs may count on it, what it takes and answers.

Owns the form only. The rows are in `route_table`, how they become a document in `openapi`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

from aiohttp import web

from proxy.access.roles import ROOM, Rule
from proxy.core.errors import Problem
from proxy.web.error_middleware import meet_expectation
from proxy.web.handlers import Answers, Handlers
from proxy.web.openapi.shapes import TEXT, Schema
from store.records import Role

Section = Literal["models", "ratings", "episodes", "chats", "control"]


@dataclass(frozen=True, slots=True)
class Route:
    method: Literal["get", "post", "put", "patch", "delete", "*"]
    path: str
    rule: Rule
    handler: Answers
    section: Section | None = None  # None: no program may count on it, and the rest is empty
    says: str = ""  # the row in docs/reference/http-api.md, and the description
    answers: Mapping[int, Any] = field(default_factory=dict)  # by status: a type, `Raw`, or None for no body
    takes: Any = None  # a type, or `Raw`
    may_be_empty: bool = False  # no body is as good as {}
    query: Mapping[str, Schema] = field(default_factory=dict)
    headers: Mapping[str, Schema] = field(default_factory=dict)
    path_schema: Schema = field(default_factory=lambda: TEXT)
    fails: Any = Problem  # the shape of everything that goes wrong
    details_page: str = ""  # a page that says more, seen from docs/reference/

    @property
    def id(self) -> str:
        words = [word.strip("{}") for word in self.path.split("/") if word]
        return "_".join([self.method, *words]).replace(".", "_")

    @property
    def role(self) -> Role | None:
        """The least that it needs; None: whoever asks."""
        return None if self.rule.kind in ("open", "signed", "proven") else self.rule.least

    def registered(self, handlers: Handlers) -> list[web.RouteDef]:
        """The routes as aiohttp takes them; those for agents come once more with a session in the path."""
        prefixes = ("", ROOM) if self.rule.kind in ("models", "passed") else ("",)
        register = web.get if self.method == "get" else partial(web.route, self.method.upper())  # GET answers HEAD, too
        handler = self.handler(handlers)
        return [register(prefix + self.path, handler, expect_handler=meet_expectation) for prefix in prefixes]
