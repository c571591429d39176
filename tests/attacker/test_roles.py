"""A key of a lesser role, and paths that the guard and the backend would read differently."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from proxy.access.roles import ASKS as PASSED
from proxy.access.roles import ROOM, USE, Rule, rule
from proxy.web.route_table import ROUTES
from scripts.fuzz.roles import ASKS, CHANGES, House, Reached, RoleRequest, fuzzed, house, request_bytes, too_much
from scripts.fuzz.wire import Answer, Socket
from scripts.harness.in_process import Proxy

REACHED = (  # the backend's own acts, before roles were decided by what is matched and sent
    "POST /s/x%2Fy/api/delete",
    "POST /s/x%2fy/v1/load_lora_adapter",
    "POST /s/x%5Cy/api/delete",
    "POST /api//delete",
    "POST /api/Delete",
    "POST /api/V1/models/load",
    "POST /api/del%65te",
    "POST /api%2fdelete",
    "POST /api/%2564elete",
    "POST /api/delete%00",
    "POST /api/;x/delete",
    "POST /API/delete",
    "GET /v1/files",
    "DELETE /v1/models/fake",
)


@pytest.fixture
async def running(tmp_path: Path) -> AsyncIterator[House]:
    async with house(tmp_path / "home") as found:
        yield found


async def ask(running: House, role: str, route: str) -> tuple[Answer, Reached]:
    method, _, path = route.partition(" ")
    socket = Socket(running.port)
    asked = RoleRequest(method, path.encode("latin-1"), role, "")
    await socket.send([request_bytes(asked, running.keys[role], "one")])
    answer = await socket.answer(method)
    await socket.close()
    return answer, running.reached_by_mark.pop("one", Reached())


@pytest.mark.parametrize("role", ["use", "rate"])
async def test_no_lesser_key_reaches_what_changes_the_backend(running: House, role: str) -> None:
    for route in (*REACHED, *CHANGES):
        answer, found = await ask(running, role, route)
        assert answer.status in (400, 403, 404, 405) and found == Reached(), route


OLLAMAS = ("GET /api/tags", "GET /api/ps", "GET /api/version", "POST /api/show")  # answered here before vLLM


@pytest.mark.parametrize("role", ["use", "rate"])
async def test_what_agents_ask_of_the_backend_passes_as_it_was_written(running: House, role: str) -> None:
    for route in (*ASKS, "GET /v1/models/org/name", "GET /v1/models/org%2Fname%3Atag"):
        for room in ("", "/s/a%20b"):
            method, _, path = route.partition(" ")
            answer, found = await ask(running, role, f"{method} {room}{path}?q=%2F%41&a")
            is_ours = route == "GET /v1/models/fake" or route in OLLAMAS
            passed = [] if is_ours else [(method, f"{path}?q=%2F%41&a".encode())]
            assert answer.status in (200, 400) and found.upstream == passed, route


async def test_an_admins_path_is_sent_byte_for_byte(running: House) -> None:
    for path in ("/v1/models/org%2fname", "/api//delete", "/v1/%66iles;x/a?b=%20", "/v1/x/"):
        _, found = await ask(running, "admin", f"POST {path}")
        assert found.upstream == [("POST", path.encode())]


async def test_what_is_refused_says_why(running: House) -> None:
    answer, _ = await ask(running, "use", "POST /api/delete")
    assert answer.status == 403 and b"POST /api/delete" in answer.body and b"http-api.md" in answer.body
    answer, _ = await ask(running, "use", "POST /v1/embeddings/")
    assert answer.status == 403 and b"role admin" in answer.body


async def test_a_session_in_the_path_is_one_part_of_it(running: House) -> None:
    for role in ("use", "rate", "admin"):
        for name in ("x%2fy", "x%2Fy", "x%5cy", "x%252fy", "x\\y", "%2f", "x%25y", "%zz"):
            answer, found = await ask(running, role, f"POST /s/{name}/v1/chat/completions")
            assert answer.status == 400 and found == Reached(), name
        _, found = await ask(running, role, "POST /s/a%20b/v1/chat/completions")
        assert set(found.upstream) == {("POST", b"/v1/chat/completions")}


async def test_no_signature_is_looked_for_where_there_is_no_webhook(running: House) -> None:
    for route in ("POST /rl/webhooks/nope", "PUT /rl/webhooks/slack", "GET /rl/webhooks/", "GET /healthz/x"):
        answer, found = await ask(running, "none", route)
        assert answer.status == 401 and found == Reached(), route
    answer, _ = await ask(running, "none", "POST /rl/webhooks/slack")
    assert answer.status == 404 and b"webhooks.slack" in answer.body  # its own word: it is not set up


async def test_every_route_is_of_the_table_that_says_its_role(proxy: Proxy) -> None:
    registered = set()
    for route in proxy.app.router.routes():
        assert route.resource is not None
        registered.add(f"{route.method} {route.resource.canonical.removeprefix(ROOM)}".replace("HEAD", "GET"))
    assert registered == {f"{row.method.upper()} {re.sub(r':.*}', '}', row.path)}" for row in ROUTES}


def test_the_page_names_what_passes_for_everybody() -> None:
    page = Path("docs/reference/http-api.md").read_text(encoding="utf-8")
    listed = page.partition("<!-- passed -->")[2].partition("<!-- /passed -->")[0]
    assert listed == "".join(["\n", *(f"- `{one}`\n" for one in PASSED)])


async def test_a_route_that_says_nothing_is_an_admins() -> None:
    async def handler(request: web.Request) -> web.Response:
        return web.Response(text=rule(request, rules).least)

    app = web.Application()
    app.add_routes([web.get("/v1/new/{id}", handler), web.post("/rl/status", handler)])
    rules: dict[web.AbstractRoute, Rule] = dict.fromkeys(app.add_routes([web.get("/rl/status", handler)]), USE)
    async with TestServer(app) as server:
        for route, role in (("GET /v1/new/x", "admin"), ("POST /rl/status", "admin"), ("GET /rl/status", "use")):
            method, _, path = route.partition(" ")
            socket = Socket(server.port or 0)
            await socket.send([f"{method} {path} HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\n\r\n".encode()])
            assert (await socket.answer(method)).body == role.encode()
            await socket.close()


async def test_nobody_gets_above_their_role_however_a_path_is_written(tmp_path: Path) -> None:
    """Two thousand of the ways that `python -m scripts.fuzz.roles` tries, all of them there."""
    found = await fuzzed(tmp_path / "home", 2000, 26)
    assert found["failures"] == []
    assert found["requests"] == 2000 and found["by_role"]["admin"]["the backend"] > 50


def test_the_judge_of_that_is_awake() -> None:
    for method, path in (
        ("POST", b"/api//delete"), ("POST", b"/API/delete"), ("POST", b"/api/%64elete"), ("POST", b"/api/%2564elete"),
        ("POST", b"/y/../api/delete"), ("POST", b"/api/;x/delete"), ("POST", b"/api\\delete"), ("GET", b"/v1/files"),
        ("POST", b"/s/x%2Fy/api/delete"), ("POST", b"/api/de\xfflete"), ("DELETE", b"/v1/models/x"),
    ):  # fmt: skip
        assert too_much("use", Reached(upstream=[(method, path)]), 200, ""), path
    assert too_much("use", Reached(upstream=[("POST", b"/v1/embeddings")]), 200, "") is None
    assert too_much("none", Reached(upstream=[("POST", b"/v1/embeddings")]), 200, "")
    for role, handler in (("use", "POST /v1/feedback"), ("rate", "GET /rl/export"), ("rate", "POST /rl/train")):
        assert too_much(role, Reached(handler), 200, ""), handler
    assert (
        too_much("none", Reached("GET /"), 200, "")
        and too_much("none", Reached("GET /"), 303, "/login?after=x") is None
    )
