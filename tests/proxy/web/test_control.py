"""The control routes: shapes, errors, events that can be resumed."""

from __future__ import annotations

import asyncio
import json
import os

import pytest
from yarl import URL

from proxy.web import status as web_status
from scripts.harness.in_process import Proxy
from scripts.harness.records import end, new
from store.file import schema
from tests.harness.runs import rated, until


async def test_health_and_metrics(proxy: Proxy) -> None:
    assert await proxy.get("/healthz") == {"ok": True}
    assert await proxy.get("/readyz") == {"ok": True}
    await proxy.say("x")
    async with proxy.http.get("/metrics") as response:
        text = await response.text()
    assert 'rlproxy_requests_total{dialect="chat",status="200"} 1.0' in text
    assert 'rlproxy_completions_total{status="done"} 1.0' in text
    await proxy.backend.stop()
    async with proxy.http.get("/readyz") as response:
        assert response.status == 503
    assert await proxy.get("/healthz") == {"ok": True}


async def test_before_a_backend_that_says_nothing_readyz_does_not_wait(
    proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stopped process still takes connections."""
    monkeypatch.setattr(web_status, "READY_S", 0.1)
    proxy.backend.hold_lists.clear()
    try:
        async with asyncio.timeout(20), proxy.http.get("/readyz") as response:
            assert response.status == 503 and "did not answer GET /v1/models within 0.1 s" in await response.text()
    finally:
        proxy.backend.hold_lists.set()
    assert await proxy.get("/readyz") == {"ok": True}


async def test_completions_are_listed_and_shown(proxy: Proxy) -> None:
    for i in range(3):
        await proxy.chat(f"q{i}", headers={"x-rl-session": f"s{i}"})
    listed = (await proxy.get("/rl/completions?limit=2"))["data"]
    assert [c["session"] for c in listed] == ["s2", "s1"]
    more = (await proxy.get(f"/rl/completions?before={listed[-1]['seq']}"))["data"]
    assert [c["session"] for c in more] == ["s0"]
    one = await proxy.get(f"/rl/completions/{listed[0]['id']}")
    assert one["prompt"] == [{"role": "user", "content": "q2"}] and one["text"] == "You said: q2 "
    async with proxy.http.get("/rl/completions/none") as response:
        assert response.status == 404 and "error" in await response.json()


@pytest.mark.parametrize("query", ["limit=0", "limit=x", "limit=99999", "before=-1", "version=1e3"])
async def test_bad_queries(proxy: Proxy, query: str) -> None:
    async with proxy.http.get(f"/rl/completions?{query}") as response:
        assert response.status == 400


async def test_unknown_places_and_methods_have_the_one_shape(proxy: Proxy) -> None:
    for method, path, status in (("GET", "/nowhere", 404), ("GET", "/rl/train", 405), ("POST", "/rl/nothing", 404)):
        async with proxy.http.request(method, path) as response:
            assert response.status == status and (await response.json())["error"]["code"]


async def test_events_are_told_and_resumed(proxy: Proxy) -> None:
    async with proxy.http.get("/rl/events") as listening:
        await proxy.chat("x")
        await proxy.rate(completion_id="last", rating="good")
        raw = await asyncio.wait_for(listening.content.readuntil(b"\n\n"), 5)
    lines = raw.decode().splitlines()
    assert lines[1] == "event: rating" and json.loads(lines[2].removeprefix("data: "))["value"] == 1.0
    number = int(lines[0].removeprefix("id: "))
    await proxy.rate(completion_id="last", rating="bad")
    async with proxy.http.get("/rl/events", headers={"last-event-id": str(number)}) as listening:
        raw = await asyncio.wait_for(listening.content.readuntil(b"\n\n"), 5)
    lines = raw.decode().splitlines()
    assert lines[0] == f"id: {number + 1}" and json.loads(lines[2].removeprefix("data: "))["value"] == -1.0
    async with proxy.http.get("/rl/events", headers={"last-event-id": "x"}) as response:
        assert response.status == 400


async def test_export(proxy: Proxy) -> None:
    await proxy.chat("one")
    await proxy.rate(completion_id="last", rating="good", comment="nice")
    await proxy.chat("two")
    async with proxy.http.get("/rl/export") as response:
        rows = [json.loads(line) for line in (await response.text()).splitlines()]
    assert len(rows) == 2
    async with proxy.http.get("/rl/export?rated") as response:
        assert len((await response.text()).splitlines()) == 1


@pytest.mark.parametrize("version", ["1.0", "1.1"])
async def test_an_export_of_a_damaged_store_breaks_off(proxy: Proxy, version: str) -> None:
    """An answer that has begun cannot become an error: its end says so, and nothing else is put into it."""
    for at in range(150):
        await proxy.store.completions.record([new(f"c{at}")], [end(f"c{at}", text=os.urandom(20_000).hex())])
    await proxy.stop()
    file = proxy.home / schema.NAME
    raw = file.read_bytes()
    kept = len(raw) * 2 // 3
    file.write_bytes(raw[:kept] + bytes(len(raw) - kept))
    await proxy.start()
    reader, writer = await asyncio.open_connection("127.0.0.1", URL(proxy.url).port)
    writer.write(f"GET /rl/export HTTP/{version}\r\nhost: {URL(proxy.url).authority}\r\n\r\n".encode())
    came, broken = b"", False
    try:
        async with asyncio.timeout(20):
            while piece := await reader.read(2**20):
                came += piece
    except ConnectionResetError:
        broken = True
    writer.close()
    assert b"storage_failed" not in came and not came.endswith(b"0\r\n\r\n")
    assert came.count(b"HTTP/1.") <= 1
    assert broken or version == "1.1"  # a client of HTTP/1.0 cannot tell a quiet end from the whole
    if version == "1.1":
        assert came.startswith(b"HTTP/1.1 200 ") and came.count(b'"format":') >= 50


async def test_the_front_page_says_where_to_point_an_agent(proxy: Proxy) -> None:
    async with proxy.http.get("/") as response:
        assert f"{proxy.url}/v1" in await response.text()


GATE = {
    "margin": {"value": 0.1, "bound": -0.05, "ok": True, "note": "1 liked and 1 disliked"},
    "base_nll": {"value": 0.3412345, "bound": 0.3, "ok": False},
}


async def test_one_run_in_full(proxy: Proxy) -> None:
    proxy.launcher.outcome = "rejected"
    proxy.launcher.result = {
        "gate": GATE,
        "retried": "base_nll is 0.5, the bound is 0.3",
        "back": "base_nll is 0.4, the bound is 0.3",
        "samples": {"rt-gone": {"used": True, "cause": None, "tokens": 3, "accepted": 3, "exact": True}},
    }
    proxy.launcher.progress = [
        {"event": "choice", "name": "rank", "value": 16, "why": "preset balanced"},
        {"event": "warning", "message": "look out"},
        {"event": "choice"},
        {"event": "choice", "name": ["rank"]},
        {"event": "step"},
        {"event": "choice", "name": "rank", "value": 8, "why": "it was resumed"},
    ]
    await rated(proxy, 3)
    response = await proxy.chat("last")
    id = response.headers["x-rl-completion-id"]
    _, rating = await proxy.rate(completion_id=id, rating="bad")
    odd = {"used": False, "cause": "looping", "tokens": 9, "accepted": 0, "exact": True, "flags": ["looping"]}
    proxy.launcher.result["samples"][rating["id"]] = odd
    await until(proxy, ended="rejected")
    run = await proxy.get("/rl/runs/1")
    assert run["gate"] == GATE and run["retried"] and run["back"] and run["warnings"] == ["look out"]
    assert run["choices"] == [{"name": "rank", "value": 8, "why": "it was resumed"}]
    account = {one["rating"]: one for one in run["account"]}
    assert account[rating["id"]] == {"rating": rating["id"], "completion": id, **odd}
    assert account["rt-gone"]["completion"] is None
    assert (await proxy.get("/rl/runs"))["data"][0].items() <= run.items()
    for unknown in ("2", "x", "9" * 30):
        assert (await proxy.get(f"/rl/runs/{unknown}"))["error"]["message"] == f"There is no run {unknown}."


async def test_what_is_captured_is_told_soon_and_once_for_many(proxy: Proxy) -> None:
    async with proxy.http.get("/rl/events") as listening:
        await asyncio.gather(*(proxy.chat(f"q{i}") for i in range(5)))
        raw = await asyncio.wait_for(listening.content.readuntil(b"\n\n"), 5)
    lines = raw.decode().splitlines()
    assert lines[1] == "event: captured" and json.loads(lines[2].removeprefix("data: "))["count"] == 5


async def test_a_listener_of_before_a_restart_hears_what_comes(proxy: Proxy) -> None:
    await proxy.chat("x")
    for rating in ("good", "bad"):
        await proxy.rate(completion_id="last", rating=rating)
    async with proxy.http.get("/rl/events", headers={"last-event-id": "57"}) as listening:  # the numbers began anew
        raw = await asyncio.wait_for(listening.content.readuntil(b"\n\n"), 5)
    assert raw.startswith(b"id: 1\n")
