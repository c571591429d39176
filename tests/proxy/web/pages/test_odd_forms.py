"""Forms and cookies that no browser of a person sends, as the fuzz of all routes found them."""

from __future__ import annotations

import pytest

from scripts.harness.in_process import Proxy
from tests.harness.visits import Visit
from tests.proxy.test_odd_requests import raw

URLENCODED = "application/x-www-form-urlencoded"


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        (URLENCODED, b"\x1f\x8b\x08"),
        (URLENCODED + "; charset=nope", b"a=b"),
        ("multipart/form-data", b"--x--"),
        ("multipart/form-data; boundary=x", b"--y\r\nnothing"),
        (
            "multipart/form-data; boundary=x",
            b'--x\r\ncontent-disposition: form-data; name="token"\r\n\r\n\xff\r\n--x--\r\n',
        ),
    ],
)
@pytest.mark.parametrize("path", ["/login", "/page/compare", "/page/forget", "/page/completions/x/rate"])
async def test_a_form_that_cannot_be_read(visit: Visit, path: str, kind: str, body: bytes) -> None:
    await visit.get("/")
    headers = {"x-rl-token": visit.token, "content-type": kind}
    async with visit.http.post(path, data=body, headers=headers, allow_redirects=False) as response:
        text = await response.text()
        assert response.status < 500 and "is a bug" not in text, text


@pytest.mark.parametrize("value", [b"rl_page=\xff", b"rl_page=a.b.c.\xff", b"rl_page=....", b"\xff=\xff"])
async def test_a_cookie_that_is_no_utf8(proxy: Proxy, value: bytes) -> None:
    """Cookies are shared by all ports of a machine: it may be another program's."""
    assert (await raw(proxy, b"GET / HTTP/1.1\r\ncookie: " + value))[0] == 200
    status, _ = await raw(proxy, b"POST /logout HTTP/1.1\r\ncookie: " + value)
    assert status == 403


async def test_comparing_a_version_that_is_not_there(visit: Visit) -> None:
    await visit.get("/compare")
    assert "v7 did not answer" in await visit.post("/page/compare", 404, left="7", right="base", prompt="hello")
