"""What a start loads, of a real `rlproxy serve`: what makes it quick and small is a promise about imports, no clock."""

from __future__ import annotations

import asyncio
import gc
import os
import re
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from config.settings import load
from proxy import server
from proxy.core.address_file import ADDRESS_FILE
from scripts.fakes.backend import MODEL, FakeBackend
from scripts.harness.serving import Serving

LATER = {
    "rich.console", "rich.traceback", "jinja2",  # an import that failed is in the list, so not rich itself
    "proxy.web.openapi.document", "proxy.cli.report.page", "proxy.cli.doctor.checks", "proxy.feedback.webhooks.slack",
    "proxy.feedback.webhooks.telegram", "proxy.feedback.webhooks.discord", "proxy.feedback.webhooks.discord_gateway",
    "proxy.feedback.webhooks.whatsapp",
    "proxy.backends.builtin", "proxy.backends.llamacpp", "proxy.backends.llamacpp_managed", "proxy.backends.lmstudio",
    "proxy.backends.mlx", "proxy.backends.ollama", "proxy.backends.replicas", "proxy.backends.sglang",
    "torch", "transformers", "numpy", "openai", "trainer.loop",
}  # fmt: skip


@pytest.fixture
async def served(tmp_path: Path, backend: FakeBackend) -> AsyncIterator[Serving]:
    flags = ("--backend", "openai", "--backend-url", backend.url, "--model", MODEL)
    served = Serving(tmp_path / "home", tmp_path / "no-weights", *flags, PYTHONPROFILEIMPORTTIME="1")
    await served.start()
    yield served
    if served.process.returncode is None:
        await served.stop()


async def loaded(served: Serving, tmp_path: Path) -> set[str]:
    """By the interpreter's own list, which is whole when it has ended."""
    assert await served.stop() == 0
    return set(re.findall(r"^import time: .*\| +(\S+)$", (tmp_path / "home.log").read_text(), re.MULTILINE))


async def test_who_has_answered_has_loaded_only_what_an_answer_needs(served: Serving, tmp_path: Path) -> None:
    answer, _ = await served.chat("a b c", model=MODEL)
    assert answer["choices"][0]["message"]["content"] == "You said: a b c "
    found = await loaded(served, tmp_path)
    assert {
        "proxy.relay.relay",
        "proxy.backends.openai_compatible",
        "proxy.feedback.webhooks.routes",
        "structlog.dev",
    } <= found
    assert found & LATER == set()


async def test_what_was_not_loaded_is_there_when_it_is_asked_for(served: Serving, tmp_path: Path) -> None:
    for path, kind in (("/", "text/html"), ("/openapi.json", "application/json")):
        async with served.http.get(path) as response:
            assert (response.status, response.content_type) == (200, kind)
    assert {"jinja2", "proxy.web.openapi.document"} <= await loaded(served, tmp_path)


async def test_the_collector_that_a_start_does_without_runs_when_it_is_ready(
    tmp_path: Path, backend: FakeBackend
) -> None:
    given = {"home": tmp_path, "server.port": 0, "backend.kind": "openai", "backend.url": backend.url}
    gc.disable()  # as the command does
    serving = asyncio.create_task(server.serve(load(given | {"backend.model": MODEL}, environ={}).settings))
    try:
        async with asyncio.timeout(30):
            while not gc.isenabled():
                assert not serving.done(), serving
                await asyncio.sleep(0.02)
        assert (tmp_path / ADDRESS_FILE).exists() and gc.get_freeze_count() > 0
        os.kill(os.getpid(), signal.SIGTERM)
        await serving
    finally:
        gc.enable()
        gc.unfreeze()
