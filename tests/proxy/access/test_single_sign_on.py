"""Single sign-on: the header of a named proxy, and everybody else who sends one."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
import pytest
from aiohttp import web

from scripts.harness.in_process import Proxy
from tests.harness.visits import Visit

PROXY = "127.0.0.7"  # the address that is trusted
HEADER = "X-Auth-Request-Email"
ANN, BOB, EVE = "ann@example.org", "Bob@example.org", "eve@example.org"


class Behind(Visit):
    """A browser whose requests come through the proxy at an address, which names a person."""

    def __init__(self, url: str, person: str | None, address: str = PROXY) -> None:
        super().__init__(url)
        self._address = address
        self._person = person

    async def __aenter__(self) -> Behind:
        await self.http.close()
        self.http = aiohttp.ClientSession(
            base_url=self.http._base_url,
            cookie_jar=aiohttp.CookieJar(unsafe=True),
            connector=aiohttp.TCPConnector(local_addr=(self._address, 0)),
            headers={} if self._person is None else {HEADER: self._person},
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.http.close()


@pytest.fixture
async def signed(proxy: Proxy) -> Proxy:
    """Ann may rate, Bob is an admin, and a bot may ask models."""
    await proxy.stop()
    await proxy.start(server__sso_proxies=[f"{PROXY}/32", "::1"])
    local = {"authorization": f"Bearer {proxy.local}"}
    for name, role in ((ANN, "rate"), (BOB, "admin"), ("bot@example.org", "use")):
        async with proxy.http.post("/rl/keys", json={"name": name, "role": role}, headers=local) as response:
            assert response.status == 201, await response.text()
    return proxy


async def status(
    proxy: Proxy,
    path: str,
    *headers: tuple[str, str],
    address: str = PROXY,
    method: str = "GET",
    url: str | None = None,
) -> tuple[int, str]:
    connector = aiohttp.TCPConnector(local_addr=(address, 0))
    async with (
        aiohttp.ClientSession(connector=connector) as http,
        http.request(method, f"{url or proxy.url}{path}", headers=list(headers), allow_redirects=False) as response,
    ):
        return response.status, await response.text()


async def test_the_page_is_theirs_by_the_role_of_their_key(signed: Proxy) -> None:
    assert (await status(signed, "/", (HEADER, ANN)))[0] == 200
    assert (await status(signed, "/rl/status", (HEADER, ANN)))[0] == 200
    assert (await status(signed, "/rl/audit", (HEADER, ANN)))[0] == 403
    assert (await status(signed, "/rl/audit", (HEADER, BOB)))[0] == 200
    assert (await status(signed, "/", (HEADER, "bot@example.org")))[0] == 403, "its role sees no page"
    assert (await status(signed, "/rl/audit", (HEADER, BOB.lower())))[0] == 200, "addresses have no capitals"


async def test_who_has_no_key_is_refused_in_words(signed: Proxy) -> None:
    code, text = await status(signed, "/", (HEADER, EVE))
    assert code == 403 and EVE in text and "rlproxy keys create" in text


async def test_who_acts_on_the_page_rates_by_their_name(signed: Proxy) -> None:
    async with signed.http.get("/rl/keys", headers={"authorization": f"Bearer {signed.local}"}) as response:
        assert {key["name"] for key in (await response.json())["data"]} == {ANN, BOB, "bot@example.org"}
    key = {"authorization": f"Bearer {signed.local}"}
    response = await signed.chat("hello", headers=key)
    id = response.headers["x-rl-completion-id"]
    async with Behind(signed.url, BOB) as bob:
        await bob.get("/")
        await bob.post(f"/page/completions/{id}/rate", rating="good")
        await bob.get("/")
        await bob.post(f"/page/completions/{id}/rate", rating="bad")  # the cookie stayed, and its token with it
    async with signed.http.get(f"/rl/completions/{id}", headers=key) as shown:
        ratings = (await shown.json())["ratings"]
    assert {rating["rater"] for rating in ratings} == {BOB}


async def test_the_header_from_anywhere_else_says_nothing(signed: Proxy) -> None:
    for address in ("127.0.0.1", "127.0.0.8"):
        code, text = await status(signed, "/rl/audit", (HEADER, BOB), address=address)
        assert code == 401 and BOB not in text
        assert (await status(signed, "/", (HEADER, BOB), address=address))[0] == 303, "to the page that asks for a key"


@pytest.mark.parametrize(
    "claim",
    [
        ("X-Forwarded-For", PROXY), ("X-Forwarded-For", f"{PROXY}, 127.0.0.1"), ("X-Real-IP", PROXY),
        ("Forwarded", f"for={PROXY};by={PROXY}"), ("Client-IP", PROXY), ("True-Client-IP", PROXY),
        ("X-Forwarded-Host", PROXY), ("Host", PROXY),
    ],
)  # fmt: skip
async def test_no_header_makes_an_address_a_trusted_one(signed: Proxy, claim: tuple[str, str]) -> None:
    code, _ = await status(signed, "/rl/audit", (HEADER, BOB), claim, address="127.0.0.1")
    assert code == 401


async def test_two_headers_are_refused(signed: Proxy) -> None:
    for second in (BOB, ANN):
        code, text = await status(signed, "/rl/audit", (HEADER, second), (HEADER, BOB))
        assert code == 400 and "2 times" in text
    for value in (f"{ANN}, {BOB}", f"{BOB},", f"{BOB} {ANN}", "", " ", f"{BOB};admin"):
        assert (await status(signed, "/rl/audit", (HEADER, value)))[0] == 403, value


async def test_likenesses_of_the_header_are_not_the_header(signed: Proxy) -> None:
    for name in ("X_Auth_Request_Email", "X-Auth-Request-User", "X-Forwarded-Email", "X-Auth-Request-Emai1"):
        assert (await status(signed, "/rl/audit", (name, BOB)))[0] == 401, name


async def test_it_opens_no_route_that_a_cookie_does_not(signed: Proxy) -> None:
    """Models want a key, and acts outside the page, too: another site's form cannot be sent by a person signed in."""
    for path in ("/v1/chat/completions", "/rl/pause", "/v1/feedback", "/rl/keys"):
        assert (await status(signed, path, (HEADER, BOB), method="POST"))[0] == 401, path
    assert (await status(signed, "/page/training/pause", (HEADER, BOB), method="POST"))[0] == 403, "without its token"
    assert (await status(signed, "/rl/audit", (HEADER, BOB), ("Authorization", "Bearer rlp_wrong")))[0] == 401


async def test_its_cookie_counts_beside_the_header_alone(signed: Proxy) -> None:
    async with Behind(signed.url, BOB) as bob:
        await bob.get("/")
        (cookie,) = [cookie.value for cookie in bob.http.cookie_jar if cookie.key == "rl_page"]
    sent = ("Cookie", f"rl_page={cookie}")
    assert (await status(signed, "/rl/audit", sent, address="127.0.0.1"))[0] == 401
    assert (await status(signed, "/rl/audit", sent, (HEADER, BOB), address="127.0.0.1"))[0] == 401
    assert (await status(signed, "/rl/audit", sent))[0] == 401, "the proxy named nobody"
    assert (await status(signed, "/rl/audit", sent, (HEADER, ANN)))[0] == 403, "and it is not another's"
    forged = ("Cookie", f"rl_page={cookie.removeprefix('sso-')}")
    assert (await status(signed, "/rl/audit", forged, address="127.0.0.1"))[0] == 401


async def test_a_revoked_key_ends_it(signed: Proxy) -> None:
    key = {"authorization": f"Bearer {signed.local}"}
    async with signed.http.delete(f"/rl/keys/{BOB}", headers=key) as response:
        assert response.status == 200
    assert (await status(signed, "/rl/audit", (HEADER, BOB)))[0] == 403


@asynccontextmanager
async def dual_stack(proxy: Proxy) -> AsyncIterator[str]:
    """The same proxy on a socket that takes IPv4 as IPv6, as `::ffff:…`."""
    with socket.socket(socket.AF_INET6) as bound:
        bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        bound.bind(("::", 0))
        site = web.SockSite(proxy._runner, bound)
        await site.start()
        yield f"http://127.0.0.1:{bound.getsockname()[1]}"
        await site.stop()


async def test_an_ipv4_address_is_the_same_as_ipv6(signed: Proxy) -> None:
    async with dual_stack(signed) as url:
        assert (await status(signed, "/rl/audit", (HEADER, BOB), url=url))[0] == 200
        assert (await status(signed, "/rl/audit", (HEADER, BOB), url=url, address="127.0.0.1"))[0] == 401


async def test_no_backend_sees_who_somebody_is(signed: Proxy) -> None:
    """The headers of such a proxy may have a token in them, and come from anybody."""
    names = (HEADER, "X-Auth-Request-Access-Token", "X-Forwarded-User", "X-Forwarded-Access-Token", "X-Other")
    headers = {"authorization": f"Bearer {signed.local}"} | dict.fromkeys(names, "secret")
    assert (await signed.chat("hello", headers=headers)).status == 200
    sent = {name.lower(): value for name, value in signed.backend.headers[-1].items()}
    assert sent.get("x-other") == "secret" and not {name.lower() for name in names[:-1]} & sent.keys()


async def test_without_the_setting_nobody_is_believed(proxy: Proxy) -> None:
    await proxy.stop()
    await proxy.start(server__admin_key="a" * 32, server__api_key="b" * 32)
    assert (await status(proxy, "/rl/audit", (HEADER, BOB)))[0] == 401


async def test_with_the_setting_everybody_shows_who_they_are(proxy: Proxy) -> None:
    """Even on loopback, where no key is needed else: the proxy's people would all be admins."""
    await proxy.stop()
    await proxy.start(server__sso_proxies=[PROXY])
    assert (await status(proxy, "/rl/status", address="127.0.0.1"))[0] == 401
    async with proxy.http.delete("/rl/keys", headers={"authorization": f"Bearer {proxy.local}"}) as response:
        assert response.status == 409 and "server.sso_proxies" in await response.text()
