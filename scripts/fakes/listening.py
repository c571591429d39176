"""The base of all fake servers: a real socket on loopback, and an end that cuts what is under way."""

from __future__ import annotations

from aiohttp import web


class Listening:
    url = ""
    _runner: web.AppRunner | None = None

    async def listen(self, app: web.Application, port: int = 0, host: str = "127.0.0.1") -> None:
        self._runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, host, port).start()
        self.url = f"http://{host}:{self._runner.addresses[0][1]}"

    async def stop(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None
