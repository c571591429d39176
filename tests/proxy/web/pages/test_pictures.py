"""Pictures beside answers: a small copy, never the file, and never anything that runs."""

from __future__ import annotations

import base64
import re

import pytest

from proxy.images import examiner
from scripts.harness.in_process import Proxy
from scripts.harness.pictures import HTML, SVG, picture
from tests.harness.visits import Visit
from tests.proxy.images.test_examiner import URL, about, ask, looked_into
from tests.proxy.web.pages.test_pages import keyed, sign_in

__all__ = ["keyed"]
POLYGLOT = picture("GIF") + HTML


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(examiner, "LOOK_S", 0.02)


def addresses(page: str) -> list[str]:
    return re.findall(r'<img class="picture" src="(/page/images/[0-9a-f]{64})"', page)


async def test_it_stands_beside_the_answer_in_the_list_and_on_its_own_page(proxy: Proxy, visit: Visit) -> None:
    id = await ask(proxy, about(URL))
    (image,) = await looked_into(proxy, id)
    for path in ("/", f"/page/completions/{id}", f"/completions/{id}"):
        page = await visit.get(path)
        assert addresses(page)[0] == f"/page/images/{image.sha256.hex() if image.sha256 else ''}", path
        assert "1 picture<" in page and "64 by 48" in page
    assert "the gate see the text alone" in await visit.get(f"/completions/{id}")


async def test_what_is_served_is_a_new_jpeg_that_nothing_runs_in(proxy: Proxy, visit: Visit) -> None:
    id = await ask(proxy, about("data:text/html;base64," + base64.b64encode(POLYGLOT).decode()))
    await looked_into(proxy, id)
    (address,) = addresses(await visit.get("/"))
    async with visit.http.get(address) as response:
        body = await response.read()
        assert response.status == 200 and response.headers["content-type"] == "image/jpeg"
        assert body.startswith(b"\xff\xd8\xff") and b"<script" not in body
        assert response.headers["content-security-policy"] == "default-src 'none'; frame-ancestors 'none'; sandbox"
        assert response.headers["x-content-type-options"] == "nosniff"
        assert response.headers["cache-control"] == "no-store"  # a browser keeps nothing that was forgotten


@pytest.mark.parametrize("body", [SVG, HTML, b"%PDF-1.7" + bytes(99)])
async def test_other_files_are_named_and_not_shown(proxy: Proxy, visit: Visit, body: bytes) -> None:
    padded = body + bytes(99)
    id = await ask(
        proxy, about("data:image/svg+xml;base64," + base64.b64encode(padded).decode(), "data:image/svg+xml,<svg/>")
    )
    page = await visit.get(f"/completions/{id}")
    assert not addresses(page) and page.count("Picture of another kind, not shown.") == 2
    assert not addresses(await visit.get("/"))


async def test_a_broken_one_says_why_and_a_remote_one_where_it_would_be(proxy: Proxy, visit: Visit) -> None:
    broken = "data:image/png;base64," + base64.b64encode(picture()[:-30]).decode()
    remote = "https://evil.example/<b>.png?" + "x" * 900
    id = await ask(proxy, about(broken, remote))
    await looked_into(proxy, id)
    page = await visit.get(f"/completions/{id}")
    assert "Picture that is not shown: it cannot be decoded" in page and not addresses(page)
    assert "was not fetched: https://evil.example/&lt;b&gt;.png?xxx" in page and "x" * 300 not in page
    assert 'src="https' not in page and 'href="https' not in page
    assert "remote image" in await visit.get("/")


async def test_one_that_is_not_decoded_yet_is_waited_for(
    proxy: Proxy, visit: Visit, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(examiner, "LOOK_S", 0.5)
    await ask(proxy, about("data:image/png;base64," + base64.b64encode(picture(color=(9, 8, 7))).decode()))
    (address,) = addresses(await visit.get("/"))
    async with visit.http.get(address) as response:
        assert response.status == 200


@pytest.mark.parametrize("name", ["0" * 64, "x", "..", "%00", "0" * 1000])
async def test_names_of_nothing(proxy: Proxy, visit: Visit, name: str) -> None:
    async with visit.http.get(f"/page/images/{name}") as response:
        assert response.status in (400, 404)


async def test_a_guest_gets_none(keyed: Proxy) -> None:
    id = await ask(keyed, about(URL), authorization="Bearer use-key")
    (image,) = await looked_into(keyed, id)
    assert image.sha256 is not None
    guest = Visit(keyed.url)
    async with guest.http.get(f"/page/images/{image.sha256.hex()}", allow_redirects=False) as response:
        assert response.status == 303
    await guest.http.close()
    user = await sign_in(keyed, "use-key", "Ann")
    assert addresses(await user.get("/"))
    await user.http.close()


async def test_without_pillow_the_page_says_what_to_install(
    proxy: Proxy, visit: Visit, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("proxy.images.decoder._pillow", lambda: None)
    await proxy.stop()
    await proxy.start()
    fresh = Visit(proxy.url)
    await ask(proxy, about(URL))
    page = await fresh.get("/")
    await fresh.http.close()
    assert not addresses(page) and "rlproxy[images]" in page
