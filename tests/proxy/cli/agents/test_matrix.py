"""The ping of `rlproxy connect matrix`, against a homeserver that says what Synapse says. Synapse itself:
tests/integrations/test_matrix.py."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from aiohttp import web

from config.settings import Settings
from config.webhooks import MatrixSection, WebhooksSection
from proxy.cli.agents import connection, matrix
from proxy.cli.agents.catalog import SettingEdit, Setup


@pytest.mark.parametrize(
    ("status", "errcode", "words"),
    [
        (502, "M_CONNECTION_FAILED", "does not reach rlproxy at http://127.0.0.1:8484/rl/webhooks/matrix"),
        (403, "M_FORBIDDEN", "does not know rlproxy yet"),
        (500, "M_UNKNOWN", "500 M_UNKNOWN"),
    ],
)
async def test_a_ping_that_fails_says_why_and_from_where(status: int, errcode: str, words: str) -> None:
    async def refuse(_: web.Request) -> web.Response:
        return web.json_response({"errcode": errcode}, status=status)

    app = web.Application()
    app.router.add_post("/_matrix/client/v1/appservice/rlproxy/ping", refuse)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    section = MatrixSection(homeserver=f"http://127.0.0.1:{runner.addresses[0][1]}", as_token="t")
    settings = Settings(webhooks=WebhooksSection(matrix=section))
    with pytest.raises(matrix.CannotPing, match=words):
        await asyncio.to_thread(matrix.ping, settings, "http://127.0.0.1:8484")
    await runner.cleanup()


def test_folders_that_it_makes_are_closed_to_others(tmp_path: Path) -> None:
    """`serve` warned of the home that `connect matrix` had just made."""
    file = tmp_path / "home" / "matrix" / "registration.yaml"
    plan = Setup([SettingEdit(file, "text", (), "id: rlproxy\n")], "")
    connection.connect(tmp_path / "home", "matrix", connection.connecting(plan, None), None)
    assert {folder.stat().st_mode & 0o777 for folder in (file.parent, file.parent.parent)} == {0o700}
