"""A real proxy in a process of its own, with the fake trainer in it: `python -m scripts.chaos.fake_trainer FLAGS`.

Prints its address; then, for each line on stdin, what it has open. When stdin closes it stops, in order.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

from aiohttp import web

from config.settings import load
from proxy import server
from proxy.app import make_app
from proxy.backends import make_backend
from scripts.fakes.launcher import FakeLauncher
from store.store import Store


async def main(flags: dict[str, Any], run_s: float) -> None:
    settings = load(flags, environ={}).settings
    server.configure_logs(settings.log.level, False)
    launcher = FakeLauncher()
    launcher.takes_s = run_s
    store = await Store.open(settings.home)
    app = make_app(settings, store, make_backend(settings, launcher), launcher)
    runner = web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=10)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    print(json.dumps({"url": f"http://127.0.0.1:{runner.addresses[0][1]}"}), flush=True)
    while await asyncio.to_thread(sys.stdin.readline):
        tasks = sorted(task.get_name().rstrip("0123456789-") for task in asyncio.all_tasks())
        print(json.dumps({"tasks": tasks, "runs": len(launcher.started)}), flush=True)
    await runner.cleanup()
    await store.close()


if __name__ == "__main__":
    asyncio.run(main(json.loads(sys.argv[1]), float(sys.argv[2])))
