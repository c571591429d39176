"""The least that a relay in aiohttp can be: what scripts/bench/relay compares with. It keeps nothing.

python -m scripts.bench.relay.bare http://127.0.0.1:8000
"""

from __future__ import annotations

import asyncio
import sys

import aiohttp
from aiohttp import web

HOP = ("host", "connection", "keep-alive", "content-length", "transfer-encoding", "date", "server")


async def relay(request: web.Request) -> web.StreamResponse:
    headers = {name: value for name, value in request.headers.items() if name.lower() not in HOP}
    body = await request.read()
    async with request.app[HTTP].request(
        request.method, sys.argv[1] + request.raw_path, data=body, headers=headers
    ) as upstream:
        reply_headers = {name: value for name, value in upstream.headers.items() if name.lower() not in HOP}
        if not upstream.content_type.startswith("text/event-stream"):
            return web.Response(status=upstream.status, body=await upstream.read(), headers=reply_headers)
        response = web.StreamResponse(status=upstream.status, headers=reply_headers)
        await response.prepare(request)
        async for piece in upstream.content.iter_any():
            await response.write(piece)
        await response.write_eof()
        return response


HTTP = web.AppKey("http", aiohttp.ClientSession)


async def main() -> None:
    app = web.Application(client_max_size=64 * 2**20, handler_args={"auto_decompress": False})
    app.router.add_route("*", "/{path:.*}", relay)
    app[HTTP] = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), auto_decompress=False)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, backlog=2048).start()
    print(f"http://127.0.0.1:{runner.addresses[0][1]}", flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main())
