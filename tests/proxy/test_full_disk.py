"""A full disk: answers keep coming, nothing is claimed to be stored that is not, and it recovers by itself."""

from __future__ import annotations

from tests.proxy.conftest import Proxy


async def limit_pages(proxy: Proxy, pages: int) -> None:
    """The database may not grow beyond this many pages: to SQLite the same as a full disk."""
    await proxy.store._writer.submit(lambda db: db.execute(f"PRAGMA max_page_count = {pages}").fetchone())


async def test_relaying_goes_on_and_capture_comes_back(proxy: Proxy) -> None:
    kept = await proxy.chat("before")
    await kept.read()
    await limit_pages(proxy, 1)  # SQLite raises it to the present size: full from now on
    big = "x" * 200_000
    lost = []
    for stream in (False, True):
        response = await proxy.chat(big, stream=stream)
        body = await response.read()
        assert response.status == 200 and (body.endswith(b"data: [DONE]\n\n") if stream else b"You said" in body)
        lost.append(response.headers["x-rl-completion-id"])
    for id in lost:
        status, answer = await proxy.rate(completion_id=id, rating="good")
        assert status in (404, 507), answer
    async with proxy.http.get("/metrics") as metrics:
        assert "rlproxy_completions_not_stored_total 2.0" in await metrics.text()

    assert "not captured" in (await proxy.get("/rl/status"))["problem"]

    await limit_pages(proxy, 1_000_000)
    after = await proxy.chat(big)
    await after.read()
    assert (await proxy.rate(completion_id=after.headers["x-rl-completion-id"], rating="good"))[0] == 201
    assert (await proxy.get("/rl/status"))["problem"] is None
    assert (await proxy.rate(completion_id=kept.headers["x-rl-completion-id"], rating="good"))[0] == 201


async def test_a_rating_that_is_not_stored_is_not_acknowledged(proxy: Proxy) -> None:
    id = (await proxy.chat("a")).headers["x-rl-completion-id"]
    await limit_pages(proxy, 1)
    status, answer = await proxy.rate(completion_id=id, rating="good", comment="y" * 19_000)
    assert status == 507 and "not stored" in answer["error"]["message"]
    await limit_pages(proxy, 1_000_000)
    assert await proxy.store.live_rating(id, "owner") is None
    assert (await proxy.rate(completion_id=id, rating="good"))[0] == 201
