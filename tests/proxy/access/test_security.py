"""Keys, roles, and web pages that are not ours."""

from __future__ import annotations

from pathlib import Path

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer, make_mocked_request
from multidict import CIMultiDict

from config.sections import ServerSection
from proxy.access.keys import Keys, Principal
from proxy.access.roles import PAGE, Rule
from proxy.access.security import HEADS, Guard, RequestHeads, check_bind, is_loopback, outgoing_headers
from proxy.core.errors import BadRequest, Forbidden, HeadTooLarge
from proxy.web.error_middleware import shape_errors
from scripts.harness.in_process import Proxy


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.0.1", "::1", "[::1]", "localhost"])
def test_loopback(host: str) -> None:
    assert is_loopback(host)
    check_bind(ServerSection(host=host))


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.2", "example.org"])
def test_no_listening_elsewhere_without_keys(host: str) -> None:
    assert not is_loopback(host)
    with pytest.raises(Forbidden):
        check_bind(ServerSection(host=host))
    with pytest.raises(Forbidden):
        check_bind(ServerSection(host=host, api_key="a"))
    with pytest.raises(Forbidden, match="that nobody guesses"):
        check_bind(ServerSection(host=host, api_key="a", admin_key="b"))
    check_bind(ServerSection(host=host, api_key="a" * 16, admin_key="b" * 16))
    check_bind(ServerSection(host=host), handed_out=True)


async def test_roles(proxy: Proxy) -> None:
    await proxy.stop()
    await proxy.start(server__api_key="use-key", server__admin_key="admin-key")

    async def status(method: str, path: str, key: str | None, header: str = "authorization") -> int:
        value = key if header == "x-api-key" else f"Bearer {key}"
        async with proxy.http.request(method, path, headers={header: value} if key else {}) as response:
            return response.status

    assert await status("GET", "/rl/status", None) == 401
    assert await status("GET", "/rl/status", "wrong") == 401
    assert await status("GET", "/rl/status", "use-key") == 200
    assert await status("GET", "/rl/status", "use-key", "x-api-key") == 200
    assert await status("GET", "/healthz", None) == 200
    for path in ("train", "pause", "resume", "rollback", "promote/1", "reset"):
        assert await status("POST", f"/rl/{path}", "use-key") == 403
    assert await status("POST", "/rl/pause", "admin-key") == 200
    assert (await proxy.chat("x")).status == 401 and not proxy.backend.requests
    await proxy.chat("x", headers={"authorization": "Bearer use-key"})
    assert "authorization" not in proxy.backend.headers[0]  # our key never leaves


async def test_a_rebound_name_gets_nothing(proxy: Proxy) -> None:
    async with proxy.http.get("/rl/completions", headers={"host": "evil.example"}) as response:
        assert response.status == 403


async def test_a_foreign_page_can_do_nothing(proxy: Proxy) -> None:
    for path in ("/v1/feedback", "/rl/reset", "/v1/chat/completions"):
        async with proxy.http.post(path, headers={"origin": "https://evil.example"}, json={}) as response:
            assert response.status == 403
    async with proxy.http.post("/rl/pause", headers={"origin": proxy.url}) as response:
        assert response.status == 200


def test_the_backends_key_replaces_the_clients() -> None:
    given = CIMultiDict({"authorization": "Bearer theirs", "x-api-key": "theirs", "x-rl-user": "me", "x-other": "1"})
    out = outgoing_headers(given, settings=ServerSection(), backend={"authorization": "Bearer ours"})
    assert dict(out) == {"x-other": "1", "authorization": "Bearer ours"}


async def test_no_secret_in_config_show(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from config.settings import load

    rows = load({"home": tmp_path}, environ={"RLPROXY_SERVER__API_KEY": "hunter2"}).describe()
    assert not any("hunter2" in str(row) for row in rows)


def test_a_backend_gets_no_cookie_of_the_page() -> None:
    sent = [("cookie", "a=1; rl_page=secret;b=2;"), ("cookie", "rl_x"), ("cookie", " ; my_rl_y=3")]
    kept = outgoing_headers(CIMultiDict(sent), settings=ServerSection(), backend={})
    assert kept.getall("cookie") == ["a=1; b=2; my_rl_y=3"]
    assert "cookie" not in outgoing_headers(CIMultiDict(cookie="rl_page=secret"), settings=ServerSection(), backend={})


async def test_a_guest_of_the_page_sees_no_more_than_pages() -> None:
    """What the page's cookie says of somebody goes through the same doors as a key."""
    settings, asked = ServerSection(api_key="x" * 16), []

    async def handler(request: web.Request) -> web.Response:
        asked.append(request.path)
        return web.Response()

    keys = Keys(settings)
    rules: dict[web.AbstractRoute, Rule] = {}
    guard = Guard(settings, keys, rules, lambda request: Principal("guest"))
    app = web.Application(middlewares=[shape_errors, guard.middleware])
    paths = ("/login", "/rl/status", "/v1/models", "/metrics", "/v1/feedback/last", "/nowhere")
    (page,) = app.add_routes([web.get("/login", handler)])[:1]
    rules[page] = PAGE
    app.add_routes(web.get(path, handler) for path in paths[1:-1])
    async with TestServer(app) as server, aiohttp.ClientSession() as http:
        for path in paths:
            async with http.get(server.make_url(path)) as response:
                assert response.status == (200 if path == "/login" else 403), path
    assert asked == ["/login"]


# What is read of a head holds for the same head, and for no other


def request(path: str = "/v1/models", method: str = "GET", **headers: str) -> web.Request:
    return make_mocked_request(method, path, headers=CIMultiDict({k.replace("_", "-"): v for k, v in headers.items()}))


def test_the_same_head_is_read_once_whatever_the_length_of_its_body() -> None:
    heads = RequestHeads({})
    first = heads.of(request(content_length="1", x_api_key="a"))
    assert heads.of(request(content_length="22", x_api_key="a")) is first
    for other in (request(x_api_key="b"), request(x_api_key="a", x_rl_user="ann"), request("/v1/other", x_api_key="a"),
                  request(method="POST", x_api_key="a"), request(X_api_keys="a")):  # fmt: skip
        assert heads.of(other) is not first
    assert heads.of(request(x_api_key="b")).key == "b"


def test_only_so_many_short_ones_are_remembered() -> None:
    heads = RequestHeads({})
    first = heads.of(request(x_at="0"))
    for at in range(1, HEADS + 1):
        heads.of(request(x_at=str(at)))
    assert heads.of(request(x_at="0")) is not first and len(heads._cache) <= HEADS
    assert heads.of(request(x_long="x" * 5000)) is not heads.of(request(x_long="x" * 5000))
    with pytest.raises(HeadTooLarge):
        heads.of(request(x_long="x" * 65_537))


def test_what_is_refused_is_refused_again() -> None:
    heads = RequestHeads({})
    for _ in range(2):
        with pytest.raises(BadRequest):
            heads.of(request("/v1/../rl/keys"))


async def test_a_known_head_opens_nothing_for_a_revoked_key(proxy: Proxy) -> None:
    async with proxy.http.post("/rl/keys", json={"name": "ann", "role": "use"}) as response:
        key = {"x-api-key": (await response.json())["key"]}
    local = {"x-api-key": proxy.local}
    assert [(await proxy.chat("x", headers=key)).status for _ in range(2)] == [200, 200]
    async with proxy.http.delete("/rl/keys/ann", headers=local) as response:
        assert response.status == 200
    assert (await proxy.chat("x", headers=key)).status == 401
