"""Routes about signals and the judge: what it found, how far it is trusted, and the consent that it needs.

Owns their HTTP. Not here: what any of it means (proxy.signals).
"""

from __future__ import annotations

import orjson
from aiohttp import web

from proxy.access.security import require_admin
from proxy.signals.judging import Judging


class JudgeRoutes:
    def __init__(self, judging: Judging) -> None:
        self._judging = judging

    def routes(self) -> list[web.RouteDef]:
        return [web.get("/rl/judge", self.report), web.post("/rl/judge/accept", self.accept)]

    async def report(self, request: web.Request) -> web.Response:
        return await self._answer()

    async def accept(self, request: web.Request) -> web.Response:
        """What leaves this machine, accepted by an admin; for this address alone."""
        require_admin(request)
        await self._judging.accept("admin")
        return await self._answer()

    async def _answer(self) -> web.Response:
        return web.Response(body=orjson.dumps(await self._judging.report()), content_type="application/json")
