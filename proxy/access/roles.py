"""The least role of a route, and of a path that passes through to the backend.

Owns the kinds of rule, and the table of what passes through. A route of ours is known by what the router matched, since
that is what answers. A path that passes through is known by the bytes that the backend gets, and only where every
server reads those bytes alike. What has no rule needs an admin. Not here: the rule of each route
(web.route_table), which role a key has (keys), what else is refused (security).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, Literal, NamedTuple

from aiohttp import web

from proxy.access.unknown_route import MISTAKES
from proxy.core.upstream import upstream_path
from store.records import Role

ROOM: Final = "/s/{session}"  # before the routes for models: a session for agents that cannot set headers


Kind = Literal[
    "open",  # says only that it is alive: no key
    "signed",  # a signature says who asks (proxy.feedback.webhooks): no key
    "proven",  # the same by a token in the head, which the handler checks before it reads the body
    "models",  # what agents use
    "passed",  # whatever else the backend has
    "control",
    "events",  # a control route that lasts
    "page",  # guests get it too: it tells them to sign in
    "nowhere",
]


class Rule(NamedTuple):
    kind: Kind
    least: Role
    by_line: bool = False  # also for a key of one line: what it shows and does is of that line


OPEN: Final = Rule("open", "use")
SIGNED: Final = Rule("signed", "use")
PROVEN: Final = Rule("proven", "use")
MODEL: Final = Rule("models", "use")
PASSED: Final = Rule("passed", "admin")  # less for what is in ASKS
USE: Final = Rule("control", "use")
RATE: Final = Rule("control", "rate")
ADMIN: Final = Rule("control", "admin")
USE_IN_LINE: Final = Rule("control", "use", by_line=True)
RATE_IN_LINE: Final = Rule("control", "rate", by_line=True)
EVENTS: Final = Rule("events", "rate")
PAGE: Final = Rule("page", "rate")  # whoever acts here is looked at again by the handler
NOWHERE: Final = Rule("nowhere", "use")  # whoever has a key may hear that there is nothing

Rules = Mapping[web.AbstractRoute, Rule]  # of every registered route

# What asks a model or shows what there is, of all supported backends; docs/reference/http-api.md has the same list.
ASKS: Final = (
    "GET /v1/models/{model}",
    "POST /v1/embeddings",
    "POST /v1/rerank",
    "POST /v1/reranking",
    "POST /v1/score",
    "POST /v1/classify",
    "POST /v1/moderations",
    "POST /v1/tokenize",
    "POST /v1/detokenize",
    "POST /v1/audio/speech",
    "POST /v1/audio/transcriptions",
    "POST /v1/audio/translations",
    "POST /v1/images/generations",
    "POST /v1/images/edits",
    "POST /v1/images/variations",
    "POST /v1/responses/input_tokens",
    "GET /api/tags",
    "GET /api/ps",
    "GET /api/version",
    "POST /api/show",
    "POST /api/embed",
    "POST /api/embeddings",
    "GET /api/v0/models",
    "GET /api/v0/models/{model}",
    "POST /api/v0/chat/completions",
    "POST /api/v0/completions",
    "POST /api/v0/embeddings",
    "GET /api/v1/models",
)
# A path of these is read alike by all servers: there is nothing to decode, to fold or to cut.
_PLAIN: Final = re.compile(r"(/[A-Za-z0-9._~:@-]+)+")
# A model's name may have slashes and colons, which SDKs encode; there is nothing but models to be read there.
_MODEL: Final = r"(/[A-Za-z0-9._~:@-]+((%2[Ff]|%3[Aa]|%40)[A-Za-z0-9._~:@-]+)*)+"
_ASKS: Final = re.compile("|".join(re.escape(route).replace(r"/\{model\}", _MODEL) for route in ASKS))


def rule(request: web.Request, rules: Rules) -> Rule:
    """By the route that answers. One that nobody gave a rule needs an admin."""
    route = request.match_info.route
    return NOWHERE if route.resource is None else rules.get(route, ADMIN)


def least(request: web.Request, route_rule: Rule) -> Role:
    """The role needed for this request, which this rule is for."""
    if route_rule.kind not in ("models", "passed"):
        return route_rule.least
    path = upstream_path(request).partition("?")[0]
    if route_rule.kind == "models":
        return route_rule.least if _PLAIN.fullmatch(path) else "admin"
    method = "GET" if request.method == "HEAD" else request.method
    # Of a mistaken base URL it is only said that it is one: that path never reaches the backend.
    return "use" if path in MISTAKES or _ASKS.fullmatch(f"{method} {path}") else route_rule.least
