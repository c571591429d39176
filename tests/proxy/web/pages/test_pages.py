"""What is true of every page: headers, tokens, keys, and errors as sentences."""

from __future__ import annotations

import re

import pytest

from scripts.harness.in_process import Proxy
from tests.harness.visits import Visit
from tests.proxy.web.pages.test_inbox import asked

VIEWS = ("/", "/progress", "/episodes", "/versions", "/compare", "/data", "/login")
ACTS = (
    "/page/completions/x/rate", "/page/completions/x/undo", "/page/training/pause", "/page/versions/rollback",
    "/page/experiment/start", "/page/experiment/stop",
    "/page/compare", "/page/compare/pick", "/page/forget", "/page/retention", "/login", "/logout",
)  # fmt: skip


async def test_every_view_has_a_strict_policy_and_nothing_inline(proxy: Proxy, visit: Visit) -> None:
    (id,) = await asked(proxy, "hello")
    for path in (*VIEWS, f"/completions/{id}", f"/compare?about={id}"):
        async with visit.http.get(path) as response:
            page = await response.text()
            assert response.status == 200, path
            policy = response.headers["content-security-policy"]
            assert "default-src 'none'" in policy and "script-src 'self';" in policy and "unsafe" not in policy
            assert response.headers["x-content-type-options"] == "nosniff"
            assert response.headers["cache-control"] == "no-store"
        assert not re.search(r"<style|\sstyle=|\son\w+=|<script(?![^>]*\ssrc=)|javascript:|https?://(?!127)", page), (
            path
        )


async def test_the_page_brings_all_that_it_needs(proxy: Proxy, visit: Visit) -> None:
    names = {name for path in VIEWS for name in re.findall(r'"(/static/[^"]+)"', await visit.get(path))}
    assert len(names) == 4
    for name in names:
        async with visit.http.get(name) as response:
            assert response.status == 200 and response.headers["content-type"], name
            assert "immutable" in response.headers["cache-control"]
        async with visit.http.get(re.sub(r"=.*", "=of-an-older-page", name)) as response:
            assert response.status == 200 and response.headers["cache-control"] == "no-cache"
    for name in ("VENDORED.md", "..%2fvisit.py", "none.css"):
        async with visit.http.get(f"/static/{name}") as response:
            assert response.status == (400 if ".." in name else 404)


async def test_every_act_needs_the_token_of_this_browser(proxy: Proxy, visit: Visit) -> None:
    other = Visit(proxy.url)
    await other.get("/")
    await visit.get("/")
    for token in ("", "x", other.token):
        for path in ACTS:
            async with visit.http.post(path, data={"token": token, "rating": "good"}) as response:
                assert response.status == 403 and "nothing was done" in await response.text(), path
    assert not (await proxy.get("/rl/status"))["training"]["paused"]
    await visit.post("/page/training/pause")
    assert (await proxy.get("/rl/status"))["training"]["paused"]
    await other.http.close()


async def test_a_foreign_page_cannot_act(proxy: Proxy, visit: Visit) -> None:
    await visit.get("/")
    headers = {"x-rl-token": visit.token, "origin": "https://evil.example"}
    async with visit.http.post("/page/training/pause", headers=headers) as response:
        assert response.status == 403
    async with visit.http.get("/", headers={"host": "evil.example"}) as response:
        assert response.status == 403


async def test_the_token_outlives_a_restart(proxy: Proxy, visit: Visit) -> None:
    await visit.get("/")
    await proxy.stop()
    await proxy.start()
    again = Visit(proxy.url)
    again.http.cookie_jar.update_cookies({c.key: c.value for c in visit.http.cookie_jar})
    again.token = visit.token
    await again.post("/page/training/pause")
    await again.http.close()


async def test_errors_are_a_page_or_a_sentence(proxy: Proxy, visit: Visit) -> None:
    page = await visit.get("/completions/none", 404)
    assert "There is no answer or rating none" in page and "</nav>" in page
    assert await visit.get("/versions/9", 404, headers={"hx-request": "true"}) == "There is no version 9."
    await visit.get("/versions/x", 404)


@pytest.fixture
async def keyed(proxy: Proxy) -> Proxy:
    await proxy.stop()
    await proxy.start(server__api_key="use-key", server__admin_key="admin-key")
    return proxy


async def sign_in(proxy: Proxy, key: str, name: str = "", status: int = 303) -> Visit:
    visit = Visit(proxy.url)
    await visit.get("/login")
    location = await visit.post("/login", status, key=key, name=name, after="/versions")
    assert status != 303 or location == "/versions"
    return visit


async def test_with_keys_the_page_needs_one(keyed: Proxy) -> None:
    guest = Visit(keyed.url)
    for path in ("/", "/progress", "/data", "/completions/x"):
        async with guest.http.get(path, allow_redirects=False) as response:
            assert response.status == 303 and response.headers["location"].startswith("/login?after=")
    async with guest.http.get("/page/rows", headers={"hx-request": "true"}) as response:
        assert response.status == 401 and response.headers["hx-redirect"] == "/login"
    for path in ("/rl/events", "/rl/export", "/rl/status"):
        async with guest.http.get(path) as response:
            assert response.status == 401
    await guest.get("/login")
    async with guest.http.post("/page/training/pause", headers={"x-rl-token": guest.token}) as response:
        assert "login" in str(response.url)
    assert await keyed.store.meta.get("paused") is None
    await guest.http.close()
    wrong = await sign_in(keyed, "no-key", status=401)
    await wrong.http.close()


async def test_a_signed_in_browser_has_the_role_of_its_key(keyed: Proxy) -> None:
    user = await sign_in(keyed, "use-key", "Ann")
    (cookie,) = user.http.cookie_jar
    assert cookie["httponly"] and cookie["samesite"] == "Strict" and "use-key" not in cookie.value
    headers = {"authorization": "Bearer use-key"}
    response = await keyed.chat("hello", headers=headers)
    id = response.headers["x-rl-completion-id"]
    await user.get("/")
    await user.post(f"/page/completions/{id}/rate", rating="good")
    assert (await keyed.store.ratings.history(id))[0].rater == "Ann"
    for act in ("training/pause", "training/cancel", "versions/rollback", "forget", "retention"):
        assert "role admin" in await user.post(f"/page/{act}", 403, kind="session", name="s")
    assert "Sign out" in await user.get("/progress")
    assert "Pause" not in await user.get("/page/training")
    await user.get("/rl/completions")  # reading goes by cookie
    await user.get("/rl/export", 403)
    async with user.http.post("/rl/pause") as response:  # acting on the API does not
        assert response.status == 401
    admin = await sign_in(keyed, "admin-key")
    await admin.get("/progress")
    assert "Pause" in await admin.get("/page/training")
    await admin.post("/page/training/pause")
    await admin.post("/logout", 303)
    async with admin.http.get("/", allow_redirects=False) as response:
        assert response.status == 303
    for visit in (user, admin):
        await visit.http.close()


async def test_a_forged_or_old_cookie_is_none(keyed: Proxy, monkeypatch: pytest.MonkeyPatch) -> None:
    user = await sign_in(keyed, "use-key")
    (cookie,) = user.http.cookie_jar
    for value in (cookie.value.replace("rate.", "admin."), cookie.value[:-2] + "xx", "", ".", "a.b.c.d.e"):
        async with user.http.get("/", cookies={"rl_page": value}, allow_redirects=False) as response:
            assert response.status == 303, value
    await keyed.stop()
    await keyed.start(server__api_key="new-key", server__admin_key="admin-key")
    after = Visit(keyed.url)
    after.http.cookie_jar.update_cookies({"rl_page": cookie.value})
    async with after.http.get("/", allow_redirects=False) as response:
        assert response.status == 303  # another key ends all visits
    for visit in (user, after):
        await visit.http.close()


async def test_a_handed_out_key_is_a_persons_visit_until_it_is_revoked(keyed: Proxy) -> None:
    admin = {"authorization": "Bearer admin-key"}
    made = {}
    for role in ("use", "rate", "admin"):
        async with keyed.http.post("/rl/keys", json={"name": f"{role}-bo", "role": role}, headers=admin) as response:
            made[role] = (await response.json())["key"]
    await (await sign_in(keyed, made["use"], status=403)).http.close()
    person = await sign_in(keyed, made["rate"], "Somebody else")
    response = await keyed.chat("hello", headers=admin)
    id = response.headers["x-rl-completion-id"]
    await person.get("/")
    await person.post(f"/page/completions/{id}/rate", rating="good")
    assert (await keyed.store.ratings.history(id))[0].rater == "rate-bo"
    boss = await sign_in(keyed, made["admin"])
    await boss.get("/progress")
    await boss.post("/page/training/pause")
    for name in ("rate-bo", "admin-bo"):
        async with keyed.http.delete(f"/rl/keys/{name}", headers=admin) as response:
            assert response.status == 200
    for visit in (person, boss):
        async with visit.http.get("/", allow_redirects=False) as response:
            assert response.status == 303 and response.headers["location"].startswith("/login")
        await visit.http.close()


async def test_a_visit_from_before_there_were_keys_ends_with_the_first(proxy: Proxy, visit: Visit) -> None:
    await visit.get("/progress")
    async with proxy.http.post("/rl/keys", json={"name": "bo", "role": "rate"}) as response:
        assert response.status == 201, await response.text()
    async with visit.http.get("/", allow_redirects=False) as response:
        assert response.status == 303 and response.headers["location"].startswith("/login")
    async with visit.http.post("/page/training/pause", headers={"x-rl-token": visit.token}) as response:
        assert "login" in str(response.url)
    assert await proxy.store.meta.get("paused") is None


@pytest.mark.parametrize(
    "after",
    [
        "//evil.example", "https://evil.example", "/\\evil.example", "", "/\t/evil.example/", "/\n/evil.example",
        "/\r\n/evil.example", "\t//evil.example", "/\t\\evil.example", "\\\\evil.example", "///evil.example",
        "/.//evil.example", "/x//evil.example", "javascript:alert(1)", "/\x00/evil.example", "/\xa0/evil.example",
        "evil.example", "?x", " //evil.example", "/ /evil.example", "http:evil.example", "/\u2028/evil.example",
        "/x\r\nset-cookie: a=b", "//evil.example/%2f..", "/\\/evil.example", "/x#//evil.example", "/／evil.example",
    ],
)  # fmt: skip
async def test_signing_in_leads_to_no_other_host(keyed: Proxy, after: str) -> None:
    visit = Visit(keyed.url)
    await visit.get("/login")
    assert await visit.post("/login", 303, key="use-key", after=after) == "/"
    await visit.http.close()


@pytest.mark.parametrize("after", ["/progress", "/", "/completions/rl-1?q=a%20b&side=1", "/page/rows?before=5"])
async def test_signing_in_leads_back(keyed: Proxy, after: str) -> None:
    visit = Visit(keyed.url)
    await visit.get("/login")
    assert await visit.post("/login", 303, key="use-key", after=after) == after
    await visit.http.close()
