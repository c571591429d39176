"""`/rl/experiments`: two versions compared on live traffic, started, looked at, stopped.

Owns their HTTP. Not here: what counts and when one ends (proxy.versions.experiments).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from aiohttp import web

from proxy.access.security import principal_of, require_admin
from proxy.core.errors import BadRequest
from proxy.core.json_response import json_object, json_response
from proxy.versions.experiments import LEAST_SHARE, Experiments
from proxy.web.openapi.experiments import ExperimentsBody


class ExperimentRoutes:
    def __init__(self, experiments: Experiments) -> None:
        self._experiments = experiments

    async def list(self, request: web.Request) -> web.Response:
        """The running one, and those before, newest first."""
        return json_response(await self._body())

    async def start(self, request: web.Request) -> web.Response:
        """Begin one. The candidate is loaded when this answers."""
        require_admin(request)
        body = await json_object(request)
        version, share = _version(body, "version"), body.get("share", 0.5)
        against = None if body.get("against") is None else _version(body, "against")
        if isinstance(share, bool) or not isinstance(share, int | float) or not LEAST_SHARE <= share <= 1 - LEAST_SHARE:
            raise BadRequest(f"`share` must be a number from {LEAST_SHARE} to {1 - LEAST_SHARE}.", param="share")
        await self._experiments.start(version, against, float(share), _actor(request))
        return json_response(await self._body(), status=201)

    async def stop(self, request: web.Request) -> web.Response:
        """The live version stays."""
        require_admin(request)
        await self._experiments.stop(_actor(request))
        return json_response(await self._body())

    async def _body(self) -> ExperimentsBody:
        return cast(ExperimentsBody, await self._experiments.report())


def _version(body: Mapping[str, Any], name: str) -> int:
    """The number of a version; 6.0 is an integer in JSON Schema, too. Raises BadRequest."""
    value = body.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float) or value != value // 1 or not 0 <= value < 2**31:
        raise BadRequest(f"`{name}` must be the number of a version.", param=name)
    return int(value)


def _actor(request: web.Request) -> str:
    return principal_of(request).name or "admin"
