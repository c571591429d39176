"""What a start loads, of a real `rlproxy serve`: what makes it quick and small is a promise about imports, no clock."""

from __future__ import annotations

import asyncio
import gc
import os
import re
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import psutil
import pytest

from config.settings import load
from proxy import server
from proxy.cli.init.smoke_test import Unproven, until_ready
from proxy.core.address_file import ADDRESS_FILE
from proxy.core.start_errors import Listening
from proxy.web.starting import answering
from scripts.fakes.backend import MODEL, FakeBackend
from scripts.harness.serving import Serving

LATER = {
    "rich.console", "rich.traceback", "jinja2",  # an import that failed is in the list, so not rich itself
    "proxy.web.openapi.document", "proxy.web.pages.report", "proxy.cli.doctor.checks", "proxy.feedback.webhooks.slack",
    "proxy.feedback.webhooks.telegram", "proxy.feedback.webhooks.discord", "proxy.feedback.webhooks.discord_gateway",
    "proxy.feedback.webhooks.whatsapp",
    "proxy.backends.builtin", "proxy.backends.llamacpp", "proxy.backends.llamacpp_managed", "proxy.backends.lmstudio",
    "proxy.backends.mlx", "proxy.backends.ollama", "proxy.backends.replicas.replicas", "proxy.backends.sglang",
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


async def starting(served: Serving) -> tuple[str, int, str, str]:
    """Of the first answer of one that has begun to start: its address, status, `retry-after` and message."""
    async with asyncio.timeout(60):
        while not hasattr(served, "process"):
            await asyncio.sleep(0.01)
        while (match := re.search(r"its page is (http://\S+)/\. ", served.log)) is None:
            assert served.process.returncode is None, served.log
            await asyncio.sleep(0.02)
    async with aiohttp.ClientSession() as http, http.get(f"{match[1]}/rl/status") as response:
        body = await response.json()
    message = body.get("error", {}).get("message", "")
    return match[1], response.status, response.headers.get("retry-after", ""), message


async def test_it_answers_while_its_model_loads(tmp_path: Path, weights: Path) -> None:
    served = Serving(tmp_path / "home", weights)
    start = asyncio.create_task(served.start())
    url, status, again_s, message = await starting(served)
    assert (status, again_s) == (503, "5")
    assert re.match(r"rlproxy is starting: builtin, starting: .*; ask again in a moment\.$", message)
    async with aiohttp.ClientSession() as http, http.get(url, headers={"accept": "text/html"}) as page:
        text = await page.text()
    assert page.status == 503 and "rlproxy is starting" in text and 'http-equiv="refresh"' in text
    await start
    assert served.url == url and (await served.status())["model"] == "small"
    assert "loading the model into memory" in served.log
    assert await served.stop() == 0


async def test_ctrl_c_while_its_model_loads(tmp_path: Path, weights: Path) -> None:
    served = Serving(tmp_path / "home", weights)
    start = asyncio.create_task(served.start())
    await starting(served)
    children = psutil.Process(served.process.pid).children(recursive=True)
    served.process.send_signal(signal.SIGINT)
    async with asyncio.timeout(60):
        assert await served.process.wait() == 0, served.log
    with pytest.raises(AssertionError):  # it waits for one that is ready
        await start
    assert "stopped before it was ready" in served.log and "Traceback" not in served.log
    _, alive = await asyncio.to_thread(psutil.wait_procs, children, 30)
    assert not alive


async def test_init_waits_for_a_model_longer_than_for_a_backend(tmp_path: Path) -> None:
    """A first start fetches its model: longer than `backend.ready_timeout_s`."""
    listening = Listening("127.0.0.1", 0)
    environ = {"RLPROXY_SERVER__PORT": listening.url.rpartition(":")[2], "RLPROXY_BACKEND__READY_TIMEOUT_S": "1"}
    settings = load({"home": tmp_path}, environ=environ).settings
    seconds: list[float] = []
    async with answering(listening, lambda: "fetching the model, 41 of 95 MB"):
        (log := tmp_path / "serve.log").write_text("it went\n")
        ended = lambda: bool(seconds[-1:] > [2.5])  # noqa: E731
        waiting = asyncio.to_thread(until_ready, settings, seconds.append, ended, log)
        with pytest.raises(Unproven, match="did not start"):  # the process ended, and nothing else
            await waiting
    assert seconds[-1] > 2.5
    listening.close()
