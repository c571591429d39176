"""Somebody who holds places, descriptors, threads or memory: everybody else is served all the same.

The bounds are made small; places and bytes are counted, and no time. Before, 1,024 unfinished bodies to a webhook, for
which no key is needed, held every place, and a revoked key stayed in use because nobody got in to revoke it.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import gzip
import hashlib
import hmac
import json
import time
from collections.abc import AsyncIterator

import pytest

from config.sections import ServerSection
from proxy.access import limits
from proxy.access.bodies import Bodies
from proxy.access.security import BUSY
from scripts.harness.in_process import Proxy
from tests.harness.raw_http import CHAT, head, raw, status

PLACES = 16
USE = "rlp-the-key-of-an-agent"
SECRET = base64.b64encode(b"k" * 32).decode()


def host_and_port(proxy: Proxy) -> tuple[str, int]:
    host, port = proxy.url.removeprefix("http://").split(":")
    return host, int(port)


@contextlib.asynccontextmanager
async def held(proxy: Proxy, sent: bytes, count: int) -> AsyncIterator[list[asyncio.StreamReader]]:
    """So many connections on each of which this has been sent, and nothing more."""
    readers, writers = [], []
    for _ in range(count):
        reader, writer = await asyncio.open_connection(*host_and_port(proxy))
        writer.write(sent)
        await writer.drain()
        readers.append(reader)
        writers.append(writer)
    yield readers
    for writer in writers:
        writer.transport.abort()


def unfinished(path: str, *lines: str, length: int = 50) -> bytes:
    first = f"POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {length}\r\n"
    return (first + "".join(f"{line}\r\n" for line in lines) + "\r\n{").encode()


async def until_busy(proxy: Proxy, count: int) -> None:
    async with asyncio.timeout(30):
        while len(proxy.app[BUSY]) != count:
            await asyncio.sleep(0.005)


async def made_key(proxy: Proxy, name: str, role: str) -> str:
    headers = {"authorization": f"Bearer {proxy.local}"}
    async with proxy.http.post("/rl/keys", json={"name": name, "role": role}, headers=headers) as response:
        assert response.status == 201
        return str((await response.json())["key"])


async def ask(proxy: Proxy, key: str, method: str = "GET", path: str = "/rl/status", body: bytes = b"") -> bytes:
    return await raw(proxy, head(method, path, f"authorization: Bearer {key}", body=body))


async def chat(proxy: Proxy, key: str) -> bytes:
    return await ask(proxy, key, "POST", "/v1/chat/completions", CHAT)


def signed(name: str) -> bytes:
    event = {"platform": "x", "person": "u1", "channel": "c", "message_id": "m", "what": "reaction", "text": "?"}
    body, now = json.dumps(event).encode(), str(int(time.time()))
    signature = hmac.new(b"k" * 32, f"{name}.{now}.".encode() + body, hashlib.sha256).digest()
    lines = (f"webhook-signature: v1,{base64.b64encode(signature).decode()}", f"webhook-timestamp: {now}")
    return head("POST", "/rl/webhooks/signed", f"webhook-id: {name}", *lines, body=body)


async def test_unfinished_webhooks_hold_no_place_and_make_way_for_those_that_come_whole(
    proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("proxy.access.bodies.UNPROVEN", 8)
    await proxy.stop()
    await proxy.start(server__max_requests=PLACES, webhooks__signed__secret=f"whsec_{SECRET}")
    async with held(proxy, unfinished("/rl/webhooks/signed"), 3 * PLACES) as readers:
        for reader in readers[:-8]:  # the oldest of more than eight is told at once
            assert b" 408 " in await reader.readline()
        assert status(await raw(proxy, head("POST", "/v1/chat/completions", body=CHAT))) == 200
        assert status(await raw(proxy, signed("e1"))) != 503
        assert status(await raw(proxy, head("GET", "/rl/keys"))) == 200
        assert not proxy.app[BUSY]


async def test_slow_bodies_of_a_key_leave_places_for_other_keys_and_a_key_can_be_revoked(proxy: Proxy) -> None:
    await proxy.stop()
    await proxy.start(server__max_requests=PLACES)
    keys = {name: await made_key(proxy, name, role) for name, role in (("evil", "use"), ("ann", "use"))}
    keys["root"] = await made_key(proxy, "root", "admin")
    slow = unfinished("/v1/chat/completions", f"authorization: Bearer {keys['evil']}")
    async with held(proxy, slow, PLACES + 4) as readers:
        await until_busy(proxy, 12)
        refused = [await reader.readline() for reader in readers[12:]]
        assert all(b" 429 " in line for line in refused), refused
        answer = await chat(proxy, keys["evil"])
        assert status(answer) == 429 and b"its share of 16" in answer and b"retry-after" in answer.lower()
        assert status(await chat(proxy, keys["ann"])) == 200
        assert status(await ask(proxy, keys["root"], "DELETE", "/rl/keys/evil")) == 200
        assert status(await chat(proxy, keys["evil"])) == 401
    await until_busy(proxy, 0)


async def test_where_all_places_are_taken_admins_and_commands_of_this_machine_get_in(
    proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("proxy.access.security.RESERVE", 4)
    await proxy.stop()
    await proxy.start(server__max_requests=PLACES)
    users = [await made_key(proxy, f"evil{n}", "use") for n in range(8)]
    root = await made_key(proxy, "root", "admin")
    async with contextlib.AsyncExitStack() as stack:
        for key in users:
            slow = unfinished("/v1/chat/completions", f"authorization: Bearer {key}")
            await stack.enter_async_context(held(proxy, slow, PLACES))
        await until_busy(proxy, PLACES)
        assert status(await chat(proxy, users[0])) in (429, 503)
        assert status(await chat(proxy, root)) == 503, "an admin's agent is no admin's act"
        assert status(await ask(proxy, root, "DELETE", "/rl/keys/evil0")) == 200
        assert status(await chat(proxy, users[0])) == 401
        # An admin's key in the hands of a program takes the reserve, too: commands of this machine have more.
        slow = unfinished("/rl/capture", f"authorization: Bearer {root}")
        await stack.enter_async_context(held(proxy, slow, 8))
        await until_busy(proxy, PLACES + 3)
        assert status(await ask(proxy, root)) == 429
        assert status(await ask(proxy, proxy.local, "DELETE", "/rl/keys/root")) == 200
    await until_busy(proxy, 0)
    assert status(await ask(proxy, proxy.local)) == 200


async def test_without_keys_a_flood_of_questions_keeps_nobody_from_the_page(proxy: Proxy) -> None:
    await proxy.stop()
    await proxy.start(server__max_requests=PLACES)
    async with held(proxy, unfinished("/v1/messages"), 2 * PLACES):
        await until_busy(proxy, 12)
        answer = await raw(proxy, head("POST", "/v1/messages", body=CHAT))
        assert status(answer) == 429 and b'"type":"error"' in answer, "as its dialect says it"
        for path in ("/", "/rl/status", "/rl/keys"):
            assert status(await raw(proxy, head("GET", path))) == 200
        assert status(await ask(proxy, proxy.local, "POST", "/rl/pause")) == 200
    await until_busy(proxy, 0)
    assert (await proxy.chat("again")).status == 200


async def test_event_streams_have_places_of_their_own(proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "EVENT_STREAMS", 8)
    await proxy.stop()
    await proxy.start(server__max_requests=PLACES)
    evil, ann = await made_key(proxy, "evil", "rate"), await made_key(proxy, "ann", "rate")
    listen = head("GET", "/rl/events", f"authorization: Bearer {evil}").replace(b"connection: close\r\n", b"")
    async with held(proxy, listen, 10):
        await until_busy(proxy, 4)
        answer = await ask(proxy, evil, "GET", "/rl/events")
        assert status(answer) == 429 and b"streams of /rl/events" in answer
        async with proxy.http.get("/rl/events", headers={"authorization": f"Bearer {ann}"}) as response:
            assert response.status == 200
        assert status(await chat(proxy, evil)) == status(await chat(proxy, ann)) == 200
    await until_busy(proxy, 0)


async def test_those_who_ask_whether_it_is_ready_hold_no_place_of_others(
    proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "PROBES", 8)
    await proxy.stop()
    await proxy.start(server__max_requests=PLACES)
    before = proxy.backend.lists
    proxy.backend.hold_lists.clear()
    async with held(proxy, b"GET /readyz HTTP/1.1\r\nhost: localhost\r\n\r\n", PLACES):
        await until_busy(proxy, 6)
        assert status(await raw(proxy, head("GET", "/rl/keys"))) == 200
        assert proxy.backend.lists == before + 1, "all of them wait for one question"
        proxy.backend.hold_lists.set()
    await until_busy(proxy, 0)
    assert (await proxy.chat("again")).status == 200


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/files", "/rl/import", "/v1/feedback"])
async def test_bodies_hold_no_more_memory_than_is_allowed(proxy: Proxy, path: str) -> None:
    """Announced, and also where their length is not said; what they held is free again."""
    await proxy.stop()
    await proxy.start(server__max_held_bytes=4_000_000, server__max_body_bytes=2_000_000)
    chunk = b"%x\r\n%s\r\n" % (900_000, b"x" * 900_000)
    chunked = f"POST {path} HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n".encode() + chunk
    for begun in (unfinished(path, length=900_000), chunked):
        if path == "/v1/files" and begun is chunked:
            continue  # it passes through, and nobody keeps it
        async with held(proxy, begun, 8) as readers:
            first_lines = [asyncio.create_task(reader.readline()) for reader in readers]
            async with asyncio.timeout(30):
                while sum(line.done() for line in first_lines) < 5 or len(proxy.app[BUSY]) > 3:
                    await asyncio.sleep(0.005)
            assert {(await line).split(b" ")[1] for line in first_lines if line.done()} <= {b"429", b"503"}
            for line in first_lines:
                line.cancel()
            if begun is not chunked:  # of those, fewer may be left
                answer = await raw(proxy, head("POST", path, body=b"x" * 900_000))
                assert status(answer) == 429 and b"server.max_held_bytes" in answer, answer
                assert b"retry-after" in answer.lower()
            assert (await proxy.chat("a short one holds next to nothing")).status == 200
        await until_busy(proxy, 0)
    assert proxy.app[BUSY] == set()
    assert (await proxy.chat("word " * 100_000)).status == 200


MANY = b'{"model":"fake","max_tokens":1,"messages":[{"role":"user","content":[' + b"{}," * 60_000 + b"{}]}]}"


@pytest.mark.parametrize(
    "path",
    ["/v1/chat/completions", "/v1/messages", "/v1/responses", "/api/chat", "/v1/messages/count_tokens", "/v1/feedback",
     "/v1/feedback/open-webui", "/rl/import", "/rl/episodes", "/rl/capture"],
)  # fmt: skip
async def test_a_short_body_that_becomes_very_much_is_refused_before_it_is_read(proxy: Proxy, path: str) -> None:
    """180 KB of empty objects are 15 MB of them."""
    await proxy.stop()
    await proxy.start(server__max_held_bytes=4_000_000)
    for sent, lines in ((MANY, ()), (gzip.compress(MANY), ("content-encoding: gzip",))):
        if lines and not path.startswith(("/v1/chat", "/v1/m", "/v1/r", "/api/")):
            continue  # rlproxy's own routes unpack nothing
        answer = await raw(proxy, head("POST", path, "content-type: application/json", *lines, body=sent))
        assert status(answer) == 413 and b"number of things in it" in answer, answer
    assert not proxy.backend.requests and not proxy.app[BUSY]
    assert (await proxy.chat("again")).status == 200


async def test_packed_bodies_hold_what_they_may_become(proxy: Proxy) -> None:
    await proxy.stop()
    await proxy.start(server__max_held_bytes=4_000_000, server__max_body_bytes=3_000_000)
    bomb = gzip.compress(b" " * 20_000_000)
    sent = head("POST", "/v1/chat/completions", "content-encoding: gzip", body=bomb)
    answers = await asyncio.gather(*(raw(proxy, sent) for _ in range(8)))
    assert {status(answer) for answer in answers} <= {413, 429, 503} and 413 in {status(one) for one in answers}
    packed = head("POST", "/v1/chat/completions", "content-encoding: gzip", body=gzip.compress(CHAT))
    assert status(await raw(proxy, packed)) == 200


UPGRADE = (
    "upgrade: websocket", "connection: upgrade", "sec-websocket-version: 13",
    "sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==",
)  # fmt: skip


def frame(size: int, *, first: bool = True, last: bool = False) -> bytes:
    """A frame of text, masked with zeros, as a client sends it."""
    return bytes([(0x80 if last else 0) | (1 if first else 0), 0xFF]) + size.to_bytes(8) + b"\0" * 4 + b" " * size


@pytest.fixture
def accounts(monkeypatch: pytest.MonkeyPatch) -> list[Bodies]:
    """The account of each proxy that was started."""
    made: list[Bodies] = []
    original = Bodies.__init__

    def init(self: Bodies, settings: ServerSection) -> None:
        original(self, settings)
        made.append(self)

    monkeypatch.setattr(Bodies, "__init__", init)
    return made


async def test_messages_that_do_not_end_hold_no_more_memory_than_is_allowed(
    proxy: Proxy, accounts: list[Bodies]
) -> None:
    """Of 60 WebSockets of one key, each with 31 MB of a message, 2 GB were held, in no account."""
    await proxy.stop()
    await proxy.start(server__max_held_bytes=8 << 20, server__max_body_bytes=4 << 20)
    key = await made_key(proxy, "eve", "use")
    bodies = accounts[-1]
    sent = head("GET", "/v1/responses", f"authorization: Bearer {key}", *UPGRADE) + frame(1 << 20)
    async with held(proxy, sent, 12) as readers:
        ends = [asyncio.create_task(reader.read()) for reader in readers]
        async with asyncio.timeout(20):
            while sum(end.done() for end in ends) < 6:  # a key has three quarters of 8 MiB
                await asyncio.sleep(0.01)
        assert 1 << 20 <= bodies.held_bytes <= 6 << 20
        for end in ends:
            end.cancel()
        await asyncio.gather(*ends, return_exceptions=True)  # a reset, or a close frame before it
        other = await made_key(proxy, "ann", "use")
        assert status(await chat(proxy, other)) == 200
    async with asyncio.timeout(20):
        while bodies.held_bytes:
            await asyncio.sleep(0.01)


async def test_a_message_that_is_taken_gives_no_room_of_the_next_one_back(proxy: Proxy, accounts: list[Bodies]) -> None:
    """While an answer was under way, a short message and 30 MB of an endless one came; 40 such held 1.2 GB."""
    await proxy.stop()
    await proxy.start(server__max_held_bytes=64 << 20, server__max_body_bytes=4 << 20)
    proxy.backend.hold.clear()
    short = frame(4, last=True)
    body = json.dumps({"type": "response.create", "model": "fake", "input": "hi"}).encode()
    asked = bytes([0x81, 0x80 | 126]) + len(body).to_bytes(2) + b"\0" * 4 + body
    sent = head("GET", "/v1/responses", *UPGRADE) + asked + short + frame(3 << 20)
    async with held(proxy, sent, 1) as (reader,):
        async with asyncio.timeout(20):
            while accounts[-1].held_bytes < 5 << 20:
                await asyncio.sleep(0.01)
            proxy.backend.hold.set()
            await reader.readuntil(b"not valid JSON")  # of the short one
        assert accounts[-1].held_bytes >= 5 << 20
    async with asyncio.timeout(20):
        while accounts[-1].held_bytes:
            await asyncio.sleep(0.01)


async def test_a_message_is_weighed_before_it_is_parsed(proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> None:
    """One of 31 MB of empty objects took 1 GB and held up everybody for 3 s, and was refused then."""
    await proxy.stop()
    await proxy.start(server__max_held_bytes=4_000_000)
    parsed: list[int] = []

    def counted(raw: bytes) -> object:
        parsed.append(len(raw))
        return json.loads(raw)

    monkeypatch.setattr("proxy.web.response_socket.loads", counted)
    async with proxy.http.ws_connect("/v1/responses") as socket:
        await socket.send_str(MANY.decode())
        error = await socket.receive_json(timeout=30)
        assert (error["type"], error["status"]) == ("error", 413) and "number of things" in error["error"]["message"]
        assert not parsed and not proxy.backend.requests
        await socket.send_json({"type": "response.create", "model": "fake", "input": "again"})
        while (event := await socket.receive_json(timeout=30))["type"] != "response.completed":
            assert event["type"] != "error", event


async def test_a_connection_goes_on_after_a_long_message(proxy: Proxy, accounts: list[Bodies]) -> None:
    await proxy.stop()
    await proxy.start(server__max_held_bytes=64 << 20, server__max_body_bytes=4 << 20)
    async with proxy.http.ws_connect("/v1/responses", compress=15) as socket:
        assert not socket.compress  # what is packed says nothing of its size
        for text in ("hello", "a" * 600_000, "hello", "a" * 600_000):
            await socket.send_json({"type": "response.create", "model": "fake", "input": text})
            while (event := await socket.receive_json(timeout=30))["type"] != "response.completed":
                assert event["type"] != "error", event
    async with asyncio.timeout(20):
        while accounts[-1].held_bytes:
            await asyncio.sleep(0.01)


async def test_memory_of_refused_requests_goes_back_to_the_system(
    proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only answers that were captured asked for that: 60 refused requests of 30 MB left 3 GB to the process."""
    trims = []
    monkeypatch.setattr("proxy.core.heap_trim.AFTER_S", 0.0)
    monkeypatch.setattr("proxy.core.heap_trim.heap_trim", lambda: trims.append(1))
    for body in (b" " * (2 << 20), b'{"model": "fake", "messages": 5, "a": "' + b" " * (2 << 20) + b'"}'):
        assert status(await raw(proxy, head("POST", "/v1/chat/completions", body=body))) >= 400
        async with asyncio.timeout(10):
            while not trims:
                await asyncio.sleep(0.01)
        trims.clear()
