"""The least role of every route, and of every path that passes through to the backend.

Owns the two tables. A route of ours is known by what the router matched, since that is what answers. A path that passes
through is known by the bytes that the backend gets, and only where every server reads those bytes alike. What is in
neither table needs an admin. Not here: which role a key has (keys), what else is refused (security).
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


def _rules(kind: Kind, least: Role, *routes: str) -> dict[str, Rule]:
    return dict.fromkeys(routes, Rule(kind, least))


NOWHERE: Final = Rule("nowhere", "use")  # whoever has a key may hear that there is nothing
_UNDECLARED: Final = Rule("control", "admin")
RULES: Final[Mapping[str, Rule]] = {
    **_rules("open", "use", "GET /healthz", "GET /readyz"),
    **_rules(
        "signed",
        "use",
        "POST /rl/webhooks/slack",
        "POST /rl/webhooks/telegram",
        "POST /rl/webhooks/discord",
        "POST /rl/webhooks/whatsapp",
        "GET /rl/webhooks/whatsapp",
        "POST /rl/webhooks/signed",
        "POST /rl/webhooks/openclaw",
    ),
    **_rules(
        "models",
        "use",
        "POST /v1/chat/completions",
        "POST /v1/completions",
        "POST /v1/responses",
        "GET /v1/responses/{id}",
        "DELETE /v1/responses/{id}",
        "POST /v1/responses/{id}/cancel",
        "POST /v1/messages",
        "POST /v1/messages/count_tokens",
        "POST /api/chat",
        "POST /api/generate",
        "GET /v1/models",
    ),
    **_rules("passed", "admin", "* /v1/{rest}", "* /api/{rest}"),  # less for what is in ASKS
    **_rules("control", "use", "GET /rl/status", "GET /metrics", "GET /openapi.json"),
    **_rules(
        "control",
        "rate",
        "POST /v1/feedback",
        "POST /v1/feedback/open-webui",
        "DELETE /v1/feedback/{id}",
        "POST /rl/links",
        "GET /rl/completions",
        "GET /rl/completions/{id}",
        "GET /rl/adapters",
        "GET /rl/runs",
        "GET /rl/runs/{id}",
        "GET /rl/capture",
        "GET /rl/judge",
        "GET /rl/episodes",
        "GET /rl/episodes/{id}",
        "POST /rl/episodes",
        "POST /rl/episodes/{id}/reward",
        "POST /rl/episodes/rewards",
    ),
    **_rules("events", "rate", "GET /rl/events"),
    **_rules(
        "control",
        "admin",
        "POST /rl/capture",
        "GET /rl/export",
        "POST /rl/import",
        "POST /rl/train",
        "POST /rl/pause",
        "POST /rl/resume",
        "POST /rl/cancel",
        "POST /rl/rollback",
        "POST /rl/promote/{version}",
        "POST /rl/reset",
        "POST /rl/forget",
        "POST /rl/judge/accept",
        "POST /rl/rescore",
        "GET /rl/lessons",
        "PATCH /rl/lessons/{id}",
        "DELETE /rl/lessons/{id}",
        "GET /rl/keys",
        "POST /rl/keys",
        "DELETE /rl/keys/{key}",
    ),
    **_rules(  # whoever acts here is looked at again by the handler
        "page",
        "rate",
        "GET /",
        "GET /completions/{id}",
        "GET /progress",
        "GET /episodes",
        "GET /episodes/{id}",
        "GET /versions",
        "GET /versions/{version}",
        "GET /compare",
        "GET /data",
        "GET /login",
        "POST /login",
        "POST /logout",
        "GET /page/rows",
        "GET /page/pulse",
        "GET /page/completions/{id}",
        "GET /page/completions/{id}/{form}",
        "POST /page/completions/{id}/rate",
        "POST /page/completions/{id}/undo",
        "POST /page/completions/{id}/copied",
        "POST /page/question/later",
        "GET /page/training",
        "POST /page/training/{act}",
        "GET /page/plots",
        "GET /page/lineage",
        "POST /page/versions/{act}",
        "POST /page/compare",
        "POST /page/compare/pick",
        "POST /page/forget",
        "POST /page/retention",
        "POST /page/lessons/{id}",
        "GET /static/{name}",
    ),
}

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
    "POST /v1/responses/compact",
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


def rule(request: web.Request) -> Rule:
    """By the route that answers."""
    route = request.match_info.route
    if route.resource is None:
        return NOWHERE
    method = "GET" if route.method == "HEAD" else route.method
    return RULES.get(f"{method} {route.resource.canonical.removeprefix(ROOM)}", _UNDECLARED)


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
