"""Signing in: a key once, a cookie from then on. Only where the proxy has keys."""

from __future__ import annotations

import asyncio
import re
from typing import Final

from aiohttp import web

from proxy.core.errors import Unauthorized
from proxy.web.pages.session import COOKIE, Visits
from proxy.web.pages.view import VISITOR, View

SLOWLY_S: Final = 0.5  # after a wrong key
NAME: Final = 100  # characters
# A path of this origin. Browsers drop tabs and line breaks, take \ for /, and read //HOST as another host.
_OURS: Final = re.compile(r"/([\w.~%:@-]+/)*[\w.~%:@-]*(\?[\w.~%:@!$&'()*+,;=/?-]*)?", re.ASCII)


class SignIn:
    def __init__(self, view: View, visits: Visits) -> None:
        self._view = view
        self._visits = visits

    async def page(self, request: web.Request) -> web.Response:
        return self._view.page(request, "login.html", wrong=False, after=_local_path(request.query.get("after")))

    async def enter(self, request: web.Request) -> web.Response:
        form = await request.post()
        target = _local_path(str(form.get("after") or ""))
        try:
            visitor = self._visits.sign_in(str(form.get("key") or ""), str(form.get("name") or "").strip()[:NAME])
        except Unauthorized:
            await asyncio.sleep(SLOWLY_S)
            return self._view.page(request, "login.html", 401, wrong=True, after=target)
        request[VISITOR] = visitor
        return web.Response(status=303, headers={"location": target})

    async def leave(self, request: web.Request) -> web.Response:
        response = web.Response(status=303, headers={"location": "/login"})
        response.del_cookie(COOKIE, path="/")
        return response


def _local_path(path: str | None) -> str:
    """Where to go on: never to another host."""
    return path if path and _OURS.fullmatch(path) else "/"
