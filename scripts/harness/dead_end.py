"""Where an agent ends up that wants to go anywhere but to the proxy: it writes down where, and hangs up.

Set as `HTTP_PROXY` and `HTTPS_PROXY`; loopback is excepted by `NO_PROXY`.
"""

from __future__ import annotations

import asyncio


class DeadEnd:
    def __init__(self) -> None:
        self.requests: list[str] = []  # the first line of each request: `CONNECT example.com:443 HTTP/1.1`
        self.url = ""
        self._server: asyncio.Server

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._hang_up, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def stop(self) -> None:
        self._server.close()
        await self._server.wait_closed()

    async def _hang_up(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.requests.append((await reader.readline()).decode(errors="replace").strip())
        writer.close()
