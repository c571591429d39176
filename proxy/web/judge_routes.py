"""Routes about signals and the judge: what it found, how far it is trusted, and the consent that it needs.

Owns their HTTP. Not here: what any of it means (proxy.signals).
"""

from __future__ import annotations

from typing import Final

from aiohttp import web

from proxy.access.security import actor_of, require_admin
from proxy.core.errors import BadRequest
from proxy.core.json_response import json_object, json_response
from proxy.feedback.reward_function import RewardFunction
from proxy.signals.bodies import Rescored
from proxy.signals.judging import JudgingLoop
from store.store import Store

LATEST: Final = 2**40


class JudgeRoutes:
    def __init__(self, store: Store, judging: JudgingLoop, rewarding: RewardFunction) -> None:
        self._store = store
        self._judging = judging
        self._rewarding = rewarding

    async def report(self, request: web.Request) -> web.Response:
        return await self._answer()

    async def accept(self, request: web.Request) -> web.Response:
        """Accept, as an admin, what leaves this machine; for this address alone."""
        require_admin(request)
        await self._judging.accept(actor_of(request))
        return await self._answer()

    async def rescore(self, request: web.Request) -> web.Response:
        """The user's own code sees turns, or episodes, since a moment again."""
        require_admin(request)
        body = await json_object(request)
        since, episodes = body.get("since", 0.0), body.get("episodes", False)
        if isinstance(since, bool) or not isinstance(since, int | float) or not 0 <= since <= LATEST:
            raise BadRequest("`since` must be Unix seconds.", param="since")
        if not isinstance(episodes, bool):
            raise BadRequest("`episodes` must be true or false.", param="episodes")
        remaining = await (self._rewarding.rescore(since) if episodes else self._judging.rescore(since))
        await self._store.meta.audit(actor_of(request), "rescore", {"since": since, "episodes": episodes})
        return json_response(Rescored(left=remaining))

    async def _answer(self) -> web.Response:
        return json_response(await self._judging.report())
