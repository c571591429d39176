"""An act from the command line that takes longer than a request may."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import pytest
import typer

from config.settings import load
from proxy.cli import http
from proxy.core.address_file import ADDRESS_FILE
from proxy.training import weights_check
from proxy.training.run_supervisor import RunSupervisor
from scripts.harness.in_process import Proxy
from tests.harness.runs import rated, until


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "TIMEOUT_S", 3.0)
    monkeypatch.setattr(http, "FIRST_LINE_S", 0.05)
    monkeypatch.setattr(http, "NEXT_LINE_S", 0.05)
    monkeypatch.setattr(weights_check, "LOOK_S", 0.0)


@pytest.fixture
def slow_weights(cli: Proxy, monkeypatch: pytest.MonkeyPatch) -> asyncio.Event:
    """The weights are looked at once the event is set."""
    release, probe = asyncio.Event(), cli.launcher.probe

    async def wait(*args: Any, **options: Any) -> Any:
        await release.wait()
        return await probe(*args, **options)

    monkeypatch.setattr(cli.launcher, "probe", wait)
    return release


def act(proxy: Proxy, path: str) -> Any:
    client = http.HomeClient(load({"home": proxy.home}, environ={}).settings)
    return client.act(path, lambda status: status["match"]["line"])


async def compared(proxy: Proxy) -> None:
    async with asyncio.timeout(10):
        while "is compared with the weights, " not in (await proxy.get("/rl/status"))["match"]["line"]:
            await asyncio.sleep(0.02)


async def test_train_waits_for_the_comparison_and_tells_of_it(
    cli: Proxy, slow_weights: asyncio.Event, capsys: pytest.CaptureFixture[str]
) -> None:
    await rated(cli, 1)
    waiting = asyncio.create_task(asyncio.to_thread(act, cli, "/rl/train"))
    await asyncio.sleep(1.5 * http.TIMEOUT_S)
    assert not waiting.done(), "a request would have been given up by now"
    slow_weights.set()
    assert (await waiting)["started"]
    told = re.escape("still waiting, N s: the served model is compared with the weights, N s by now").replace(
        "N", r"\d+"
    )
    assert re.search(told, capsys.readouterr().err)
    await until(cli, live=1)


async def test_train_is_kept_where_its_client_hangs_up(
    cli: Proxy, slow_weights: asyncio.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    train, begun = RunSupervisor.train, asyncio.Event()

    async def noticed(*args: Any, **options: Any) -> Any:
        begun.set()
        return await train(*args, **options)

    monkeypatch.setattr(RunSupervisor, "train", noticed)
    await rated(cli, 1)
    await compared(cli)
    request = asyncio.create_task(cli.post("/rl/train"))
    await begun.wait()
    request.cancel()
    await asyncio.wait({request})
    await asyncio.sleep(0.2)  # until the proxy has seen that
    slow_weights.set()
    await until(cli, live=1)


async def test_a_refusal_is_one_sentence(cli: Proxy, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(typer.Exit):
        await asyncio.to_thread(act, cli, "/rl/train")
    assert "no fresh ratings" in capsys.readouterr().err


async def test_a_proxy_that_is_starting(cli: Proxy, capsys: pytest.CaptureFixture[str]) -> None:
    """`serve --port` names its address once its model is loaded; nobody should start a second one by then."""
    (cli.home / ADDRESS_FILE).unlink(missing_ok=True)
    client = http.HomeClient(load({"home": cli.home, "server.port": 1}, environ={}).settings)
    with pytest.raises(typer.Exit) as ended:
        await asyncio.to_thread(client.call, "GET", "/rl/status")
    assert ended.value.exit_code == http.NO_PROXY
    told = capsys.readouterr().err
    assert "it is starting" in told and "Ask again" in told and "start it with" not in told


async def test_a_proxy_that_says_nothing(cli: Proxy, capsys: pytest.CaptureFixture[str]) -> None:
    """It is not said to be down: it may be stopped, or too busy."""
    connections: list[asyncio.StreamWriter] = []
    server = await asyncio.start_server(lambda reader, writer: connections.append(writer), "127.0.0.1", 0)
    settings = load({"home": cli.home, "server.port": server.sockets[0].getsockname()[1]}, environ={}).settings
    client = http.HomeClient(settings)
    client.url = f"http://127.0.0.1:{settings.server.port}"
    with pytest.raises(typer.Exit) as ended:
        await asyncio.to_thread(client.act, "/rl/train", lambda status: "")
    assert ended.value.exit_code == http.NO_PROXY
    told = capsys.readouterr().err
    assert "did not answer within" in told and "start it" not in told
    server.close()
    for connection in connections:
        connection.close()
        await connection.wait_closed()
