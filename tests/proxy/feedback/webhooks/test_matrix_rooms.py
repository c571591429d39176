"""Calls into Matrix rooms: what people see of an event that was taken, over a real socket."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any
from urllib.parse import unquote

import aiohttp
import pytest
from aiohttp import web

from config.webhooks import MatrixSection
from proxy.core.redirects import refuse_all
from proxy.feedback.webhooks.base import EventDone, PlatformEvent
from proxy.feedback.webhooks.matrix_rooms import MatrixRooms

AGENT, ROOM = "@agent:home", "!room:home"
COMMAND = PlatformEvent("matrix", "$command", "@ann:home", ROOM, "$answer", "command", "bad too long", 1.0)


class FakeHomeserver:
    """Takes what is sent, and names each event by its transaction, as a homeserver does."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, dict[str, Any]]] = []
        self.message: dict[str, Any] = {}

    async def take(self, request: web.Request) -> web.Response:
        assert request.headers["authorization"] == "Bearer token" and request.query["user_id"] == AGENT
        if request.method == "GET":
            return web.json_response(self.message)
        path = unquote(request.path.partition("/rooms/!room:home/")[2])
        self.sent.append((path, await request.json()))
        return web.json_response({"event_id": f"$of {path}"})


@pytest.fixture
async def homeserver() -> AsyncIterator[tuple[FakeHomeserver, MatrixRooms]]:
    fake, app = FakeHomeserver(), web.Application()
    app.router.add_route("*", "/{path:.*}", fake.take)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = site._server.sockets[0].getsockname()[1]  # type: ignore[union-attr]
    section = MatrixSection(homeserver=f"http://127.0.0.1:{port}", agents=(AGENT,), buttons=True)
    async with aiohttp.ClientSession(middlewares=(refuse_all,)) as http:
        yield fake, MatrixRooms(http, section, "token")
    await runner.cleanup()


async def test_a_rating_gets_a_tick_and_any_other_command_an_answer(
    homeserver: tuple[FakeHomeserver, MatrixRooms],
) -> None:
    fake, rooms = homeserver
    await rooms.follow(EventDone(COMMAND, "command", 200, "rlproxy: rated bad"))
    await rooms.follow(EventDone(replace(COMMAND, text="status"), "command", 200, "rlproxy: v3 answers"))
    await rooms.follow(EventDone(COMMAND, "unmatched", 404, "rlproxy: Nothing was rated"))
    (_, tick), (_, status), (_, refusal) = fake.sent
    assert tick["m.relates_to"] == {"rel_type": "m.annotation", "event_id": "$command", "key": "✅"}
    assert (status["msgtype"], status["body"]) == ("m.notice", "rlproxy: v3 answers")
    assert refusal["m.relates_to"] == {"m.in_reply_to": {"event_id": "$command"}}


async def test_an_edit_of_an_ordinary_message_is_answered_by_nobody(
    homeserver: tuple[FakeHomeserver, MatrixRooms],
) -> None:
    fake, rooms = homeserver
    edit = replace(COMMAND, event_id="$words $edit", text="undo", undoes="$words", message_id=None)
    await rooms.follow(EventDone(edit, "ignored", 200, "what was edited there rated nothing"))
    assert fake.sent == []


async def test_an_edited_command_gets_its_tick_on_the_edit(homeserver: tuple[FakeHomeserver, MatrixRooms]) -> None:
    fake, rooms = homeserver
    edit = replace(COMMAND, event_id="$command $edit", undoes="$command", message_id=None)
    await rooms.follow(EventDone(edit, "command", 200, "rlproxy: rated bad"))
    assert fake.sent[0][1]["m.relates_to"]["event_id"] == "$edit"


async def test_buttons_come_with_an_answer_and_go_with_its_rating(
    homeserver: tuple[FakeHomeserver, MatrixRooms],
) -> None:
    fake, rooms = homeserver
    await rooms.follow(EventDone(replace(COMMAND, kind="answer"), "linked", 201, ""))
    assert [content["m.relates_to"]["key"] for _, content in fake.sent] == ["👍", "👎"]
    put = [path for path, _ in fake.sent]
    await rooms.follow(EventDone(replace(COMMAND, kind="reaction"), "rated", 201, ""))
    assert [path for path, _ in fake.sent[2::2]] == put, "asked for by the same transactions, to know their events"
    assert all(path.startswith("redact/$of send/m.reaction/") for path, _ in fake.sent[3::2])


async def test_a_text_is_an_answers_where_an_agent_wrote_it(homeserver: tuple[FakeHomeserver, MatrixRooms]) -> None:
    fake, rooms = homeserver
    fake.message = {"sender": AGENT, "content": {"body": "An answer."}}
    assert await rooms.text_of(COMMAND) == "An answer."
    fake.message["sender"] = "@mallory:home"
    assert await rooms.text_of(COMMAND) is None


async def test_a_homeserver_that_is_away_is_logged_once(capsys: pytest.CaptureFixture[str]) -> None:
    section = MatrixSection(homeserver="http://127.0.0.1:9", agents=(AGENT,))
    async with aiohttp.ClientSession(middlewares=(refuse_all,)) as http:
        rooms = MatrixRooms(http, section, "token")
        for _ in range(3):
            await rooms.follow(EventDone(COMMAND, "command", 200, "rlproxy: rated bad"))
    assert capsys.readouterr().out.count("homeserver did not do it") == 1
