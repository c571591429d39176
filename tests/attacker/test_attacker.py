"""Somebody who wants in: a web page in the person's browser, a client with no key or a lesser one, a replayed event.

All over real sockets, byte for byte where a well-behaved client would not send such bytes. docs/lab/threats.md
says which test stands for which threat.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import hmac
import json
import os
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from scripts.fakes.backend import FakeBackend
from scripts.harness.command import rlproxy
from scripts.harness.in_process import Proxy
from scripts.harness.serving import Serving
from tests.harness.raw_http import CHAT, head, raw, status

EVIL = "https://evil.example"
RESET = b"POST /rl/reset HTTP/1.1\r\nhost: localhost\r\ncontent-length: 0\r\n\r\n"


def routes(proxy: Proxy) -> list[tuple[str, str]]:
    """All that there is, but what proves itself by signature or says nothing but that it is alive."""
    found = []
    for route in proxy.app.router.routes():
        path = route.resource.canonical if route.resource else ""
        if not path.startswith("/rl/webhooks/") and path not in ("/healthz", "/readyz"):
            path = path.replace("{rest}", "models").replace("{session}", "s").replace("{", "").replace("}", "")
            found.append(("GET" if route.method == "*" else route.method, path))
    assert len(found) > 30
    return found


async def nothing_happened(proxy: Proxy) -> None:
    assert not proxy.backend.requests
    counts = await proxy.store.stats.counts()
    assert (counts["good"], counts["bad"], counts["done"]) == (0, 0, 0)
    assert await proxy.store.runs.recent() == [] and (await proxy.store.versions.pointer()).changed_at == 0


# A web page in the person's browser


@pytest.mark.parametrize(
    "host", ["evil.example", "localhost.evil.example", "127.0.0.1.evil.example", "evil.example:8484", "192.168.1.7"]
)
async def test_a_rebound_name_reads_rates_and_trains_nothing(proxy: Proxy, host: str) -> None:
    for method, path in routes(proxy):
        answer = await raw(proxy, head(method, path, "content-type: text/plain", host=host, body=CHAT))
        assert status(answer) == 403, (method, path, answer)
    await nothing_happened(proxy)


@pytest.mark.parametrize("line", [f"origin: {EVIL}", "origin: null", "origin: http://[", "sec-fetch-site: cross-site"])
async def test_a_foreign_page_reads_rates_and_trains_nothing(proxy: Proxy, line: str) -> None:
    for method, path in routes(proxy):
        answer = await raw(proxy, head(method, path, line, "content-type: text/plain", body=CHAT))
        assert status(answer) == 403, (method, path, answer)
        assert b"access-control-" not in answer.lower()
    asks = head("OPTIONS", "/v1/chat/completions", f"origin: {EVIL}", "access-control-request-method: POST")
    assert status(await raw(proxy, asks)) == 403
    await nothing_happened(proxy)


async def test_a_rebound_name_gets_no_control_route_with_keys_either(proxy: Proxy) -> None:
    await proxy.stop()
    await proxy.start(server__api_key="use-key-of-the-settings")
    for path in ("/rl/status", "/rl/completions", "/"):
        key = "authorization: Bearer use-key-of-the-settings"
        assert status(await raw(proxy, head("GET", path, key, host="evil.example"))) == 403
    await proxy.stop()
    await proxy.start(server__hosts=["proxy.home"])
    assert status(await raw(proxy, head("GET", "/rl/status", host="proxy.home"))) == 200


async def test_an_origin_that_may_is_answered_and_no_other(proxy: Proxy) -> None:
    await proxy.stop()
    await proxy.start(server__origins=["https://chat.example"])
    asks = ("access-control-request-method: POST", "access-control-request-headers: authorization")
    answer = await raw(proxy, head("OPTIONS", "/v1/chat/completions", "origin: https://chat.example", *asks))
    assert status(answer) == 204 and b"allow-origin: https://chat.example" in answer.lower()
    answer = await raw(proxy, head("POST", "/v1/chat/completions", "origin: https://chat.example", body=CHAT))
    assert status(answer) == 200 and b"https://chat.example" in answer
    assert status(await raw(proxy, head("POST", "/v1/chat/completions", f"origin: {EVIL}", body=CHAT))) == 403


# Paths and bytes that two servers read differently


@pytest.mark.parametrize(
    "path",
    ["/v1/../rl/status", "/v1/%2e%2e/rl/status", "/v1/..%2frl/status", "/v1/.%2E/x", "/v1/a/..\\x", "/v1/./models",
     "http://evil.example/v1/models", "/s/../v1/models", "/v1/files/..%5c..%5cetc"],
)  # fmt: skip
async def test_no_path_leaves_its_room(proxy: Proxy, path: str) -> None:
    answer = await raw(proxy, head("GET", path))
    assert status(answer) == 400, answer
    assert not proxy.backend.requests


@pytest.mark.parametrize(
    "lines",
    [
        b"content-length: 5\r\ncontent-length: 0",
        b"content-length: 0, 5",
        b"content-length: +5",
        b"content-length: 0x5",
        b"content-length: -1",
        b"content-length: 5\r\ntransfer-encoding: chunked",
        b"transfer-encoding: chunked\r\ncontent-length: 5",
        b"transfer-encoding: chunked, identity",
        b"transfer-encoding: xchunked",
        b"transfer-encoding : chunked",
        b"transfer-encoding:\x0bchunked",
        b"x: y\r\n folded: chunked",
        b"x: a\x00b",
        b"x: a\rcontent-length: 5",
    ],
)
async def test_no_request_is_smuggled_in_another(proxy: Proxy, lines: bytes) -> None:
    """What is ambiguous is refused and the connection closed: what follows is never read as a request."""
    sent = b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\n" + lines + b"\r\n\r\n0\r\n\r\n" + RESET
    answer = await raw(proxy, sent)
    assert status(answer) == 400, answer
    assert answer.count(b"HTTP/1.") == 1
    await nothing_happened(proxy)


async def test_two_hosts_are_none(proxy: Proxy) -> None:
    answer = await raw(proxy, head("GET", "/rl/status", "host: evil.example"))
    assert status(answer) == 400


# Too much


async def test_what_is_too_large_is_refused_before_it_is_read(proxy: Proxy) -> None:
    await proxy.stop()
    await proxy.start(server__max_body_bytes=10_000)
    assert status(await raw(proxy, head("GET", "/rl/status", "x: " + "a" * 70_000))) == 400
    assert status(await raw(proxy, head("GET", "/rl/status", *(f"x-{n}: a" for n in range(200))))) == 400
    assert status(await raw(proxy, head("GET", "/rl/status", *(f"x-{n}: {'a' * 1000}" for n in range(100))))) == 431
    assert status(await raw(proxy, head("GET", "/v1/" + "a" * 70_000))) == 400
    for path in ("/v1/chat/completions", "/v1/feedback", "/rl/keys", "/rl/links"):
        first = f"POST {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n".encode()
        announced = first + b"content-length: 99999999999\r\n\r\n"
        assert status(await raw(proxy, announced, whole=False)) == 413, path
        chunks = b"transfer-encoding: chunked\r\n\r\n" + b"1000\r\n" + b"a" * 4096 + b"\r\n"
        endless = first + chunks
        endless += b"1000\r\n" + b"a" * 4096 + b"\r\n" + b"1000\r\n" + b"a" * 4096
        assert status(await raw(proxy, endless, whole=False)) == 413, path
    await nothing_happened(proxy)


async def test_a_bomb_is_not_unpacked(proxy: Proxy) -> None:
    await proxy.stop()
    await proxy.start(server__max_body_bytes=1_000_000)
    bomb = gzip.compress(b'{"model":"' + b"a" * 300_000_000 + b'"}')
    assert len(bomb) < 1_000_000
    before = psutil.Process().memory_info().rss
    for path in ("/v1/chat/completions", "/v1/messages", "/api/chat"):
        answer = await raw(proxy, head("POST", path, "content-encoding: gzip", body=bomb))
        assert status(answer) == 413, answer
    twice = head("POST", "/v1/chat/completions", "content-encoding: gzip, gzip", body=bomb)
    assert status(await raw(proxy, twice)) == 400
    assert psutil.Process().memory_info().rss - before < 100_000_000
    for body in (b"[" * 200_000, b'{"messages":' * 50_000, b"\xff\xfe", b'{"model":1e99999}'):
        assert status(await raw(proxy, head("POST", "/v1/chat/completions", body=body))) == 400
    await nothing_happened(proxy)


async def test_a_slow_client_holds_nothing(proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> None:
    await proxy.stop()
    monkeypatch.setattr("proxy.access.bodies.UNPROVEN_S", 0.2)
    await proxy.start(server__slow_client_s=0.2, webhooks__slack__signing_secret="s")
    for path in ("/v1/chat/completions", "/v1/feedback", "/v1/files", "/api/embed", "/rl/webhooks/slack"):
        begun = f"POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-length: 50\r\n\r\n{{".encode()
        answer = await raw(proxy, begun, whole=False)
        assert status(answer) == 408, (path, answer)
    await nothing_happened(proxy)


# Other people's names, and things said twice


async def test_a_key_is_worth_its_role_and_its_name(proxy: Proxy) -> None:
    made = {}
    for name, role in (("phone", "use"), ("ann", "rate"), ("bob", "rate"), ("root", "admin")):
        headers = {"authorization": f"Bearer {proxy.local}"} if made else {}
        async with proxy.http.post("/rl/keys", json={"name": name, "role": role}, headers=headers) as response:
            assert response.status == 201
            made[name] = (await response.json())["key"]

    async def ask(name: str | None, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        headers = {"authorization": f"Bearer {made.get(name or '', name)}"} if name else {}
        async with proxy.http.request(method, path, json=body, headers=headers) as response:
            return response.status, await response.json()

    question = json.loads(CHAT)
    assert (await ask(None, "POST", "/v1/chat/completions", question))[0] == 401
    id = (await ask("phone", "POST", "/v1/chat/completions", question))[1]["id"]
    good = {"completion_id": id, "rating": "good"}
    for path in ("/rl/completions", f"/rl/completions/{id}", "/rl/export", "/rl/events", "/rl/keys"):
        assert (await ask("phone", "GET", path))[0] == 403, path
    assert (await ask("phone", "POST", "/v1/feedback", good))[0] == 403
    assert (await ask("phone", "POST", "/v1/load_lora_adapter", {"lora_name": "x", "lora_path": "/etc"}))[0] == 403
    assert (await ask("ann", "DELETE", "/api/delete", {"model": "x"}))[0] == 403
    for path in ("train", "pause", "reset", "rollback", "promote/base", "keys"):
        assert (await ask("ann", "POST", f"/rl/{path}", {"name": "x", "role": "admin"}))[0] == 403, path
    assert (await ask("ann", "GET", "/rl/export"))[0] == 403

    code, rating = await ask("ann", "POST", "/v1/feedback", good)
    assert code == 201 and rating["rater"] == "ann"
    assert (await ask("bob", "POST", "/v1/feedback", {**good, "rater": "ann"}))[0] == 403
    assert (await ask("bob", "DELETE", f"/v1/feedback/{rating['id']}"))[0] == 403
    assert (await ask("bob", "DELETE", "/v1/feedback/last?rater=ann"))[0] == 403
    batch = [{**good, "rater": "ann", "rating": "bad"}, good]
    code, found = await ask("bob", "POST", "/v1/feedback", batch)
    assert code == 207 and [one["status"] for one in found["data"]] == [403, 201]
    said = {**question, "messages": [*question["messages"], {"role": "user", "content": "/rl reset"}]}
    assert "needs an admin key" in str(await ask("ann", "POST", "/v1/chat/completions", said))

    forged = made["root"][:13] + made["phone"][13:]
    for key in (forged, made["root"][:-1], made["root"] + "a", "rlp_00000000_" + "a" * 43, "é", made["root"].upper()):
        assert (await ask(key, "GET", "/rl/status"))[0] == 401, key
    assert (await ask("root", "DELETE", "/rl/keys/ann"))[0] == 200
    assert (await ask("ann", "GET", "/rl/status"))[0] == 401
    assert all("authorization" not in sent for sent in proxy.backend.headers)


async def test_an_id_is_only_an_id(proxy: Proxy) -> None:
    for id in ("' OR 1=1 --", "../../etc/passwd", "%00", "a" * 5000):
        assert (await proxy.rate(completion_id=id, rating="good"))[0] in (400, 404)
    for id in ("../x", "a b", "a" * 129, "ü"):
        assert (await proxy.chat("hi", headers={"x-rl-completion-id": id})).status == 400
    assert (await proxy.chat("hi", headers={"x-rl-completion-id": "mine"})).status == 200
    assert (await proxy.chat("hi", headers={"x-rl-completion-id": "mine"})).status == 409


async def test_what_is_replayed_counts_once(proxy: Proxy) -> None:
    secret = base64.b64encode(b"k" * 32).decode()
    await proxy.stop()
    flags = {"webhooks__signed__secret": f"whsec_{secret}", "webhooks__signed__raters": {"x:u1": "ann"}}
    await proxy.start(**flags)
    id = (await proxy.chat("hi")).headers["x-rl-completion-id"]
    event = {"platform": "x", "person": "u1", "channel": "c", "message_id": "m", "what": "reaction", "text": "👍"}
    body = json.dumps({**event, "completion_id": id}).encode()

    async def send(name: str, at: float, signed: bytes = body) -> int:
        what = f"{name}.{int(at)}.".encode() + signed
        signature = base64.b64encode(hmac.new(b"k" * 32, what, hashlib.sha256).digest()).decode()
        headers = {"webhook-id": name, "webhook-timestamp": str(int(at)), "webhook-signature": f"v1,{signature}"}
        async with proxy.http.post("/rl/webhooks/signed", data=body, headers=headers) as response:
            return response.status

    now = time.time()
    assert await send("e1", now) == 201
    assert await send("e1", now) == 200
    assert await send("e2", now - 3600) == 401
    assert await send("e3", now, signed=body.replace(b"u1", b"u2")) == 401
    assert len(await proxy.store.ratings.history(id)) == 1
    event_id = {"completion_id": id, "rating": "bad", "rater": "bob", "source": "bot", "source_event_id": "1"}
    assert [(await proxy.rate(**event_id))[0] for _ in range(3)] == [201, 200, 200]
    assert len(await proxy.store.ratings.history(id)) == 2


# Secrets


async def test_no_secret_is_told(tmp_path: Path, backend: FakeBackend) -> None:
    """Not in logs, errors, `config show`, metrics, the database, nor what `ps` shows of us and our children."""
    keys = {name: f"s3cret-{name}-0123456789" for name in ("api", "admin", "backend", "slack", "client")}
    env = {
        "RLPROXY_SERVER__API_KEY": keys["api"], "RLPROXY_SERVER__ADMIN_KEY": keys["admin"],
        "RLPROXY_BACKEND__API_KEY": keys["backend"], "RLPROXY_WEBHOOKS__SLACK__SIGNING_SECRET": keys["slack"],
    }  # fmt: skip
    flags = ("--backend", "vllm", "--backend-url", backend.url, "--log-level", "debug")
    served = Serving(tmp_path / "home", Path("/nowhere"), *flags, **env)
    await served.start()
    proxy = Proxy.__new__(Proxy)
    proxy.url = str(served.http._base_url).rstrip("/")
    try:
        code, out, err = await rlproxy(served.home, "keys", "create", "--name", "ann", "--role", "rate", **env)
        assert code == 0, err
        keys["ann"] = out.strip()
        told = ""
        for key in keys.values():
            line = f"authorization: Bearer {key}"
            for method, path, body in (
                ("GET", "/rl/status", b""), ("GET", "/metrics", b""), ("POST", "/v1/chat/completions", CHAT),
                ("POST", "/v1/chat/completions", b"{"), ("GET", "/nothing", b""), ("POST", "/rl/webhooks/slack", b"{}"),
                ("POST", "/v1/feedback", b'{"completion_id":"last","rating":"good"}'), ("GET", "/rl/keys", b""),
            ):  # fmt: skip
                told += (await raw(proxy, head(method, path, line, body=body))).decode("utf-8", "replace")
            await raw(proxy, head("GET", "/rl/status", f"authorization: Bearer {key}\x00"))
            await raw(proxy, head("GET", "/rl/status", "bad header " + key))
        code, shown, err = await rlproxy(served.home, "config", "show", **env)
        assert code == 0 and keys["admin"] not in err
        process = psutil.Process(served.process.pid)
        told += shown + served.log + str([p.cmdline() for p in (process, *process.children(recursive=True))])
        _, listed, _ = await rlproxy(served.home, "keys", "list", **env)
        told += listed
    finally:
        await served.stop()
    stored = b"".join(f.read_bytes() for f in served.home.rglob("*") if f.is_file())
    assert backend.requests, "nothing was asked at all"
    for name, key in keys.items():
        assert key not in told, f"the {name} key was told"
        assert key.encode() not in stored, f"the {name} key is on disk"
    assert {sent.get("authorization") for sent in backend.headers} == {f"Bearer {keys['backend']}"}


async def test_the_key_of_commands_is_its_owners(tmp_path: Path, backend: FakeBackend) -> None:
    served = Serving(tmp_path / "home", Path("/nowhere"), "--backend", "vllm", "--backend-url", backend.url)
    await served.start()
    try:
        address = served.home / "serving.json"
        assert address.stat().st_mode & 0o077 == 0 and served.home.stat().st_mode & 0o077 == 0
        assert (await rlproxy(served.home, "keys", "create", "--name", "ann"))[0] == 0
        async with served.http.get("/rl/status") as response:
            assert response.status == 401
        assert (await rlproxy(served.home, "pause"))[0] == 0
    finally:
        await served.stop()


async def test_off_loopback_it_does_not_start_without_a_key(tmp_path: Path) -> None:
    home = tmp_path / "home"
    code, _, err = await rlproxy(home, "serve", "--host", "0.0.0.0", "--port", "0")
    assert code == 1 and "rlproxy keys create" in err
    code, out, _ = await rlproxy(home, "keys", "create", "--name", "me", "--role", "admin")  # with nothing running
    assert code == 0 and out.startswith("rlp_")
    assert out.strip().encode() not in (home / "rlproxy.db").read_bytes()
    assert os.stat(home / "rlproxy.db").st_mode & 0o077 == 0
