"""A program that has nothing to do with models, on the port where one was looked for: a page at every path."""

from __future__ import annotations

from aiohttp import web

from scripts.fakes.listening import Listening


class AnotherProgram(Listening):
    def __init__(self, status: int = 200) -> None:
        self.status = status

    async def start(self) -> None:
        app = web.Application()
        app.add_routes([web.route("*", "/{rest:.*}", self._page)])
        await self.listen(app)

    async def _page(self, request: web.Request) -> web.Response:
        return web.Response(
            text="<html>\n<title>My photos</title>\n</html>", status=self.status, content_type="text/html"
        )
