"""A whole rlproxy in a process of its own, for the fuzz: `python -m scripts.fuzz.server HOME BACKEND_URL [--keys]`.

Everything is real but the trainer, which is the tests' fake: what is fuzzed is the routes, and a run must not take
minutes. Prints one line of JSON when it answers; ends with SIGTERM as `rlproxy serve` does.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
from pathlib import Path
from typing import Any
from unittest import mock

from config.settings import load
from proxy import server
from scripts.fakes.launcher import FakeLauncher
from scripts.harness import signing

KEYS = {"server.api_key": "use-" + "k" * 28, "server.admin_key": "admin-" + "k" * 26}
WEBHOOKS: dict[str, Any] = {
    "webhooks.slack.signing_secret": signing.SLACK_SECRET, "webhooks.slack.raters": {"U1": "ann"},
    "webhooks.telegram.secret_token": signing.TELEGRAM_SECRET, "webhooks.telegram.raters": {"7": "ann"},
    "webhooks.discord.public_key": signing.DISCORD_PUBLIC, "webhooks.discord.raters": {"70": "ann"},
    "webhooks.whatsapp.app_secret": signing.WHATSAPP_SECRET, "webhooks.whatsapp.verify_token": signing.WHATSAPP_TOKEN,
    "webhooks.whatsapp.raters": {"491701": "ann"}, "webhooks.signed.secret": signing.SIGNED_SECRET,
    "webhooks.signed.raters": {"p1": "ann"}, "webhooks.openclaw.secret": signing.OPENCLAW_SECRET,
}  # fmt: skip


async def main(home: Path, backend: str, keys: bool) -> None:
    flags = {
        "home": home,
        "backend.kind": "vllm",
        "backend.url": backend,
        "server.port": 0,
        "server.slow_client_s": 2,
        "train.weights": "/nowhere",
        "train.min_free_memory_gb": 0,
        **WEBHOOKS,
        **(KEYS if keys else {}),
    }
    settings = load(flags, environ={}).settings
    server.configure_logs("warning", True)
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    with mock.patch("proxy.server.LocalLauncher", return_value=FakeLauncher()):
        async with server.serving(settings) as url:
            print(json.dumps({"url": url}), flush=True)
            await stop.wait()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("home", type=Path)
    parser.add_argument("backend")
    parser.add_argument("--keys", action="store_true")
    arguments = parser.parse_args()
    asyncio.run(main(arguments.home, arguments.backend, arguments.keys))
