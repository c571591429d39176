"""A balancer of TCP connections between relays: each new one goes to the next that says it is ready.

It knows no HTTP but the probe, as a cloud's balancer or kube-proxy does not. A relay that has just stopped being ready
may still get connections, until the next look.
"""

from __future__ import annotations

import asyncio
import contextlib
from itertools import cycle
from typing import Final

import aiohttp

LOOK_S: Final = 0.1  # between two looks at each relay
READ: Final = 1 << 16


class Balancer:
    def __init__(self, *ports: int) -> None:
        self.ready: dict[int, bool] = dict.fromkeys(ports, False)
        self.served: dict[int, int] = dict.fromkeys(ports, 0)  # connections
        self._turn = cycle(ports)
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        self._looking = asyncio.create_task(self._look())

    async def stop(self) -> None:
        self._looking.cancel()
        self._server.close()
        for task in set(self._tasks):
            task.cancel()
        await asyncio.gather(self._looking, *self._tasks, return_exceptions=True)

    async def wait_for(self, **states: bool) -> None:
        """Until these relays, `r` and their port, are ready or not."""
        while any(self.ready[int(name[1:])] is not state for name, state in states.items()):
            await asyncio.sleep(LOOK_S / 2)

    async def _look(self) -> None:
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=5)) as http:
            while True:
                for port in self.ready:
                    try:
                        async with http.get(f"http://127.0.0.1:{port}/readyz") as response:
                            self.ready[port] = response.status == 200
                    except (aiohttp.ClientError, TimeoutError):
                        self.ready[port] = False
                await asyncio.sleep(LOOK_S)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            port = next(port for port in self._turn if self.ready[port] or not any(self.ready.values()))
            self.served[port] += 1
            to_reader, to_writer = await asyncio.open_connection("127.0.0.1", port)
            with contextlib.closing(to_writer):
                await asyncio.gather(_copy(reader, to_writer), _copy(to_reader, writer))
        except OSError:
            writer.transport.abort()
        finally:
            writer.close()
            self._tasks.discard(task)


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionError):
        while data := await reader.read(READ):
            writer.write(data)
            await writer.drain()
    writer.close()
